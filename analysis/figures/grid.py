"""What figures are made of: panels, method rows, facets by setting, legends and captions."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedsim.core.terminal import printable

from .. import series
from ..labels import LABEL, METHOD, NAMES, computed, text
from ..runs import Group
from ..units import ExperimentalUnit
from ..words import say
from . import style

FEW = 12
"""Curves of at most this many points show them as dots."""
WIDTH = 8.8
"""Width in inches of a figure with one or two columns."""
TOGETHER = 3
"""Curves of at most this many methods are told apart in one panel; more become small multiples."""
DIRECT = 8
"""At most this many curves of a panel are labelled at their ends."""
WORDY = 28
"""Longer names stand in a legend."""
SPOKEN = 12
"""Texts for readers of alternative texts name at most this many methods."""
GREY = "#A9AFB5"
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Told = TypeVar("Told")
Grid = np.ndarray[tuple[Any, ...], np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes.

    Attributes:
        label: the vertical axis, with its unit.
        curves: by group label, columns mean, low, high (NaN: no band) and n on an index of x.
        title: the panel's heading, if the figure has several of the kind.
        zero: whether a line marks the value 0.
        possible: the range of possible values, at which bands and the vertical axis end.
        reach: values that the vertical axis always includes.
        x: the horizontal axis.
        log: a logarithmic x axis that decreases to the right, with ticks at the points.
        behind: further means by label, in grey.
        unit: what the means are over.
    """

    label: str
    curves: Mapping[str, pd.DataFrame]
    title: str = ""
    zero: bool = False
    possible: tuple[float, float] = (-math.inf, math.inf)
    reach: tuple[float, ...] = ()
    x: str = "Communication round"
    log: bool = False
    behind: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    unit: ExperimentalUnit = "seed"


def apart(panel: Panel) -> list[Panel]:
    """Small multiples: a panel per curve with the others in grey, all with the same vertical axis.

    A panel of at most :data:`TOGETHER` curves stays one.
    """
    if len(panel.curves) <= TOGETHER:
        return [panel]
    frames = [clipped(curve, panel.possible) for curve in panel.curves.values()]
    ends = pd.concat([frame[part] for frame in frames for part in ("mean", "low", "high")])
    return [
        replace(
            panel,
            curves={label: curve},
            behind={other: own for other, own in panel.curves.items() if other != label},
            title="; ".join(filter(None, (style.title(label), panel.title))),
            reach=(*panel.reach, float(ends.min()), float(ends.max())),
        )
        for label, curve in panel.curves.items()
    ]


def multiples(panels: Sequence[Panel]) -> tuple[list[Panel | None], int]:
    """The panels of :func:`apart` with each panel's own on rows of their own, and the columns.

    None is an empty place at the end of a row.
    """
    blocks = [apart(panel) for panel in panels]
    widest = max(map(len, blocks), default=1)
    columns = 4 if widest == 4 or widest > 9 else min(3, widest)
    if all(len(block) == 1 for block in blocks):
        return list(panels), min(2, len(panels))
    padded: list[Panel | None] = []
    for block in blocks:
        padded += [*block, *[None] * (-len(block) % columns)]
    return padded, columns


def told(panels: Sequence[Panel]) -> str:
    """What a figure of panels shows, in words: where each curve ends, for readers of the text.

    The first :data:`SPOKEN` curves of a panel are told.
    """
    said = []
    for panel in panels:
        ends = {name: curve["mean"].iloc[-1] for name, curve in panel.curves.items() if len(curve)}
        texts = [f"{style.title(name)} {value:.4g}" for name, value in list(ends.items())[:SPOKEN]]
        more = [f"and {len(ends) - SPOKEN} more"] * (len(ends) > SPOKEN)
        where = f" ({panel.title})" if panel.title else ""
        said.append(f"{panel.label}{where} ends at {', '.join([*texts, *more])}")
    return "Line chart. " + "; ".join(said) + "."


