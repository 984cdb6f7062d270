"""Run directories: find them, read their summaries, group them by method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedsim.config.keys import COLUMNS, is_setting

from . import AnalysisError, units
from .files import read_table
from .labels import LABEL, METHOD, NAMES, TITLES, labels, text, with_labels
from .units import PARTITION, ExperimentalUnit

RESULTS = ("final_test_accuracy", "best_test_accuracy", "last10_test_accuracy")
"""The accuracies (0..1) of summary.csv."""
DATA = "data_digest"
"""The column with the digest of samples, labels and class names; empty for generated data."""
_EXPERIMENT = ("dataset", "num_clients", "sample_rate", "alpha", "rounds", "best_by", DATA)
_SECTIONS_OF_EXPERIMENT = (
    *("data", "model", "evaluation", "clock", "async", "attack", "synthetic"),
)
"""Columns, and sections of them, in which compared runs must agree unless the user has named them
or they are grouped by them. Methods may differ in the others, such as a learning rate tuned for
each."""
ALIASES = {**COLUMNS, **{title: column for column, title in NAMES.items()}}
"""Columns by their key in config.yaml, and by their name in figures."""
NAMED = "named"
"""The column that says whether the user has named a run."""
SHOWN = 8
"""An error message names at most this many settings, or values of one."""


@dataclass(frozen=True)
class Group:
    """The runs of one curve or table row: one method under one setting.

    Args:
        label: of the method.
        runs: one per seed, or per partition and seed, as rows of :func:`summaries`.
        unit: of intervals and tests.
    """

    label: str
    runs: pd.DataFrame
    unit: ExperimentalUnit = "seed"

    def by_run(self, column: str) -> pd.Series[float]:
        """A column of summary.csv as numbers, indexed by :data:`analysis.units.COLUMNS`."""
        values = self.runs.set_index(list(units.COLUMNS[self.unit]))[column]
        return pd.to_numeric(values).astype(float)


def find(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Run directories (with a rounds.csv) at or below ``paths``: (finished, unfinished), sorted.

    A run that has no summary.csv yet is unfinished. The trials of a search by ``fedsim tune`` are
    left out, unless the search itself or a folder in it is given.

    Raises:
        AnalysisError: a path does not exist, or no run lies there.
    """
    runs: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise AnalysisError(f"{path}: there is no such folder")
        searches = {file.parent for file in path.glob("*/**/trials.csv")}
        files = path.rglob("rounds.csv")
        below = {file.parent for file in files if searches.isdisjoint(file.parents)}
        if not below:
            hint = f"; name the search itself: {min(searches)}" if searches else ""
            raise AnalysisError(f"{path}: no run directory (a folder with rounds.csv) here{hint}")
        runs |= below
    finished = [run for run in sorted(runs) if (run / "summary.csv").is_file()]
    return finished, sorted(runs.difference(finished))


def summaries(runs: Iterable[Path]) -> pd.DataFrame:
    """The rows of the runs' summary.csv, with the run's folder in a column ``path``.

    A run without a name has the computed one in column ``label``, see :mod:`analysis.labels`.

    Raises:
        AnalysisError: a summary is unreadable, has not exactly one row, or there are no runs.
    """
    rows = []
    for run in runs:
        file = run / "summary.csv"
        frame = read_table(file, ("seed", *RESULTS), ("algorithm",), optional_texts=(LABEL,))
        if len(frame) != 1:
            raise AnalysisError(f"{run / 'summary.csv'}: {len(frame)} rows, a run has exactly one")
        rows.append(_outcomes_left_out(frame.to_dict("records")[0]) | {"path": str(run)})
    if not rows:
        raise AnalysisError("no finished run: a summary.csv is written at the end of a run")
    table = pd.DataFrame(rows, dtype=object)
    table[NAMED] = table[LABEL].notna() if LABEL in table else False
    return with_labels(table.astype({column: float for column in RESULTS}))


