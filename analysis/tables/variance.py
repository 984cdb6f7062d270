"""Tables of the variance between partitions and between training seeds."""

import math
from collections.abc import Iterable

from ..formats import NONE, NumberFormat
from ..labels import title_of
from ..stats import Cell, Estimate
from ..words import say, sentences
from .layout import EMPTY, Table, first_columns, of_rows

COLUMNS = (
    "label", "method", "column", "n", "runs", "seeds", "var_between", "var_within", "pairs",
    "pair_seeds", "difference_var_between", "difference_var_within",
)  # fmt: skip
"""Columns of the data of a table that are also those of its variances."""


def with_variances(made: Iterable[Table], unit: NumberFormat) -> list[Table]:
    """The tables; each over partitions is followed by that of its variances, in their unit."""
    tables = []
    for table in made:
        nested = any(cell.estimate.unit == "partition" for cell in table.cells)
        tables += [table, *([_variances(table, unit)] if nested else ())]
    return tables


def _variances(table: Table, unit: NumberFormat) -> Table:
    """The variances of both levels behind a table, and those of the differences if it has any."""
    cells = table.cells
    compared = any(cell.comparison for cell in cells)
    rows, truncated, inseparable = [], [], False
    for cell in cells:
        row, name = first_columns(cell, cells), _name(cell)
        parts: dict[str, Estimate | None] = {"": cell.estimate}
        if compared:
            parts["Difference: "] = cell.comparison.difference if cell.comparison else None
        for prefix, estimate in parts.items():
            row |= _shown(prefix, estimate, unit)
            if estimate is not None and estimate.levels is not None:
                truncated += [
                    prefix.lower().replace(": ", " of ") + name
                ] * estimate.levels.truncated
                inseparable |= math.isnan(estimate.levels.between)
        rows.append(row)
    caption = sentences(
        say("variance.caption"),
        say("variance.differences") if compared else "",
        say("variance.truncated", names="; ".join(truncated)) if truncated else "",
        say("variance.inseparable", missing=NONE) if inseparable else "",
    )
    numbers = table.data[[column for column in COLUMNS if column in table.data]]
    title = say("variance.title", title=table.title)
    return of_rows(f"{table.name}_variance", title, caption, rows, numbers, cells)


def _name(cell: Cell) -> str:
    return title_of(cell.row) + f" ({cell.column})" * bool(cell.column)


def _shown(prefix: str, estimate: Estimate | None, unit: NumberFormat) -> dict[str, str]:
    """Both standard deviations, and the share of partitions in the variance in per cent."""
    shown = [EMPTY if estimate is None else NONE] * 3
    if estimate is not None and (levels := estimate.levels) is not None:
        share = NONE if math.isnan(levels.share) else f"{100 * levels.share:.0f}"
        shown = [*(unit.number(math.sqrt(v)) for v in (levels.between, levels.within)), share]
    heads = [unit.head(f"Std, {level}", True) for level in ("partitions", "seeds")]
    heads = [f"{prefix}{head[0].lower()}{head[1:]}" if prefix else head for head in heads]
    return dict(zip([*heads, f"{prefix}{'share' if prefix else 'Share'} (%)"], shown, strict=True))
