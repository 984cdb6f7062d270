"""How far the numbers of a round may be from those that another processor gave.

Rounding changes losses, norms and cosines a little, relative to their size. A score changes only
where a sample's prediction becomes another one, which few samples are close enough to: their number
follows from how far the losses of the same models are apart. Where these are the same, so are all
predictions. What no rounding changes, such as who took part, must be equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from fedsim.core.rows import Row, metric_column
from fedsim.core.types import Dataset
from fedsim.training.rows import RoundLog

TOLERANCE, OF_A_LOSS = 0.01, 0.02
"""The most by which a number, and a loss, may differ, relative to its size."""
OF_THE_WAY = 0.15
"""The most by which a model may differ, as a part of its way since the rounds began."""
FLIPS = 4.0, 0.01, 2
"""How many predictions of a part may be others on balance: for each sample and unit of loss, and
one more; never above this share of the samples, or this number."""
MOVED = 20.0, 0.02, 6
"""The same of all that may be others, for each sample and the losses' relative difference."""
CLOSED_FORM = 1e-9
"""The same as :data:`TOLERANCE` of what follows from settings and counts alone."""

EXACT = frozenset(
    {
        *("round", "client_id", "num_samples", "num_steps", "status", "cohort_size", "dropped"),
        *("staleness", "version", "attacker", "downlink_bytes", "uplink_bytes", "label", "support"),
        *("split", "group", "scope", "model", "owner", "axis", "name", "client_a", "client_b"),
        "held_out",
    }
)
"""Columns that no processor changes."""
_FROM_SETTINGS = frozenset({"lr", "simulated_seconds", "epsilon", "deployment_epsilon"})
_SCALE_1 = frozenset({"cosine", "share", "value"})
"""Columns whose numbers may cancel to almost nothing: the tolerance is of 1, or of the number."""


class Rounding:
    """What may differ in the rows of one round.

    Args:
        log: the round, done again.
        recorded: its row of rounds.csv as the run has it, by column.
        supports: by part, ``val`` and ``test``, the number of samples of each class that has any.
    """

    def __init__(
        self, log: RoundLog, recorded: Mapping[str, str], supports: Mapping[str, Sequence[int]]
    ) -> None:
        self._log, self._recorded, self._supports = log, recorded, supports
        rows: Sequence[Row] = log.tables.get("rounds", ())
        self._row: Mapping[str, Any] = rows[0] if rows else {}

    def of(
        self, table: str, column: str, cells: Mapping[str, str], row: Row
    ) -> tuple[float, float]:
        """The most by which a number may differ; of a score also what one prediction changes.

        Args:
            table: of the row.
            column: of the number.
            cells: of the row, as the run has them, by column.
            row: the same as it is given now.
        """
        value = row[column]
        if column in EXACT or not isinstance(value, Real):
            return 0.0, 0.0
        size = abs(float(value))
        if column in _FROM_SETTINGS:
            return CLOSED_FORM * size, 0.0
        flip, flips = self._score(table, column, cells, row)
        if flip:
            return flips * flip + CLOSED_FORM, flip
        if table == "decomposition":
            size = max(abs(row["local_loss"]), abs(row["global_loss"]))
        scale = max(size, 1.0) if column in _SCALE_1 else size
        share = OF_A_LOSS if column.endswith("loss") else TOLERANCE
        return share * scale + CLOSED_FORM, 0.0

    def flips_of(self, part: str, samples: int) -> int:
        """How many of the predictions of a part may be others, on balance."""
        loss = metric_column(part, "loss")
        return _flips(samples, _gap(self._recorded, self._row, loss), FLIPS)

    def moved_of(self, samples: int) -> int:
        """How many of the predictions of the test part may be others."""
        losses = (name for name in ("train_loss", "test_loss") if self._row.get(name))
        gaps = [_gap(self._recorded, self._row, name) / self._row[name] for name in losses]
        return _flips(samples, max(gaps, default=0.0), MOVED)

    def _score(
        self, table: str, column: str, cells: Mapping[str, str], row: Row
    ) -> tuple[float, int]:
        """What one prediction changes of a score at most, and how many may be others; 0 and 0 of
        a number that is none."""
        if table in ("evaluations", "final_clients") and column.endswith("accuracy"):
            loss = column.replace("accuracy", "loss")
            samples = row["num_samples"]
            return 1 / samples, _flips(samples, _gap(cells, row, loss), FLIPS)
        if table == "classes" and column in ("recall", "precision", "auc"):
            tested = sum(self._supports["test"])
            flips = self.moved_of(tested)
            return self._of_class(column, row, tested, flips), flips
        if table != "rounds":
            return 0.0, 0
        if column == "conflict_ratio":
            m = row["cohort_size"] - row["dropped"]
            pairs = max(1, m * (m - 1) // 2)
            same = self._recorded.get("update_norm") == repr(row["update_norm"])
            return 1 / pairs, 0 if same else 1 + int(TOLERANCE * pairs)
        part, _, metric = column.partition("_")
        if part not in self._supports:  # client_test_accuracy and scores under attack
            part = "test"
            metric = column
        supports = self._supports[part]
        if not supports:
            return 0.0, 0
        samples, least = sum(supports), len(supports) * min(supports)
        by_metric = {
            "accuracy": 1 / samples,
            "ece": 2 / samples,
            "balanced_accuracy": 1 / least,
            "macro_f1": 3 / least,
            "auc": 2 / least,
            "attack_success_rate": 1 / min(supports),
            "client_test_accuracy": self._of_a_client(samples),
            "benign_test_accuracy": 2 * self._of_a_client(samples),
        }
        flip = by_metric.get(metric, 0.0)
        return flip, self.flips_of(part, samples) if flip else 0

    def _of_class(self, column: str, row: Row, tested: int, flips: int) -> float:
        """What one prediction changes of a score of a class."""
        support = max(1, row["support"])
        if column == "precision":
            confusion = self._log.tables.get("confusion", ())
            label = row["label"]
            predicted = sum(each["count"] for each in confusion if each["prediction"] == label)
            return 1 / max(1, (predicted or support) - flips)
        others = max(1, tested - support)
        return 1 / support + (1 / others if column == "auc" else 0)

    def _of_a_client(self, samples: int) -> float:
        """What one prediction changes of the mean over the clients' accuracies."""
        rows = self._log.tables.get("evaluations", ())
        parts = ("test", "own_test")
        sizes = [
            r["num_samples"] for r in rows if r["client_id"] is not None and r["split"] in parts
        ]
        return 1 / (len(sizes) * min(sizes)) if sizes else 1 / samples


def _gap(cells: Mapping[str, str], row: Mapping[str, Any], column: str) -> float:
    """How far a number that was recorded is from that of now; 0 where one is missing."""
    try:
        return abs(float(cells[column]) - float(row[column]))
    except (KeyError, TypeError, ValueError):
        return 0.0


def _flips(samples: int, apart: float, limits: tuple[float, float, int]) -> int:
    """How many of the predictions of samples may be others where losses are apart by so much, see
    :data:`FLIPS`; none where they are not."""
    by_sample, share, few = limits
    most = max(int(share * samples), few)
    return int(min(1 + by_sample * apart * samples, most)) if apart > 0 else 0


def supports_of(dataset: Dataset) -> dict[str, list[int]]:
    """By part, ``val`` and ``test``, the number of labels of each class that has any."""
    supports = {}
    for part in ("val", "test"):
        labels = dataset.y[getattr(dataset, part)].ravel()
        counts = np.bincount(labels[labels >= 0])
        supports[part] = counts[counts > 0].tolist()
    return supports