def without_repeats(table: pd.DataFrame) -> tuple[pd.DataFrame, list[Path]]:
    """The runs of :func:`summaries` without those that a later one repeats, and these.

    They have the same name, seed, settings and results: counted twice, they would be two seeds.
    """
    same = [*settings(table), units.SEED, LABEL, *RESULTS, *(c for c in [DATA] if c in table)]
    repeated = table[same].map(text).duplicated(keep="last")
    return table[~repeated], [Path(path) for path in table["path"][repeated]]


def _outcomes_left_out(row: dict[Any, Any]) -> dict[Any, Any]:
    """A row of summary.csv without the rounds of a run that stops without progress: an outcome."""
    return row if pd.isna(row.get("train.patience")) else row | {"rounds": None}


def unit_among(
    table: pd.DataFrame, by: Sequence[str], wanted: ExperimentalUnit | None
) -> ExperimentalUnit:
    """The unit of intervals and tests of runs of :func:`summaries` that are grouped by columns.

    Partitions are the unit where a group has several of them, unless seeds are ``wanted``; else it
    is the training seed.

    Raises:
        AnalysisError: partitions are wanted, and are a column to group by, or a run does not say
            which is its own.
    """
    by = expanded(table, by)
    check_columns(table, by)
    if wanted == "seed":
        return "seed"
    if wanted is None:
        known_all = PARTITION in table and PARTITION not in by and table[PARTITION].notna().all()
        repeats = known_all and units.repeats_partitions(table[PARTITION], labels(table, by))
        return "partition" if repeats else "seed"
    if PARTITION in by:
        raise AnalysisError(
            f"--unit partition: the runs are grouped by {PARTITION}, so that each group has one "
            "partition; leave out one of the two"
        )
    without = table["path"] if PARTITION not in table else table["path"][table[PARTITION].isna()]
    if len(without):
        raise AnalysisError(f"--unit partition: {without.iloc[0]}/summary.csv has no {PARTITION}")
    if units.repeats_partitions(table[PARTITION], labels(table, by)):
        return "partition"
    if table[PARTITION].nunique() > 1:
        raise AnalysisError(
            f"--unit partition: no group has several partitions, though {PARTITION} differs "
            f"between groups ({_values(table[PARTITION])}); each needs the same ones"
        )
    return "seed"


def group(
    table: pd.DataFrame, by: Sequence[str] = (LABEL,), unit: ExperimentalUnit = "seed"
) -> list[Group]:
    """Groups the runs of :func:`summaries` by label, or by any of its columns.

    ``algorithm`` stands for all of :data:`METHOD`. Known methods come first, in the papers' order.
    A group's label is the run's label or algorithm if grouped by it, followed by ``column=value``
    for each of the other columns that the run has. The ``unit`` is that of :func:`unit_among`.
    Grouped by label, runs that the user has named may differ from all others. With partitions as
    the unit, the runs of one label may differ between partitions in settings that methods may
    differ in, such as a learning rate that a study has tuned for each partition.

    Raises:
        AnalysisError: an unknown column, or runs that would be averaged or compared although
            settings other than those that the unit repeats differ; the message names all of them.
    """
    by = expanded(table, by)
    check_columns(table, by)
    repeated = units.COLUMNS[unit]
    for runs, columns, whose in _checks(table, by, unit):
        _same(runs, columns, by, whose)
    options = tuple(f"{name}." for name in _data_sets(table))
    _same_data(table[~_named(table, by)], by, options)
    keys = labels(table, by)
    groups = []
    for name in sorted(keys.unique(), key=order):
        runs = table[keys == name].sort_values(list(repeated), kind="stable")
        _same_data(runs, by, options)
        twice = runs[runs.duplicated(list(repeated), keep=False)]
        if len(twice):
            first, second = twice["path"].iloc[:2]
            same = " and ".join(f"{column} {twice[column].iloc[0]}" for column in repeated)
            raise AnalysisError(
                f"{name}: two runs with {same} ({first} and {second}); give one of them"
            )
        groups.append(Group(name, runs, unit))
    return groups


