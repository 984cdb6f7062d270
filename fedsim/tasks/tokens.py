"""A class for each token, as the next word: cross-entropy and accuracy over those that count."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedsim.core.task import TargetError, Task, no_strata, nothing_more
from fedsim.core.types import Array
from fedsim.tasks import classification

if TYPE_CHECKING:
    from torch import Tensor


def check(y: Array) -> None:
    """(N, T) int64, -1 where a token does not count, of which every sample has another one."""
    if y.dtype != np.int64 or y.ndim != 2:
        raise TargetError(f"y is {y.dtype} {y.shape}, needed is int64 (N, T)")
    if y.size and y.min() < -1:
        raise TargetError(f"label {y.min()} is below -1", int(y.min(axis=1).argmin()))
    empty = ~(y >= 0).any(axis=1)
    if empty.any():
        raise TargetError("a sample without any label", int(empty.argmax()))


def loss(outputs: "Tensor", y: "Tensor") -> "Tensor":
    """(B,) mean cross-entropies of the samples' tokens that count."""
    from torch.nn.functional import cross_entropy

    each = cross_entropy(outputs.transpose(1, 2), y, ignore_index=-1, reduction="none")
    return each.sum(dim=1) / (y >= 0).sum(dim=1)


def predict(outputs: Array) -> Mapping[str, Array]:
    """The most likely class of every token."""
    return {"prediction": outputs.argmax(axis=2)}


def prints(y: Array) -> Sequence[str]:
    """The numbers of the classes."""
    return [" ".join(map(str, row)) for row in y.tolist()]


def build() -> Task:
    """The task."""
    return replace(
        classification.build(),
        name="tokens",
        title="one class for each token",
        target="tokens",
        check=check,
        loss=loss,
        stratum=no_strata,
        predict=predict,
        prints=prints,
        output="token",
        more=nothing_more,
        further=(),
    )
