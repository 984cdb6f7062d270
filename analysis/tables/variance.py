"""Tables of the variance between partitions and between training seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ..formats import NONE, NumberFormat
from ..labels import title_of
from ..stats import Cell, Estimate
from ..words import say, sentences
from .layout import EMPTY, Table, first_columns, of_rows, words_of

COLUMNS = (
    "label", "method", "column", "n", "runs", "seeds", "var_between", "var_within", "pairs",
    "pair_seeds", "difference_var_between", "difference_var_within",
)  # fmt: skip
"""Columns of the data of a table that are also those of its variances."""


def with_variances(made: Iterable[Table], unit: NumberFormat) -> list[Table]:
    """The tables; each whose unit is the partition is followed by that of its variances.

    ``unit`` is that of their numbers.
    """
    tables = []
    for table in made:
        tables.append(table)
        if any(cell.estimate.unit == "partition" for cell in table.cells):
            tables.append(variances(table, unit))
    return tables


def variances(table: Table, unit: NumberFormat) -> Table:
    """The variances of both levels behind a table, and those of the differences if it has any."""
    cells = table.cells
    compared = any(cell.comparison for cell in cells)
    heads = [unit.head(f"Std, {level}", True) for level in ("partitions", "seeds")]
    heads.append("Share (%)")
    rows = []
    for cell in cells:
        row = first_columns(cell, cells) | dict(
            zip(heads, _shown(cell.estimate, unit), strict=True)
        )
        if compared:
            shown = _shown(cell.comparison.difference if cell.comparison else None, unit)
            names = [f"Difference: {head[0].lower()}{head[1:]}" for head in heads]
            row |= dict(zip(names, shown, strict=True))
        rows.append(row)
    caption = sentences(
        say("variance.caption"),
        say("variance.differences") if compared else "",
        _truncated(cells),
        _inseparable(cells),
    )
    return of_rows(
        f"{table.name}_variance", say("variance.title", title=table.title), caption, rows,
        table.data[[column for column in COLUMNS if column in table.data]], words=words_of(cells),
    )  # fmt: skip


def _shown(estimate: Estimate | None, unit: NumberFormat) -> list[str]:
    """Both standard deviations, and the share of partitions in the variance in per cent."""
    if estimate is None:
        return [EMPTY] * 3
    if estimate.levels is None:
        return [NONE] * 3
    levels = estimate.levels
    shown = [unit.number(math.sqrt(variance)) for variance in (levels.between, levels.within)]
    return [*shown, NONE if math.isnan(levels.share) else f"{100 * levels.share:.0f}"]


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
