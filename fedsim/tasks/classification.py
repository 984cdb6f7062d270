"""One class for each sample: cross-entropy; accuracy, macro-F1, AUC and calibration.

Those scores are always recorded; by client and site :func:`more` can be asked for: ``auc``,
``balanced_accuracy``, ``sensitivity`` and ``specificity`` of class 1 against the rest, and
``sensitivity@0.9``: the largest sensitivity of a threshold whose specificity is at least 0.9.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedsim.core.task import Measure, TargetError, Task, number
from fedsim.core.types import F64, I64, Array

if TYPE_CHECKING:
    from torch import Tensor


def check(y: Array) -> None:
    """(N,) int64, from 0."""
    if y.dtype != np.int64 or y.ndim != 1:
        raise TargetError(f"y is {y.dtype} {y.shape}, needed is int64 (N,)")
    if y.size and y.min() < 0:
        raise TargetError(f"label {y.min()} is below 0", int(y.argmin()))


def width(y: Array) -> int:
    """The classes up to the largest label, two at least."""
    return max(2, 1 + int(y.max(initial=0)))


def loss(outputs: "Tensor", y: "Tensor") -> "Tensor":
    """(B,) cross-entropies."""
    from torch.nn.functional import cross_entropy  # torch takes seconds to import

    return cross_entropy(outputs, y, reduction="none")


def softmax(outputs: Array) -> F64:
    """(N, C) probabilities."""
    shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True), dtype=np.float64)
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def predict(outputs: Array) -> Mapping[str, Array]:
    """The class, the first of the largest outputs, and the probability of each."""
    chances = softmax(outputs)
    columns = {f"probability_{k}": chances[:, k] for k in range(chances.shape[1])}
    return {"prediction": outputs.argmax(axis=1), **columns}


def prints(y: Array) -> Sequence[str]:
    """The numbers of the classes."""
    return [str(label) for label in y.tolist()]


def same(y: Array) -> I64:
    """The classes are the strata."""
    return np.asarray(y, np.int64)


def auc(values: F64, positive: Array) -> float:
    """The probability that a positive sample has the larger value, ties counted half: the
    Mann-Whitney statistic U / (P * Q) by mid-ranks; NaN without samples of each kind."""
    everything, positives = np.sort(values), values[positive]
    below, upto = (np.searchsorted(everything, positives, side) for side in ("left", "right"))
    p, q = len(positives), len(values) - len(positives)
    if not p or not q:
        return float("nan")
    return float((((below + upto + 1) / 2).sum() - p * (p + 1) / 2) / (p * q))


def _auc(outputs: Array, y: Array) -> F64:
    chances = softmax(outputs)
    classes = [1] if chances.shape[1] == 2 else range(chances.shape[1])
    return np.array([np.mean([auc(chances[:, k], y == k) for k in classes])])


def _recalls(outputs: Array, y: Array) -> F64:
    """Hits and samples of each class."""
    classes = range(outputs.shape[1])
    right = outputs.argmax(axis=1) == y
    return np.array([[right[y == k].sum(), (y == k).sum()] for k in classes], np.float64).ravel()


def _balanced(sums: F64) -> float | None:
    hits, support = sums.reshape(-1, 2).T
    seen = support > 0
    return float((hits[seen] / support[seen]).mean()) if seen.any() else None


def _of_one(positive: bool, outputs: Array, y: Array) -> F64:
    """Right decisions on samples of class 1, or of the others, and how many there are."""
    chosen = (y == 1) == positive
    right = (outputs[chosen].argmax(axis=1) == 1) == positive
    return np.array([right.sum(), chosen.sum()], np.float64)


def _sensitivity_at(specificity: float, outputs: Array, y: Array) -> F64:
    """The largest share of samples of class 1 above a threshold that leaves this share of the
    others at or below it."""
    others = np.delete(outputs, 1, axis=1)
    margin = outputs[:, 1] - np.logaddexp.reduce(others, axis=1)
    negatives, positives = np.sort(margin[y != 1]), margin[y == 1]
    if not len(negatives) or not len(positives):
        return np.array([np.nan])
    allowed = len(negatives) - int(np.ceil(specificity * len(negatives) - 1e-9))  # wrong ones
    threshold = negatives[-1 - allowed] if allowed < len(negatives) else -np.inf
    return np.array([(positives > threshold).mean()])


def more(name: str) -> Measure | None:
    """The measure of that name."""
    base, at, number_of = name.partition("@")
    if at and base == "sensitivity":
        try:
            specificity = float(number_of)
        except ValueError:
            return None
        title = f"sensitivity at specificity {number_of}"
        value = partial(_sensitivity_at, specificity)
        fits = 0 < specificity <= 1
        of = Measure(name=name, title=title, unit="%", of=value, value=number, whole=True)
        return of if fits else None
    measures = (
        Measure(name="auc", title="AUC", unit="%", of=_auc, value=number, whole=True),
        Measure(
            name="balanced_accuracy", title="balanced accuracy", unit="%", of=_recalls,
            value=_balanced,
        ),
        Measure(name="sensitivity", unit="%", of=partial(_of_one, True)),
        Measure(name="specificity", unit="%", of=partial(_of_one, False)),
    )  # fmt: skip
    return next((measure for measure in measures if measure.name == name), None)


def build() -> Task:
    """The task."""
    return Task(
        name="classification",
        title="one class for each sample",
        target="class",
        check=check,
        width=width,
        loss=loss,
        measures=(),
        primary="accuracy",
        stratum=same,
        predict=predict,
        prints=prints,
        cross_entropy=True,
        more=more,
        further=("auc", "balanced_accuracy", "sensitivity", "specificity", "sensitivity@0.9"),
    )
