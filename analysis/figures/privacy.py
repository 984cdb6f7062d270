"""What privacy costs: a metric of the last round against epsilon, a line per method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from .. import AnalysisError
from ..labels import AXIS, METHOD, computed, text
from ..runs import Group
from ..scores import curves_of, epsilons, scores_of
from ..series import per_unit
from ..stats import over_units
from . import grid
from .curves import by_round, panel

NOISE = ("dp.epsilon", "dp.noise_multiplier")
"""Columns that say how much noise a run has."""


def figure(groups: Sequence[Group], metrics: Sequence[str], smooth: int = 1) -> Figure:
    """A panel per metric; groups that differ in their noise alone are the points of a line. The
    value without noise is a line of its own, from the least to the largest epsilon."""
    spent = {one.label: _epsilon(one) for one in groups}
    finite = [epsilon for epsilon in spent.values() if epsilon < math.inf]
    if not finite:
        raise AnalysisError("--x epsilon: no run has noise, so that every epsilon is infinite")
    lines, panels = lines_of(groups), []
    for metric in metrics:
        curves: dict[str, list[pd.DataFrame]] = {}
        for one in groups:
            last = by_round(one, metric, smooth).iloc[[-1]]
            stacked = pd.DataFrame({metric: last.T.stack()})
            value = over_units(per_unit(stacked), ["round"])
            line, epsilon = lines[one.label], spent[one.label]
            if epsilon < math.inf:
                curves.setdefault(line, []).append(value.set_axis([epsilon]))
            else:
                ends = [value.set_axis([end]) for end in (min(finite), max(finite))]
                curves[f"{line}, no noise"] = ends
        made = {line: pd.concat(points).sort_index() for line, points in curves.items()}
        axis = "Epsilon after the last round"
        shown = curves_of(scores_of(groups))[metric]
        panels.append(panel(metric, shown, made, groups[0].unit, "", axis, rising=True))
    return grid.curves_figure(panels, grid.panel_note(panels))


def lines_of(groups: Sequence[Group]) -> dict[str, str]:
    """The label of each group without what says how much noise it has; else its method, also where
    names tell the groups apart and no sweep.json says which of them are of the noise."""
    table = pd.concat([one.runs for one in groups])
    noise = table.reindex(columns=list(NOISE)).map(text).agg(" ".join, axis=1)
    axes = [c for c in map(str, table.columns) if c.startswith(AXIS)]
    told = [axis for axis in axes if (noise.groupby(table[axis].map(text)).nunique() == 1).all()]
    axes = told if noise.nunique() > 1 else []
    methods = [column for column in METHOD if column in table]
    lines, by_method = {}, {}
    for one in groups:
        row = one.runs.iloc[0]
        names = {text(row[axis]) for axis in axes} | {f"{axis}={row[axis]}" for axis in axes}
        parts = [
            part
            for part in one.label.split(", ")
            if part not in names and part.partition("=")[0] not in NOISE
        ]
        by_method[one.label] = str(computed(one.runs[methods]).iloc[0])
        lines[one.label] = ", ".join(parts) or by_method[one.label]
    return lines if len({*lines.values()}) < len(groups) else by_method


def _epsilon(group: Group) -> float:
    """Of the last round, the mean over the runs, to three digits."""
    last = [float(epsilons(Path(path), "epsilon").iloc[-1]) for path in group.runs["path"]]
    return float(f"{sum(last) / len(last):.3g}")
