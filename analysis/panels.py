"""A grid of panels with a line and a band per method: the frame of most figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis import streams, style

FEW = 12
"""Up to so many points a curve shows them as dots."""
WIDTH = 8.8
"""Inches of a figure's width with one or two columns."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        label: the vertical axis, with its unit.
        curves: by group label, columns mean, low, high (NaN: no band) and n on an index of x.
        title: what the panel is of, where the figure has several such.
        zero: whether a line marks the value 0.
        limits: values beyond which the axis never reaches, for shares and per cent.
        reach: values that the axis always shows.
        x: the horizontal axis.
        whole: x counts something, so that ticks are whole numbers.
        log: x is on a logarithmic axis that falls from left to right, with ticks at the points.
    """

    label: str
    curves: Mapping[str, pd.DataFrame]
    title: str = ""
    zero: bool = False
    limits: tuple[float, float] = (-math.inf, math.inf)
    reach: tuple[float, ...] = ()
    x: str = "Communication round"
    whole: bool = True
    log: bool = False


def curves(
    aggregates: Mapping[str, pd.DataFrame], column: str, factor: float = 1
) -> dict[str, pd.DataFrame]:
    """One column of :func:`analysis.streams.series` for a panel; groups without it are left out.

    Args:
        aggregates: by label, indexed by x.
        column: of them.
        factor: to the unit of the axis.
    """
    found = {
        label: band(streams.complete(frame, column), factor)
        for label, frame in aggregates.items()
        if column in frame.columns
    }
    return {label: curve for label, curve in found.items() if len(curve)}


def column(aggregate: pd.DataFrame, name: str) -> pd.DataFrame:
    """Columns mean, std, n, half of one quantity of :func:`analysis.streams.series`."""
    return aggregate.loc[:, [name]].droplevel(0, axis=1)


def band(estimates: pd.DataFrame, factor: float = 1) -> pd.DataFrame:
    """Columns mean, low, high, n from mean, half and n, without the rows where there is no mean."""
    known = estimates[estimates["n"] > 0]
    mean, half = known["mean"] * factor, known["half"] * factor
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half, "n": known["n"]})


def over_seeds(counts: Iterable[float], band: str = "band") -> str:
    """What a line and its band are: ``Mean over 5 seeds, band: 95 % t interval``."""
    seeds = sorted({int(count) for count in counts})
    if seeds == [1]:
        return "One run each"
    count = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"Mean over {count} seeds, {band}: 95 % t interval"


def seeds_of(panels: Sequence[Panel], band: str = "band") -> str:
    """:func:`over_seeds` of all curves of the panels."""
    every = (curve["n"].max() for panel in panels for curve in panel.curves.values())
    return over_seeds(every, band)


def grid(
    panels: Sequence[Panel],
    columns: int,
    note: str,
    lines: Mapping[str, style.Line] | None = None,
) -> Figure:
    """Draws panels in rows of ``columns``, with one legend below all of them.

    Args:
        panels: in reading order.
        columns: panels in a row.
        note: above the legend: what line and band are.
        lines: by label, where they are not those of :func:`analysis.style.lines`.
    """
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    labels = list(dict.fromkeys(label for panel in panels for label in panel.curves))
    drawn = lines or style.lines(labels)
    with style.look():
        height = 3.4 if rows == 1 else 2.5 * rows
        fig = Figure(figsize=(max(WIDTH, 3.1 * columns), height + 0.7))
        places = fig.subplots(rows, columns, squeeze=False).ravel()
        for index, (axes, panel) in enumerate(zip(places, panels, strict=False)):
            for label, curve in panel.curves.items():
                _draw(axes, curve, drawn[label], style.title(label))
            _frame(axes, panel)
            if index + columns >= len(panels):
                axes.set_xlabel(panel.x)
        for axes in places[len(panels) :]:
            axes.set_visible(False)
        handles = [
            Line2D([], [], color=drawn[label].colour, linestyle=drawn[label].dashes)
            for label in labels
        ]
        legend(fig, handles, [style.title(label) for label in labels], note)
    return fig


def legend(fig: Figure, handles: Sequence[Artist], labels: Sequence[str], note: str = "") -> None:
    """One legend for all panels, below them, in as few rows as fit; the figure grows for it."""
    rows = next((n for n in range(1, len(labels)) if _fits(fig, labels, n)), len(labels))
    fig.set_figheight(fig.get_figheight() + 0.22 * (rows - 1))
    below = fig.legend(
        handles, labels, loc="outside lower center", ncols=math.ceil(len(labels) / rows),
        title=note or None, borderpad=0,
    )  # fmt: skip
    below.get_title().set(color="#555555", fontsize=10)


def _fits(fig: Figure, labels: Sequence[str], rows: int) -> bool:
    """Whether a legend of so many rows, filled column by column, is as narrow as the figure.

    About twelve characters an inch; a handle and its spaces are as wide as seven.
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
        places = MaxNLocator(integer=panel.whole, nbins=6, steps=[1, 2, 5, 10])
        axes.xaxis.set_major_locator(places)
    axes.margins(x=0.02)
    if panel.zero:
        axes.axhline(0, color="#777777", linewidth=0.9, zorder=1.5)
    axes.update_datalim([(axes.dataLim.x0, y) for y in panel.reach])
    axes.autoscale_view(scalex=False)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, panel.limits[0]), min(high, panel.limits[1]))
