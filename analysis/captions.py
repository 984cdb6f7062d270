"""The sentences of captions: what a table's numbers and signs mean, and which runs they lack."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from . import style
from .layout import COLLAPSE, Table, Unit, data, unit_of
from .runs import conditions
from .stats import SIGNIFICANT, TESTS, Cell, Test
from .units import POWER, ExperimentalUnit

UNFINISHED = "no summary.csv, the run has not finished"
"""Why a run is left out of every table."""
NAMED = 3
"""A caption names at most this many runs that are left out."""


def unit_words(unit: ExperimentalUnit) -> str:
    """A sentence: what the unit of intervals and tests is."""
    if unit == "seed":
        return (
            "Unit: the training seed, on one partition of the data; intervals and tests do not "
            "cover the choice of the partition."
        )
    return (
        "Unit: the partition of the data (data.seed); its value is the mean over its training "
        "seeds, and each partition counts once."
    )


def interval_words(unit: ExperimentalUnit) -> str:
    """A sentence: what ± is."""
    return (
        f"±: half-width of the 95 % confidence interval of the mean over the {unit}s, by "
        "Student's t."
    )


def signs(found: Sequence[Cell], test: Test, *, lowest: bool = False) -> str:
    """The caption's sentences on ±, on what is bold, and on the collapsed runs."""
    unit = unit_of(found)
    several = any(cell.estimate.n > 1 for cell in found)
    said = unit_words(unit) + f" {interval_words(unit)}" * several
    groups = Counter((cell.column, conditions(cell.row)) for cell in found)
    if max(groups.values(), default=0) > 1:
        where = " of a column" * (len({cell.column for cell in found}) > 1)
        where += " for each setting of data and rounds" * (
            len({conditions(cell.row) for cell in found}) > 1
        )
        where += " among the methods with all runs" * any(cell.missing for cell in found)
        said += (
            f" Bold: the {'lowest' if lowest else 'highest'} mean{where}, where it differs from "
            f"each of the others at level {SIGNIFICANT:g} (two-sided {TESTS[test]} over common "
            f"{unit}s, Holm-corrected over these comparisons)"
        )
        if any(cell.leads for cell in found):
            said += "."
        else:
            said += "; none does here." if several else f"; a test needs two {unit}s."
    return (said + incomplete(found) + _collapses(found)).strip()


def incomplete(found: Sequence[Cell], *, ranked: bool = True) -> str:
    """A sentence on the methods that lack runs; empty if none does.

    ``ranked``: whether the best method of the table is bold.
    """

    def shown(cell: Cell) -> str:
        runs = cell.estimate.runs
        return f"{runs} of {runs + cell.missing}" if cell.missing else ""

    texts = _by_method(found, shown)
    return (
        f" Incomplete{', and never bold' * ranked}: methods without a value of runs that others "
        f"have, so that their means are over other runs than those of the others; runs: {texts}."
    ) * bool(texts)


def _collapses(found: Sequence[Cell]) -> str:
    """A sentence on the runs whose final model has collapsed."""
    texts = _by_method(
        found,
        lambda cell: f"{cell.collapsed} of {cell.estimate.runs}" if cell.collapsed else "",
    )
    return (
        f" {COLLAPSE} Collapsed, and never bold: final models that predict one class only or whose "
        f"balanced accuracy is at most that of chance; runs: {texts}."
    ) * bool(texts)


def _by_method(found: Sequence[Cell], shown: Callable[[Cell], str]) -> str:
    """``FedLD (1 of 3); MOON (2 of 3) in alpha=0.1``: what is shown of each method's cells.

    Cells without a text are left out; columns are named where the text is not that of all.
    """
    columns: dict[str, list[str]] = {}
    for cell in found:
        if text := shown(cell):
            columns.setdefault(f"{style.title(cell.row)} ({text})", []).append(cell.column)
    every = len({cell.column for cell in found})
    return "; ".join(
        text if len(inside) == every else f"{text} in {', '.join(inside)}"
        for text, inside in columns.items()
    )


def left_out(made: Iterable[Table], runs: Mapping[str, Sequence[Path]]) -> list[Table]:
    """The tables, with a sentence in the caption on the runs that are in none of their numbers.

    ``runs`` are by the reason.
    """
    said = ""
    for reason, paths in runs.items():
        names = ", ".join(map(str, paths[:NAMED]))
        names += f" and {len(paths) - NAMED} more" * (len(paths) > NAMED)
        count = f"{len(paths)} run{'s' * (len(paths) != 1)}"
        said += f" Left out: {count} ({reason}): {names}." * bool(paths)
    return [replace(table, caption=table.caption + said) for table in made]


