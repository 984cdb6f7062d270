"""The sentences of captions: what a table's numbers and signs mean, and which runs they lack."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from ..formats import NumberFormat
from ..labels import title_of
from ..paired import CERTAIN, DRAWS, FEWEST_BAYES, PRIOR, SIGNIFICANT, T, Test
from ..runs import conditions
from ..stats import FEWEST, Cell
from ..units import POWER, ExperimentalUnit
from ..words import say
from .layout import COLLAPSE, Table, data, unit_of

UNFINISHED = "no summary.csv, the run has not finished"  # why a run is left out of every table
REPEATED = "a later run is the same"  # another reason
NAMED = 3  # a caption names at most this many runs that are left out
LEVELS = {"level": SIGNIFICANT, "certain": CERTAIN, "fewest": FEWEST}


def interval_words(unit: ExperimentalUnit, test: Test = T) -> str:
    """A sentence: what ± is, and for which images intervals and tests over partitions hold."""
    return say("units.interval", unit=unit, ratio=test.ratio if test.kind == "corrected" else None)


def signs(shown: Sequence[Cell], test: Test, *, lowest: bool = False, classes: bool = True) -> str:
    """The caption's sentences on ±, on what is bold, and on the collapsed runs, of ``classes`` or
    of another task."""
    unit = unit_of(shown)
    rivals = Counter((cell.column, conditions(cell.row)) for cell in shown)
    several = any(cell.estimate.n > 1 for cell in shown)
    return say(
        "caption.signs", unit=unit, unit_words=say(f"units.{unit}"), bayes=test.bayes,
        interval=interval_words(unit, test) if several else "", lowest=lowest,
        test=test.title, ranked=max(rivals.values(), default=0) > 1,
        columns=len({cell.column for cell in shown}) > 1,
        settings=len({settings for _, settings in rivals}) > 1,
        missing=any(cell.missing for cell in shown), leads=any(cell.leads for cell in shown),
        enough=any(cell.estimate.n >= FEWEST for cell in shown), incomplete=incomplete(shown),
        sign=COLLAPSE, collapsed=_by_method(shown, {c: (c.collapsed, 0) for c in shown}),
        classes=classes, **LEVELS,
    )  # fmt: skip


def incomplete(shown: Sequence[Cell], *, ranked: bool = True) -> str:
    """A sentence on the methods that lack runs; ``ranked``: the best of the table is bold."""
    counts = {cell: (cell.estimate.runs * bool(cell.missing), cell.missing) for cell in shown}
    return say("caption.incomplete", ranked=ranked, names=_by_method(shown, counts))


def _by_method(shown: Sequence[Cell], counts: Mapping[Cell, tuple[int, int]]) -> str:
    """``FedLD (1 of 3); MOON (2 of 3) in alpha=0.1``: a number, and runs beside its own."""
    columns: dict[str, list[str]] = {}
    for cell, (number, more) in counts.items():
        if number or more:
            text = f"{title_of(cell.row)} ({number} of {cell.estimate.runs + more})"
            columns.setdefault(text, []).append(cell.column)
    every = len({cell.column for cell in shown})
    return "; ".join(
        text + f" in {', '.join(inside)}" * (len(inside) < every)
        for text, inside in columns.items()
    )


def left_out(made: Iterable[Table], runs: Mapping[str, Sequence[Path]]) -> list[Table]:
    """The tables, with a sentence in the caption on the runs, by reason, that are in none."""
    text = say("caption.left_out", runs=runs, most=NAMED)
    return [replace(table, caption=f"{table.caption} {text}") if text else table for table in made]


def comparisons(
    shown: Sequence[Cell], baseline: str | None, test: Test, unit: NumberFormat, *,
    details: bool = False,
) -> str:  # fmt: skip
    """The caption's sentences on the comparisons: what, how, and which were not possible."""
    if baseline is None:
        return ""
    over, fewer = unit_of(shown), []
    reasons: dict[str, list[str]] = {}
    for cell in shown:
        if (other := cell.comparison) is None:
            continue
        name = title_of(cell.row) + f" ({cell.column})" * bool(cell.column)
        if other.difference.n < cell.estimate.n:
            fewer.append(f"{name} {other.difference.n} of {cell.estimate.n}")
        if other.reason:
            reasons.setdefault(other.reason, []).append(name)
    return " " + say(
        "caption.comparisons", unit=over, baseline=title_of(baseline), details=details,
        tests=sum(not math.isnan(cell.adjusted) for cell in shown), test=test.title,
        kind=test.kind, verdicts="" if test.rope is None else _verdict_words(test, unit, over),
        power=power_words(data(shown), unit, test), fewer=fewer, reasons=reasons, **LEVELS,
    )  # fmt: skip


def _verdict_words(test: Test, unit: NumberFormat, over: ExperimentalUnit) -> str:
    """Sentences on what the words of verdicts mean."""
    rope = f"{unit.factor * (test.rope or 0):g} {unit.of_differences or unit.name}".strip()
    key = "bayes" if test.bayes else "ranks" if test.kind == "wilcoxon" else "tost"
    return say(
        f"verdict.{key}", rope=rope, level=SIGNIFICANT, certain=CERTAIN, fewest=FEWEST_BAYES,
        test=test.title, prior=PRIOR, draws=DRAWS, unit=over, incomplete=say("verdict.incomplete"),
    )  # fmt: skip


def power_words(numbers: pd.DataFrame, unit: NumberFormat, test: Test = T) -> str:
    """A sentence on the differences that a design detects; empty if no power is available."""
    every = numbers[numbers["detectable"].notna()].sort_values("detectable", kind="stable")
    few = np.array([*map(unit.too_few, every["pairs"], every["detectable"])], dtype=bool)
    columns = every["column"].where(every["column"] == "", ", " + every["column"])
    tested, names = every[~few], every["method"] + columns
    return say(
        "caption.power", comparisons=len(every), test=test.title, power=100 * POWER,
        unit=every["unit"].iloc[0] if len(every) else "", points=unit.of_differences,
        sizes=[*map(unit.number, tested["detectable"])], names=[*names[~few]],
        design=_design(tested), every=_design(every), few=[*names[few]], **LEVELS,
    )  # fmt: skip


def _design(tested: pd.DataFrame) -> str:
    """The numbers of partitions and seeds of comparisons: ``10 partitions x 2 seeds``."""
    if tested.empty:
        return ""
    ends = dict.fromkeys([int(tested["pairs"].min()), int(tested["pairs"].max())])
    count = " to ".join(map(str, ends))
    if tested["unit"].iloc[0] == "seed":
        return f"{count} seeds on one partition"
    seeds = list(dict.fromkeys(tested["pair_seeds"]))
    return f"{count} partitions x {' or '.join(seeds)} seed{'' if seeds == ['1'] else 's'}"
