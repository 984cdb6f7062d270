"""FedGH's Table III: rounds and time until the test accuracy first reaches a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from analysis.baseline import cells
from analysis.errors import AnalysisError
from analysis.layout import EMPTY, Cell, Table, Unit, best, crossed
from analysis.pairs import TARGET, experiments, telling, titles
from analysis.runs import Group

MEASURES: Mapping[str, str] = {
    "rounds_to_target": "rounds",
    "seconds_to_target": "seconds",
    "simulated_seconds_to_target": "simulated seconds",
}
"""Columns of summary.csv, and what they count."""
ONE = Unit(digits=1)


def available(table: pd.DataFrame) -> bool:
    """Whether any of the runs of :func:`analysis.runs.summaries` had a target."""
    return TARGET in table and bool(table[TARGET].notna().any())


def reached(
    table: pd.DataFrame, by: Sequence[str] = ("algorithm",), columns: str | None = None
) -> Table:
    """Rounds and seconds to the target accuracy, a row per method, columns per experiment.

    Runs without a target are left out.

    Args:
        table: from :func:`analysis.runs.summaries`.
        by: columns of it that tell the rows apart.
        columns: the column of it whose values become columns; None for those that tell the
            experiments apart, see :data:`analysis.pairs.EXPERIMENT`.

    Raises:
        AnalysisError: no run has a target, or see :func:`analysis.runs.group`.
    """
    if not available(table):
        raise AnalysisError(f"in no run summary.csv has {TARGET}; evaluation.{TARGET} gives one")
    found: list[Cell] = []
    seeds: list[int] = []
    table = table[table[TARGET].notna()]
    for title, groups in experiments(table, by, [*telling(table, columns), TARGET]).items():
        for column, unit in MEASURES.items():
            values = {one.label: _values(one, column) for one in groups if column in one.runs}
            if any(series.notna().any() for series in values.values()):
                found += cells({f"{title}: {unit}": values})
                seeds += [len(series) for series in values.values()]
    shown = with_count(found, seeds)
    caption = (
        "Rounds, seconds of wall time and, where the runs have a clock, simulated seconds until "
        "the test accuracy first reaches the target in the column's heading, in a round with an "
        "evaluation. Mean ± standard deviation over the seeds that reached it; (2 of 3): so many "
        "seeds did, and the others would have taken longer. In bold the smallest mean of a column "
        "among the methods whose seeds all did."
    )
    heads = {cell.column: cell.column for cell in shown}
    made = crossed(
        "target", "Rounds and time to the target accuracy", caption, shown, heads,
        titles({cell.row for cell in shown}),
    )  # fmt: skip
    return Table(**vars(made) | {"data": made.data.assign(seeds=seeds)})


def _values(one: Group, column: str) -> pd.Series[float]:
    return pd.to_numeric(one.runs.set_index("seed")[column]).astype(float)


def with_count(found: Sequence[Cell], seeds: Sequence[int]) -> dict[Cell, str]:
    """Each cell as mean and standard deviation, with the number of seeds where some failed.

    The smallest mean of a column among the methods whose seeds all reached the target is bold.

    Args:
        found: the cells, over the seeds that reached the target.
        seeds: how many seeds each method was run with.
    """
    texts = {}
    for column in dict.fromkeys(cell.column for cell in found):
        own = {c: n for c, n in zip(found, seeds, strict=True) if c.column == column}
        whole = {c.row: ONE.number(-c.estimate.mean) for c, n in own.items() if c.estimate.n == n}
        leading = best(whole)
        for cell, count in own.items():
            n = cell.estimate.n
            mean, plus, rest = (ONE.spread(cell.estimate) if n else EMPTY).partition(" ± ")
            text = (f"**{mean}**" if cell.row in leading else mean) + plus + rest
            texts[cell] = text + f" ({n} of {count})" * (n < count)
    return texts
