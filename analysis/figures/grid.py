"""What all figures are made of: one grid of panels, rows by columns, and a legend below."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from ..labels import title_of
from ..scores import Score
from ..stats import Estimate
from ..units import ExperimentalUnit
from ..words import say
from . import style

WIDTH = 8.8  # width in inches of a figure of few columns
FEW = 12  # curves of at most this many points show them as dots
NOTE = "#555555"
Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Curves in one place of a grid."""

    label: str  # the vertical axis, with its unit: the name of the row
    # by group label, columns mean, low, high (NaN: no band) and n on an index of x
    curves: Mapping[str, pd.DataFrame]
    title: str = ""  # the name of the column
    zero: bool = False  # whether a line marks the value 0
    possible: tuple[float, float] = (-math.inf, math.inf)  # where bands and vertical axis end
    reach: tuple[float, ...] = ()  # values that the vertical axis always includes
    x: str = "Communication round"  # the horizontal axis
    log: bool = False  # a logarithmic x axis that decreases to the right, with ticks at the points
    rising: bool = False  # whether that increases to the right
    unit: ExperimentalUnit = "seed"  # what the means are over


def grid(
    places: Mapping[tuple[str, str], str], *, height: float = 2.5, most: int = 3
) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """An empty figure with axes at each (row, column), with the label of its horizontal axis."""
    rows, columns = (list(dict.fromkeys(place[i] for place in places)) for i in (0, 1))
    lines = math.ceil(len(columns) / most)
    across = math.ceil(len(columns) / lines)
    total, width = lines * len(rows), max(WIDTH, 2.4 * across)
    titles = {name: style.wrapped(name, width / across) for name in columns}
    heading = 0.2 * max(text.count("\n") + bool(text) for text in titles.values())
    fig = Figure(figsize=(width, 0.7 + (height + heading * (lines > 1)) * total + heading))
    same = len(set(places.values())) == 1
    made: dict[tuple[str, str], Axes] = {}
    for (row, column), label in places.items():
        line, place = divmod(columns.index(column), across)
        first = next((axes for (other, _), axes in made.items() if other == row), None)
        index = (rows.index(row) * lines + line) * across + place + 1
        shared = next(iter(made.values()), None) if same else first
        axes = fig.add_subplot(total, across, index, sharex=shared, sharey=first)
        if index <= across or lines > 1:
            axes.set_title(titles[column], loc="left")
        if first is None or place == 0:
            axes.set_ylabel(row)
        below = rows[rows.index(row) + 1 :] if same else ()
        last = columns.index(column) + across >= len(columns)
        if last and not any((other, column) in places for other in below):
            axes.set_xlabel(label)
        axes.tick_params(labelleft=place == 0, labelbottom=bool(axes.get_xlabel()))
        made[row, column] = axes
    return fig, made


def method_rows(
    titles: Sequence[str], labels: Sequence[str], x: str, most: int = 3
) -> tuple[Figure, list[Axes]]:
    """:func:`named_rows` of methods."""
    return named_rows(titles, [title_of(label) for label in labels], x, most)


def named_rows(
    titles: Sequence[str], labels: Sequence[str], x: str, most: int = 3
) -> tuple[Figure, list[Axes]]:
    """A grid with one panel per title and, in each, one row per label: row i is at height i."""
    height, across = 0.5 + 0.34 * max(3, len(labels)), min(most, len(titles))
    x = style.wrapped(x, 1.2 * WIDTH / across)
    fig, spots = grid({("", name): x for name in titles}, height=height, most=most)
    places = list(spots.values())
    for axes in places:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8 // across + 1))
        axes.tick_params(left=False, labelbottom=True)
        axes.grid(visible=False, axis="y")
    places[0].set_yticks(range(len(labels)), labels)
    places[0].set_ylim(len(labels) - 0.4, -0.6)
    return fig, places


def curves_figure(
    panels: Sequence[Panel], note: str, lines: Mapping[str, style.Line] | None = None
) -> Figure:
    """Curves on a grid with a legend below."""
    labels = list(dict.fromkeys(label for panel in panels for label in panel.curves))
    looks = lines or style.lines(labels)
    with style.look():
        fig, places = grid({(panel.label, panel.title): panel.x for panel in panels})
        for panel in panels:
            for label, curve in panel.curves.items():
                _draw(places[panel.label, panel.title], curve, looks[label], panel.possible, label)
        for panel in panels:  # shared axes end where all curves do
            _frame(places[panel.label, panel.title], panel)
        handles = [
            Line2D([], [], color=looks[label].colour, linestyle=looks[label].dashes)
            for label in labels
        ]
        legend(fig, handles, [title_of(label) for label in labels], note)
    return fig


def _draw(
    axes: Axes, curve: pd.DataFrame, line: style.Line, possible: tuple[float, float], label: str
) -> None:
    """A line with its band, which ends at the possible values."""
    x = curve.index.to_numpy()
    axes.plot(
        x, curve["mean"], color=line.colour, linestyle=line.dashes, label=title_of(label),
        marker="o" if len(x) <= FEW else "", markersize=4,
    )  # fmt: skip
    if np.isfinite(curve["low"]).any():
        low, high = (curve[end].clip(*possible) for end in ("low", "high"))
        axes.fill_between(x, low, high, color=line.colour, lw=0, alpha=0.13)


