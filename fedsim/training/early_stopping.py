"""Early stopping: a run ends once its validation accuracy has not risen for some evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedsim.core import files
from fedsim.core.text import counted
from fedsim.storage import tables


@dataclass
class EarlyStopping:
    """Counts the evaluations since the best one, the earliest on ties, from rounds.csv alone: due
    after ``patience`` evaluations without a better accuracy; None: never."""

    patience: int | None
    best: float = -1.0
    best_round: int = 0
    waited: int = 0

    def add(self, round: int, accuracy: float | None) -> None:
        """Takes note of a round, from 1; the accuracy is None where it was not evaluated."""
        if accuracy is None:
            return
        self.waited += 1
        if accuracy > self.best:
            self.best, self.best_round, self.waited = accuracy, round, 0

    def read(self, rounds: Path) -> None:
        """Takes note of all rounds in a rounds.csv, whose numbers are read without rounding."""
        with files.reading(rounds) as path:
            for row in tables.read(path):
                self.add(int(row["round"]), tables.number(row["val_accuracy"]))

    @property
    def due(self) -> bool:
        """Whether the run is to end."""
        return self.patience is not None and self.waited >= self.patience

    @property
    def reason(self) -> str:
        """One line for a run that ends."""
        return (
            f"stopped early: no validation accuracy above {self.best:.4f} of round "
            f"{self.best_round} in {counted(self.waited, 'evaluation')} (train.patience)"
        )
