"""Learning curves: a metric of rounds.csv by round, mean and 95 % interval over units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from .. import AnalysisError, units
from ..files import has_rows, read_table
from ..runs import Group
from ..scores import EPSILONS, OTHERS, epsilons, of_rounds
from ..series import per_unit
from ..stats import over_units
from ..units import ExperimentalUnit
from ..words import listed, say
from . import grid as panels
from . import style
from .grid import Absent, Drawing, Panel, Rounds

X = Literal["round", "seconds"]


@dataclass(frozen=True)
class Metric:
    """How a column of rounds.csv is drawn: the axis label with unit, and the factor to it."""

    label: str
    factor: float = 1.0

    @property
    def possible(self) -> tuple[float, float]:
        """The range of possible values, in the unit of the axis: all are at least 0."""
        return (0, 100) if self.factor == 100 else (0, math.inf)


METRICS: Mapping[str, Metric] = {
    "test_accuracy": Metric("Test accuracy (%)", 100),
    "test_loss": Metric("Test loss (nats)"),
    "test_balanced_accuracy": Metric("Balanced test accuracy (%)", 100),
    "test_macro_f1": Metric("Test macro-F1 (%)", 100),
    "test_auc": Metric("Test AUC (%)", 100),
    "val_accuracy": Metric("Validation accuracy (%)", 100),
    "val_loss": Metric("Validation loss (nats)"),
    "val_balanced_accuracy": Metric("Balanced validation accuracy (%)", 100),
    "val_macro_f1": Metric("Validation macro-F1 (%)", 100),
    "val_auc": Metric("Validation AUC (%)", 100),
    "train_loss": Metric("Training loss (nats)"),
    "conflict_ratio": Metric("Conflicting client pairs (%)", 100),
    "update_norm": Metric("Norm of the server step"),
    "test_ece": Metric("Test calibration error, ECE (%)", 100),
    "val_ece": Metric("Validation calibration error, ECE (%)", 100),
    "attack_success_rate": Metric("Attack success rate (%)", 100),
    "benign_test_accuracy": Metric("Test accuracy of benign clients (%)", 100),
    "epsilon": Metric("Privacy budget \N{GREEK SMALL LETTER EPSILON}"),
    "deployment_epsilon": Metric("\N{GREEK SMALL LETTER EPSILON} of the deployment"),
}


def by_round(group: Group, metric: str, smooth: int = 1) -> pd.DataFrame:
    """A metric by round and run, at the rounds where all runs of the group have it.

    ``smooth`` is the window of the moving mean in evaluated rounds, 1 for none.

    Returns:
        (rounds, runs) indexed by round; the columns are :data:`analysis.units.COLUMNS`.

    Raises:
        AnalysisError: a file or column is missing, or no round has a value in all runs.
    """
    columns = {}
    runs = group.runs.set_index(list(units.COLUMNS[group.unit]))["path"]
    for run, path in runs.items():
        known = _values(Path(path), metric)
        if known.empty:
            told = f"{metric} is infinite, there is no noise"
            told = told if metric in EPSILONS else f"the column {metric} is empty"
            raise AnalysisError(f"{path}/rounds.csv: {told}")
        columns[run] = known.rolling(smooth, min_periods=1).mean()
    values = pd.DataFrame(columns).dropna().rename_axis(columns=list(units.COLUMNS[group.unit]))
    if values.empty:
        raise AnalysisError(f"{group.label}: no round has {metric} in all {len(columns)} runs")
    return values


def _values(run: Path, metric: str) -> pd.Series[float]:
    """The finite values of a metric by round."""
    if metric in EPSILONS:
        values = epsilons(run, metric)
        return values[values < math.inf]
    frame = read_table(run / "rounds.csv", numbers=("round", metric))
    return frame.set_index("round")[metric].dropna()


def _has(group: Group, metric: str) -> bool:
    """Whether a run of the group has the metric, which is not of all runs: an attack or noise."""
    paths = [Path(path) for path in group.runs["path"]]
    if metric in EPSILONS:
        return any(len(_values(path, metric)) for path in paths)
    return metric not in OTHERS or any(has_rows(p / "rounds.csv", [metric]) for p in paths)


POINTS = 200
"""Points in time at which runs that end rounds at different times are averaged."""


def by_seconds(group: Group, metric: str, smooth: int = 1) -> pd.DataFrame:
    """A metric by simulated seconds since the start and run: the newest value at that time.

    The times are :data:`POINTS` equal steps, from when all runs of the group have a value to the
    end of the first that ends. Otherwise as :func:`by_round`.
    """
    rounds = by_round(group, metric, smooth)
    paths = group.runs.set_index(list(units.COLUMNS[group.unit]))["path"]
    runs = {}
    for run, path in paths.items():
        file = Path(path) / "rounds.csv"
        seconds = read_table(file, numbers=("round", "simulated_seconds")).set_index("round")
        if seconds["simulated_seconds"].isna().any():
            raise AnalysisError(
                f"{file}: simulated_seconds is empty; a clock that takes time has it"
            )
        values = rounds[run]
        runs[run] = values.set_axis(seconds["simulated_seconds"].cumsum()[values.index])
    start = max(values.index[0] for values in runs.values())
    end = min(values.index[-1] for values in runs.values())
    if not start < end:
        raise AnalysisError(f"{group.label}: no simulated second has {metric} in all its runs")
    times = np.linspace(start, end, POINTS)
    newest = {
        run: values.to_numpy()[np.searchsorted(values.index, times, side="right") - 1]
        for run, values in runs.items()
    }
    return pd.DataFrame(newest, index=pd.Index(times, name="round")).rename_axis(
        columns=list(units.COLUMNS[group.unit])
    )


def figure(
    groups: Sequence[Group],
    metrics: Sequence[str] = ("test_accuracy", "test_loss"),
    smooth: int = 1,
    settings: Sequence[str] = (),
    x: X = "round",
) -> Figure:
    """Curves of all groups, one panel per metric, a key of :data:`METRICS`.

    ``x`` is the horizontal axis, rounds or simulated seconds.

    If the groups differ in ``settings``, columns of summary.csv, there is a row of panels for each
    metric, one panel per value of the settings with a line per method. A line is the mean over
    seeds or partitions, the band its 95 % t interval (none for one).

    Raises:
        AnalysisError: see :func:`by_round`.
    """
    split = panels.facets(groups, settings)
    placed: list[Panel | None] = []
    lacking: dict[str, list[str]] = {}
    for metric in metrics:
        any_has = any(_has(one, metric) for one in groups)
        for title, inside in split.items():
            there = [one for one in inside if not any_has or _has(one, metric)]
            drawn = [one.label for one in there]
            without = [style.title(one.label) for one in inside if one.label not in drawn]
            names = [f"{name}, {title}" if title else name for name in without]
            lacking.setdefault(metric, []).extend(names)
            of = by_round if x == "round" else by_seconds
            values = {one.label: of(one, metric, smooth) for one in there}
            estimates = {
                label: over_units(per_unit(pd.DataFrame({metric: frame.T.stack()})), ["round"])
                for label, frame in values.items()
            }
            made = _panel(metric, estimates, groups[0].unit, title)
            made = made if x == "round" else replace(made, x="Simulated seconds")
            placed.append(made if there else None)
    shown = [panel for panel in placed if panel is not None]
    note = "; ".join(
        [panels.panel_note(shown)]
        + [
            f"without a finite {metric}: {listed(names)}"
            for metric, names in lacking.items()
            if names
        ]
    )
    if smooth > 1:
        note += f", moving mean of {smooth} evaluations"
    lines = panels.facet_lines(split)
    if len(split) > 1:
        columns = min(3, len(split))
        rows = [placed[start : start + len(split)] for start in range(0, len(placed), len(split))]
        padded = [panel for row in rows for panel in (*row, *[None] * (-len(row) % columns))]
        return panels.grid(padded, columns, note, lines)
    arranged, columns = panels.multiples(shown)
    if arranged == shown:
        return panels.grid(shown, len(shown), note, lines)
    return panels.grid(arranged, columns, f"{note}; the other methods in grey", lines)


def drawings(
    rounds: Rounds, score: str = "accuracy", unit: ExperimentalUnit = "seed",
    lines: Mapping[str, style.Line] | None = None,
) -> Iterator[Drawing | Absent]:  # fmt: skip
    """A score of the test part and the loss by round, one row of panels per setting.

    ``lines`` are by label, by default those of :func:`analysis.figures.style.lines`.
    With few methods they are one figure, else small multiples of each.
    """
    there = {column for values in rounds.values() for frame in values.values() for column in frame}
    first = of_rounds(score) if of_rounds(score) in there else "test_accuracy"
    metrics = list(dict.fromkeys((first, "test_loss")))
    estimates = {
        title: {label: over_units(frame, ["round"]) for label, frame in values.items()}
        for title, values in rounds.items()
    }
    shown = {
        metric: [_panel(metric, frames, unit, title) for title, frames in estimates.items()]
        for metric in metrics
    }
    every = [panel for row in zip(*shown.values(), strict=True) for panel in row]
    if not any(panel.curves for panel in every):
        yield panels.absent("curves")
        return
    lines = lines or style.lines([label for values in rounds.values() for label in values])
    if all(len(panel.curves) <= panels.TOGETHER for panel in every):
        figure = panels.grid(every, 2, panels.panel_note(every), lines)
        yield _drawing("curves", say("curves.title"), every, figure)
        return
    for metric, own in shown.items():
        if any(panel.curves for panel in own):
            name = "curves" if metric == metrics[0] else "curves_loss"
            note = panels.panel_note(own) + "; the other methods in grey"
            title = f"{METRICS[metric].label.partition(' (')[0]} by round"
            yield _drawing(name, title, own, panels.grid(*panels.multiples(own), note, lines))


def _drawing(name: str, title: str, shown: Sequence[Panel], figure: Figure) -> Drawing:
    what = " and ".join(dict.fromkeys(panel.label for panel in shown))
    apart = any(len(panel.curves) > panels.TOGETHER for panel in shown)
    return panels.drawing(
        "curves", figure, name=name, title=title, what=what, note=panels.panel_note(shown),
        apart=(" " + say("curves.apart")) * apart, unit=shown[0].unit, told=panels.told(shown),
    )  # fmt: skip


def _panel(
    metric: str, estimates: Mapping[str, pd.DataFrame], unit: ExperimentalUnit, title: str = ""
) -> Panel:
    shown = METRICS[metric]
    lines = panels.curves(estimates, metric, shown.factor)
    return Panel(label=shown.label, curves=lines, title=title, possible=shown.possible, unit=unit)
