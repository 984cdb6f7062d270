"""What figures are made of: panels, method rows, facets by setting, legends and captions."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from . import series, style
from .runs import METHOD, Group, text

FEW = 12
"""Curves of at most this many points show them as dots."""
WIDTH = 8.8
"""Width in inches of a figure with one or two columns."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes.

    Attributes:
        label: the vertical axis, with its unit.
        curves: by group label, columns mean, low, high (NaN: no band) and n on an index of x.
        title: the panel's heading, if the figure has several of the kind.
        zero: whether a line marks the value 0.
        limits: bounds that the vertical axis does not exceed, for shares and per cent.
        reach: values that the vertical axis always includes.
        x: the horizontal axis.
        log: a logarithmic x axis that decreases to the right, with ticks at the points.
    """

    label: str
    curves: Mapping[str, pd.DataFrame]
    title: str = ""
    zero: bool = False
    limits: tuple[float, float] = (-math.inf, math.inf)
    reach: tuple[float, ...] = ()
    x: str = "Communication round"
    log: bool = False


def curves(
    aggregates: Mapping[str, pd.DataFrame], column: str, factor: float = 1
) -> dict[str, pd.DataFrame]:
    """One column of :func:`analysis.series.aggregated` for a panel; groups without it are left out.

    ``factor`` leads to the unit of the axis.
    """
    found = {
        label: band(series.complete(frame, column), factor)
        for label, frame in aggregates.items()
        if column in frame.columns
    }
    return {label: curve for label, curve in found.items() if len(curve)}


def column(aggregate: pd.DataFrame, name: str) -> pd.DataFrame:
    """Columns mean, std, n, half of one quantity of :func:`analysis.series.aggregated`."""
    return aggregate.loc[:, [name]].droplevel(0, axis=1)


def band(estimates: pd.DataFrame, factor: float = 1) -> pd.DataFrame:
    """Columns mean, low, high, n from mean, half and n, without rows that have no mean."""
    known = estimates[estimates["n"] > 0]
    mean, half = known["mean"] * factor, known["half"] * factor
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half, "n": known["n"]})


def seed_note(counts: Iterable[float], band: str = "band") -> str:
    """The meaning of a line and its band: ``Mean over 5 seeds, band: 95 % t interval``."""
    seeds = sorted({int(count) for count in counts})
    if seeds == [1]:
        return "One run each"
    count = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"Mean over {count} seeds, {band}: 95 % t interval"


def panel_note(panels: Sequence[Panel]) -> str:
    """:func:`seed_note` of all curves of the panels."""
    return seed_note(curve["n"].max() for panel in panels for curve in panel.curves.values())


def grid(
    panels: Sequence[Panel],
    columns: int,
    note: str,
    lines: Mapping[str, style.Line] | None = None,
) -> Figure:
    """A figure of panels in rows of ``columns``, with one legend below all of them.

    ``note`` stands above the legend: the meaning of line and band. ``lines`` are by label; None for
    those of :func:`analysis.style.lines`.
    """
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    labels = list(dict.fromkeys(label for panel in panels for label in panel.curves))
    looks = lines or style.lines(labels)
    with style.look():
        height = 3.4 if rows == 1 else 2.5 * rows
        fig = Figure(figsize=(max(WIDTH, 3.1 * columns), height + 0.7))
        places = fig.subplots(rows, columns, squeeze=False).ravel()
        for index, (axes, panel) in enumerate(zip(places, panels, strict=False)):
            for label, curve in panel.curves.items():
                _draw(axes, curve, looks[label], style.title(label))
            _frame(axes, panel)
            if index + columns >= len(panels):
                axes.set_xlabel(panel.x)
        for axes in places[len(panels) :]:
            axes.set_visible(False)
        handles = [
            Line2D([], [], color=looks[label].colour, linestyle=looks[label].dashes)
            for label in labels
        ]
        legend(fig, handles, [style.title(label) for label in labels], note)
    return fig


def legend(fig: Figure, handles: Sequence[Artist], labels: Sequence[str], note: str = "") -> None:
    """Adds one legend below all panels, in as few rows as fit; the figure grows by its height."""
    rows = next((n for n in range(1, len(labels)) if _fits(fig, labels, n)), len(labels))
    fig.set_figheight(fig.get_figheight() + 0.22 * (rows - 1))
    below = fig.legend(
        handles, labels, loc="outside lower center", ncols=math.ceil(len(labels) / rows),
        title=note or None, borderpad=0,
    )  # fmt: skip
    below.get_title().set(color="#555555", fontsize=10)


def _fits(fig: Figure, labels: Sequence[str], rows: int) -> bool:
    """Whether a legend of ``rows`` rows, filled column by column, is no wider than the figure.

    Estimated with twelve characters per inch; a handle is as wide as seven.
    """
    starts = range(0, len(labels), rows)
    width = sum(max(map(len, labels[start : start + rows])) + 7 for start in starts)
    return width <= 11.5 * fig.get_figwidth()


def _draw(axes: Axes, curve: pd.DataFrame, line: style.Line, label: str) -> None:
    x = curve.index.to_numpy()
    axes.plot(
        x, curve["mean"], color=line.colour, linestyle=line.dashes, label=label,
        marker="o" if len(x) <= FEW else "", markersize=4,
    )  # fmt: skip
    if np.isfinite(curve["low"]).any():
        axes.fill_between(x, curve["low"], curve["high"], color=line.colour, alpha=0.12, lw=0)


def _frame(axes: Axes, panel: Panel) -> None:
    axes.set_ylabel(panel.label)
    axes.set_title(panel.title, loc="left")
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
    axes.set_ylim(max(low, panel.limits[0]), min(high, panel.limits[1]))


ROW = 0.34
"""Height of a method's row in inches."""


