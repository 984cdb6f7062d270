"""Scores of given logits, in float64.

N samples, C classes. They are made in one place, wherever the forward passes ran, so the number of
actors and their batches cannot change a digit. A sample has one label, or one per token; then its
scores (:class:`~fedsim.metrics.samples.SampleScores`) are sums over the labels that count, and
means are over labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.core.errors import ContractError, DivergedError
from fedsim.core.rows import metric_column
from fedsim.core.types import F64, I64, Array
from fedsim.metrics.samples import Kept, Samples, SampleScores, Values
from fedsim.tasks.classification import auc as auc


@dataclass(frozen=True, kw_only=True)
class ClassScore:
    """One class of an evaluation; None where the value is undefined (see ``classes.csv``)."""

    label: int
    support: int
    recall: float | None
    precision: float | None = None
    auc: float | None = None
    measures: Values = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GroupScore:
    """One group of an evaluation's samples, or a client's; as in :class:`Scores`."""

    group: str
    num_samples: int
    loss: float
    accuracy: float | None
    measures: Values = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The metrics of an evaluation on one part; accuracies in 0..1, None where undefined, as all
    but loss and accuracy are where every token has a label, and all but the loss, and the task's
    own ``measures``, are in other tasks than of classes."""

    loss: float
    accuracy: float | None = None
    balanced_accuracy: float | None = None
    macro_f1: float | None = None
    auc: float | None = None
    ece: float | None = None
    measures: Values = field(default_factory=dict)

    def columns(self, part: str) -> dict[str, float | None]:
        """The columns of rounds.csv that hold them for a part, ``val`` or ``test``."""
        own = {name: value for name in METRICS if (value := getattr(self, name)) is not None}
        values = dict.fromkeys(METRICS) | dict(self.measures) | own
        return {metric_column(part, name): value for name, value in values.items()}


_OF_CLASSES = ("support", "recall", "precision", "auc")
METRICS = tuple(f.name for f in fields(Metrics) if f.name != "measures")
"""The names of metrics that rounds.csv always has columns for."""


@dataclass(frozen=True, kw_only=True)
class Scores(Metrics):
    """An evaluation of one model on one part; no ``classes`` where every token has a label."""

    num_samples: int
    classes: tuple[ClassScore, ...] = ()
    groups: tuple[GroupScore, ...] = ()
    confusion: I64 | None = field(default=None, compare=False)  # (n, 3) label, prediction, count


def per_sample(logits: Array, labels: I64, never_right: Sequence[int] = ()) -> SampleScores:
    """Cross-entropy and hit of each sample; arguments, prediction and errors as :func:`score`."""
    losses, predicted, _ = _outcome(logits, labels)
    return _single(losses, _right(predicted, labels, never_right))


BINS = 15
"""Bins of confidence of equal width, as in Guo et al. (2017)."""


def calibration_error(confidence: F64, right: Array) -> float:
    """The expected calibration error (Guo et al., 2017, equation 3; https://arxiv.org/abs/1706.04599).

    The mean over the bins ((m - 1) / M, m / M] of the confidence (N,), weighted by samples, of
    |accuracy - mean confidence|; ``right`` (N,) says whether the predicted class is the label.
    """
    bins = np.searchsorted(np.arange(1, BINS) / BINS, confidence)
    gap = right - confidence
    gaps = [math.fsum(gap[bins == m].tolist()) for m in range(BINS)]
    return math.fsum(map(abs, gaps)) / len(confidence)


def gini(values: F64) -> float:
    """The Gini coefficient sum_ij |x_i - x_j| / (2 n^2 mean(x)) of values (n,) >= 0; 0 of zeros."""
    x, n = np.sort(values), len(values)
    total = math.fsum(x.tolist())
    ranked = math.fsum((x * (2 * np.arange(1, n + 1) - n - 1)).tolist())
    return ranked / (n * total) if total else 0.0


