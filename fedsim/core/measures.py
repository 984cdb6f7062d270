"""The measures of a run by name, by what env.json says of its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsim.core.rows import SCORES, WHEN, Metric, metric_column

ACCURACY = "accuracy"
"""The primary measure of tasks of classes, whose other scores every run has."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """The ``scores`` of a run by name, its loss last; ``primary`` is the one that decides which
    model is better. Without a record of another task they are those of classes."""

    task: str = "classification"
    primary: str = ACCURACY
    scores: Mapping[str, Metric] = field(default_factory=lambda: SCORES)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Measures:
        """Those of a file with an entry ``task``, which :meth:`~fedsim.core.task.Task.record`
        makes, as env.json and study.json have it."""
        task = record.get("task")
        if not isinstance(task, Mapping):
            return cls()
        own = {
            str(name): Metric(
                str(one.get("title", name)),
                one.get("unit") if one.get("unit") in ("%", "nats") else "",
                lowest=one.get("better") == "down",
                takes=WHEN,
            )
            for name, one in task.get("measures", {}).items()
        }
        primary = str(task.get("primary", ACCURACY))
        loss = SCORES["loss"]
        if primary == ACCURACY:
            own = {name: score for name, score in SCORES.items() if score != loss} | own
        else:
            loss = Metric(loss.title, "", lowest=True)
        return cls(task=str(task.get("name", "")), primary=primary, scores=own | {"loss": loss})

    @property
    def of_classes(self) -> bool:
        """Whether they are those of classes, whose models collapse to the most frequent one."""
        return self.primary == ACCURACY

    @property
    def title(self) -> str:
        """Of the primary measure."""
        return self.scores[self.primary].title

    @property
    def lowest(self) -> bool:
        """Whether small values of the primary measure are better."""
        return self.scores[self.primary].lowest

    def column(self, part: str, when: str = "") -> str:
        """The column of the primary measure: ``test_accuracy``, ``final_test_rmse``."""
        return metric_column(part, self.primary, when)


CONSTANT = "no better than the same prediction for every sample"
"""Of a final model that has collapsed, in tasks without classes."""
