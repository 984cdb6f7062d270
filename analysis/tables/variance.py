"""Tables of the variance between partitions and between training seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ..labels import title_of
from ..numbers import NONE, Unit
from ..stats import Cell, Estimate
from ..words import say, sentences
from .layout import EMPTY, Table, repetition_heads, repetitions

COLUMNS = (
    "label", "method", "column", "n", "runs", "seeds", "var_between", "var_within", "pairs",
    "pair_seeds", "difference_var_between", "difference_var_within",
)  # fmt: skip
"""Columns of the data of a table that are also those of its variances."""


def with_variances(made: Iterable[Table], unit: Unit) -> list[Table]:
    """The tables; each whose unit is the partition is followed by that of its variances.

    ``unit`` is that of their numbers.
    """
    tables = []
    for table in made:
        tables.append(table)
        if any(cell.estimate.unit == "partition" for cell in table.cells):
            tables.append(variances(table, unit))
    return tables


def variances(table: Table, unit: Unit) -> Table:
    """The variances of both levels behind a table, and those of the differences if it has any."""
    cells = table.cells
    columns = any(cell.column for cell in cells)
    compared = any(cell.comparison for cell in cells)
    level_heads = [unit.head(f"Std, {what}", True) for what in ("partitions", "seeds")]
    level_heads.append("Share (%)")
    head = ["Method", *["Group"] * columns, *repetition_heads(cells), *level_heads]
    head += [f"Difference: {words[0].lower()}{words[1:]}" for words in level_heads] * compared
    rows = []
    for cell in cells:
        row = [title_of(cell.row), *[cell.column] * columns, *repetitions(cell.estimate)]
        row += _shown(cell.estimate, unit)
        pairs = None if cell.comparison is None else cell.comparison.difference
        rows.append(row + _shown(pairs, unit) * compared)
    caption = sentences(
        say("variance.caption"),
        say("variance.differences") if compared else "",
        _truncated(cells),
        _inseparable(cells),
    )
    return Table(
        name=f"{table.name}_variance", title=say("variance.title", title=table.title),
        caption=caption, head=head, rows=rows, words=1 + columns,
        data=table.data[[column for column in COLUMNS if column in table.data]],
    )  # fmt: skip


def _shown(estimate: Estimate | None, unit: Unit) -> list[str]:
    """Both standard deviations, and the share of partitions in the variance in per cent."""
    if estimate is None:
        return [EMPTY] * 3
    if estimate.levels is None:
        return [NONE] * 3
    own = estimate.levels
    shown = [unit.number(math.sqrt(variance)) for variance in (own.between, own.within)]
    return [*shown, NONE if math.isnan(own.share) else f"{100 * own.share:.0f}"]


def _named(cells: Sequence[Cell], chosen: Callable[[Estimate], bool]) -> str:
    """The methods, and the methods' differences, whose estimate is chosen."""
    names = []
    for cell in cells:
        name = title_of(cell.row) + f" ({cell.column})" * bool(cell.column)
        names += [name] * chosen(cell.estimate)
        if cell.comparison is not None and chosen(cell.comparison.difference):
            names.append(f"difference of {name}")
    return "; ".join(names)


def _truncated(cells: Sequence[Cell]) -> str:
    """A sentence on negative estimates."""
    names = _named(
        cells, lambda estimate: estimate.levels is not None and estimate.levels.truncated
    )
    return say("variance.truncated", names=names) if names else ""


def _inseparable(cells: Sequence[Cell]) -> str:
    """A sentence on variances that cannot be estimated."""
    missing = any(
        estimate.levels is not None and math.isnan(estimate.levels.between)
        for cell in cells
        for estimate in (cell.estimate, cell.comparison and cell.comparison.difference)
        if estimate
    )
    return say("variance.inseparable", missing=NONE) if missing else ""
