"""Tries a user's task on some targets before a run begins, so that errors say what is wrong."""

from collections.abc import Mapping

import numpy as np

from fedsim.core.errors import ConfigError
from fedsim.core.imports import users_code
from fedsim.core.rows import EvaluationRow, FinalClientRow
from fedsim.core.task import Measure, Task
from fedsim.core.types import Array, Dataset

RESERVED = {*EvaluationRow.columns(), *FinalClientRow.columns()}
"""Names of columns that measures would stand beside."""


def check_own(task: Task, dataset: Dataset) -> None:
    """A ConfigError where names, loss or measures of a task are not as its contract says."""
    where = f"task {task.name!r}"
    _check_names(where, task)
    number = 2 if task.streams else 256
    y = dataset.y[np.unique(np.linspace(0, len(dataset.y) - 1, number).astype(int))]
    inner = {"sample": (), "token": y.shape[1:], "pixel": y.shape[1:]}[task.output]
    shape = (
        (*inner, dataset.num_classes) if task.output == "token" else (dataset.num_classes, *inner)
    )
    outputs = np.random.default_rng(0).normal(size=(len(y), *shape))
    with users_code(where, ConfigError):
        _check_loss(where, task, outputs, y)
        values = {
            measure.name: _checked(f"{where}, measure {measure.name!r}", measure, outputs, y)
            for measure in task.measures
        }
        if task.collapsed is not None:
            task.collapsed(values)
        if not isinstance(predicted := task.predict(outputs), Mapping):
            raise ConfigError(f"{where}: predict returned {type(predicted).__name__}, no columns")
        strata = task.stratum(y)
        if strata is not None and np.shape(strata) != y.shape[:1]:
            raise ConfigError(f"{where}: stratum is {np.shape(strata)}, needed is ({len(y)},)")


def _check_names(where: str, task: Task) -> None:
    names = [measure.name for measure in task.measures]
    for name in names:
        if not name.isidentifier() or name in RESERVED or names.count(name) > 1:
            raise ConfigError(
                f"{where}: measure {name!r}; a name is one word of letters, digits and _, given "
                f"once, and none of {', '.join(sorted(RESERVED))}"
            )
    if task.primary not in names and not task.cross_entropy:
        raise ConfigError(f"{where}: primary is {task.primary!r}, measures are {', '.join(names)}")


def _check_loss(where: str, task: Task, outputs: Array, y: Array) -> None:
    import torch  # takes seconds to import

    loss = task.loss(torch.from_numpy(outputs.astype(np.float32)), torch.from_numpy(y))
    if not isinstance(loss, torch.Tensor) or loss.shape != y.shape[:1]:
        what = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)
        raise ConfigError(
            f"{where}: the loss of {len(y)} samples is {what}, needed is a tensor ({len(y)},), the "
            "loss of each"
        )


def _checked(where: str, measure: Measure, outputs: Array, y: Array) -> float | None:
    """The value of a measure."""
    sums = measure.of(outputs, y)
    if not isinstance(sums, np.ndarray) or sums.ndim != 1:
        kind = f"an array {sums.shape}" if isinstance(sums, np.ndarray) else type(sums).__name__
        raise ConfigError(f"{where}: of returned {kind}, needed is an array (k,) of sums")
    with users_code(f"{where}, value of {len(sums)} sums", ConfigError):
        value = measure.value(sums)
    if value is not None and not isinstance(value, int | float | np.number):
        raise ConfigError(f"{where}: value is {type(value).__name__}, needed is a number or None")
    return value