def default_by(
    table: pd.DataFrame, unit: ExperimentalUnit | None = None, columns: Sequence[str] = ()
) -> list[str]:
    """The label, and further columns by which :func:`group` takes the runs; never the partition.

    They are settings that runs of one label, or runs without a name, differ in but must agree in,
    and ``columns``, by which the runs are grouped in any case. Without a ``unit`` it is the
    partition where there are several.
    """
    by = expanded(table, [LABEL, *columns])
    check_columns(table, by)
    while differ := [
        column
        for runs, agreeing, _ in _checks(table, by, unit or "partition")
        for column in agreeing
        if column not in (PARTITION, DATA) and len(runs[column].drop_duplicates()) > 1
    ]:
        by.append(differ[0])
    return by


def _checks(
    table: pd.DataFrame, by: Sequence[str], unit: ExperimentalUnit
) -> Iterator[tuple[pd.DataFrame, list[str], str]]:
    """Runs, the columns in which they must agree when grouped by others, and who they are."""
    free = [c for c in settings(table) if c not in (*by, *units.COLUMNS[unit])]
    options = _data_sets(table)

    def of_experiment(column: str) -> bool:
        return _of_experiment(column) or column.partition(".")[0] in options

    agreeing = [column for column in free if of_experiment(column)]
    apart = [column for column in by if of_experiment(column)]
    for part in _parts(table[~_named(table, by)], apart):
        yield part, agreeing, "the runs"
    keys = labels(table, by)
    for name in sorted(keys.unique(), key=order):
        runs = table[keys == name]
        tuned = unit == "partition" and PARTITION in runs and runs[LABEL].nunique() == 1
        for part in _parts(runs, [PARTITION]) if tuned else [runs]:
            yield part, free, f"the runs of {name}"
        yield runs, agreeing, f"the runs of {name}"


def _named(table: pd.DataFrame, by: Sequence[str]) -> pd.Series[bool]:
    """The runs whose group has a name that the user gave."""
    return table.get(NAMED, pd.Series(False, table.index)) & (LABEL in by)


def _data_sets(table: pd.DataFrame) -> list[str]:
    """The data sets, which are the sections of their options."""
    return [str(name) for name in table.get("dataset", pd.Series(dtype=str)).unique()]


def _parts(table: pd.DataFrame, columns: Sequence[str]) -> list[pd.DataFrame]:
    """The runs that agree in the columns, together."""
    if not columns or table.empty:
        return [table]
    keys = table[list(columns)].apply(lambda row: tuple(map(text, row)), axis=1)
    return [part for _, part in table.groupby(keys, sort=False)]


def first_run(groups: Sequence[Group]) -> Path:
    """The folder of the first run."""
    return Path(groups[0].runs["path"].iloc[0])


def check_columns(table: pd.DataFrame, columns: Sequence[str]) -> None:
    """Raises an AnalysisError if a column is in no run's summary.csv."""
    unknown = [column for column in columns if column not in table.columns]
    if unknown:
        differ = [c for c in settings(table) if len(table[c].drop_duplicates()) > 1]
        raise AnalysisError(
            f"summary.csv has no column {', '.join(unknown)}; the runs can be grouped by "
            f"{shortened([LABEL, *(differ or ['algorithm'])])}"
        )


def settings(table: pd.DataFrame) -> list[str]:
    """The columns of :func:`summaries` on which results depend, without the seed."""
    return [str(column) for column in table.columns if is_setting(str(column))]


def shared(groups: Sequence[Group]) -> dict[str, str]:
    """The settings that are the same in all runs, as text, without those that no run has."""
    table = pd.concat([group.runs for group in groups])
    distinct = {column: table[column].drop_duplicates() for column in settings(table)}
    return {c: text(v.iloc[0]) for c, v in distinct.items() if len(v) == 1 and not v.isna().all()}


