"""The sentences of captions: what a table's numbers and signs mean, and which runs they lack."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from ..formats import NumberFormat
from ..labels import title_of
from ..paired import CERTAIN, DRAWS, FEWEST_BAYES, PRIOR, SIGNIFICANT, T, Test
from ..runs import conditions
from ..stats import FEWEST, Cell
from ..units import POWER, ExperimentalUnit
from ..words import say
from .layout import COLLAPSE, Table, data, unit_of

UNFINISHED = "no summary.csv, the run has not finished"
"""Why a run is left out of every table."""
REPEATED = "a later run is the same"
"""Another reason."""
NAMED = 3
"""A caption names at most this many runs that are left out."""
LEVELS = {"level": SIGNIFICANT, "certain": CERTAIN, "fewest": FEWEST}


def unit_words(unit: ExperimentalUnit) -> str:
    """A sentence: what the unit of intervals and tests is."""
    return say(f"units.{unit}")


def interval_words(unit: ExperimentalUnit, test: Test = T) -> str:
    """A sentence: what ± is, and for which images intervals and tests over partitions hold."""
    ratio = test.ratio if test.kind == "corrected" else None
    return say("units.interval", unit=unit, ratio=ratio)


def signs(shown: Sequence[Cell], test: Test, *, lowest: bool = False) -> str:
    """The caption's sentences on ±, on what is bold, and on the collapsed runs."""
    unit = unit_of(shown)
    rivals = Counter((cell.column, conditions(cell.row)) for cell in shown)
    several = any(cell.estimate.n > 1 for cell in shown)
    return say(
        "caption.signs", unit=unit, unit_words=unit_words(unit), bayes=test.bayes, test=test.title,
        interval=interval_words(unit, test) if several else "", lowest=lowest,
        ranked=max(rivals.values(), default=0) > 1,
        columns=len({cell.column for cell in shown}) > 1,
        settings=len({conditions(cell.row) for cell in shown}) > 1,
        missing=any(cell.missing for cell in shown), leads=any(cell.leads for cell in shown),
        enough=any(cell.estimate.n >= FEWEST for cell in shown), incomplete=incomplete(shown),
        sign=COLLAPSE, collapsed=_by_method(shown, lambda cell: (cell.collapsed, 0)), **LEVELS,
    )  # fmt: skip


def incomplete(shown: Sequence[Cell], *, ranked: bool = True) -> str:
    """A sentence on the methods that lack runs; empty if none does.

    ``ranked``: whether the best method of the table is bold.
    """
    names = _by_method(shown, lambda cell: (cell.estimate.runs * bool(cell.missing), cell.missing))
    return say("caption.incomplete", ranked=ranked, names=names)


def _by_method(shown: Sequence[Cell], count: Callable[[Cell], tuple[int, int]]) -> str:
    """``FedLD (1 of 3); MOON (2 of 3) in alpha=0.1``: the number of each method's cells.

    ``count`` is that number, 0 to leave a cell out, and the runs beside those that it has; columns
    are named where the text is not that of all.
    """
    columns: dict[str, list[str]] = {}
    for cell in shown:
        number, more = count(cell)
        if number or more:
            text = f"{title_of(cell.row)} ({number} of {cell.estimate.runs + more})"
            columns.setdefault(text, []).append(cell.column)
    every = len({cell.column for cell in shown})
    return "; ".join(
        text if len(inside) == every else f"{text} in {', '.join(inside)}"
        for text, inside in columns.items()
    )


def left_out(made: Iterable[Table], runs: Mapping[str, Sequence[Path]]) -> list[Table]:
    """The tables, with a sentence in the caption on the runs that are in none of their numbers.

    ``runs`` are by the reason.
    """
    text = say("caption.left_out", runs=runs, most=NAMED)
    return [replace(table, caption=f"{table.caption} {text}") if text else table for table in made]


def comparisons(
    shown: Sequence[Cell],
    baseline: str | None,
    test: Test,
    unit: NumberFormat,
    *,
    details: bool = False,
) -> str:
    """The caption's sentences on the comparisons: what, how, and which were not possible.

    ``baseline`` is a label, or words for what the methods are compared with; None gives no
    sentence. With ``details`` the table shows the differences.
    """
    if baseline is None:
        return ""
    over = unit_of(shown)
    fewer = [
        f"{_name(cell)} {cell.comparison.difference.n} of {cell.estimate.n}"
        for cell in shown
        if cell.comparison and cell.comparison.difference.n < cell.estimate.n
    ]
    reasons: dict[str, list[str]] = {}
    for cell in shown:
        if cell.comparison and cell.comparison.reason:
            reasons.setdefault(cell.comparison.reason, []).append(_name(cell))
    return " " + say(
        "caption.comparisons", unit=over, baseline=title_of(baseline), details=details,
        tests=sum(not math.isnan(cell.adjusted) for cell in shown), test=test.title,
        kind=test.kind, verdicts="" if test.rope is None else verdict_words(test, unit, over),
        power=power_words(data(shown), unit, test), fewer=fewer, reasons=reasons, **LEVELS,
    )  # fmt: skip


def verdict_words(test: Test, unit: NumberFormat, over: ExperimentalUnit) -> str:
    """Sentences on what the words of verdicts mean."""
    rope = f"{unit.factor * (test.rope or 0):g} {unit.of_differences or unit.name}".strip()
    key = "bayes" if test.bayes else "ranks" if test.kind == "wilcoxon" else "tost"
    return say(
        f"verdict.{key}", rope=rope, level=SIGNIFICANT, certain=CERTAIN, fewest=FEWEST_BAYES,
        test=test.title, prior=PRIOR, draws=DRAWS, unit=over, incomplete=say("verdict.incomplete"),
    )  # fmt: skip


def power_words(numbers: pd.DataFrame, unit: NumberFormat, test: Test = T) -> str:
    """A sentence on the differences that a design detects; empty if no power is available.

    ``numbers`` are from :func:`analysis.tables.layout.data`.
    """
    every = numbers[numbers["detectable"].notna()].sort_values("detectable", kind="stable")
    rows: list[dict[Any, Any]] = every.to_dict("records")
    few = [unit.too_few(row["pairs"], row["detectable"]) for row in rows]
    names = [", ".join(filter(None, (row["method"], row["column"]))) for row in rows]
    tested = [i for i, too_few in enumerate(few) if not too_few]
    return say(
        "caption.power", comparisons=len(rows), test=test.title, power=100 * POWER,
        unit=rows[0]["unit"] if rows else "", points=unit.of_differences,
        sizes=[unit.number(rows[i]["detectable"]) for i in tested],
        names=[names[i] for i in tested], design=_design(every[[not f for f in few]]),
        every=_design(every), few=[names[i] for i, too_few in enumerate(few) if too_few], **LEVELS,
    )  # fmt: skip


def _design(tested: pd.DataFrame) -> str:
    """The numbers of partitions and seeds of comparisons: ``10 partitions x 2 seeds``."""
    if tested.empty:
        return ""
    low, high = int(tested["pairs"].min()), int(tested["pairs"].max())
    count = str(low) if low == high else f"{low} to {high}"
    if tested["unit"].iloc[0] == "seed":
        return f"{count} seeds on one partition"
    seeds = list(dict.fromkeys(tested["pair_seeds"]))
    return f"{count} partitions x {' or '.join(seeds)} seed{'' if seeds == ['1'] else 's'}"


def _name(cell: Cell) -> str:
    """The method of a cell, with its column if the table has columns."""
    return f"{title_of(cell.row)} ({cell.column})" if cell.column else title_of(cell.row)
