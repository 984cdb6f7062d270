"""How far the numbers of a round may be from those that another processor gave.

Rounding changes losses, norms and cosines a little, relative to their size. A score changes where a
sample's prediction becomes another one, which few samples are close enough to. What no rounding
changes, such as who took part, must be equal.
"""

from __future__ import annotations

from numbers import Real

import numpy as np

from fedsim.core.rows import Row
from fedsim.core.types import Dataset

TOLERANCE, OF_A_LOSS = 0.01, 0.02
"""The most by which a number, and a loss, may differ, relative to its size."""
OF_A_TENSOR, OF_A_NUMBER = 1e-3, 1e-4
"""The same of the 2-norm of a model's tensor: of its size, and of each number."""
FLIPS = 0.01, 2
"""The share of a part's predictions that may be others on balance, or this number of them."""
CLOSED_FORM = 1e-9
"""The same as :data:`TOLERANCE` of what follows from settings and counts alone."""

EXACT = frozenset(
    {
        *("round", "client_id", "num_samples", "num_steps", "status", "cohort_size", "dropped"),
        *("staleness", "version", "attacker", "downlink_bytes", "uplink_bytes", "held_out"),
        *("split", "group", "scope", "model", "owner", "axis", "name", "client_a", "client_b"),
    }
)
"""Columns that no processor changes."""
FROM_SETTINGS = frozenset({"lr", "simulated_seconds", "epsilon", "deployment_epsilon"})
CANCELLING = frozenset({"cosine", "share", "value"})
"""Columns whose numbers may cancel to almost nothing: the tolerance is of 1, or of the number."""
SCORES = ("accuracy", "macro_f1", "auc", "ece", "success_rate", "conflict_ratio")
"""Ends of the columns that change where predictions, or signs, become others."""


class Rounding:
    """What may differ in the rows of a run on these data."""

    EXCLUDED = ("classes", "confusion")
    """Tables whose scores of single classes a few other predictions change too much to compare."""

    def __init__(self, dataset: Dataset) -> None:
        self._samples: dict[str, int] = {}
        self._least: dict[str, int] = {}
        for part in ("val", "test"):
            labels = dataset.y[getattr(dataset, part)].ravel()
            counts = np.bincount(labels[labels >= 0])
            supports = counts[counts > 0].tolist() or [0]
            self._samples[part] = sum(supports)
            self._least[part] = len(supports) * min(supports)

    @staticmethod
    def is_score(column: str) -> bool:
        """Whether a column follows from predictions, or signs, rather than from sizes."""
        return column.endswith(SCORES)

    def most(self, table: str, column: str, row: Row) -> float:
        """The most by which the number of a row may differ."""
        value = row[column]
        if column in EXACT or not isinstance(value, Real):
            return 0.0
        size = abs(float(value))
        if column in FROM_SETTINGS:
            return CLOSED_FORM * size
        if self.is_score(column):
            return self._of_a_score(column, row) + CLOSED_FORM
        if table == "decomposition":
            size = max(abs(row["local_loss"]), abs(row["global_loss"]))
        scale = max(size, 1.0) if column in CANCELLING else size
        return (OF_A_LOSS if column.endswith("loss") else TOLERANCE) * scale + CLOSED_FORM

    def _of_a_score(self, column: str, row: Row) -> float:
        """What the predictions that may be others change of a score."""
        share, few = FLIPS
        if column == "conflict_ratio":
            clients = row["cohort_size"] - row["dropped"]
            return share + 1 / max(1, clients * (clients - 1) // 2)
        if "num_samples" in row.columns():  # of one client, or of a group
            return max(share, few / max(1, row["num_samples"]))
        part, _, metric = column.partition("_")
        samples = self._samples.get(part, self._samples["test"])
        least = self._least.get(part, self._least["test"])
        if not samples:  # the clients' own parts
            return 2 * share
        flips = max(share * samples, few)
        return flips / samples if metric == "accuracy" else 3 * flips / least

    @staticmethod
    def is_close(array: np.ndarray, other: np.ndarray) -> bool:
        """Whether two tensors of one kind of number differ as on two processors."""
        if array.dtype.kind != "f":
            return bool(np.array_equal(array, other))
        size, apart = (float(np.linalg.norm(a.astype(np.float64))) for a in (array, array - other))
        return apart <= OF_A_TENSOR * size + OF_A_NUMBER * float(np.sqrt(array.size))