def method_rows(
    titles: Sequence[str], labels: Sequence[str], x: str, columns: int = 3
) -> tuple[Figure, list[Axes]]:
    """An empty figure with one panel per title and, in each, one row per method.

    Call it, and draw on its axes, within :func:`analysis.style.look`. Row i is at height i; there
    are at most ``columns`` panels in a row.
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
"""Columns of rounds.csv indexed by (seed, round), by setting and label."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure with its captions.

    Attributes:
        name: of its files, without suffix.
        title: the heading.
        caption: what is shown, over how many seeds, and the meaning of the band.
        reading: how to read the figure.
        figure: the Matplotlib figure.
    """

    name: str
    title: str
    caption: str
    reading: str
    figure: Figure


@dataclass(frozen=True)
class Absent:
    """A figure that the runs have no data for, and how to get them."""

    title: str
    reason: str


Facets = Mapping[str, Sequence[Group]]
"""Groups labelled by method, by setting such as ``alpha = 0.1``; "" is the key if not split."""
NAMES = {
    "alpha": "\N{GREEK SMALL LETTER ALPHA}", "num_clients": "clients",
    "sample_rate": "sampling rate", "dataset": "data", "data.partition": "partition",
}  # fmt: skip


def settings_by(by: Sequence[str], groups: Sequence[Group]) -> list[str]:
    """The columns of ``by`` that are settings of the experiment rather than of a method."""
    methods = {str(name) for group in groups for name in group.runs["algorithm"]}
    methods |= set(style.TITLES)
    return [
        column
        for column in dict.fromkeys(by)
        if column not in METHOD
        and column.partition(".")[0] not in methods
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
        split.setdefault(title, []).append(Group(", ".join(parts), group.runs))
    if all(len(inside) == 1 for inside in split.values()) or not columns:
        return {"": groups}
    return split


def facet_lines(facets: Facets) -> dict[str, style.Line]:
    """The line of each label, the same in all facets and figures, whichever groups have data."""
    return style.lines([group.label for inside in facets.values() for group in inside])
