"""One look for all figures: one colour per method, colour-blind safe.

Seven of the ten colours are those of Okabe and Ito (2008) that stand out on white paper. Any two of
them differ by 15 or more in CIE Lab, also as seen with deuteranopia (Machado et al., 2009); beyond
ten methods the line style tells them apart.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib as mpl
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from fedsim.core.files import run_around, write
from fedsim.core.terminal import printable

from .. import AnalysisError
from ..labels import title_of

BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
COLOURS = (BLACK, ORANGE, SKY, GREEN, PURPLE, BLUE, RED)
BROWN, INDIGO, OLIVE = "#601800", "#3018A8", "#7A7A10"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, OLIVE, RED, BLACK, INDIGO, BROWN)
"""All colours, in the order in which methods without one of their own take them."""
Dashes = Literal["-", "--", ":", "-."] | tuple[float, tuple[float, ...]]
"""A line style of Matplotlib."""
LONG = 12
"""Figures shorten longer names of classes and clients."""
DASHES: tuple[Dashes, ...] = ("-", "--", ":", "-.")
SPARSE: Dashes = (0, (7, 2, 1.5, 2, 1.5, 2))
"""Dash, dot, dot: for FedLD's halves."""


@dataclass(frozen=True)
class Line:
    """Colour and Matplotlib line style of a method."""

    colour: str
    dashes: Dashes


_ROWS = (
    "fedavg fedprox fedbn fedpac fednova fedgh fedld",
    "fedavgm fedcm scaffold feddyn moon fedgh_released fedld_released",
    "feddecorr fedsam fedsr fediir pcgrad simagg regagg",
    "slowmo fedadam fedyogi fedadagrad robfedavg pfedla matched_mean",
)
LINES: Mapping[str, Line] = {
    name: Line(colour, dashes)
    for row, dashes in zip(_ROWS, DASHES, strict=True)
    for name, colour in zip(row.split(), COLOURS, strict=True)
} | {"local": Line(BROWN, "-"), "centralized": Line(INDIGO, "-")}
"""The line of each known method, by the name of its file in fedsim/algorithms; those of local and
centralized training have colours that no method has."""


HALVES: Mapping[str, Line] = {
    "fedld, margin=none": Line(BLUE, SPARSE), "fedld, server=fedavg": Line(GREEN, SPARSE),
}  # fmt: skip
"""Those of FedLD's halves, by the label of their runs."""


def of_labels(labels: Sequence[int], known: Sequence[str] | None) -> list[str]:
    """The names of classes by label, or the labels themselves where they have no name."""
    return [
        known[label] if known is not None and 0 <= label < len(known) else str(label)
        for label in labels
    ]


def short(name: str, most: int = LONG) -> str:
    """A name of at most ``most`` characters, all of which can be seen."""
    name = printable(name)
    return name if len(name) <= most else name[: most - 1] + "…"


class _Words(textwrap.TextWrapper):
    """Breaks lines at spaces and after commas, and inside of words that are too long."""

    wordsep_simple_re = re.compile(r"(\s+|(?<=,))")


def wrapped(text: str, inches: float) -> str:
    """A heading in as many lines as a place of this width needs, at ten characters an inch."""
    return "\n".join(_Words(max(12, int(10 * inches) - 2), break_on_hyphens=False).wrap(text))


