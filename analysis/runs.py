"""Run directories: find them, read their summaries, group them by method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedsim.config.keys import COLUMNS, is_setting
from fedsim.core.measures import Measures
from fedsim.core.rows import WHEN

from . import AnalysisError, units
from .files import read_env, read_grid, read_table
from .labels import AXIS, LABEL, METHOD, NAMES, TITLES, labels, text, with_labels
from .units import PARTITION, ExperimentalUnit

RESULTS = ("final_test_accuracy", "best_test_accuracy", "last10_test_accuracy")
"""The accuracies (0..1) of summary.csv."""
DATA = "data_digest"
"""The column with the digest of samples, labels and class names; empty for generated data."""
_EXPERIMENT = (
    *("dataset", "num_clients", "sample_rate", "alpha", "rounds", "best_by", DATA),
    *("data", "model", "evaluation", "clock", "async", "attack", "synthetic"),
)
"""Columns and sections in which compared runs without names must agree, if not grouped by them."""
ALIASES = {**COLUMNS, **{title: column for column, title in NAMES.items()}}
"""Columns by their key in config.yaml, and by their name in figures."""
MEASURES = "measures"  # the column with what env.json says of the measures of a run's task
NAMED = "named"  # the column that says whether the user has named a run
DRAWN = ("discs", "synthetic", "synthetic_labels", "synthetic_survival")
"""Data sets that ``data.seed`` draws, so that partitions have other data."""
PLACE = "place"  # the column with a run's place in the file of its sweep
SHOWN = 8  # an error message names at most this many settings, or values of one


@dataclass(frozen=True)
class Group:
    """The runs of one curve or table row: one method under one setting."""

    label: str  # of the method
    runs: pd.DataFrame  # one per seed, or per partition and seed, as rows of `summaries`
    unit: ExperimentalUnit = "seed"  # of intervals and tests

    def by_run(self, column: str) -> pd.Series[float]:
        """A column of summary.csv as numbers, indexed by :data:`analysis.units.COLUMNS`."""
        values = self.runs.set_index(list(units.COLUMNS[self.unit]))[column]
        return pd.to_numeric(values).astype(float)


def find(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Run directories (with a rounds.csv) at or below ``paths``: (finished, unfinished), sorted."""
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
    """The rows of the runs' summary.csv, with the run's folder in a column ``path``. Each axis of a
    sweep's grid whose rows have names is a column :data:`~analysis.labels.AXIS`."""
    rows: list[dict[Any, Any]] = []
    grids: dict[Path, dict[str, tuple[int, dict[str, str]]]] = {}
    for run in runs:
        file = run / "summary.csv"
        frame = read_table(file, ("seed", *RESULTS), ("algorithm",), optional_texts=(LABEL,))
        if len(frame) != 1:
            raise AnalysisError(f"{file}: {len(frame)} rows, a run has exactly one")
        measures = Measures.of(read_env(run))
        if rows and rows[0][MEASURES].task != measures.task:
            raise AnalysisError(
                f"{rows[0]['path']} and {run}: their tasks, {rows[0][MEASURES].task} and "
                f"{measures.task}, have different measures; give runs of one task"
            )
        if run.parent not in grids:
            grids[run.parent] = read_grid(run.parent)
        place, names = grids[run.parent].get(run.name, (math.nan, {}))
        names = {f"{AXIS}{axis}": name for axis, name in names.items()}
        row = names | frame.to_dict("records")[0]
        row |= {"path": str(run), PLACE: place, MEASURES: measures}
        if pd.notna(row.get("dp.epsilon")):
            row["dp.noise_multiplier"] = None  # is an outcome
        # the rounds of a run that stops without progress are an outcome
        rows.append(row if pd.isna(row.get("train.patience")) else row | {"rounds": None})
    if not rows:
        raise AnalysisError("no finished run: a summary.csv is written at the end of a run")
    table = pd.DataFrame(rows, dtype=object)
    table[NAMED] = table[LABEL].notna() if LABEL in table else False
    return with_labels(table.astype(dict.fromkeys(RESULTS, float)))


def without_repeats(table: pd.DataFrame) -> tuple[pd.DataFrame, list[Path]]:
    """The runs without those that a later one repeats in settings and results, and these."""
    scores = {m.column("test", when) for m in table[MEASURES] for when in WHEN}
    results = [*RESULTS, *sorted(scores - {*RESULTS}), DATA]
    same = [*settings(table), units.SEED, LABEL, *(c for c in results if c in table)]
    repeated = table[same].map(text).duplicated(keep="last")
    return table[~repeated], [Path(path) for path in table["path"][repeated]]


