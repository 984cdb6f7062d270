"""One look for all figures: colours that colour-blind readers can tell apart, and files."""

import io
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from fedsim.core.files import run_around, write
from fedsim.core.terminal import printable

from .. import AnalysisError

BLACK, ORANGE, BLUE, RED = "#000000", "#E69F00", "#0072B2", "#D55E00"
PALETTE = (
    BLUE, ORANGE, "#009E73", "#CC79A7", "#56B4E9", "#7A7A10", RED, BLACK, "#3018A8", "#601800",
)  # fmt: skip
"""Seven colours of Okabe and Ito (2008) and three more. Any two differ by 15 or more in CIE Lab,
also as seen with deuteranopia (Machado et al., 2009)."""
DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
LOOK: dict[Any, Any] = {
    "font.size": 11, "axes.titlesize": 11, "axes.labelsize": 11, "legend.fontsize": 10.5,
    "xtick.labelsize": 10, "ytick.labelsize": 10, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": "#DDDDDD", "grid.linewidth": 0.6,
    "lines.linewidth": 1.6, "pdf.fonttype": 42, "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.08, "figure.constrained_layout.h_pad": 0.08,
    "text.parse_math": False,  # names of classes, sites and settings may hold dollar signs
}  # fmt: skip
"""Matplotlib settings for figures shown at 800 pixels or one text width."""
FORMATS: Mapping[str, dict[str, None]] = {
    ".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None},
}  # fmt: skip
"""Figures by suffix, without the metadata that would differ from day to day."""


@dataclass(frozen=True)
class Line:
    """Colour and Matplotlib line style of a method."""

    colour: str
    dashes: Literal["-", "--", ":", "-."]


def lines(labels: Sequence[str]) -> dict[str, Line]:
    """The line of each label, by its place; beyond ten, colours come again with other dashes."""
    every = [Line(colour, dashes) for dashes in DASHES for colour in PALETTE]
    return {label: every[i % len(every)] for i, label in enumerate(dict.fromkeys(labels))}


def of_labels(labels: Sequence[int], known: Sequence[str] | None) -> list[str]:
    """The names of classes by label, or the labels themselves where they have no name."""
    return [
        known[label] if known is not None and 0 <= label < len(known) else str(label)
        for label in labels
    ]


def short(name: str, most: int = 12) -> str:
    """A name of at most ``most`` characters, all of which can be seen."""
    name = printable(name)
    return name if len(name) <= most else name[: most - 1] + "…"


def wrapped(text: str, inches: float) -> str:
    """A heading in as many lines as a place of this width needs, at ten characters an inch."""
    return textwrap.fill(text, max(12, int(10 * inches) - 2), break_on_hyphens=False)


@contextmanager
def look() -> Iterator[None]:
    """Matplotlib with :data:`LOOK`; a character that the font does not have is a box."""
    with warnings.catch_warnings(), mpl.rc_context(LOOK):
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield


class _Plain(LogFormatter):
    """Numbers such as 0.001 where Matplotlib labels a logarithmic axis."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def logarithmic(axis: Axis) -> None:
    """Labels a logarithmic axis without mathematics, which :func:`look` switches off."""
    axis.set_major_formatter(_Plain())
    axis.set_minor_formatter(_Plain(labelOnlyBase=False))


def check_output(path: Path) -> None:
    """Refuses a file in no folder, or in that of a run."""
    if not path.parent.is_dir():
        raise AnalysisError(f"{path}: the folder {path.parent} does not exist")
    if folder := run_around(path):
        raise AnalysisError(f"--out {path}: lies inside the run directory {folder}")


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG (200 dpi), PDF or SVG, by the suffix, with reproducible bytes."""
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
