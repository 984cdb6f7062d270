"""Early stopping: a run ends once its primary validation measure has not improved for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from fedsim.core import files
from fedsim.core.rows import metric_column
from fedsim.core.text import counted
from fedsim.storage import tables


@dataclass
class EarlyStopping:
    """Counts the evaluations since the best one, the earliest on ties, from rounds.csv alone: due
    after ``patience`` evaluations without a better value of ``measure``; None: never."""

    patience: int | None
    measure: str = "accuracy"
    lowest: bool = False
    best: float = math.nan
    best_round: int = 0
    waited: int = 0

    @property
    def column(self) -> str:
        """Of rounds.csv."""
        return metric_column("val", self.measure)

    def add(self, round: int, value: float | None) -> None:
        """Takes note of a round, from 1; the value is None where it was not evaluated."""
        if value is None:
            return
        self.waited += 1
        better = value < self.best if self.lowest else value > self.best
        if better or math.isnan(self.best):
            self.best, self.best_round, self.waited = value, round, 0

    def read(self, rounds: Path) -> None:
        """Takes note of all rounds in a rounds.csv, whose numbers are read without rounding."""
        with files.reading(rounds) as path:
            for row in tables.read(path):
                self.add(int(row["round"]), tables.number(row[self.column]))

    @property
    def due(self) -> bool:
        """Whether the run is to end."""
        return self.patience is not None and self.waited >= self.patience

    @property
    def reason(self) -> str:
        """One line for a run that ends."""
        return (
            f"stopped early: no validation {self.measure.replace('_', ' ')} "
            f"{'below' if self.lowest else 'above'} {self.best:.4f} of round "
            f"{self.best_round} in {counted(self.waited, 'evaluation')} (train.patience)"
        )
