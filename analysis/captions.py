"""Sentences on the comparisons in a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis import style
from analysis.layout import Cell
from analysis.stats import SIGNIFICANT, TESTS, Test


def comparisons(
    found: Sequence[Cell], baseline: str | None, test: Test, *, details: bool = False
) -> str:
    """What was compared and how, and what could not be; empty without a baseline.

    Args:
        found: the cells of the table.
        baseline: a label, or words for what the methods are compared with.
        test: the paired test.
        details: the table shows the differences.
    """
    if baseline is None:
        return ""
    tests = sum(not math.isnan(cell.adjusted) for cell in found)
    difference = ", with its 95 % t interval" if details else ""
    floor = ", which is never below 2 / 2^n over n seeds" if test == "wilcoxon" else ""
    return (
        f" {'Difference' if details else 'Compared'}: method minus {style.title(baseline)} over "
        f"the seeds that both have{difference}; p: two-sided {TESTS[test]}{floor}; Holm: corrected "
        f"over the {tests} comparison{'s' * (tests != 1)} of this table; * below {SIGNIFICANT:g}."
    ) + f"{_fewer(found)}{_missing(found)}"


def _fewer(found: Sequence[Cell]) -> str:
    """Which differences are over fewer seeds than the method's own mean."""
    texts = [
        f"{_name(cell)} {cell.comparison.difference.n} of {cell.estimate.n}"
        for cell in found
        if cell.comparison and cell.comparison.difference.n < cell.estimate.n
    ]
    return f" Seeds in common where they are not all: {'; '.join(texts)}." * bool(texts)


def _name(cell: Cell) -> str:
    """The method of a cell, and the column where the table has such."""
    return style.title(cell.row) + f" ({cell.column})" * bool(cell.column)


def _missing(found: Sequence[Cell]) -> str:
    """Where p is not available, and why."""
    reasons: dict[str, list[str]] = {}
    for cell in found:
        if cell.comparison and cell.comparison.reason:
            reasons.setdefault(cell.comparison.reason, []).append(_name(cell))
    return "".join(
        f" p is not available where there is {reason}: {'; '.join(where)}."
        for reason, where in reasons.items()
    )
