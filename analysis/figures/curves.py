"""Learning curves: a metric of rounds.csv by round, mean and 95 % interval over units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from .. import AnalysisError, scores, units
from ..facets import facets
from ..files import has_rows, read_table
from ..labels import title_of
from ..runs import Group
from ..scores import EPSILONS, OTHERS, Runs, Score, curves_of, measures_of, of_rounds, scores_of
from ..series import per_unit
from ..stats import over_units
from ..units import ExperimentalUnit
from ..words import listed, say
from . import grid, style
from .grid import Absent, Drawing, Panel
from .updates import Rounds

X = Literal["round", "seconds", "epsilon"]
POINTS = 200  # points in time at which runs that end rounds at different times are averaged


def by_round(group: Group, metric: str, smooth: int = 1) -> pd.DataFrame:
    """A metric (rounds, runs) where all runs have it, as a moving mean over ``smooth`` rounds."""
    columns = {}
    for run, path in _paths(group).items():
        values = _values(path, metric)
        if values.empty:
            why = f"the column {metric} is empty"
            why = f"{metric} is infinite, there is no noise" if metric in EPSILONS else why
            raise AnalysisError(f"{path}/rounds.csv: {why}")
        columns[run] = values.rolling(smooth, min_periods=1).mean()
    table = pd.DataFrame(columns).dropna().rename_axis(columns=list(units.COLUMNS[group.unit]))
    if table.empty:
        raise AnalysisError(f"{group.label}: no round has {metric} in all {len(columns)} runs")
    return table


def _paths(group: Group) -> pd.Series[Any]:
    """The directory of each run, by its seed or partition and seed."""
    return group.runs.set_index(list(units.COLUMNS[group.unit]))["path"].map(Path)


def _values(run: Path, metric: str) -> pd.Series[float]:
    """The finite values of a metric by round."""
    if metric in EPSILONS:
        values = scores.epsilons(run, metric)
        return values[values < math.inf]
    frame = read_table(run / "rounds.csv", numbers=("round", metric))
    return frame.set_index("round")[metric].dropna()


def _has(group: Group, metric: str) -> bool:
    """Whether a run of the group has the metric, which is not of all runs: an attack or noise."""
    paths = _paths(group)
    if metric in EPSILONS:
        return any(len(_values(path, metric)) for path in paths)
    return metric not in OTHERS or any(has_rows(p / "rounds.csv", [metric]) for p in paths)


def by_seconds(group: Group, metric: str, smooth: int = 1) -> pd.DataFrame:
    """A metric (:data:`POINTS`, runs) by simulated seconds: the newest value at that time."""
    rounds, runs = by_round(group, metric, smooth), {}
    for run, path in _paths(group).items():
        file = path / "rounds.csv"
        frame = read_table(file, numbers=("round", "simulated_seconds")).set_index("round")
        if frame["simulated_seconds"].isna().any():
            raise AnalysisError(
                f"{file}: simulated_seconds is empty; a clock that takes time has it"
            )
        runs[run] = rounds[run].set_axis(frame["simulated_seconds"].cumsum()[rounds.index])
    start = max(values.index[0] for values in runs.values())
    end = min(values.index[-1] for values in runs.values())
    if not start < end:
        raise AnalysisError(f"{group.label}: no simulated second has {metric} in all its runs")
    times = np.linspace(start, end, POINTS)
    newest = {
        run: values.to_numpy()[np.searchsorted(values.index, times, side="right") - 1]
        for run, values in runs.items()
    }
    table = pd.DataFrame(newest, index=pd.Index(times, name="round"))
    return table.rename_axis(columns=list(units.COLUMNS[group.unit]))


def figure(
    groups: Sequence[Group], metrics: Sequence[str] = ("test_accuracy", "test_loss"),
    smooth: int = 1, settings: Sequence[str] = (), x: X = "round",
) -> Figure:  # fmt: skip
    """A row of panels per metric, a key of :func:`analysis.scores.curves_of`; a line per method."""
    split = facets(groups, settings)
    values_of = by_round if x == "round" else by_seconds
    axis = "Communication round" if x == "round" else "Simulated seconds"
    shown, lacking = [], dict[str, list[str]]()
    for metric, (setting, inside) in product(metrics, split.items()):
        present = [one for one in inside if _has(one, metric)]
        if not any(_has(one, metric) for one in groups):
            present = [*inside]  # which raises the reason
        if names := [title_of(one.label) for one in inside if one not in present]:
            suffix = f", {setting}" if setting else ""
            lacking.setdefault(metric, []).extend(f"{name}{suffix}" for name in names)
        curves = {}
        for one in present:
            stacked = pd.DataFrame({metric: values_of(one, metric, smooth).T.stack()})
            curves[one.label] = over_units(per_unit(stacked), ["round"])
        if curves:
            score = curves_of(scores_of(groups))[metric]
            shown.append(panel(metric, score, curves, groups[0].unit, setting, axis))
    note = say("curves.note", note=grid.panel_note(shown), lacking=lacking, smooth=smooth)
    return grid.curves_figure(shown, note, grid.facet_lines(split))


def draw(
    rounds: Rounds, score: str, unit: ExperimentalUnit, lines: Mapping[str, style.Line],
    runs: Runs = (),
) -> Drawing | Absent:  # fmt: skip
    """A score of the test part and the loss by round, a column per setting; ``lines`` by label."""
    present = {column for frames in rounds.values() for f in frames.values() for column in f}
    primary, shown = measures_of(runs).column("test"), curves_of(scores_of(runs))
    first = of_rounds(score) if of_rounds(score) in present else primary
    panels = [
        panel(
            metric, shown[metric],
            {label: over_units(frame, ["round"]) for label, frame in frames.items()}, unit, setting,
        )
        for metric in dict.fromkeys((first, "test_loss"))
        for setting, frames in rounds.items()
    ]  # fmt: skip
    labels = dict.fromkeys(panel.label for panel in panels if panel.curves)
    low = shown[first].title.removeprefix("test ") if shown[first].lowest else ""
    return grid.of_panels(
        "curves", panels, lines, unit=unit, what=listed([*labels]), low=low,
        score=measures_of(runs).title,
    )  # fmt: skip


def panel(
    metric: str, shown: Score, estimates: Mapping[str, pd.DataFrame], unit: ExperimentalUnit,
    setting: str, x: str = "Communication round", rising: bool = False,
) -> Panel:  # fmt: skip
    """Of :func:`~analysis.stats.over_units` by label; ``rising``: a logarithmic x axis."""
    return Panel(
        label=shown.axis, curves=grid.curves(estimates, metric, shown.unit.factor), title=setting,
        unit=unit, possible=shown.possible, x=x, log=rising, rising=rising,
    )  # fmt: skip
