"""Tables of text from the statistics of their cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis import style
from analysis.runs import conditions, order
from analysis.stats import SIGNIFICANT, Comparison, Estimate

NONE = "n/a"
"""Shown where a number is not available."""
EMPTY = "\N{EN DASH}"
"""Shown where there is nothing to know."""


@dataclass(frozen=True)
class Unit:
    """How numbers of a table are shown.

    Args:
        factor: from the stored number to the shown one.
        digits: after the decimal point.
        name: of the shown numbers, as ``%``; empty for numbers without a unit.
        of_differences: name of the shown differences.
    """

    factor: float = 1.0
    digits: int = 4
    name: str = ""
    of_differences: str = ""

    def number(self, value: float, sign: str = "") -> str:
        """The value in this unit; with ``sign="+"`` positive ones have a sign too."""
        shown = round(self.factor * value, self.digits) + 0.0
        return NONE if math.isnan(value) else f"{shown:{sign}.{self.digits}f}"

    def spread(self, estimate: Estimate) -> str:
        """``84.00 ± 4.00``, mean and standard deviation; the mean alone for one seed."""
        mean = self.number(estimate.mean)
        return mean if math.isnan(estimate.std) else f"{mean} ± {self.number(estimate.std)}"

    def interval(self, estimate: Estimate, sign: str = "") -> str:
        """``[74.06, 93.94]``, the 95 % interval."""
        if math.isnan(estimate.half):
            return NONE
        return f"[{self.number(estimate.low, sign)}, {self.number(estimate.high, sign)}]"

    def head(self, words: str, differences: bool = False) -> str:
        """The heading of a column of such numbers."""
        name = self.of_differences if differences else self.name
        return f"{words} ({name})" if name else words


PERCENT = Unit(100, 2, "%", "points")
PLAIN = Unit()


@dataclass(frozen=True)
class Cell:
    """What is known about one method in one column.

    Args:
        row: the method's label.
        column: of a table that has columns (a setting's value, a group of images), else empty.
        estimate: over the seeds.
        comparison: against the baseline, None where there is none or this is it.
        adjusted: the p value after Holm's correction over the table; NaN where not available.
    """

    row: str
    column: str
    estimate: Estimate
    comparison: Comparison | None = None
    adjusted: float = math.nan

    @property
    def mark(self) -> str:
        """A star where the adjusted p value is significant."""
        return " *" if self.adjusted < SIGNIFICANT else ""


@dataclass(frozen=True)
class Table:
    """A table of text and the numbers behind it.

    Args:
        name: for files: ``accuracy_final``.
        title: a few words.
        caption: sentences that explain every number and sign in the table.
        head: names of the columns.
        rows: as many cells each; ``**x**`` is bold.
        words: how many of the first columns are text.
        data: every number at full precision, in the units of the run directories.
    """

    name: str
    title: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int
    data: pd.DataFrame


def best(texts: Mapping[str, str]) -> set[str]:
    """The keys of the largest of the shown numbers, ties included; none of a single number."""
    numbers = {key: float(text) for key, text in texts.items() if text != NONE}
    if len(numbers) < 2:
        return set()
    return {key for key, number in numbers.items() if number == max(numbers.values())}


def p_value(p: float) -> str:
    """``0.0123``, ``<0.0001`` or not available."""
    if math.isnan(p):
        return NONE
    return "<0.0001" if p < 1e-4 else f"{p:.4f}"


def emphasised(found: Sequence[Cell], unit: Unit) -> dict[Cell, str]:
    """Mean and standard deviation of each cell, in bold where the mean is the best.

    That is among the cells of a column whose runs share the data and the schedule.
    """
    rivals: dict[tuple[str, str], list[Cell]] = {}
    for cell in found:
        rivals.setdefault((cell.column, conditions(cell.row)), []).append(cell)
    shown = {}
    for cells in rivals.values():
        leading = best({cell.row: unit.number(cell.estimate.mean) for cell in cells})
        for cell in cells:
            mean, plus, rest = unit.spread(cell.estimate).partition(" ± ")
            shown[cell] = f"**{mean}**{plus}{rest}" if cell.row in leading else mean + plus + rest
    return shown


def detailed(name: str, title: str, caption: str, found: Sequence[Cell], unit: Unit) -> Table:
    """A row per cell with everything that is known about it."""
    bold = emphasised(found, unit)
    columns = any(cell.column for cell in found)
    compared = any(cell.comparison for cell in found)
    head = ["Method", *["Group"] * columns, "Seeds", unit.head("Accuracy"), "95 % interval"]
    head += [unit.head("Difference", True), "95 % interval", "p", "p (Holm)"] * compared
    rows = []
    for cell in found:
        row = [style.title(cell.row), *[cell.column] * columns, str(cell.estimate.n), bold[cell]]
        rows.append([*row, unit.interval(cell.estimate), *_comparison(cell, unit) * compared])
    return Table(name, title, caption, head, rows, 1 + columns, data(found))


def _comparison(cell: Cell, unit: Unit) -> list[str]:
    if cell.comparison is None:
        return [EMPTY] * 4
    difference = cell.comparison.difference
    p, adjusted = p_value(cell.comparison.p), p_value(cell.adjusted) + cell.mark
    return [unit.number(difference.mean, "+"), unit.interval(difference, "+"), p, adjusted]


def with_seeds(found: Sequence[Cell], unit: Unit) -> tuple[dict[Cell, str], str]:
    """Each cell as :func:`emphasised` with its star, and a sentence on the number of seeds.

    Where the cells differ in it, each shows its own.
    """
    bold = emphasised(found, unit)
    seeds = {cell.estimate.n for cell in found}
    if len(seeds) == 1:
        return {cell: bold[cell] + cell.mark for cell in found}, f" Seeds: {max(seeds)} each."
    shown = {cell: f"{bold[cell]} (n={cell.estimate.n}){cell.mark}" for cell in found}
    return shown, " n: the number of seeds."


def crossed(
    name: str, title: str, caption: str, shown: Mapping[Cell, str], heads: Mapping[str, str],
    rows: Mapping[str, str] | None = None,
) -> Table:  # fmt: skip
    """A row per method and a column per column of the cells.

    Args:
        name: of the table.
        title: of the table.
        caption: of the table.
        shown: the text of each cell.
        heads: the heading of each column, in order.
        rows: the title of each label, in order; None for those of the methods, in the papers'.
    """
    texts = {(cell.row, cell.column): words for cell, words in shown.items()}
    labels = sorted({cell.row for cell in shown}, key=order)
    titles = rows or {label: style.title(label) for label in labels}
    lines = [[title, *(texts.get((row, c), EMPTY) for c in heads)] for row, title in titles.items()]
    return Table(name, title, caption, ["Method", *heads.values()], lines, 1, data(list(shown)))


def data(found: Sequence[Cell]) -> pd.DataFrame:
    """Every number of the cells, unrounded; empty where not available."""
    nothing = Estimate(math.nan, math.nan, 0, math.nan)
    rows = []
    for cell in found:
        own = cell.estimate
        other = cell.comparison or Comparison(nothing, math.nan)
        row: dict[str, object] = {"label": cell.row, "method": style.title(cell.row)}
        row |= {"column": cell.column, "n": own.n, "mean": own.mean, "std": own.std}
        row |= {"low": own.low, "high": own.high, "pairs": other.difference.n}
        row |= {"difference": other.difference.mean, "difference_low": other.difference.low}
        row |= {"difference_high": other.difference.high, "p": other.p, "p_holm": cell.adjusted}
        rows.append(row)
    return pd.DataFrame(rows)
