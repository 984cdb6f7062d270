"""What all figures are made of: one grid of panels, rows by columns, and a legend below."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

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
from ..facets import Facets, labels_in
from ..labels import computed, title_of
from ..units import ExperimentalUnit
from ..words import say
from . import style

WIDTH = 8.8
"""Width in inches of a figure of few columns."""
FEW = 12
"""Curves of at most this many points show them as dots."""
TOGETHER = 3
"""Learning curves of more methods have a panel each, with the others in grey."""
WIDER = 4
"""Of at most so many curves in a panel those below are wider than those above them."""
SPOKEN = 12
"""Texts for readers of alternative texts name at most this many methods."""
GREY, NOTE = "#A9AFB5", "#555555"
Value = TypeVar("Value")
Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Curves in one place of a grid.

    Attributes:
        label: the vertical axis, with its unit: the name of the row.
        curves: by group label, columns mean, low, high (NaN: no band) and n on an index of x.
        title: the name of the column.
        zero: whether a line marks the value 0.
        possible: the range of possible values, at which bands and the vertical axis end.
        reach: values that the vertical axis always includes.
        x: the horizontal axis.
        log: a logarithmic x axis that decreases to the right, with ticks at the points.
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
    unit: ExperimentalUnit = "seed"


class Spot(NamedTuple):
    """Axes in a grid, and whether they are the first of their line, and the last of their row."""

    axes: Axes
    left: bool
    bottom: bool


def grid(
    places: Iterable[tuple[str, str]], *, height: float = 2.5, most: int = 3, sharex: bool = False
) -> tuple[Figure, dict[tuple[str, str], Spot]]:
    """An empty figure with axes at each (row, column), both in the order of their first place.

    Rows are labelled on the left and columns above. A row of more than ``most`` columns takes
    several lines. The panels of a row share the vertical axis and, as all do with ``sharex``, the
    horizontal one. Call it, and draw on its axes, within :func:`analysis.figures.style.look`.
    """
    wanted = list(dict.fromkeys(places))
    rows, columns = (list(dict.fromkeys(place[i] for place in wanted)) for i in (0, 1))
    lines = math.ceil(len(columns) / most)
    across = math.ceil(len(columns) / lines)
    width = max(WIDTH, 2.4 * across)
    titles = {name: style.wrapped(name, width / across) for name in columns}
    heading = 0.2 * max(text.count("\n") + bool(text) for text in titles.values())
    total = lines * len(rows)
    fig = Figure(figsize=(width, 0.7 + (height + heading * (lines > 1)) * total + heading))
    made: dict[tuple[str, str], Spot] = {}
    shared: Axes | None = None
    for i, row in enumerate(rows):
        shared, first = (shared if sharex else None), None
        for j, column in enumerate(columns):
            if (row, column) not in wanted:
                continue
            line, place = divmod(j, across)
            index = (i * lines + line) * across + place + 1
            axes = fig.add_subplot(total, across, index, sharex=shared, sharey=first)
            shared, first = shared or axes, first or axes
            below = rows[i + 1 :] if sharex else ()
            bottom = j + across >= len(columns) and not any((r, column) in wanted for r in below)
            if lines > 1 or i == 0:
                axes.set_title(titles[column], loc="left")
            if place == 0 or (row, columns[j - 1]) not in wanted:
                axes.set_ylabel(row)
            axes.tick_params(labelleft=place == 0, labelbottom=bottom)
            made[row, column] = Spot(axes, place == 0, bottom)
    return fig, made


def method_rows(
    titles: Sequence[str], labels: Sequence[str], x: str, most: int = 3
) -> tuple[Figure, list[Axes]]:
    """A grid with one panel per title and, in each, one row per method: row i is at height i."""
    height = 0.5 + 0.34 * max(3, len(labels))
    fig, spots = grid([("", name) for name in titles], height=height, most=most, sharex=True)
    x = style.wrapped(x, 1.2 * fig.get_figwidth() / min(most, len(titles)))
    for spot in spots.values():
        spot.axes.xaxis.set_major_locator(MaxNLocator(nbins=8 // min(most, len(titles)) + 1))
        spot.axes.tick_params(left=False, labelbottom=True)
        spot.axes.grid(visible=False, axis="y")
        if spot.bottom:
            spot.axes.set_xlabel(x)
    places = [spot.axes for spot in spots.values()]
    places[0].set_yticks(range(len(labels)), [title_of(label) for label in labels])
    places[0].set_ylim(len(labels) - 0.4, -0.6)
    return fig, places


def curves_figure(
    panels: Sequence[Panel], note: str, lines: Mapping[str, style.Line] | None = None, *,
    apart: bool = False,
) -> Figure:  # fmt: skip
    """Curves on a grid with a legend below; ``apart``: many methods have a panel each.

    ``lines`` are by label, by default those of :func:`analysis.figures.style.lines`.
    """
    labels = list(dict.fromkeys(label for panel in panels for label in panel.curves))
    looks = lines or style.lines(labels)
    several = apart and max(len(panel.curves) for panel in panels) > TOGETHER
    shown = {}
    for panel in panels:
        if not several:
            shown[panel.label, panel.title] = panel, list(panel.curves)
        for label in panel.curves if several else ():
            row = "\n".join(filter(None, (panel.label, panel.title)))
            shown[row, title_of(label)] = panel, [label]
    with style.look():
        fig, spots = grid(shown, most=4 if several else 3, sharex=len({p.x for p in panels}) == 1)
        for place, (panel, front) in shown.items():
            axes = spots[place].axes
            for label in panel.curves.keys() - {*front}:
                other = panel.curves[label]
                axes.plot(other.index, other["mean"], color=GREY, linewidth=0.9, zorder=1.2)
            for rank, label in enumerate(front):
                curve = clipped(panel.curves[label], panel.possible)
                above = len(front) - 1 - rank if len(front) <= WIDER else 0
                _draw(axes, curve, looks[label], title_of(label), above)
            if spots[place].bottom:
                axes.set_xlabel(panel.x)
        for place, (panel, _) in shown.items():  # shared axes end where all curves do
            _frame(spots[place].axes, panel)
        if several:
            fig.supxlabel(style.wrapped(note, 1.4 * fig.get_figwidth()), color=NOTE, fontsize=10)
        else:
            handles = [
                Line2D([], [], color=looks[label].colour, linestyle=looks[label].dashes)
                for label in labels
            ]
            legend(fig, handles, [title_of(label) for label in labels], note)
    return fig


def _draw(axes: Axes, curve: pd.DataFrame, line: style.Line, label: str, above: int) -> None:
    """A line with its band, wider where others are drawn above it, so that it shows behind them."""
    x = curve.index.to_numpy()
    axes.plot(
        x, curve["mean"], color=line.colour, linestyle=line.dashes, label=label,
        linewidth=1.6 + 0.9 * above,
        marker="o" if len(x) <= FEW else "", markersize=4 + above,
    )  # fmt: skip
    if np.isfinite(curve["low"]).any():
        axes.fill_between(x, curve["low"], curve["high"], color=line.colour, lw=0, alpha=0.13)


def _frame(axes: Axes, panel: Panel) -> None:
    """Ticks, the line at zero, and the ends of the vertical axis."""
    if panel.log:
        ticks = sorted({x for curve in panel.curves.values() for x in curve.index})
        axes.set_xscale("log")
        axes.set_xlim(max(ticks) * 1.2, min(ticks) / 1.2)
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.set_xticks([], minor=True)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
        axes.margins(x=0.02)
    if panel.zero:
        axes.axhline(0, color="#777777", linewidth=0.9, zorder=1.5)
    axes.update_datalim([(axes.dataLim.x0, y) for y in panel.reach])
    axes.autoscale_view(scalex=False)
    low, high = axes.get_ylim()
    span = panel.possible[1] - panel.possible[0]
    pad = 0.01 * (span if math.isfinite(span) else high - low)
    axes.set_ylim(max(low, panel.possible[0] - pad), min(high, panel.possible[1] + pad))


def legend(fig: Figure, handles: Sequence[Artist], labels: Sequence[str], note: str = "") -> None:
    """Adds one legend below all panels, in as few rows as fit; the figure grows by its height."""
    labels = [printable(label) for label in labels]
    rows = next((n for n in range(1, len(labels)) if _fits(fig, labels, n)), len(labels))
    fig.set_figheight(fig.get_figheight() + 0.22 * (rows - 1))
    below = fig.legend(
        handles, labels, loc="outside lower center", ncols=math.ceil(len(labels) / rows),
        title=note or None, borderpad=0,
    )  # fmt: skip
    below.get_title().set(color=NOTE, fontsize=10)


def _fits(fig: Figure, labels: Sequence[str], rows: int) -> bool:
    """Whether a legend of ``rows`` rows is no wider than the figure; it fills columns evenly.

    Estimated with twelve characters per inch; a handle is as wide as seven.
    """
    columns = np.array_split(list(map(len, labels)), math.ceil(len(labels) / rows))
    return sum(int(column.max()) + 7 for column in columns) <= 11.5 * fig.get_figwidth()


def heat_cells(
    axes: Axes, values: Array, texts: Mapping[tuple[int, ...], tuple[str, bool]],
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
    rows = estimates[estimates["n"] > 0]
    mean, half = rows["mean"] * factor, rows["half"] * factor
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half, "n": rows["n"]})


def unit_note(counts: Iterable[float], unit: ExperimentalUnit, band: str = "band") -> str:
    """The meaning of a line and its band: ``Mean over 5 seeds on one partition, band: ...``."""
    return say("figure.unit", numbers=sorted({int(n) for n in counts}), unit=unit, band=band)


def means_note(counts: Iterable[float], unit: ExperimentalUnit) -> str:
    """:func:`unit_note` within a sentence and without a band: ``mean over 5 seeds on ...``."""
    return unit_note(counts, unit).partition(",")[0].lower()


def panel_note(panels: Sequence[Panel]) -> str:
    """:func:`unit_note` of all curves of the panels."""
    counts = (curve["n"].max() for panel in panels for curve in panel.curves.values())
    return unit_note(counts, panels[0].unit)


def ends(panels: Sequence[Panel]) -> str:
    """What a figure of curves shows, for readers of the text: where each curve ends."""
    last = [
        (panel, {title_of(k): c["mean"].iloc[-1] for k, c in panel.curves.items() if len(c)})
        for panel in panels
    ]
    return say("figure.ends", panels=last, most=SPOKEN)


def by_label(by_setting: Mapping[str, Mapping[str, Value]], text: Callable[[Value], str]) -> str:
    """A text of each label: ``FedAvg (alpha = 0.1) 84.0; FedLD (alpha = 0.1) 86.1``."""
    return "; ".join(
        f"{title_of(label)}{f' ({setting})' if setting else ''}{text(value)}"
        for setting, values in by_setting.items()
        for label, value in values.items()
    )


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
    key: str, figure: Figure, *, name: str = "", title: str = "", **values: object
) -> Drawing:
    """A figure with its texts in figures.j2, which the values fill in.

    The name of its files and its heading are those of the section unless given.
    """
    values = {"title": title or say(f"{key}.title"), **values}
    caption, reading, alt = (say(f"{key}.{p}", **values) for p in ("caption", "reading", "alt"))
    return Drawing(
        name=name or key, title=str(values["title"]), figure=figure, caption=caption,
        reading=reading, alt=alt,
    )  # fmt: skip


def absent(key: str) -> Absent:
    """The figure of a section of figures.j2 is absent, for the reason that stands there."""
    return Absent(say(f"{key}.title"), say(f"{key}.absent"))


def facet_lines(facets: Facets, labels: Sequence[str] = ()) -> dict[str, style.Line]:
    """The line of each label, the same in all facets and figures, whichever groups have data."""
    methods = {
        group.label: str(computed(group.runs.iloc[:1]).iloc[0])
        for inside in facets.values()
        for group in inside
    }
    return style.lines(labels or labels_in(facets), methods)