def unit_among(
    table: pd.DataFrame, by: Sequence[str], wanted: ExperimentalUnit | None
) -> ExperimentalUnit:
    """The unit of intervals and tests: partitions where a group has several, or as ``wanted``."""
    by = expanded(table, by)
    check_columns(table, by)
    partitions = table.get(PARTITION, pd.Series(math.nan, table.index))
    several = PARTITION not in by and units.repeats_partitions(partitions, labels(table, by))
    if wanted != "partition":
        nested = wanted is None and several and partitions.notna().all()
        return "partition" if nested else "seed"
    problem = ""
    if PARTITION in by:
        problem = f"the runs are grouped by {PARTITION}, so that each group has one"
    elif partitions.isna().any():
        problem = f"{table['path'][partitions.isna()].iloc[0]}/summary.csv has no {PARTITION}"
    elif not several and partitions.nunique() > 1:
        problem = (
            f"no group has several; {PARTITION} differs between groups ({_values(partitions)})"
        )
    if problem:
        raise AnalysisError(f"--unit partition: {problem}")
    return "partition" if several else "seed"


def group(
    table: pd.DataFrame, by: Sequence[str] = (LABEL,), unit: ExperimentalUnit = "seed"
) -> list[Group]:
    """Groups the runs of :func:`summaries` by any of its columns, in the papers' order."""
    by = expanded(table, by)
    check_columns(table, by)
    repeated = list(units.COLUMNS[unit])
    for runs, columns, whose in _checks(table, by, unit):
        if differ := _differing(runs, columns):
            named = "; ".join(f"{column} ({_values(runs[column])})" for column in differ)
            more = "".join(f" --by {c}" for c in (*(c for c in by if c not in METHOD[1:]), *differ))
            over = ", or take partitions as the unit with --unit partition" * (PARTITION in differ)
            raise AnalysisError(
                f"{whose} differ in {named}: give runs that do not, or group with{more}{over}"
            )
    groups = []
    for name, unsorted in _by_label(table, by):
        runs = unsorted.sort_values(repeated, kind="stable")
        twice = runs[runs.duplicated(repeated, keep=False)]
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
    """The label, ``columns``, and the settings in which runs must agree for :func:`group`, or in
    their place the axes of a grid whose rows have names."""
    by = expanded(table, [LABEL, *columns])
    check_columns(table, by)
    while differ := [
        column
        for runs, agreeing, _ in _checks(table, by, unit or "partition")
        for column in _differing(runs, agreeing)
        if column not in (PARTITION, DATA)
    ]:
        by.append(_axis_of(table, differ[0]))
    return by


def _axis_of(table: pd.DataFrame, column: str) -> str:
    """The axis of a grid whose named rows, of several labels, say which value a column has; else
    the column."""
    values = table[column].map(text)
    for axis in (c for c in map(str, table.columns) if c.startswith(AXIS)):
        one_each = table[axis].notna().all() and (values.groupby(table[axis]).nunique() == 1).all()
        if one_each and table.groupby(table[axis])[LABEL].nunique().max() > 1:
            return axis
    return column


def _checks(
    table: pd.DataFrame, by: Sequence[str], unit: ExperimentalUnit
) -> Iterator[tuple[pd.DataFrame, list[str], str]]:
    """Runs, the columns in which they must agree when grouped by others, and who they are."""
    free = [c for c in settings(table) if c not in (*by, *units.COLUMNS[unit])]
    options = [str(name) for name in table.get("dataset", pd.Series(dtype=str)).unique()]

    def of_experiment(column: str) -> bool:
        return _of_experiment(column) or column.partition(".")[0] in options

    agreeing = [column for column in free if of_experiment(column)]
    named = table.get(NAMED, pd.Series(False, table.index)) & (LABEL in by)
    for part in _parts(table[~named], [column for column in by if of_experiment(column)]):
        yield part, agreeing, "the runs"
    every = [("the runs", table[~named])]
    for name, runs in _by_label(table, by):
        every.append((f"the runs of {name}", runs))
        tuned = unit == "partition" and PARTITION in runs and runs[LABEL].nunique() == 1
        for part in _parts(runs, [PARTITION]) if tuned else [runs]:
            yield part, free, every[-1][0]
        yield runs, agreeing, every[-1][0]
    if DATA in table and DATA not in by:
        sections = ("data", *options)
        apart = [c for c in by if c == "dataset" or c.partition(".")[0] in sections]
        for whose, runs in every:
            digested = runs[runs[DATA].notna()]
            names = digested["dataset"].astype(str)
            drawn = names.isin(DRAWN) | names.str.contains(":")  # a function of the user's may, too
            for drawing, same in ((True, digested[drawn]), (False, digested[~drawn])):
                for part in _parts(same, [*apart, *[PARTITION] * drawing]):
                    yield part, [DATA], whose


