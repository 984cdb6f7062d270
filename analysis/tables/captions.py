"""The sentences of captions: what a table's numbers and signs mean, and which runs they lack."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from ..figures import style
from ..paired import CERTAIN, DRAWS, FEWEST_BAYES, PRIOR, SIGNIFICANT, T, Test
from ..runs import conditions
from ..stats import FEWEST, Cell
from ..units import POWER, ExperimentalUnit
from ..words import say, sentences
from .layout import COLLAPSE, Table, Unit, data, unit_of

UNFINISHED = "no summary.csv, the run has not finished"
"""Why a run is left out of every table."""
REPEATED = "a later run is the same"
"""Another reason."""
NAMED = 3
"""A caption names at most this many runs that are left out."""


def unit_words(unit: ExperimentalUnit) -> str:
    """A sentence: what the unit of intervals and tests is."""
    return say(f"units.{unit}")


def interval_words(unit: ExperimentalUnit, test: Test = T) -> str:
    """A sentence: what ± is, and for which images intervals and tests over partitions hold."""
    said = say("units.interval", unit=unit)
    if unit == "seed":
        return said
    new = test.kind == "corrected"
    return sentences(said, say(f"units.{'corrected' if new else 'partitions'}", ratio=test.ratio))


def signs(shown: Sequence[Cell], test: Test, *, lowest: bool = False) -> str:
    """The caption's sentences on ±, on what is bold, and on the collapsed runs."""
    unit = unit_of(shown)
    several = any(cell.estimate.n > 1 for cell in shown)
    said = sentences(unit_words(unit), interval_words(unit, test) if several else "")
    groups = Counter((cell.column, conditions(cell.row)) for cell in shown)
    if max(groups.values(), default=0) > 1:
        where = " of a column" * (len({cell.column for cell in shown}) > 1)
        where += " for each setting of data and rounds" * (
            len({conditions(cell.row) for cell in shown}) > 1
        )
        where += " among the methods with all runs" * any(cell.missing for cell in shown)
        enough = any(cell.estimate.n >= FEWEST for cell in shown)
        end = "" if enough else f": a test needs {FEWEST} {unit}s"
        said += " " + sentences(
            say(
                "caption.bold_bayes" if test.bayes else "caption.bold",
                best="lowest" if lowest else "highest", where=where,
                level=SIGNIFICANT, test=test.title, unit=unit, certain=CERTAIN,
            ),
            "" if any(cell.leads for cell in shown) else say("caption.nothing_bold", end=end),
        )  # fmt: skip
    return said + incomplete(shown) + _collapses(shown)


def incomplete(shown: Sequence[Cell], *, ranked: bool = True) -> str:
    """A sentence on the methods that lack runs; empty if none does.

    ``ranked``: whether the best method of the table is bold.
    """
    texts = _by_method(
        shown,
        lambda cell: (
            f"{cell.estimate.runs} of {cell.estimate.runs + cell.missing}" * bool(cell.missing)
        ),
    )
    never = ", and never bold" * ranked
    return " " + say("caption.incomplete", never=never, names=texts) if texts else ""


def _collapses(shown: Sequence[Cell]) -> str:
    """A sentence on the runs whose final model has collapsed."""
    texts = _by_method(
        shown, lambda cell: f"{cell.collapsed} of {cell.estimate.runs}" * bool(cell.collapsed)
    )
    return " " + say("caption.collapsed", sign=COLLAPSE, names=texts) if texts else ""


def _by_method(shown: Sequence[Cell], told: Callable[[Cell], str]) -> str:
    """``FedLD (1 of 3); MOON (2 of 3) in alpha=0.1``: what is told of each method's cells.

    Cells without a text are left out; columns are named where the text is not that of all.
    """
    columns: dict[str, list[str]] = {}
    for cell in shown:
        if text := told(cell):
            columns.setdefault(f"{style.title(cell.row)} ({text})", []).append(cell.column)
    every = len({cell.column for cell in shown})
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
        left = say("caption.left_out", count=len(paths), reason=reason, names=names)
        said += f" {left}" * bool(paths)
    return [replace(table, caption=table.caption + said) for table in made]


