"""Methods against a baseline: which runs are compared, and the tests of one table together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import pandas as pd

from analysis.errors import AnalysisError
from analysis.layout import Cell
from analysis.runs import METHOD
from analysis.stats import Test, estimate, holm, paired

Values = Mapping[str, Mapping[str, "pd.Series[float]"]]
"""By column of the table and label: a value per seed, indexed by seed."""


def cells(values: Values, baseline: str | None = None, test: Test = "t") -> list[Cell]:
    """The statistics of a table; p values are corrected over all its comparisons.

    Args:
        values: all runs of the table.
        baseline: label of the runs to compare with, see :func:`reference`; None for no comparison.
        test: the paired test, over the seeds that both have.

    Raises:
        AnalysisError: the baseline is in no column.
    """
    found = compared(values, lambda label, labels: reference(label, labels, baseline), test)
    if baseline is not None and not any(cell.comparison for cell in found):
        labels = dict.fromkeys(cell.row for cell in found)
        if baseline not in labels or len(labels) == 1:
            raise AnalysisError(
                f"baseline {baseline}: nothing to compare with it; the runs are {'; '.join(labels)}"
            )
    return found


def compared(
    values: Values, other: Callable[[str, Collection[str]], str | None], test: Test = "t"
) -> list[Cell]:
    """The statistics of a table, each label beside another one of its column.

    Args:
        values: all runs of the table.
        other: which of a column's labels a label is compared with; itself or None for none.
        test: the paired test, over the seeds that both have.
    """
    found = []
    for column, series in values.items():
        for label, own in series.items():
            theirs = other(label, series)
            comparison = None if theirs in (None, label) else paired(own, series[theirs], test)
            found.append(Cell(label, column, estimate(own.tolist()), comparison))
    adjusted = holm([cell.comparison.p if cell.comparison else float("nan") for cell in found])
    return [replace(cell, adjusted=p) for cell, p in zip(found, adjusted, strict=True)]


def reference(label: str, labels: Collection[str], baseline: str | None) -> str | None:
    """The label that ``label`` is compared with: the baseline under the same settings.

    With baseline ``fedavg``, ``fedld, alpha=0.1`` is compared with ``fedavg, alpha=0.1``, and
    ``fedld, fedld.keep=0.5`` with ``fedavg``, which has no such setting.
    """
    if baseline is None:
        return None
    method, given = _split(baseline)
    _, own = _split(label)
    split = {candidate: _split(candidate) for candidate in labels}
    fitting = [
        candidate
        for candidate, (name, settings) in split.items()
        if name == method and given <= settings <= own | given
    ]
    return max(fitting, key=lambda candidate: len(split[candidate][1]), default=None)


def _split(label: str) -> tuple[frozenset[str], frozenset[str]]:
    """The parts of a label that name the method, and its settings."""
    parts = label.split(", ")
    method = {p for p in parts if "=" not in p or p.partition("=")[0] in METHOD}
    return frozenset(method), frozenset(parts) - method