def clipped(curve: pd.DataFrame, possible: tuple[float, float]) -> pd.DataFrame:
    """A curve whose band ends at the possible values."""
    bounds = {part: curve[part].clip(*possible) for part in ("low", "high")}
    return curve.assign(**bounds)


def curves(
    aggregates: Mapping[str, pd.DataFrame], column: str, factor: float = 1
) -> dict[str, pd.DataFrame]:
    """One column of :func:`analysis.series.aggregated` for a panel; groups without it are left out.

    ``factor`` leads to the unit of the axis.
    """
    bands = {
        label: band(series.complete(frame, column), factor)
        for label, frame in aggregates.items()
        if column in frame.columns
    }
    return {label: curve for label, curve in bands.items() if len(curve)}


def column(aggregate: pd.DataFrame, name: str) -> pd.DataFrame:
    """Columns mean, std, n, half of one quantity of :func:`analysis.series.aggregated`."""
    return aggregate.loc[:, [name]].droplevel(0, axis=1)


def band(estimates: pd.DataFrame, factor: float = 1) -> pd.DataFrame:
    """Columns mean, low, high, n from mean, half and n, without rows that have no mean."""
    known = estimates[estimates["n"] > 0]
    mean, half = known["mean"] * factor, known["half"] * factor
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half, "n": known["n"]})


def unit_note(counts: Iterable[float], unit: ExperimentalUnit, band: str = "band") -> str:
    """The meaning of a line and its band: ``Mean over 5 seeds on one partition, band: ...``."""
    numbers = sorted({int(count) for count in counts})
    if numbers == [1]:
        return "One run each" if unit == "seed" else "One partition each"
    count = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    what = "seeds on one partition" if unit == "seed" else "partitions of the data"
    return f"Mean over {count} {what}, {band}: 95 % t interval over the {unit}s"


def means_note(counts: Iterable[float], unit: ExperimentalUnit) -> str:
    """:func:`unit_note` within a sentence and without a band: ``mean over 5 seeds on ...``."""
    return unit_note(counts, unit).partition(",")[0].lower()


def panel_note(panels: Sequence[Panel]) -> str:
    """:func:`unit_note` of all curves of the panels."""
    counts = (curve["n"].max() for panel in panels for curve in panel.curves.values())
    return unit_note(counts, panels[0].unit)


def grid(
    panels: Sequence[Panel | None],
    columns: int,
    note: str,
    lines: Mapping[str, style.Line] | None = None,
) -> Figure:
    """A figure of panels in rows of ``columns``; None is an empty place.

    Few curves are labelled at their ends; else a legend is below, as is ``note``, what line and
    band mean. ``lines`` are by label, by default those of :func:`analysis.figures.style.lines`.
    """
    there = [panel for panel in panels if panel is not None]
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    labels = list(dict.fromkeys(label for panel in there for label in panel.curves))
    looks = lines or style.lines(labels)
    multiples = any(panel.behind for panel in there)
    widest = max((len(style.title(label)) for label in labels), default=0)
    few = max(len(panel.curves) for panel in there) <= DIRECT
    direct = few and widest <= WORDY and not multiples
    with style.look():
        wide = (3.1 + 0.07 * widest * direct * (columns > 2)) * columns
        width = max(WIDTH, 0 if multiples else wide)
        titles = [style.wrapped(panel.title, width / columns) if panel else "" for panel in panels]
        further = 0.21 * max(title.count("\n") for title in titles)  # inches of a heading's lines
        height = (3.4 if rows == 1 else 2.5 * rows) + rows * further + 0.7 - 0.3 * direct
        fig = Figure(figsize=(width, height))
        places, below = fig.subplots(rows, columns, squeeze=False).ravel(), panels[columns:]
        for index, (axes, panel) in enumerate(zip(places, panels, strict=False)):
            if panel is None:
                axes.set_visible(False)
                continue
            for curve in panel.behind.values():
                axes.plot(curve.index, curve["mean"], color=GREY, linewidth=0.9, zorder=1.2)
            for rank, (label, curve) in enumerate(panel.curves.items()):
                shown = clipped(curve, panel.possible)
                _draw(axes, shown, looks[label], style.title(label), len(panel.curves), rank)
            _frame(axes, panel, titles[index])
            if direct or (multiples and len(panel.curves) > 1):
                _label_ends(axes, panel, looks)
            if index >= len(below) or below[index] is None:
                axes.set_xlabel(panel.x)
            if multiples and index % columns:
                axes.set_ylabel("")
                axes.tick_params(labelleft=False)
        for axes in places[len(panels) :]:
            axes.set_visible(False)
        if multiples or direct:
            fig.supxlabel(style.wrapped(note, 1.4 * width), color="#555555", fontsize=10)
        else:
            handles = [
                Line2D([], [], color=looks[label].colour, linestyle=looks[label].dashes)
                for label in labels
            ]
            legend(fig, handles, [style.title(label) for label in labels], note)
    return fig


