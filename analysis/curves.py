"""Learning curves: a metric of rounds.csv by round, mean and 95 % interval over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from . import AnalysisError, panels, style
from .panels import Absent, Drawing, Panel, Rounds
from .runs import Group, read
from .stats import over_seeds


@dataclass(frozen=True)
class Metric:
    """How a column of rounds.csv is drawn: the axis label with unit, and the factor to it."""

    label: str
    factor: float = 1.0

    @property
    def limits(self) -> tuple[float, float]:
        """Bounds of the axis: percentages end at 0 and 100."""
        return (-1, 101) if self.factor == 100 else (-math.inf, math.inf)


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
}
TITLE = "Accuracy and loss by round"


def series(group: Group, metric: str, smooth: int = 1) -> pd.DataFrame:
    """A metric by round and seed, at the rounds where all runs of the group have it.

    ``smooth`` is the window of the moving mean in evaluated rounds, 1 for none.

    Returns:
        (rounds, seeds) indexed by round.

    Raises:
        AnalysisError: a file or column is missing, or no round has a value in all runs.
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
    """Curves of all groups, one panel per metric, a key of :data:`METRICS`.

    A line is the mean over seeds, the band its 95 % t interval (none for one seed).

    Raises:
        AnalysisError: see :func:`series`.
    """
    shown = []
    for metric in metrics:
        values = {one.label: series(one, metric, smooth) for one in groups}
        by_seed = {
            label: pd.DataFrame({metric: frame.rename_axis(columns="seed").stack()})
            for label, frame in values.items()
        }
        found = {label: over_seeds(frame, ["round"]) for label, frame in by_seed.items()}
        shown.append(_panel(metric, found))
    note = panels.panel_note(shown)
    if smooth > 1:
        note += f", moving mean of {smooth} evaluations"
    return panels.grid(shown, len(shown), note)


def draw(rounds: Rounds) -> Drawing | Absent:
    """Test accuracy and loss by round, one row of panels per setting."""
    shown = []
    for title, values in rounds.items():
        found = {label: over_seeds(frame, ["round"]) for label, frame in values.items()}
        shown += [_panel(metric, found, title) for metric in ("test_accuracy", "test_loss")]
    if not any(panel.curves for panel in shown):
        return Absent(TITLE, "no test accuracy in rounds.csv; data with a test part have it")
    seeds = panels.panel_note(shown)
    lines = style.lines([label for values in rounds.values() for label in values])
    return Drawing(
        name="curves",
        title=TITLE,
        caption=(
            f"Accuracy and cross-entropy loss on the test part by communication round. {seeds}."
        ),
        reading=(
            "Higher accuracy and lower loss are better; a steeper start is faster learning. Bands "
            "that overlap may still differ seed by seed: the paired comparisons are in the tables."
        ),
        figure=panels.grid(shown, 2, seeds, lines),
    )


def _panel(metric: str, found: Mapping[str, pd.DataFrame], title: str = "") -> Panel:
    shown = METRICS[metric]
    lines = panels.curves(found, metric, shown.factor)
    return Panel(label=shown.label, curves=lines, title=title, limits=shown.limits)
