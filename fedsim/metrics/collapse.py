"""Collapse: final predictions that are no better than chance, most often one class for everything.

Accuracy does not show it where classes are imbalanced: predicting the majority class alone can
reach any accuracy, while its balanced accuracy is that of chance, 1 / (classes with support).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

TOLERANCE = 1e-9
"""Of the comparison with chance: means over classes and models are rounded."""


@dataclass(frozen=True, kw_only=True)
class FinalPredictions:
    """What the last evaluation of a run says of its predictions on the test part."""

    num_samples: int
    num_classes: int  # with test samples, at least 2
    balanced_accuracy: float
    only_class: int | None  # predicted for every sample, by all models

    @property
    def collapsed(self) -> bool:
        """Whether balanced accuracy is at most that of chance, as with a single predicted class."""
        return self.balanced_accuracy <= 1 / self.num_classes + TOLERANCE

    def describe(self, names: Sequence[str] = ()) -> str:
        """One line for a run that collapsed; ``names`` are those of the classes."""
        chance = f"{1 / self.num_classes:.4f} ({self.num_classes} classes)"
        if self.only_class is None:
            return (
                f"balanced accuracy {self.balanced_accuracy:.4f} in the last evaluation is at most "
                f"that of chance, {chance}"
            )
        label = str(self.only_class)
        name = names[self.only_class] if self.only_class < len(names) else label
        title = f" ({name})" if name.strip() not in ("", label) else ""
        return (
            f"class {label}{title} is predicted for all {self.num_samples} test samples in the "
            f"last evaluation; balanced accuracy is that of chance, {chance}"
        )


def final_predictions(table: pd.DataFrame) -> FinalPredictions | None:
    """From the last evaluation in classes.csv; None where fewer than two classes have samples."""
    last = table[(table["round"] == table["round"].max()) & (table["support"] > 0)]
    if len(last) < 2:
        return None
    total = int(last["support"].sum())
    # with recall 1, precision is support / (predictions of the class): all samples are predicted so
    share = last["support"] / total
    only = last["label"][(last["recall"] == 1) & (last["precision"] <= share + TOLERANCE)]
    return FinalPredictions(
        num_samples=total,
        num_classes=len(last),
        balanced_accuracy=float(last["recall"].mean()),
        only_class=None if only.empty else int(only.iloc[0]),
    )
