"""Learning curves: a metric of rounds.csv per round, mean and 95 % interval over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy import stats

from analysis import style
from analysis.errors import AnalysisError
from analysis.runs import Group, read


@dataclass(frozen=True)
class Metric:
    """A column of rounds.csv on an axis: its label with unit, and the factor to that unit."""

    label: str
    factor: float = 1.0


METRICS: Mapping[str, Metric] = {
    "test_accuracy": Metric("Test accuracy (%)", 100),
    "test_loss": Metric("Test loss (nats)"),
    "test_balanced_accuracy": Metric("Balanced test accuracy (%)", 100),
    "test_macro_f1": Metric("Test macro-F1 (%)", 100),
    "test_auc": Metric("Test AUC (%)", 100),
    "val_accuracy": Metric("Validation accuracy (%)", 100),
    "val_loss": Metric("Validation loss (nats)"),
    "train_loss": Metric("Training loss (nats)"),
    "conflict_ratio": Metric("Conflicting client pairs (%)", 100),
    "update_norm": Metric("Norm of the server step"),
}
FEW = 12
"""Up to so many points a curve shows them as dots."""


def interval(values: pd.DataFrame) -> pd.DataFrame:
    """Mean and 95 % t interval over seeds, by round.

    mean +- t(0.975, n - 1) s / sqrt(n) with the sample standard deviation s; the interval is NaN
    for n = 1.

    Args:
        values: (rounds, n) one column per seed.

    Returns:
        (rounds, 3) columns mean, low, high.
    """
    n = values.shape[1]
    mean = values.mean(axis=1)
    half = values.std(axis=1, ddof=1) * float(stats.t.ppf(0.975, n - 1)) / np.sqrt(n)
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half})


def series(group: Group, metric: str, smooth: int = 1) -> pd.DataFrame:
    """A metric of all runs of a group, at the rounds where every run has it.

    Args:
        group: the runs.
        metric: a column of rounds.csv.
        smooth: each value becomes the mean of the last ``smooth`` values there are.

    Returns:
        (rounds, seeds) indexed by round.

    Raises:
        AnalysisError: a file or column is missing, or there is no round with a value in all runs.
    """
    columns = {}
    for seed, path in zip(group.runs["seed"], group.runs["path"], strict=True):
        file = Path(path) / "rounds.csv"
        frame = read(file, numbers=("round", metric))
        known = frame.set_index("round")[metric].dropna()
        if known.empty:
            raise AnalysisError(f"{file}: the column {metric} is empty")
        columns[seed] = known.rolling(smooth, min_periods=1).mean()
    values = pd.DataFrame(columns).dropna()
    if values.empty:
        raise AnalysisError(f"{group.label}: no round has {metric} in all {len(columns)} runs")
    return values


def figure(
    groups: Sequence[Group],
    metrics: Sequence[str] = ("test_accuracy", "test_loss"),
    smooth: int = 1,
) -> Figure:
    """Curves of all groups, a panel per metric, the legend below.

    A line is the mean over seeds, the band its 95 % t interval (none for one seed).

    Args:
        groups: from :func:`analysis.runs.group`.
        metrics: keys of :data:`METRICS`.
        smooth: window of the moving mean in evaluated rounds, 1 for none.

    Raises:
        AnalysisError: see :func:`series`.
    """
    drawn = style.lines([group.label for group in groups])
    with style.look():
        fig = Figure(figsize=(4.4 * max(2, len(metrics)), 4.1))
        panels = np.atleast_1d(fig.subplots(1, len(metrics)))
        for axes, metric in zip(panels, metrics, strict=True):
            for group in groups:
                _draw(axes, series(group, metric, smooth), METRICS[metric], group.label, drawn)
            axes.set_xlabel("Communication round")
            axes.set_ylabel(METRICS[metric].label)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
            axes.margins(x=0.02)
            if METRICS[metric].factor == 100:
                low, high = axes.get_ylim()
                axes.set_ylim(max(low, -1), min(high, 101))
        _legend(fig, panels[0], _note(groups, smooth))
    return fig


def _draw(
    axes: Axes, values: pd.DataFrame, metric: Metric, label: str, lines: Mapping[str, style.Line]
) -> None:
    curve = interval(values) * metric.factor
    rounds = curve.index.to_numpy()
    colour = lines[label].colour
    axes.plot(
        rounds, curve["mean"], color=colour, linestyle=lines[label].dashes,
        label=style.title(label), marker="o" if len(rounds) <= FEW else "", markersize=4,
    )  # fmt: skip
    if values.shape[1] > 1:
        axes.fill_between(
            rounds, curve["low"], curve["high"], color=colour, alpha=0.13, linewidth=0
        )


def _legend(fig: Figure, axes: Axes, note: str) -> None:
    """One legend for all panels, below them, in rows of equal length."""
    handles, labels = axes.get_legend_handles_labels()
    fitting = max(1, 96 // (max(map(len, labels)) + 7))
    rows = math.ceil(len(labels) / fitting)
    fig.set_figheight(fig.get_figheight() + 0.22 * (rows - 1))
    legend = fig.legend(
        handles, labels, loc="outside lower center", ncols=math.ceil(len(labels) / rows),
        title=note, borderpad=0,
    )  # fmt: skip
    legend.get_title().set(color="#555555", fontsize=10)


def _note(groups: Sequence[Group], smooth: int) -> str:
    """What line and band are, in words."""
    seeds = sorted({len(group.runs) for group in groups})
    count = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    note = "One run each" if seeds == [1] else f"Mean and 95 % t interval over {count} seeds"
    return note + (f", moving mean of {smooth} evaluations" if smooth > 1 else "")
