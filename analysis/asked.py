"""The tables that the command line asks for, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis import pairs, streams, target
from analysis.errors import AnalysisError
from analysis.layout import Table
from analysis.runs import Group, group
from analysis.stats import Test
from analysis.table import METRICS, accuracy, crossed_accuracy, decomposition, image_groups


@dataclass(frozen=True)
class Request:
    """What ``python -m analysis table`` is asked for.

    Args:
        runs: from :func:`analysis.runs.summaries`.
        by: columns of it that tell methods apart.
        columns: a column of it whose values become columns.
        baseline: label to compare with.
        test: the paired test.
    """

    runs: pd.DataFrame
    by: Sequence[str] = ("algorithm",)
    columns: str | None = None
    baseline: str | None = None
    test: Test = "t"

    def groups(self, what: str) -> list[Group]:
        """The runs by method, for a table that has columns of its own."""
        if self.columns is not None:
            raise AnalysisError(
                f"--columns {self.columns}: the table {what} has columns of its own; --columns "
                f"goes with {', '.join((*METRICS, 'pairs', 'target'))}"
            )
        return group(self.runs, self.by)


def _accuracies(request: Request, metric: str) -> list[Table]:
    if request.columns is None:
        groups = group(request.runs, request.by)
        return [accuracy(groups, metric, request.baseline, request.test)]
    r = request
    return [crossed_accuracy(r.runs, r.by, request.columns, metric, r.baseline, r.test)]


def _pairs(request: Request, metric: str) -> list[Table]:
    if request.baseline is not None:
        raise AnalysisError(
            f"--baseline {request.baseline}: the table {metric} compares each method with its own "
            "clients under their own server rule; leave it out"
        )
    return [pairs.accuracies(request.runs, request.by, request.columns, request.test)]


def _target(request: Request, _: str) -> list[Table]:
    return [target.reached(request.runs, request.by, request.columns)]


def _image_groups(request: Request, metric: str) -> list[Table]:
    tables = image_groups(request.groups(metric), request.baseline, request.test)
    return tables or _none("evaluations.csv has rows of groups; data sets with groups write them")


def _decomposition(request: Request, metric: str) -> list[Table]:
    tables = decomposition(request.groups(metric), request.baseline, request.test)
    return tables or _none("decomposition.csv has rows; evaluation.decompose_every above 0 does it")


FILES: Mapping[str, str] = {"groups": "evaluations", "decomposition": "decomposition"}
"""The file behind each table that is not made from summary.csv."""


def left_out(request: Request, metric: str) -> list[Path]:
    """The runs that a table leaves out, since they lack its file or rows in it."""
    file = FILES.get(metric)
    return streams.absent(request.groups(metric), file) if file else []


def _none(what: str) -> list[Table]:
    raise AnalysisError(f"in no run {what}")


TABLES: Mapping[str, Callable[[Request, str], list[Table]]] = {
    **dict.fromkeys(METRICS, _accuracies),
    "pairs": _pairs,
    "target": _target,
    "groups": _image_groups,
    "decomposition": _decomposition,
}
"""The tables by the name that asks for them."""
