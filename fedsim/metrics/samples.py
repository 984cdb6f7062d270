"""What is known of each of n samples after an evaluation, and the scores of any of them together.

Classes leave a loss and a hit (:class:`SampleScores`), all that a mean over samples needs. Other
tasks keep outputs and targets, or where these are large the sums of each measure (:class:`Kept`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.core.errors import DivergedError
from fedsim.core.task import ByClass, Measure, Task
from fedsim.core.types import F64, I64, Array

Values = Mapping[str, float | None]
"""Measures by name, None where one is undefined."""


@dataclass(frozen=True)
class Kept:
    """Outputs (n, ...) and targets (n, ...) of a task, or ``sums`` (n, k) by measure and
    ``loss``."""

    task: Task
    outputs: Array | None = None
    y: Array | None = None
    sums: Mapping[str, F64] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.sums.values()))) if self.outputs is None else len(self.outputs)

    def at(self, index: I64) -> Kept:
        """Those at some positions."""
        if self.outputs is None or self.y is None:
            return replace(self, sums={name: sums[index] for name, sums in self.sums.items()})
        return replace(self, outputs=self.outputs[index], y=self.y[index])

    def loss(self) -> float:
        """Of all samples; the mean of theirs where the task's loss is one."""
        if self.outputs is None:
            return math.fsum(self.sums["loss"][:, 0].tolist()) / len(self)
        given = torch.from_numpy(self.outputs.astype(np.float64)), torch.as_tensor(self.y)
        return math.fsum(self.task.loss(*given).tolist()) / len(self)

    @cached_property
    def _totals(self) -> Mapping[str, F64]:
        """The sums of all measures, which the whole and the classes have in common."""
        if self.outputs is None or self.y is None:
            rows = {m.name: self.sums[m.name].T.tolist() for m in self.task.measures}
            return {name: np.array(list(map(math.fsum, several))) for name, several in rows.items()}
        exact = self.outputs.astype(np.float64)
        return {m.name: m.of(exact, self.y) for m in self.task.measures}

    def totals(self, measure: Measure) -> F64:
        """(k,) the sums of a measure over all samples."""
        return self._totals[measure.name]

    def values(self) -> Values:
        """The measures of all samples together."""
        return {m.name: m.value(self.totals(m)) for m in self.task.measures}

    def of_classes(self) -> dict[str, ByClass]:
        """What the measures say of each class."""
        columns: dict[str, ByClass] = {}
        for measure in self.task.measures:
            if measure.by_class is not None:
                values = measure.by_class(self.totals(measure))
                columns |= values if isinstance(values, Mapping) else {measure.name: values}
        return columns


def kept(task: Task, outputs: Array, y: Array) -> Kept:
    """Outputs and targets; a DivergedError where an output is NaN or infinite."""
    _check(outputs)
    return Kept(task, outputs, y)


def streamed(task: Task, outputs: Array, y: Array) -> Kept:
    """The sums of each sample of a batch; errors as :func:`kept`."""
    _check(outputs)
    exact = outputs.astype(np.float64)
    sums = {
        m.name: np.stack([m.of(exact[i : i + 1], y[i : i + 1]) for i in range(len(y))])
        for m in task.measures
    }
    losses = task.loss(torch.from_numpy(exact), torch.as_tensor(y))
    return Kept(task, sums=sums | {"loss": losses.numpy()[:, None]})


def predicted(task: Task, outputs: Array) -> Array:
    """The prediction (n, ...) of each sample of a batch; errors as :func:`kept`."""
    _check(outputs)
    (predictions,) = task.predict(outputs).values()
    return predictions


def _check(outputs: Array) -> None:
    finite = np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1)
    if not finite.all():
        raise DivergedError(
            f"the outputs of {int((~finite).sum())} of {finite.size} evaluated samples are NaN or "
            f"infinite, first of sample {int(finite.argmin())}"
        )


@dataclass(frozen=True)
class SampleScores:
    """How well a model does on each of n samples with a class, or one for each token."""

    loss: F64  # (n,) cross-entropy, summed over the sample's labels
    correct: NDArray[np.bool_] | I64  # (n,) whether it was classified right; or how many labels
    weight: I64  # (n,) how many labels count: 1, or the tokens that do
    kept: Kept | None = None  # for measures that are asked for

    def __len__(self) -> int:
        return len(self.loss)

    def at(self, index: I64) -> SampleScores:
        """The scores at some positions."""
        kept = None if self.kept is None else self.kept.at(index)
        return SampleScores(self.loss[index], self.correct[index], self.weight[index], kept)


_COLUMNS = ("loss", "correct", "weight")
Samples = SampleScores | Kept


def split(samples: Samples, sizes: Sequence[int]) -> list[Any]:
    """Splits samples into runs of the given numbers of them."""
    runs = np.split(np.arange(len(samples)), np.cumsum(sizes)[:-1])
    return [samples.at(run) for run in runs]


def joined(parts: Sequence[Any]) -> Any:
    """Concatenates samples of one kind."""
    first = parts[0]
    if isinstance(first, SampleScores):
        columns = (np.concatenate([getattr(p, n) for p in parts]) for n in _COLUMNS)
        every = None if first.kept is None else joined([p.kept for p in parts])
        loss, correct, weight = columns
        return SampleScores(loss, correct, weight, every)
    if first.outputs is None:
        names = first.sums
        sums = {name: np.concatenate([part.sums[name] for part in parts]) for name in names}
        return replace(first, sums=sums)
    outputs, y = (np.concatenate([getattr(p, name) for p in parts]) for name in ("outputs", "y"))
    return replace(first, outputs=outputs, y=y)