def _label_ends(axes: Axes, panel: Panel, looks: Mapping[str, style.Line]) -> None:
    """Each curve's name beside its last point, moved apart where the ends are close."""
    low, high = axes.get_ylim()
    ends = sorted(
        (float(curve["mean"].iloc[-1]), label)
        for label, curve in panel.curves.items()
        if len(curve)
    )
    if not ends:
        return
    wanted = np.array([(value - low) / (high - low) for value, _ in ends])
    places = _spaced(wanted, min(0.085, 1 / len(ends)))
    for (value, label), place in zip(ends, places, strict=True):
        last = panel.curves[label].index[-1]
        axes.annotate(
            style.title(label), (last, value), (1.03, place), textcoords="axes fraction",
            color=looks[label].colour, fontsize=9.5, va="center", annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": looks[label].colour, "linewidth": 0.7, "shrinkA": 1,
                "shrinkB": 2, "relpos": (0, 0.5),
            },
        )  # fmt: skip


def _spaced(wanted: Floats, gap: float) -> Floats:
    """Increasing places nearest to the wanted ones (n,), at least ``gap`` apart, within 0..1."""
    steps = gap * np.arange(len(wanted))
    blocks: list[tuple[float, int]] = []  # mean and number of places that touch each other
    for value in wanted - steps:
        mean, count = float(value), 1
        while blocks and blocks[-1][0] >= mean:
            other, more = blocks.pop()
            mean, count = (other * more + mean * count) / (more + count), more + count
        blocks.append((mean, count))
    level = np.concatenate([np.full(count, mean) for mean, count in blocks])
    return np.clip(level, 0, max(0.0, 1 - float(steps[-1]))) + steps


def legend(fig: Figure, handles: Sequence[Artist], labels: Sequence[str], note: str = "") -> None:
    """Adds one legend below all panels, in as few rows as fit; the figure grows by its height."""
    labels = [printable(label) for label in labels]
    rows = next((n for n in range(1, len(labels)) if _fits(fig, labels, n)), len(labels))
    fig.set_figheight(fig.get_figheight() + 0.22 * (rows - 1))
    below = fig.legend(
        handles, labels, loc="outside lower center", ncols=math.ceil(len(labels) / rows),
        title=note or None, borderpad=0,
    )  # fmt: skip
    below.get_title().set(color="#555555", fontsize=10)


def _fits(fig: Figure, labels: Sequence[str], rows: int) -> bool:
    """Whether a legend of ``rows`` rows is no wider than the figure; it fills columns evenly.

    Estimated with twelve characters per inch; a handle is as wide as seven.
    """
    columns = np.array_split(list(map(len, labels)), math.ceil(len(labels) / rows))
    return sum(int(column.max()) + 7 for column in columns) <= 11.5 * fig.get_figwidth()


