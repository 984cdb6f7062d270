"""Several labels for each sample: binary cross-entropy; AUC and F1 of each label, and the mean."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedsim.core.task import Measure, TargetError, Task, mean_known
from fedsim.core.types import F64, Array
from fedsim.tasks import classification

if TYPE_CHECKING:
    from torch import Tensor


def check(y: Array) -> None:
    """(N, L) float32, 0 or 1."""
    if y.dtype != np.float32 or y.ndim != 2:
        raise TargetError(f"y is {y.dtype} {y.shape}, needed is float32 (N, L)")
    odd = np.argwhere((y != 0) & (y != 1))
    if len(odd):
        row, label = odd[0].tolist()
        what = "missing (NaN)" if np.isnan(y[row, label]) else f"{y[row, label]:g}"
        raise TargetError(f"label {label} is {what}; every label is 0 or 1", row)


def width(y: Array) -> int:
    """An output for each label."""
    return y.shape[1]


def loss(outputs: "Tensor", y: "Tensor") -> "Tensor":
    """(B,) binary cross-entropies, the mean over the labels."""
    from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

    return cross_entropy(outputs, y.to(outputs), reduction="none").mean(dim=1)


def predict(outputs: Array) -> Mapping[str, Array]:
    """Of each label whether it is more likely than not, and its probability."""
    labels = range(outputs.shape[1])
    said = {f"prediction_{k}": (outputs[:, k] > 0).astype(np.int64) for k in labels}
    return said | {f"probability_{k}": np.exp(-np.logaddexp(0, -outputs[:, k])) for k in labels}


def prints(y: Array) -> Sequence[str]:
    """Of each label 1 where the sample has it, else 0."""
    return [" ".join(f"{label:g}" for label in row) for row in y.tolist()]


def _aucs(outputs: Array, y: Array) -> F64:
    """Of each label against the samples without it; NaN where there are none of a kind."""
    return np.array([classification.auc(outputs[:, k], y[:, k] == 1) for k in range(y.shape[1])])


def _counts(outputs: Array, y: Array) -> F64:
    """Of each label the samples with it that were found, with it, and said to have it."""
    said = outputs > 0
    return np.array([(said * y).sum(axis=0), y.sum(axis=0), said.sum(axis=0)], np.float64).ravel()


def _each(aucs: F64) -> list[float | None]:
    return [None if value != value else value for value in aucs.tolist()]


def _of_labels(counts: F64) -> Mapping[str, Sequence[float | None]]:
    """Support, recall, precision (0 without predictions) and F1 of each label, the last and recall
    None without support."""
    rows = counts.reshape(3, -1).T.tolist()
    return {
        "support": [int(support) for _, support, _ in rows],
        "recall": [hits / support if support else None for hits, support, _ in rows],
        "precision": [hits / said if said else 0.0 for hits, _, said in rows],
        "f1": [2 * hits / (support + said) if support else None for hits, support, said in rows],
    }


def _macro_f1(counts: F64) -> float | None:
    return mean_known(_of_labels(counts)["f1"])


def _mean_auc(aucs: F64) -> float | None:
    return mean_known(_each(aucs))


def collapsed(measures: Mapping[str, float | None]) -> bool:
    """Ranks samples no better than chance."""
    auc = measures["auc"]
    return auc is not None and auc <= 0.5


def build() -> Task:
    """The task; means are over labels with samples of both kinds (AUC) or with support (F1)."""
    f1 = Measure(
        name="macro_f1", title="macro-F1", unit="%", of=_counts, by_class=_of_labels,
        value=_macro_f1,
    )  # fmt: skip
    auc = Measure(
        name="auc", title="AUC", unit="%", of=_aucs, by_class=_each, whole=True,
        value=_mean_auc,
    )  # fmt: skip
    return Task(
        name="multilabel",
        title="several labels for each sample",
        target="labels",
        check=check,
        width=width,
        loss=loss,
        measures=(auc, f1),
        primary="auc",
        predict=predict,
        prints=prints,
        collapsed=collapsed,
    )
