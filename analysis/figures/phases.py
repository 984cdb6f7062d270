"""Seconds per round by phase, from timings.csv."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from .. import series
from . import grid as panels
from . import style
from .grid import Absent, Drawing, Facets

PHASES = {
    "broadcast": "#66CCEE", "train": "#4477AA", "aggregate": "#AA3377", "evaluate": "#CCBB44",
    "decompose": "#228833", "checkpoint": "#999999", "other": "#DDDDDD",
}  # fmt: skip
"""Colours of the phases, Paul Tol's bright scheme; ``other`` is the rest of ``total``."""
KEYS = ("phase", "round")


def draw(facets: Facets) -> Drawing | Absent:
    """Stacked bars: mean seconds of a round by phase, one bar per method."""
    stacks = {
        title: {
            label: _stack(_per_round(frame["seconds"]))
            for label, frame in series.values(groups, "timings", ["seconds"], KEYS).items()
        }
        for title, groups in facets.items()
    }
    if not any(stacks.values()):
        return panels.absent("phases")
    told = panels.told_by_label(stacks, lambda s: f" {s.sum():.3g}, most in {s.idxmax()}")
    return panels.drawing("phases", _figure(stacks), told=told)


def _per_round(seconds: pd.Series[float]) -> pd.Series[float]:
    """Mean over the rounds, then over units, by phase.

    A phase without a row took no time in that round: evaluation every fifth round counts a fifth.
    ``seconds`` are indexed by (unit, phase, round).
    """
    rounds = seconds.unstack("phase").fillna(0.0)
    return rounds.groupby(level=series.UNIT).mean().mean()


def _stack(seconds: pd.Series[float]) -> pd.Series[float]:
    """Seconds by phase in the order of PHASES; phases of other names count as ``other``."""
    known = seconds.reindex(list(PHASES)[:-1]).fillna(0.0)
    whole = float(seconds.get("total", seconds.sum()))
    known["other"] = max(0.0, whole - float(known.sum()))
    return known


def _figure(stacks: dict[str, dict[str, pd.Series[float]]]) -> Figure:
    labels = panels.labels_of(stacks)
    used = [p for p in PHASES if any(s[p] > 0 for by in stacks.values() for s in by.values())]
    with style.look():
        fig, places = panels.method_rows(list(stacks), labels, "Seconds per round")
        for axes, by in zip(places, stacks.values(), strict=True):
            table = pd.DataFrame(by).T.reindex(labels).fillna(0.0)
            left = pd.Series(0.0, table.index)
            for phase in used:
                axes.barh(
                    range(len(labels)), table[phase], left=left, height=0.66,
                    color=PHASES[phase], label=phase,
                )  # fmt: skip
                left = left + table[phase]
            for row, total in enumerate(left):
                axes.annotate(
                    f"{total:.3g}" if total else "", (total, row), (4, 0),
                    textcoords="offset points", va="center", fontsize=9.5,
                )  # fmt: skip
            axes.margins(x=0.15)
        handles, names = places[0].get_legend_handles_labels()
        panels.legend(fig, handles, names)
    return fig