def score(
    logits: Array,
    labels: I64,
    groups: Mapping[str, I64] | None = None,
    never_right: Sequence[int] = (),
) -> Scores:
    """Loss, accuracies, macro-F1, AUC, calibration, the classes' scores and the confusion.

    The loss is the mean cross-entropy, its sum correctly rounded; the prediction is the lowest of
    the classes with the largest logit; balanced accuracy (mean recall) and macro-F1 run over the
    classes with support. AUC: mean over classes of class against rest by softmax probability
    (two classes: class 1), ties counted half; None if a class has no sample. A class has an AUC of
    its own, against the rest, where both have samples. See :func:`calibration_error` for ``ece``.

    Logits are (N, C), labels (N,); ``groups`` are positions of samples that get a loss and accuracy
    of their own; classes that are ``never_right`` are wrong wherever they are predicted. A
    DivergedError where a logit is NaN or infinite.
    """
    losses, predicted, chances = _outcome(logits, labels)
    num_samples, num_classes = chances.shape
    right = _right(predicted, labels, never_right)
    hits = np.bincount(labels[right], minlength=num_classes)
    support = np.bincount(labels, minlength=num_classes)
    claimed = np.bincount(predicted, minlength=num_classes)
    seen = support > 0
    aucs = [_class_auc(chances, labels, label) for label in range(num_classes)]
    return Scores(
        num_samples=num_samples,
        loss=math.fsum(losses.tolist()) / num_samples,
        accuracy=int(hits.sum()) / num_samples,
        balanced_accuracy=_mean((hits[seen] / support[seen]).tolist()),
        macro_f1=_mean((2 * hits[seen] / (support[seen] + claimed[seen])).tolist()),
        auc=_macro_auc(aucs),
        ece=calibration_error(chances.max(axis=1), right),
        classes=tuple(
            ClassScore(
                label=label,
                support=s,
                recall=h / s if s else None,
                precision=h / c if c else 0.0,
                auc=aucs[label],
            )
            for label, (s, h, c) in enumerate(
                zip(support.tolist(), hits.tolist(), claimed.tolist(), strict=True)
            )
        ),
        groups=_groups(_single(losses, right), groups or {}),
        confusion=_confusion(labels, predicted, np.ones(num_samples, dtype=np.int64)),
    )


def score_tokens(samples: SampleScores, groups: Mapping[str, I64] | None = None) -> Scores:
    """Loss and accuracy over the labels of at least one sample; no scores by class, and no AUC."""
    whole = group_score("", samples)
    return Scores(
        num_samples=whole.num_samples,
        loss=whole.loss,
        accuracy=whole.accuracy,
        groups=_groups(samples, groups or {}),
    )


def score_kept(samples: Kept, groups: Mapping[str, I64] | None = None) -> Scores:
    """Loss and measures of at least one sample of a task, all together."""
    whole = group_score("", samples)
    by_class = samples.of_classes()
    each = [dict(zip(by_class, row, strict=True)) for row in zip(*by_class.values(), strict=True)]
    return Scores(
        num_samples=whole.num_samples,
        loss=whole.loss,
        measures=whole.measures,
        groups=_groups(samples, groups or {}),
        classes=tuple(_class_score(label, values) for label, values in enumerate(each)),
    )


def _class_score(label: int, values: Mapping[str, float | None]) -> ClassScore:
    """Measures of a class, those that every task has as such."""
    own = {name: value for name, value in values.items() if name in _OF_CLASSES}
    known: dict[str, Any] = {"support": 0, "recall": None} | own
    more = {name: value for name, value in values.items() if name not in own}
    return ClassScore(label=label, measures=more, **known)


def group_score(name: str, samples: Samples) -> GroupScore:
    """Loss and accuracy, or measures, of at least one sample: means over labels, sums correctly
    rounded."""
    if isinstance(samples, Kept):
        loss, values = samples.loss(), samples.values()
        number = len(samples)
        return GroupScore(group=name, num_samples=number, loss=loss, accuracy=None, measures=values)
    total = int(samples.weight.sum())
    return GroupScore(
        group=name,
        num_samples=len(samples.loss),
        loss=math.fsum(samples.loss.tolist()) / total,
        accuracy=int(samples.correct.sum()) / total,
        measures={} if samples.kept is None else samples.kept.values(),
    )


