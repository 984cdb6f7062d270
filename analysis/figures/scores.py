"""The figure of a report's first screen: final scores, one row per method, a panel per setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from .. import series, units
from ..paired import SIGNIFICANT, T
from ..report.outcome import Outcome
from ..runs import Group
from ..stats import estimate
from ..tables.layout import COLLAPSE
from . import grid, style
from .grid import Drawing

GUESS = {
    "accuracy": "always the most frequent class", "balanced_accuracy": "always the same class",
}  # fmt: skip
"""What a score of guessing is, in the legend."""


def draw(of: Outcome, lacking: Sequence[str]) -> Drawing:
    """Mean, interval and units; ``lacking`` are the methods without runs that others have."""
    unit, factor = of.unit, of.shown.unit.factor
    values = {
        setting: {
            label: factor * units.means(series)
            for label, series in by_label.items()
            if units.finite(series).notna().any()
        }
        for setting, by_label in of.values.items()
    }
    guesses = {
        setting: None if of.by_site else _guess(groups, of.score)
        for setting, groups in of.facets.items()
    }
    labels, lines = of.labels, grid.facet_lines(of.facets, of.labels)
    axis = of.shown.unit.head(of.title)
    with style.look():
        fig, places = grid.method_rows(list(values), labels, axis, 1 if len(values) == 1 else 2)
        for axes, (setting, by_label) in zip(places, values.items(), strict=True):
            for label, scores in by_label.items():
                fallen = bool(of.collapsed[setting].get(label))
                _row(axes, scores, labels.index(label), lines[label].colour, fallen, of)
            if (guess := guesses[setting]) is not None:
                axes.axvline(factor * guess, color="#777777", ls=":", linewidth=1.2, zorder=1)
            axes.margins(x=0.06)
        fallen = any(n for by_label in of.collapsed.values() for n in by_label.values())
        guess = any(guess is not None for guess in guesses.values())
        _legend(fig, of, fallen, guess)
    digits = of.shown.unit.digits
    return grid.drawing(
        "headline", fig, title=of.title, part=of.part, unit=unit, axis=axis, lacking=lacking,
        lowest=of.shown.lowest, test=T.title, level=SIGNIFICANT,
        told=grid.by_label(values, lambda series: f" {series.mean():.{digits}f}"),
    )  # fmt: skip


def _legend(fig: Any, of: Outcome, fallen: bool, guess: bool) -> None:
    grey: dict[str, Any] = {"color": "#444444", "linestyle": ""}
    over = "seeds on one partition" if of.unit == "seed" else "partitions"
    each = "a seed" if of.unit == "seed" else "a partition (mean over its seeds)"
    handles = {
        f"mean and 95 % CI over {over}": Line2D([], [], **grey | {"linestyle": "-"}, marker="o"),
        each: Line2D([], [], **grey, marker="|"),
    }
    if fallen:
        handles[f"{COLLAPSE} with collapsed runs"] = Line2D(
            [], [], **grey, marker="o", markerfacecolor="white"
        )
    if guess:
        handles[f"predicting {GUESS[of.score]}"] = Line2D([], [], color="#777777", linestyle=":")
    grid.legend(fig, list(handles.values()), list(handles))


def _row(
    axes: Axes, values: pd.Series[float], row: int, colour: str, fallen: bool, of: Outcome
) -> None:
    """Mean with its interval within the possible values, a tick for each unit, and the mean."""
    most = math.inf if of.shown.lowest else of.shown.unit.factor
    summary = estimate(values.tolist())
    axes.plot(values, [row + 0.27] * len(values), "|", color=colour, markersize=6, alpha=0.8)
    ends = [[min(summary.half, summary.mean)], [min(summary.half, most - summary.mean)]]
    axes.errorbar(
        summary.mean, row, xerr=None if math.isnan(summary.half) else ends, fmt="o",
        color=colour, capsize=3, markersize=7, elinewidth=1.4,
        markerfacecolor="white" if fallen else colour,
    )  # fmt: skip
    axes.annotate(
        f"{summary.mean:.{of.shown.unit.digits}f}{COLLAPSE if fallen else ''}",
        (summary.mean, row), (0, 6), textcoords="offset points", ha="center", fontsize=9,
    )  # fmt: skip


def _guess(groups: Sequence[Group], score: str) -> float | None:
    """The score of predicting one class always; None if the classes are unknown."""
    if score not in GUESS:
        return None
    by_label = series.values(groups[:1], "classes", ["support"], "label", take="last")
    support = [
        frame["support"].xs(frame.index.get_level_values(series.UNIT)[0], level=series.UNIT)
        for frame in by_label.values()
    ]
    positive = support[0][support[0] > 0] if support else pd.Series(dtype=float)
    if len(positive) < 2:
        return None
    return float(positive.max() / positive.sum()) if score == "accuracy" else 1 / len(positive)
