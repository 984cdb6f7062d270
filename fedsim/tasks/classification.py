"""One class for each sample: cross-entropy, accuracy and the other scores of `metrics.scores`.

Those scores are always recorded; by client and site :func:`more` can be asked for: ``auc``,
``balanced_accuracy``, ``sensitivity`` and ``specificity`` of class 1 of two, and
``sensitivity@0.9``: the largest sensitivity of a threshold whose specificity is at least 0.9.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedsim.core.task import Measure, TargetError, Task, mean, number
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


def rank_auc(values: F64, positive: Array) -> float:
    """The area under the ROC curve, ties counted half; NaN where a kind of sample is missing."""
    p, q = int(positive.sum()), int((~positive).sum())
    if not p or not q:
        return float("nan")
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values[positive], "left")
    upto = np.searchsorted(ordered, values[positive], "right")
    return float((((below + upto + 1) / 2).sum() - p * (p + 1) / 2) / (p * q))


def _auc(outputs: Array, y: Array) -> F64:
    chances = softmax(outputs)
    classes = [1] if chances.shape[1] == 2 else range(chances.shape[1])
    return np.array([np.mean([rank_auc(chances[:, k], y == k) for k in classes])])


def _recalls(outputs: Array, y: Array) -> F64:
    """Hits and samples of each class."""
    classes = range(outputs.shape[1])
    right = outputs.argmax(axis=1) == y
    return np.array([[right[y == k].sum(), (y == k).sum()] for k in classes], np.float64).ravel()


def _balanced(sums: F64) -> float | None:
    hits, support = sums.reshape(-1, 2).T
    seen = support > 0
    return float((hits[seen] / support[seen]).mean()) if seen.any() else None


def _recall(label: int, sums: F64) -> float | None:
    return mean(sums.reshape(-1, 2)[label])


def _sensitivity_at(specificity: float, outputs: Array, y: Array) -> F64:
    """Class 1 is said at the thresholds between the negatives' margins that keep specificity."""
    margin = outputs[:, 1] - outputs[:, 0]
    negatives, positives = np.sort(margin[y == 0]), margin[y == 1]
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
        Measure(name="sensitivity", unit="%", of=_recalls, value=partial(_recall, 1)),
        Measure(name="specificity", unit="%", of=_recalls, value=partial(_recall, 0)),
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
    )