def mean_scores(scores: Sequence[Scores]) -> Scores:
    """The unweighted mean over several models' scores on the same samples (personalised methods).

    A value that is None for one of the models is None in the mean; the confusion is the sum.
    """
    confusions = [s.confusion for s in scores if s.confusion is not None]
    return replace(
        scores[0],
        **_means(scores, *METRICS),
        classes=tuple(
            replace(rows[0], **_means(rows, "recall", "precision", "auc"), measures=_measures(rows))
            for rows in zip(*(s.classes for s in scores), strict=True)
        ),
        groups=tuple(
            replace(rows[0], **_means(rows, "loss", "accuracy"), measures=_measures(rows))
            for rows in zip(*(s.groups for s in scores), strict=True)
        ),
        confusion=_confusion(*np.concatenate(confusions).T) if confusions else None,
        measures=_measures(scores),
    )


def _outcome(logits: Array, labels: I64) -> tuple[F64, I64, F64]:
    """Cross-entropy (N,), predicted class (N,) and softmax (N, C) of each sample, in float64."""
    _check(logits, labels)
    z = logits.astype(np.float64)
    shifted = z - z.max(axis=1, keepdims=True)
    odds = np.exp(shifted)
    total = odds.sum(axis=1, keepdims=True)
    losses = np.log(total[:, 0]) - shifted[np.arange(len(z)), labels]
    return losses, z.argmax(axis=1), odds / total


def _right(predicted: I64, labels: I64, never_right: Sequence[int]) -> NDArray[np.bool_]:
    return (predicted == labels) & ~np.isin(predicted, never_right)


def _single(losses: F64, right: NDArray[np.bool_]) -> SampleScores:
    """Scores of samples with one label each."""
    return SampleScores(losses, right, np.ones(len(losses), dtype=np.int64))


def _groups(samples: Samples, groups: Mapping[str, I64]) -> tuple[GroupScore, ...]:
    return tuple(group_score(name, samples.at(index)) for name, index in groups.items())


def _check(logits: Array, labels: I64) -> None:
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or logits.size == 0:
        raise ContractError(
            f"score needs logits (N, C) and labels (N,) with N, C >= 1, got {logits.shape} "
            f"and {labels.shape}"
        )
    if labels.min() < 0 or labels.max() >= logits.shape[1]:
        raise ContractError(
            f"labels {labels.min()}..{labels.max()} do not fit {logits.shape[1]} logits: "
            f"0..{logits.shape[1] - 1} allowed"
        )
    finite = np.isfinite(logits).all(axis=1)
    if not finite.all():
        raise DivergedError(
            f"the logits of {int((~finite).sum())} of {finite.size} evaluated samples are NaN or "
            f"infinite, first of sample {int(finite.argmin())}"
        )


def _class_auc(p: F64, labels: I64, label: int) -> float | None:
    """The AUC of a class against the rest; None where one of them has no sample."""
    positive = labels == label
    return auc(p[:, label], positive) if positive.any() and not positive.all() else None


def _macro_auc(classes: Sequence[float | None]) -> float | None:
    """The mean over the classes; that of class 1 where there are two."""
    wanted = classes[1:] if len(classes) == 2 else classes
    defined = [value for value in wanted if value is not None]
    return _mean(defined) if len(defined) == len(wanted) else None


def _confusion(labels: I64, predicted: I64, count: I64) -> I64:
    """(n, 3) label, prediction and summed count of the pairs that occur, sorted."""
    width = 1 + int(predicted.max())
    pairs, position = np.unique(labels * width + predicted, return_inverse=True)
    total = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(total, position, count)
    return np.stack([pairs // width, pairs % width, total], axis=1)


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _measures(rows: Sequence[Scores | ClassScore | GroupScore]) -> Values:
    """The mean of each measure over the rows; None where it is None in one of them."""
    columns = {name: [row.measures[name] for row in rows] for name in rows[0].measures}
    return {name: _mean_of(values) for name, values in columns.items()}


def _mean_of(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return _mean(defined) if len(defined) == len(values) else None


def _means(rows: Sequence[Scores | ClassScore | GroupScore], *fields: str) -> dict[str, Any]:
    """The mean of each field over the rows; None where it is None in one of them."""
    columns = {field: [getattr(row, field) for row in rows] for field in fields}
    return {field: _mean_of(values) for field, values in columns.items()}