def comparisons(
    shown: Sequence[Cell], baseline: str | None, test: Test, unit: Unit, *, details: bool = False
) -> str:
    """The caption's sentences on the comparisons: what, how, and which were not possible.

    ``baseline`` is a label, or words for what the methods are compared with; None gives no
    sentence. With ``details`` the table shows the differences.
    """
    if baseline is None:
        return ""
    tests = sum(not math.isnan(cell.adjusted) for cell in shown)
    over = unit_of(shown)
    holm = f"corrected over the {tests} comparisons of this table"
    holm = holm if tests > 1 else "equal to p, as there is one comparison"
    floor = say("caption.floor", unit=over) if test.kind == "wilcoxon" else ""
    how = say("caption.tests", test=test.title, floor=floor, holm=holm, level=SIGNIFICANT)
    said = say(
        "caption.compared", kind="Difference" if details else "Compared", unit=over,
        baseline=style.title(baseline), tests=how * bool(tests),
        interval=", with its 95 % t interval" * details,
    )  # fmt: skip
    power = power_words(data(shown), unit, test)
    if not power and tests:
        power = say("caption.t_alone")
    verdicts = "" if test.rope is None else verdict_words(test, unit, over)
    return f" {sentences(said, verdicts, power, _fewer(shown), *_missing(shown))}"


def verdict_words(test: Test, unit: Unit, over: ExperimentalUnit) -> str:
    """Sentences on what the words of verdicts mean."""
    named = unit.of_differences or unit.name
    rope = f"{unit.factor * (test.rope or 0):g} {named}".strip()
    key = "bayes" if test.bayes else "ranks" if test.kind == "wilcoxon" else "tost"
    return say(
        f"verdict.{key}", rope=rope, level=SIGNIFICANT, certain=CERTAIN, fewest=FEWEST_BAYES,
        test=test.title, prior=PRIOR, draws=DRAWS, unit=over, incomplete=say("verdict.incomplete"),
    )  # fmt: skip


def power_words(numbers: pd.DataFrame, unit: Unit, test: Test = T) -> str:
    """A sentence on the differences that a design detects; empty if no power is available.

    ``numbers`` are from :func:`data`.
    """
    every = numbers[numbers["detectable"].notna()].sort_values("detectable", kind="stable")
    if every.empty:
        return ""
    few = [unit.too_few(*pair) for pair in zip(every["pairs"], every["detectable"], strict=True)]
    tested = every[[not one for one in few]]
    if tested.empty:
        return say("caption.too_few", design=_design(every), unit=every["unit"].iloc[0])
    records = tested.to_dict("records")
    names = [_named(row) for row in records]
    sizes = [unit.number(row["detectable"]) for row in records]
    of = f" {unit.of_differences}" * bool(unit.of_differences)
    if len(records) == 1:
        what = f"a difference of {sizes[0]}{of} is"
    elif sizes[0] == sizes[-1]:
        what = f"differences of {sizes[0]}{of} are"
    else:
        what = f"differences of {sizes[0]} ({names[0]}) to {sizes[-1]}{of} ({names[-1]}) are"
    level = f"{SIGNIFICANT:g}" + f" / {len(every)}" * (len(every) > 1)
    said = say(
        "caption.power", design=_design(tested), what=what, power=100 * POWER, level=level,
        test=test.title,
    )  # fmt: skip
    others = "; ".join(_named(row) for row in every[few].to_dict("records"))
    return sentences(
        said, say("caption.too_few_of", unit=every["unit"].iloc[0], names=others) if others else ""
    )


def _named(row: Mapping[Hashable, Any]) -> str:
    return f"{row['method']}, {row['column']}" if row["column"] else str(row["method"])


def _design(tested: pd.DataFrame) -> str:
    """The numbers of partitions and seeds of comparisons: ``10 partitions x 2 seeds``."""
    low, high = int(tested["pairs"].min()), int(tested["pairs"].max())
    count = str(low) if low == high else f"{low} to {high}"
    if tested["unit"].iloc[0] == "seed":
        return f"{count} seeds on one partition"
    seeds = list(dict.fromkeys(tested["pair_seeds"]))
    return f"{count} partitions x {' or '.join(seeds)} seed{'s' * (seeds != ['1'])}"


def _fewer(shown: Sequence[Cell]) -> str:
    """A sentence on differences over fewer units than the method's own mean."""
    names = "; ".join(
        f"{_name(cell)} {cell.comparison.difference.n} of {cell.estimate.n}"
        for cell in shown
        if cell.comparison and cell.comparison.difference.n < cell.estimate.n
    )
    return say("caption.fewer", unit=unit_of(shown).title(), names=names) if names else ""


def _name(cell: Cell) -> str:
    """The method of a cell, with its column if the table has columns."""
    return style.title(cell.row) + f" ({cell.column})" * bool(cell.column)


def _missing(shown: Sequence[Cell]) -> list[str]:
    """Sentences on missing p values."""
    reasons: dict[str, list[str]] = {}
    for cell in shown:
        if cell.comparison and cell.comparison.reason:
            reasons.setdefault(cell.comparison.reason, []).append(_name(cell))
    return [
        say("caption.no_p", reason=reason, names="; ".join(names))
        for reason, names in reasons.items()
    ]
