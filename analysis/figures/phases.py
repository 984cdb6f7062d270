"""Seconds per round by phase, from timings.csv."""

from __future__ import annotations

import pandas as pd

from .. import series
from ..facets import Facets, labels_of
from . import grid, style
from .grid import Absent, Drawing

PHASES = {
    "broadcast": "#66CCEE", "train": "#4477AA", "aggregate": "#AA3377", "evaluate": "#CCBB44",
    "decompose": "#228833", "checkpoint": "#999999", "other": "#DDDDDD",
}  # fmt: skip
"""Colours of the phases, Paul Tol's bright scheme; ``other`` is the rest of ``total``."""


def draw(facets: Facets) -> Drawing | Absent:
    """Stacked bars: mean seconds of a round by phase, one bar per method."""
    keys = ("phase", "round")
    stacks = {
        title: {
            label: _stack(frame["seconds"])
            for label, frame in series.values(groups, "timings", ["seconds"], keys).items()
        }
        for title, groups in facets.items()
    }
    if not any(stacks.values()):
        return grid.absent("phases")
    labels = labels_of(stacks)
    used = [p for p in PHASES if any(s[p] > 0 for by in stacks.values() for s in by.values())]
    with style.look():
        fig, places = grid.method_rows(list(stacks), labels, "Seconds per round")
        for axes, stack in zip(places, stacks.values(), strict=True):
            table = pd.DataFrame(stack).T.reindex(labels).fillna(0.0)
            ends = table.cumsum(axis=1)
            for phase in used:
                axes.barh(
                    range(len(labels)), table[phase], left=ends[phase] - table[phase], height=0.66,
                    color=PHASES[phase], label=phase,
                )  # fmt: skip
            for row, total in enumerate(ends["other"]):
                axes.annotate(
                    f"{total:.3g}" if total else "", (total, row), (4, 0),
                    textcoords="offset points", va="center", fontsize=9.5,
                )  # fmt: skip
            axes.margins(x=0.15)
        grid.legend(fig, *places[0].get_legend_handles_labels())
    return grid.drawing("phases", fig)


def _stack(seconds: pd.Series[float]) -> pd.Series[float]:
    """Mean over the rounds, then units, by phase, of ``seconds`` by (unit, phase, round)."""
    rounds = seconds.unstack("phase").fillna(0.0)
    means = rounds.groupby(level=series.UNIT).mean().mean()
    stack = means.reindex(list(PHASES)[:-1]).fillna(0.0)
    stack["other"] = max(0.0, float(means.get("total", means.sum())) - float(stack.sum()))
    return stack
