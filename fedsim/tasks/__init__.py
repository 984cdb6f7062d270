"""What clients learn, a file each: targets, loss, measures, predictions (:class:`Task`).

``build`` of a file returns the task; its typed keyword parameters are settings, in the section of
the task's name. One of your own is such a function: ``--task FILE.py:function``;
``dataclasses.replace`` makes it of one of these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedsim.core.errors import ConfigError
from fedsim.core.registry import Registry
from fedsim.core.task import Measure, TargetError, Task, mean, number
from fedsim.core.types import Dataset

__all__ = ["TASKS", "Measure", "TargetError", "Task", "find", "mean", "number", "of", "with_more"]

TASKS = Registry("task", "fedsim.tasks")


def find(name: str, options: Mapping[str, Any] | None = None) -> Task:
    """The task of that name, or ``FILE.py:function``; a ConfigError where there is none."""
    task = TASKS.build(name, Task, (), options or {})
    return replace(task, name=name) if ":" in name else task


def of(dataset: Dataset) -> Task:
    """The task of a data set; without one of its own that of a class a sample, or a token."""
    if dataset.task is not None:
        return dataset.task
    return find("tokens" if dataset.per_token else "classification")


def with_more(task: Task, names: Sequence[str]) -> Task:
    """The task with further measures; a ConfigError where it has none of such a name."""
    more = []
    for name in names:
        measure = task.more(name)
        if measure is None:
            known = (
                f"it has {', '.join(task.further)}" if task.further else "it has no further ones"
            )
            raise ConfigError(
                f"evaluation.measures: task {task.name} has no measure {name!r}; {known}"
            )
        more.append(measure)
    kept = [m for m in task.measures if m.name not in names]
    return replace(task, measures=(*kept, *more))