def differing(groups: Sequence[Group]) -> pd.DataFrame:
    """The settings that differ between runs, as text; one row per group, indexed by label.

    A setting that was tuned for each partition has all its values.
    """
    table = pd.concat([group.runs for group in groups])
    repeated = units.COLUMNS[groups[0].unit]
    columns = [
        c for c in settings(table) if c not in repeated and len(table[c].drop_duplicates()) > 1
    ]
    rows = [
        [", ".join(dict.fromkeys(map(text, group.runs[column]))) for column in columns]
        for group in groups
    ]
    return pd.DataFrame(rows, index=[group.label for group in groups], columns=columns)


def expanded(table: pd.DataFrame, by: Sequence[str]) -> list[str]:
    """``by`` in present columns, with ``algorithm`` first and followed by the rest of METHOD."""
    method = [column for column in METHOD if column in table.columns and "algorithm" in by]
    present = (c if c in table.columns else ALIASES.get(c, c) for c in by)
    return list(dict.fromkeys((*method, *present)))


def _same(runs: pd.DataFrame, columns: Sequence[str], by: Sequence[str], what: str) -> None:
    differ = [column for column in columns if len(runs[column].drop_duplicates()) > 1]
    if differ:
        named = "; ".join(f"{column} ({_values(runs[column])})" for column in differ)
        more = "".join(f" --by {c}" for c in (*(c for c in by if c not in METHOD[1:]), *differ))
        over = ", or take partitions as the unit with --unit partition" * (PARTITION in differ)
        raise AnalysisError(
            f"{what} differ in {named}: give runs that do not differ, or group with{more}{over}"
        )


def _same_data(table: pd.DataFrame, by: Sequence[str], options: tuple[str, ...]) -> None:
    """Refuses runs of different data, unless they are grouped by what tells the data apart.

    Runs that do not say what data they had go with any. A function of the
    user's may draw other data for each partition; fedsim's own readers do not: of a table, which
    is scaled by each partition's training rows, the digest is that of its file.
    """
    if DATA not in table.columns or DATA in by:
        return
    digested = table[table[DATA].notna()]
    apart = [c for c in by if c == "dataset" or c.startswith(("data.", *options))]
    keys = []
    for row in digested.to_dict("records"):
        drawn = [PARTITION] if ":" in str(row.get("dataset")) else []
        keys.append(", ".join(text(row.get(column)) for column in (*apart, *drawn)))
    for _, same in digested.groupby(pd.Series(keys, index=digested.index, dtype=str), sort=False):
        _same(same, [DATA], by, "the runs")


def _values(column: pd.Series[Any]) -> str:
    return shortened(sorted((text(value) for value in column.drop_duplicates()), key=_rank))


def shortened(texts: Sequence[str]) -> str:
    """The first :data:`SHOWN` texts, and how many more there are."""
    return ", ".join(texts[:SHOWN]) + (f" and {len(texts) - SHOWN} more" * (len(texts) > SHOWN))


def conditions(label: str) -> str:
    """The settings in a label that runs must share to be ranked, such as ``alpha=0.1``."""
    parts = [part for part in label.split(", ") if "=" in part]
    return ", ".join(part for part in parts if _of_experiment(part.partition("=")[0]))


def _of_experiment(column: str) -> bool:
    return column in _EXPERIMENT or column.partition(".")[0] in _SECTIONS_OF_EXPERIMENT


def order(label: str) -> list[tuple[float, str]]:
    """Sort key of labels: known methods in the papers' order, numbers by value, then text."""
    return [_rank(part) for part in label.replace("=", ", ").split(", ")]


def _rank(part: str) -> tuple[float, str]:
    if part in TITLES:
        return list(TITLES).index(part), ""
    try:
        return float(part), ""
    except ValueError:
        return float("inf"), part