def lines(labels: Sequence[str], methods: Mapping[str, str] = {}) -> dict[str, Line]:
    """The line of each label: that of its method, the same in all figures.

    ``methods`` are by label what :func:`analysis.labels.computed` gives, whatever the user calls
    the runs; without it the label says it. Known methods and variants have the line of
    :data:`LINES`; of several labels of one method one has it, that of its name before others. The
    others take unused colours in the order of the labels, so that all figures of one report must
    be given the same labels. Beyond ten, colours come again with other line styles; beyond fifty,
    lines do.
    """
    fixed = {**LINES, **HALVES}
    names = {n.casefold(): line for key, line in fixed.items() for n in (key, title_of(key))}
    usual = {
        label: fixed.get(methods[label]) if label in methods else names.get(_stem(label))
        for label in labels
    }
    chosen: dict[str, Line] = {}
    for label in sorted(usual, key=lambda label: label.casefold() not in names):
        line = usual[label]
        if line is not None and line not in chosen.values():
            chosen[label] = line
    every = [Line(colour, dashes) for dashes in (*DASHES, SPARSE) for colour in PALETTE]
    for label in (label for label in usual if label not in chosen):
        used = {line.colour for line in chosen.values()}
        fresh = [line for line in every[: len(PALETTE)] if line.colour not in used]
        free = fresh or [line for line in every if line not in chosen.values()] or every
        chosen[label] = free[0 if fresh else len(chosen) % len(free)]
    return {label: chosen[label] for label in usual}


def _stem(label: str) -> str:
    """A label without settings of the experiment, in small letters."""
    parts = label.casefold().split(", ")
    return ", ".join(p for p in parts if "=" not in p or p.startswith(("server=", "margin=")))


@contextmanager
def look() -> Iterator[None]:
    """Matplotlib settings for figures shown at 800 pixels or one text width.

    No text is read as mathematics: names of classes, sites and settings may hold dollar signs. A
    character that the font does not have is a box, without a warning.
    """
    with (
        warnings.catch_warnings(),
        mpl.rc_context(
            {
                "font.size": 11,
                "axes.titlesize": 11,
                "axes.labelsize": 11,
                "xtick.labelsize": 10,
                "ytick.labelsize": 10,
                "legend.fontsize": 10.5,
                "legend.frameon": False,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.grid": True,
                "axes.axisbelow": True,
                "grid.color": "#DDDDDD",
                "grid.linewidth": 0.6,
                "lines.linewidth": 1.6,
                "figure.constrained_layout.use": True,
                "figure.constrained_layout.w_pad": 0.08,
                "figure.constrained_layout.h_pad": 0.08,
                "pdf.fonttype": 42,
                "text.parse_math": False,
            }
        ),
    ):
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield


def check_output(path: Path) -> None:
    """Refuses what cannot be written, or would be added to the files of a run.

    Raises:
        AnalysisError: there is no folder, the path lies in a run directory, or is no regular file.
    """
    if not path.parent.is_dir():
        raise AnalysisError(f"{path}: the folder {path.parent} does not exist")
    if folder := run_around(path):
        raise AnalysisError(f"--out {path}: lies inside the run directory {folder}")
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise AnalysisError(f"--out {path}: is there, and not a regular file")


FORMATS: Mapping[str, dict[str, None]] = {
    ".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None},
}  # fmt: skip
"""Figures by suffix, without the metadata that would differ from day to day."""


class _Plain(LogFormatter):
    """Numbers such as 0.001 where Matplotlib labels a logarithmic axis."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def logarithmic(axis: Axis) -> None:
    """Labels a logarithmic axis without mathematics, which :func:`look` switches off."""
    axis.set_major_formatter(_Plain())
    axis.set_minor_formatter(_Plain(labelOnlyBase=False))


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG (200 dpi), PDF or SVG, by the suffix, with reproducible bytes.

    Raises:
        AnalysisError: another suffix, or as :func:`check_output`.
        StoreError: the file cannot be written.
    """
    if path.suffix not in FORMATS:
        raise AnalysisError(f"{path}: a figure is a file named .png, .pdf or .svg")
    check_output(path)
    write(path, rendered(figure, path.suffix))


def rendered(figure: Figure, suffix: str) -> bytes:
    """The file of a figure, by its suffix as :func:`save` writes it."""
    file = io.BytesIO()
    with look(), mpl.rc_context({"svg.hashsalt": "fedsim"}):
        figure.savefig(file, format=suffix[1:], dpi=200, metadata=FORMATS[suffix])
    return file.getvalue()
