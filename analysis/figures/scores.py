"""The figure of a report's first screen: final scores, one row per method, a panel per setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from .. import series, units
from ..facets import labels_in
from ..paired import SIGNIFICANT, T
from ..report.answer import Outcome
from ..runs import Group
from ..stats import estimate
from ..tables.layout import COLLAPSE
from . import grid, style
from .grid import Drawing

GUESS = {
    "accuracy": "always the most frequent class", "balanced_accuracy": "always the same class",
}  # fmt: skip
"""What a score of guessing is, in the legend."""
MARKS = {
    "seed": ("mean and 95 % CI over seeds on one partition", "a seed"),
    "partition": ("mean and 95 % CI over partitions", "a partition (mean over its seeds)"),
}
"""By unit the legend of a mean and of a tick."""


def draw(of: Outcome, lacking: Sequence[str]) -> Drawing:
    """Mean, interval and units; ``lacking`` are the methods without runs that others have."""
    factor, labels = of.shown.unit.factor, of.labels
    lines = style.lines([*labels_in(of.facets), *labels])
    axis = of.shown.unit.head(of.title)
    grey: dict[str, Any] = {"color": "#444444", "linestyle": ""}
    mean, each = MARKS[of.unit]
    legend = {
        mean: Line2D([], [], color="#444444", marker="o"), each: Line2D([], [], marker="|", **grey)
    }  # fmt: skip
    with style.look():
        fig, places = grid.method_rows(list(of.values), labels, axis, min(2, len(of.values)))
        for axes, (setting, by_label) in zip(places, of.values.items(), strict=True):
            for label, scores in by_label.items():
                if units.finite(scores).notna().any():
                    fallen = bool(of.collapsed[setting].get(label))
                    if fallen:
                        legend[f"{COLLAPSE} with collapsed runs"] = Line2D(
                            [], [], marker="o", markerfacecolor="white", **grey
                        )
                    values, row = units.means(scores), labels.index(label)
                    _row(axes, values, row, lines[label].colour, fallen, of)
            guess = None if of.by_site else _guess(of.facets[setting], of.score)
            if guess is not None:
                line = axes.axvline(factor * guess, color="#777777", ls=":", lw=1.2, zorder=1)
                legend[f"predicting {GUESS[of.score]}"] = line
            axes.margins(x=0.06)
        grid.legend(fig, list(legend.values()), list(legend))
    return grid.drawing(
        "headline", fig, title=of.title, part=of.part, unit=of.unit, lacking=lacking,
        lowest=of.shown.lowest, test=T.title, level=SIGNIFICANT,
    )  # fmt: skip


def _row(
    axes: Axes, values: pd.Series[float], row: int, colour: str, fallen: bool, of: Outcome
) -> None:
    """Mean with its interval within the possible values, a tick for each unit, and the mean."""
    summary, unit = estimate(values.tolist()), of.shown.unit
    shown = unit.factor * values
    axes.plot(shown, [row + 0.27] * len(shown), "|", color=colour, markersize=6, alpha=0.8)
    grid.mean_dot(
        axes, summary, row, of.shown, colour, fmt="o", capsize=3, elinewidth=1.4,
        markerfacecolor="white" if fallen else colour,
    )  # fmt: skip
    axes.annotate(
        f"{unit.number(summary.mean)}{COLLAPSE if fallen else ''}",
        (unit.factor * summary.mean, row), (0, 6), textcoords="offset points", ha="center",
        fontsize=9,
    )  # fmt: skip


def _guess(groups: Sequence[Group], score: str) -> float | None:
    """The score of predicting one class always; None if the classes are unknown."""
    if score not in GUESS:
        return None
    for frame in series.values(groups[:1], "classes", ["support"], "label", take="last").values():
        support = next(part for _, part in frame["support"].groupby(level=series.UNIT))
        positive = support[support > 0]
        if len(positive) > 1:
            share = positive.max() / positive.sum()
            return float(share) if score == "accuracy" else 1 / len(positive)
    return None