def _by_label(table: pd.DataFrame, by: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    """The runs by label; where all have names, in the order of their sweep's file."""
    keys = labels(table, by)
    named = bool(LABEL in by and table[NAMED].all()) or any(c.startswith(AXIS) for c in by)
    return [(name, table[keys == name]) for name in _ordered(keys, table, named)]


def ordered_labels(table: pd.DataFrame, by: Sequence[str]) -> list[str]:
    """The labels of :func:`group`."""
    return [name for name, _ in _by_label(table, expanded(table, by))]


def values_of(table: pd.DataFrame, column: str) -> list[str]:
    """The texts of a column, those of an axis of a grid in the order of its file."""
    return _ordered(table[column].map(text), table, column.startswith(AXIS))


def _ordered(texts: pd.Series[str], table: pd.DataFrame, named: bool) -> list[str]:
    """The distinct texts in order, ``named`` ones in that of their sweep's file."""
    names = sorted(texts.unique(), key=order)
    if named and table[PLACE].notna().all():
        names.sort(key=lambda name: table[PLACE][texts == name].min())
    return names


def _parts(table: pd.DataFrame, columns: Sequence[str]) -> list[pd.DataFrame]:
    """The runs that agree in the columns, together."""
    present = [column for column in columns if column in table]
    if not present or table.empty:
        return [table]
    keys = table[present].apply(lambda row: tuple(map(text, row)), axis=1)
    return [part for _, part in table.groupby(keys, sort=False)]


def _differing(runs: pd.DataFrame, columns: Iterable[str]) -> list[str]:
    return [column for column in columns if len(runs[column].drop_duplicates()) > 1]


def first_run(groups: Sequence[Group]) -> Path:
    """The folder of the first run."""
    return Path(groups[0].runs["path"].iloc[0])


def check_columns(table: pd.DataFrame, columns: Sequence[str]) -> None:
    """Raises an AnalysisError if a column is in no run's summary.csv."""
    unknown = [column for column in columns if column not in table.columns]
    if unknown:
        axes = [c.removeprefix(AXIS) for c in map(str, table.columns) if c.startswith(AXIS)]
        possible = [LABEL, *axes, *(_differing(table, settings(table)) or ["algorithm"])]
        raise AnalysisError(
            f"summary.csv has no column {', '.join(unknown)}; the runs can be grouped by "
            f"{_shortened(possible)}"
        )


def settings(table: pd.DataFrame) -> list[str]:
    """The columns of :func:`summaries` on which results depend, without the seed."""
    columns = (str(column) for column in table.columns)
    return [column for column in columns if is_setting(column) and not column.startswith(AXIS)]


def shared(groups: Sequence[Group]) -> dict[str, str]:
    """The settings that are the same in all runs, as text, without those that no run has."""
    table = pd.concat([group.runs for group in groups])
    distinct = {column: table[column].drop_duplicates() for column in settings(table)}
    return {c: text(v.iloc[0]) for c, v in distinct.items() if len(v) == 1 and not v.isna().all()}


def differing(groups: Sequence[Group]) -> pd.DataFrame:
    """The settings that differ between runs, as text; one row per group, indexed by label."""
    table = pd.concat([group.runs for group in groups])
    repeated = units.COLUMNS[groups[0].unit]
    columns = [c for c in _differing(table, settings(table)) if c not in repeated]
    rows = [
        [", ".join(dict.fromkeys(map(text, group.runs[column]))) for column in columns]
        for group in groups
    ]
    return pd.DataFrame(rows, index=[group.label for group in groups], columns=columns)


def expanded(table: pd.DataFrame, by: Sequence[str]) -> list[str]:
    """``by`` in present columns, with ``algorithm`` first and followed by the rest of METHOD."""
    method = [column for column in METHOD if column in table.columns and "algorithm" in by]
    named = {c: f"{AXIS}{c}" for c in by if f"{AXIS}{c}" in table.columns}
    present = (c if c in table.columns else named.get(c, ALIASES.get(c, c)) for c in by)
    return list(dict.fromkeys((*method, *present)))


def _values(column: pd.Series[Any]) -> str:
    texts = (text(value) for value in column.drop_duplicates())
    return _shortened(sorted(texts, key=_rank))


def _shortened(texts: Sequence[str]) -> str:
    return ", ".join(texts[:SHOWN]) + f" and {len(texts) - SHOWN} more" * (len(texts) > SHOWN)


def conditions(label: str) -> str:
    """The settings in a label that runs must share to be ranked, such as ``alpha=0.1``."""
    parts = [part for part in label.split(", ") if "=" in part]
    return ", ".join(part for part in parts if _of_experiment(part.partition("=")[0]))


def _of_experiment(column: str) -> bool:
    section = column.partition(".")[0]
    return column in _EXPERIMENT or section in _EXPERIMENT or column.startswith(AXIS)


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