def comparisons(
    found: Sequence[Cell], baseline: str | None, test: Test, unit: Unit, *, details: bool = False
) -> str:
    """The caption's sentences on the comparisons: what, how, and which were not possible.

    ``baseline`` is a label, or words for what the methods are compared with; None gives no
    sentence. With ``details`` the table shows the differences.
    """
    if baseline is None:
        return ""
    tests = sum(not math.isnan(cell.adjusted) for cell in found)
    difference = ", with its 95 % t interval" if details else ""
    over = unit_of(found)
    floor = f", which is never below 2 / 2^n over n {over}s" if test == "wilcoxon" else ""
    said = (
        f" {'Difference' if details else 'Compared'}: method minus {style.title(baseline)} over "
        f"the {over}s that both have{difference}"
    )
    if tests:
        holm = f"corrected over the {tests} comparisons of this table"
        holm = holm if tests > 1 else "equal to p, as there is one comparison"
        said += f"; p: two-sided {TESTS[test]}{floor}; Holm: {holm}; * below {SIGNIFICANT:g}"
    said += "."
    power = power_words(data(found), unit)
    if not power and tests:
        power = "Power is stated for the t test alone."
    return f"{said} {power}".rstrip() + f"{_fewer(found)}{_missing(found)}"


def power_words(found: pd.DataFrame, unit: Unit) -> str:
    """A sentence on the differences that a design detects; empty if no power is available.

    ``found`` is from :func:`data`.
    """
    tested = found[found["detectable"].notna()].sort_values("detectable", kind="stable")
    if tested.empty:
        return ""
    records = tested.to_dict("records")
    names = [
        f"{row['method']}, {row['column']}" if row["column"] else str(row["method"])
        for row in records
    ]
    sizes = [unit.number(row["detectable"]) for row in records]
    of = f" {unit.of_differences}" * bool(unit.of_differences)
    if len(records) == 1:
        what = f"a difference of {sizes[0]}{of} is"
    elif sizes[0] == sizes[-1]:
        what = f"differences of {sizes[0]}{of} are"
    else:
        what = f"differences of {sizes[0]} ({names[0]}) to {sizes[-1]}{of} ({names[-1]}) are"
    level = f"{SIGNIFICANT:g}" + f" / {len(records)}" * (len(records) > 1)
    return (
        f"Power: with {_design(tested)}, {what} detected with {100 * POWER:.0f} % probability "
        f"(paired t test at level {level}, if differences vary as in these runs)."
    )


def _design(tested: pd.DataFrame) -> str:
    """The numbers of partitions and seeds of comparisons: ``10 partitions x 2 seeds``."""
    low, high = int(tested["pairs"].min()), int(tested["pairs"].max())
    count = str(low) if low == high else f"{low} to {high}"
    if tested["unit"].iloc[0] == "seed":
        return f"{count} seeds on one partition"
    seeds = list(dict.fromkeys(tested["pair_seeds"]))
    return f"{count} partitions x {' or '.join(seeds)} seed{'s' * (seeds != ['1'])}"


def _fewer(found: Sequence[Cell]) -> str:
    """A sentence on differences over fewer units than the method's own mean."""
    texts = [
        f"{_name(cell)} {cell.comparison.difference.n} of {cell.estimate.n}"
        for cell in found
        if cell.comparison and cell.comparison.difference.n < cell.estimate.n
    ]
    over = unit_of(found).title()
    return f" {over}s in common where they are not all: {'; '.join(texts)}." * bool(texts)


def _name(cell: Cell) -> str:
    """The method of a cell, with its column if the table has columns."""
    return style.title(cell.row) + f" ({cell.column})" * bool(cell.column)


def _missing(found: Sequence[Cell]) -> str:
    """Sentences on missing p values."""
    reasons: dict[str, list[str]] = {}
    for cell in found:
        if cell.comparison and cell.comparison.reason:
            reasons.setdefault(cell.comparison.reason, []).append(_name(cell))
    return "".join(
        f" p is not available where there is {reason}: {'; '.join(where)}."
        for reason, where in reasons.items()
    )