def _draw(
    axes: Axes, curve: pd.DataFrame, line: style.Line, label: str, count: int, rank: int
) -> None:
    """A line over those of smaller rank, which are wider: they show where it covers them."""
    x = curve.index.to_numpy()
    wider = min(count - 1 - rank, 3)
    axes.plot(
        x, curve["mean"], color=line.colour, linestyle=line.dashes, label=label,
        marker="o" if len(x) <= FEW else "", markersize=4 + wider, linewidth=1.6 + 0.9 * wider,
    )  # fmt: skip
    if np.isfinite(curve["low"]).any():
        axes.fill_between(
            x, curve["low"], curve["high"], color=line.colour, lw=0,
            alpha=0.2 if count == 1 else 0.12 if count <= TOGETHER else 0.06,
        )  # fmt: skip


def _frame(axes: Axes, panel: Panel, title: str) -> None:
    axes.set_ylabel(panel.label)
    axes.set_title(title, loc="left")
    if panel.log:
        ticks = sorted({x for curve in panel.curves.values() for x in curve.index})
        axes.set_xscale("log")
        axes.invert_xaxis()
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.set_xticks([], minor=True)
    else:
        places = MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10])
        axes.xaxis.set_major_locator(places)
    axes.margins(x=0.02)
    if panel.zero:
        axes.axhline(0, color="#777777", linewidth=0.9, zorder=1.5)
    axes.update_datalim([(axes.dataLim.x0, y) for y in panel.reach])
    axes.autoscale_view(scalex=False)
    low, high = axes.get_ylim()
    span = panel.possible[1] - panel.possible[0]
    pad = 0.01 * (span if math.isfinite(span) else high - low)
    axes.set_ylim(max(low, panel.possible[0] - pad), min(high, panel.possible[1] + pad))


def heat_cells(
    axes: Axes, values: Grid, texts: Mapping[tuple[int, ...], tuple[str, bool]],
    size: float = 9.5, **mesh: Any,
) -> QuadMesh:  # fmt: skip
    """Coloured cells (rows, columns), with a text and whether the cell is dark for some of them.

    ``mesh`` are arguments of Matplotlib's ``pcolormesh``.
    """
    edges = [np.arange(count + 1) - 0.5 for count in values.shape]
    image = axes.pcolormesh(edges[1], edges[0], values, cmap="Blues", edgecolors="white", **mesh)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for (row, column), (shown, dark) in texts.items():
        colour = "white" if dark else "black"
        axes.text(column, row, shown, ha="center", va="center", fontsize=size, color=colour)
    return image


ROW = 0.34
"""Height of a method's row in inches."""


def method_rows(
    titles: Sequence[str], labels: Sequence[str], x: str, columns: int = 3
) -> tuple[Figure, list[Axes]]:
    """An empty figure with one panel per title and, in each, one row per method.

    Call it, and draw on its axes, within :func:`analysis.figures.style.look`. Row i is at height i;
    there are at most ``columns`` panels in a row.
    """
    columns = min(columns, len(titles))
    rows = math.ceil(len(titles) / columns)
    height = 0.8 + ROW * max(3, len(labels))
    fig = Figure(figsize=(8.8, 0.5 + height * rows))
    places = fig.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for index, (axes, title) in enumerate(zip(places, titles, strict=False)):
        axes.set_title(title, loc="left")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8 // columns + 1))
        axes.tick_params(left=False, labelbottom=True)
        axes.grid(visible=False, axis="y")
        if index + columns >= len(titles):
            axes.set_xlabel(x)
    for axes in places[len(titles) :]:
        axes.set_visible(False)
    places[0].set_yticks(range(len(labels)), [style.title(label) for label in labels])
    places[0].set_ylim(len(labels) - 0.4, -0.6)
    return fig, list(places[: len(titles)])


Rounds = Mapping[str, Mapping[str, pd.DataFrame]]
"""Columns of rounds.csv indexed by (unit, round), by setting and label."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure with its captions.

    Attributes:
        name: of its files, without suffix.
        title: the heading.
        caption: what is shown, over how many seeds or partitions, and the meaning of the band.
        reading: how to read the figure.
        figure: the Matplotlib figure.
        alt: what is seen, in words.
    """

    name: str
    title: str
    caption: str
    reading: str
    figure: Figure
    alt: str


