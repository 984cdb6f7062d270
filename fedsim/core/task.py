"""What a task is: targets, outputs, loss and measures as a value; the tasks are in `fedsim.tasks`.

B samples of a batch, N in all, C outputs. Losses take and give tensors, all else is NumPy: outputs
(N, ...) float64 as the model gives them, targets as the data set has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedsim.core.errors import DataError
from fedsim.core.types import F64, I64, Array

if TYPE_CHECKING:
    from torch import Tensor


class TargetError(DataError):
    """A target that a task cannot have; ``row`` is the first such sample, if it is a sample's."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


def mean(sums: F64) -> float | None:
    """The first of two sums by the second, None where that is 0."""
    return float(sums[0] / sums[1]) if sums[1] else None


def number(sums: F64) -> float | None:
    """The only number, None where it is NaN."""
    return None if sums[0] != sums[0] else float(sums[0])


ByClass = Sequence[float | None]
"""A value of each class."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number that says how good outputs are.

    Args:
        name: end of its columns, as in ``test_rmse``.
        of: (outputs, targets) of n samples -> (k,) float64 sums over them, which add up over
            samples; of a measure of the ``whole``, of all samples at once, which do not.
        value: these sums -> the measure, None where it is undefined.
        title: in headings; by default the name.
        unit: ``%`` of a share in 0..1.
        better: whether large (up) or small values are better.
        whole: whether ``of`` needs all samples at once, as an AUC does.
        by_class: the sums -> the value of each class, in classes.csv; or several columns by name,
            of which ``support``, ``recall``, ``precision`` and ``auc`` are those of any task.
    """

    name: str
    of: Callable[[Array, Array], F64]
    value: Callable[[F64], float | None] = mean
    title: str = ""
    unit: Literal["%", "nats", ""] = ""
    better: Literal["up", "down"] = "up"
    whole: bool = False
    by_class: Callable[[F64], ByClass | Mapping[str, ByClass]] | None = None

    def of_samples(self, outputs: Array, y: Array) -> float | None:
        """The measure of samples, all at once."""
        return self.value(self.of(outputs, y))

    def record(self) -> dict[str, object]:
        """What env.json says of it."""
        return {"title": self.title or self.name, "unit": self.unit, "better": self.better}


def mean_known(values: Sequence[float | None]) -> float | None:
    """The mean of those that are defined, None of none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def no_strata(_y: Array) -> None:
    """Samples are of no class."""


def nothing_more(_name: str) -> Measure | None:
    """No measures beside those of the task."""
    return None


@dataclass(frozen=True, kw_only=True)
class Task:
    """What clients learn.

    Args:
        name: as in ``--task``.
        title: a line for lists.
        target: what readers make of the data: an int64 class (N,), or one for each token (N, T);
            0 or 1 float32 for several labels (N, L); float32 numbers (N,) or (N, w); a class for
            each pixel, uint8 (N, H, W); or float32 time and event (N, 2).
        check: targets -> nothing; a :class:`TargetError` where they are none of the task.
        width: targets -> C, the fewest outputs that they need.
        loss: (outputs, targets) of a batch -> (B,), the loss of each sample.
        measures: those that runs record beside the loss.
        primary: the measure that tables, early stopping and tuning use.
        stratum: targets -> (N,) the class by which samples are dealt and split, or None.
        predict: outputs -> columns (N,) of predictions, by name; of a class ``prediction``.
        prints: targets -> how each looks in a table.
        collapsed: final test measures by name -> whether the model is no better than a constant.
        output: what has an output of its own: (B, C), (B, T, C) or (B, C, H, W).
        additive: whether the loss of some samples is the mean of theirs, whatever the batch.
        cross_entropy: whether the loss is the cross-entropy of classes, which every form of margin
            control is about, and accuracy a measure.
        margin: why outputs are no logits, so that margin control cannot be; None where they are.
        streams: whether outputs are too large to keep: measures are summed sample by sample.
        more: the measure of a name that ``evaluation.measures`` may ask for; None: unknown.
        further: such names, for messages.
    """

    name: str
    title: str = ""
    target: Literal["class", "tokens", "labels", "value", "mask", "survival"]
    check: Callable[[Array], None]
    width: Callable[[Array], int]
    loss: Callable[[Tensor, Tensor], Tensor]
    measures: tuple[Measure, ...]
    primary: str
    predict: Callable[[Array], Mapping[str, Array]]
    prints: Callable[[Array], Sequence[str]]
    stratum: Callable[[Array], I64 | None] = no_strata
    collapsed: Callable[[Mapping[str, float | None]], bool] | None = None
    output: Literal["sample", "token", "pixel"] = "sample"
    additive: bool = True
    cross_entropy: bool = False
    margin: str | None = None
    streams: bool = False
    more: Callable[[str], Measure | None] = nothing_more
    further: tuple[str, ...] = ()

    @property
    def lowest(self) -> bool:
        """Whether small values of the primary measure are better."""
        return any(m.better == "down" for m in self.measures if m.name == self.primary)

    def record(self) -> dict[str, object]:
        """What env.json says of it."""
        measures = {measure.name: measure.record() for measure in self.measures}
        return {"name": self.name, "primary": self.primary, "measures": measures}