def _frame(axes: Axes, panel: Panel) -> None:
    """Ticks, the line at zero, and the ends of the vertical axis."""
    if panel.log:
        ticks = sorted({x for curve in panel.curves.values() for x in curve.index})
        axes.set_xscale("log")
        ends = max(ticks) * 1.2, min(ticks) / 1.2
        axes.set_xlim(*(reversed(ends) if panel.rising else ends))
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


def mean_dot(
    axes: Axes, value: Estimate, row: float, score: Score, colour: str, **look: Any
) -> None:
    """A mean with its interval within the possible values, at the height of a row."""
    factor, (least, most) = score.unit.factor, score.possible
    mean, half = factor * value.mean, factor * value.half
    ends = [[min(half, mean - least)], [min(half, most - mean)]]
    axes.errorbar(
        mean, row, xerr=None if math.isnan(half) else ends, color=colour, markersize=7, **look
    )


def legend(fig: Figure, handles: Sequence[Artist], labels: Sequence[str], note: str = "") -> None:
    """Adds one legend below all panels; the figure grows by its height."""
    labels = [printable(label) for label in labels]
    fit = int(11.5 * fig.get_figwidth()) // (max(map(len, labels), default=1) + 7)
    rows = math.ceil(len(labels) / max(1, fit))
    fig.set_figheight(fig.get_figheight() + 0.22 * (rows - 1))
    below = fig.legend(
        handles, labels, loc="outside lower center", ncols=math.ceil(len(labels) / max(1, rows)),
        title=note or None, borderpad=0,
    )  # fmt: skip
    below.get_title().set(color=NOTE, fontsize=10)


def thinned(names: Sequence[str], longest: int = 12) -> tuple[range, list[str]]:
    """Places and texts of at most 25 axis labels, which have at most ``longest`` characters."""
    every = (1, 5, 10, 50, 100, 500, 1000, 5000)
    step = next((step for step in every if len(names) <= 25 * step), len(names))
    return range(0, len(names), step), [style.short(name, longest) for name in names[::step]]


def name_ticks(axes: Axes, names: Sequence[str], room: int, longest: int = 12) -> None:
    """Names on the horizontal axis, slanted where so many characters do not fit."""
    places, texts = thinned(names, longest)
    slanted = sum(len(text) + 1 for text in texts) > room
    looks: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(places, texts, **(looks if slanted else {}))


def heat_cells(
    axes: Axes, values: Array, texts: Mapping[tuple[int, ...], tuple[str, bool]],
    size: float = 9.5, cmap: str = "Blues", **mesh: Any,
) -> QuadMesh:  # fmt: skip
    """Coloured cells (rows, columns); some have a text, white where they are dark."""
    edges = [np.arange(count + 1) - 0.5 for count in values.shape]
    image = axes.pcolormesh(edges[1], edges[0], values, cmap=cmap, edgecolors="white", **mesh)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for (row, column), (shown, dark) in texts.items():
        colour = "white" if dark else "black"
        axes.text(column, row, shown, ha="center", va="center", fontsize=size, color=colour)
    return image


def curves(
    aggregates: Mapping[str, pd.DataFrame], column: str, factor: float = 1
) -> dict[str, pd.DataFrame]:
    """One column of :func:`analysis.series.aggregated` times ``factor``, by label."""
    bands = {
        label: band(series.complete(frame, column), factor)
        for label, frame in aggregates.items()
        if column in frame.columns
    }
    return {label: curve for label, curve in bands.items() if len(curve)}


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


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure with its captions, the name of its files, and its PNG in base64, in a report."""

    name: str
    title: str
    caption: str
    reading: str
    figure: Figure
    png: str = ""


@dataclass(frozen=True)
class Absent:
    """A figure that the runs have no data for, and how to get them."""

    title: str
    reason: str


def drawing(
    key: str, figure: Figure, *, name: str = "", title: str = "", **values: object
) -> Drawing:
    """A figure with its texts in figures.j2, by default named as their section."""
    values = {"title": title or say(f"{key}.title", **values), **values}
    return Drawing(
        name=name or key, title=str(values["title"]), figure=figure,
        caption=say(f"{key}.caption", **values), reading=say(f"{key}.reading", **values),
    )  # fmt: skip


def of_panels(
    key: str, panels: Iterable[Panel], lines: Mapping[str, style.Line], **values: Any
) -> Drawing | Absent:
    """The figure of a section that has the panels with curves; absent where there are none."""
    shown = [panel for panel in panels if panel.curves]
    if not shown:
        return absent(key, **values)
    note = panel_note(shown)
    return drawing(key, curves_figure(shown, note, lines), note=note, **values)


def absent(key: str, **values: Any) -> Absent:
    """The figure of a section of figures.j2 is absent, for the reason that stands there."""
    return Absent(say(f"{key}.title", **values), say(f"{key}.absent", **values))


def facet_lines(facets: Facets) -> dict[str, style.Line]:
    """The line of each label, the same in all facets and figures, whichever groups have data."""
    return style.lines(labels_in(facets))