@dataclass(frozen=True)
class Absent:
    """A figure that the runs have no data for, and how to get them."""

    title: str
    reason: str


def drawing(
    key: str, figure: Figure, *, name: str = "", title: str = "", caption: str = "",
    **values: object,
) -> Drawing:  # fmt: skip
    """A figure with the texts of its section of words.toml, which the values fill in.

    The name of its files, its heading and its caption are those of the section unless given.
    """
    title = title or say(f"{key}.title")
    return Drawing(
        name=name or key, title=title, figure=figure,
        caption=caption or say(f"{key}.caption", title=title, **values),
        reading=say(f"{key}.reading", **values), alt=say(f"{key}.alt", **values),
    )  # fmt: skip


def absent(key: str) -> Absent:
    """The figure of a section of words.toml is absent, for the reason that stands there."""
    return Absent(say(f"{key}.title"), say(f"{key}.absent"))


def labels_of(by_setting: Mapping[str, Mapping[str, object]]) -> list[str]:
    """All labels of what is by setting and label, in the order of their first setting."""
    return list(dict.fromkeys(label for by_label in by_setting.values() for label in by_label))


def told_by_label(by_setting: Mapping[str, Mapping[str, Told]], told: Callable[[Told], str]) -> str:
    """What is told of each label: ``FedAvg (alpha = 0.1) 84.0; FedLD (alpha = 0.1) 86.1``."""
    return "; ".join(
        f"{style.title(label)}{f' ({title})' if title else ''}{told(value)}"
        for title, by_label in by_setting.items()
        for label, value in by_label.items()
    )


Facets = Mapping[str, Sequence[Group]]
"""Groups labelled by method, by setting such as ``alpha = 0.1``; "" is the key if not split."""


def settings_by(by: Sequence[str], groups: Sequence[Group]) -> list[str]:
    """The columns of ``by`` that are settings of the experiment rather than of a method."""
    methods = {str(name) for group in groups for name in group.runs["algorithm"]}
    methods |= set(style.TITLES)
    return [
        column
        for column in dict.fromkeys(by)
        if column not in (LABEL, *METHOD)
        and column.rpartition(".")[0] not in methods
        and not column.startswith("margin")
    ]


def facets(groups: Sequence[Group], columns: Collection[str]) -> Facets:
    """Splits the groups by their values in ``columns``, which are removed from the labels.

    If each facet would have one group only, the groups are not split.
    """
    split: dict[str, list[Group]] = {}
    for group in groups:
        values = {c: text(group.runs[c].iloc[0]) for c in columns if c in group.runs.columns}
        gone = {f"{column}={value}" for column, value in values.items()}
        parts = [part for part in group.label.split(", ") if part not in gone]
        title = ", ".join(f"{NAMES.get(c, c)} = {value}" for c, value in values.items())
        split.setdefault(title, []).append(replace(group, label=", ".join(parts)))
    if all(len(inside) == 1 for inside in split.values()) or not columns:
        return {"": groups}
    return split


def unit_of(facets: Facets) -> ExperimentalUnit:
    """The unit of all groups."""
    return next((group.unit for groups in facets.values() for group in groups), "seed")


def facet_lines(facets: Facets, labels: Sequence[str] = ()) -> dict[str, style.Line]:
    """The line of each label, the same in all facets and figures, whichever groups have data."""
    methods = {
        group.label: str(computed(group.runs.iloc[:1]).iloc[0])
        for inside in facets.values()
        for group in inside
    }
    return style.lines(labels or labels_in(facets), methods)


def labels_in(facets: Facets) -> list[str]:
    """The labels of all groups, in the order of their first facet."""
    return list(dict.fromkeys(group.label for inside in facets.values() for group in inside))
