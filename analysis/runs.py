"""Run directories: find them, read their CSV files, group them by method."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedsim.core.files import csv_plain, csv_safe

from . import AnalysisError, units
from .style import TITLES
from .units import PARTITION, ExperimentalUnit

RESULTS = ("final_test_accuracy", "best_test_accuracy", "last10_test_accuracy")
"""The accuracies (0..1) of summary.csv."""
METHOD = ("algorithm", "server", "margin")
"""Columns that define a method: its clients, and what replaces its server rule or margin."""
DATA = "data_digest"
"""The column with the digest of samples, labels and class names; empty for generated data."""
_SAME = ("dataset", "num_clients", "sample_rate", "alpha", "rounds", "best_by", DATA)
_SAME_SECTIONS = ("data.", "model", "evaluation.", "clock.", "shortcut.", "synthetic.")
"""Columns (and prefixes of columns) in which compared runs must agree, unless they are grouped by
them. Methods may differ in the others, such as a learning rate tuned for each."""
_OUTCOMES = ("run_id", "seed", "path", "total_seconds", "best_round")
_IRRELEVANT = (
    *("final_", "last10_", "best_test_", "best_val_", "client_test_", "downlink_", "uplink_"),
    *("client_accuracy_", "collapsed", "own_test_accuracy_", "finetuned_accuracy_", "heldout_"),
    *("target_accuracy", "rounds_to_", "seconds_to_", "simulated_seconds", "engine."),
    *("train.threads", "evaluation.batch_size", "evaluation.decompose_", "evaluation.loss_matrix"),
    *("evaluation.clients_every", "evaluation.cosines", "evaluation.target_accuracy"),
    DATA,
)
"""Prefixes of columns that are outcomes, or on which no outcome depends (but for last bits), and
of the digest of the data, which is compared otherwise."""
_RENAMED = {
    "data.correlation": "shortcut.correlation",
    "data.samples_per_client": "shortcut.samples_per_client",
    "data.synthetic_alpha": "synthetic.alpha",
    "data.synthetic_beta": "synthetic.beta",
    "data.synthetic_iid": "synthetic.iid",
}
"""Columns of earlier versions, which held the options of all data sets in every run."""
_EARLIER: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("earlier.json").read_text(encoding="utf-8")
)
"""By section and key what stands for a column that an earlier version did not write, where other
runs have it; written by docs/earlier.py."""
_WITNESS = "train.lr"
"""A column of every summary.csv that has settings; those before 0.1.0 had none, so that what they
lack is not known."""
_SECTIONS = ("data", "model", "train", "evaluation", "clock")
"""The sections that every run has; the others are of the methods and data sets that it uses."""
SHOWN = 8
"""An error message names at most this many values of a setting."""


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


def read(
    path: Path, numbers: Sequence[str], texts: Sequence[str] = (), optional: Sequence[str] = ()
) -> pd.DataFrame:
    """Reads a CSV file that must have these columns, of numbers and text; an empty field is NaN.

    ``optional`` columns are numbers where the file has them.

    Raises:
        AnalysisError: the file or a column is missing, or a field is no number (its line is named).
    """
    if not path.is_file():
        raise AnalysisError(f"{path}: there is no such file")
    try:
        with warnings.catch_warnings():  # lines longer than the header
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path, keep_default_na=False, na_values=[""], index_col=False, low_memory=False,
                dtype=dict.fromkeys(texts, "str") or None,  # an empty one costs time
            )  # fmt: skip
    except (ValueError, OSError, pd.errors.ParserWarning) as error:
        reason = str(error).strip().partition("\n")[0]
        raise AnalysisError(f"{path}: cannot be read as CSV ({reason})") from error
    missing = [column for column in (*numbers, *texts) if column not in frame.columns]
    if missing:
        raise AnalysisError(
            f"{path}: no column {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}"
        )
    there = [*numbers, *(column for column in optional if column in frame.columns)]
    kinds = frame.dtypes
    for column in (c for c in there if not pd.api.types.is_numeric_dtype(kinds[c])):
        values = pd.to_numeric(frame[column], errors="coerce")
        bad = values.isna() & frame[column].notna()
        if bad.any():
            row = int(bad.to_numpy().argmax())
            raise AnalysisError(
                f"{path}, line {row + 2}: {column} is {frame[column].iloc[row]!r}, not a number"
            )
        frame[column] = values
    for column in texts:
        frame[column] = frame[column].map(csv_plain, na_action="ignore")
    return frame


def write_csv(frame: pd.DataFrame) -> str:
    """A table as CSV, with its texts as :func:`fedsim.core.files.csv_safe` writes them."""
    texts = frame.select_dtypes(exclude="number").columns
    frame = frame.copy()
    for name in texts:
        frame[name] = [csv_safe(v) if isinstance(v, str) else v for v in frame[name]]
    return frame.to_csv(index=False, lineterminator="\n")


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

    Raises:
        AnalysisError: a summary is unreadable, has not exactly one row, or there are no runs.
    """
    rows = []
    for run in runs:
        frame = read(run / "summary.csv", numbers=("seed", *RESULTS), texts=("algorithm",))
        if len(frame) != 1:
            raise AnalysisError(f"{run / 'summary.csv'}: {len(frame)} rows, a run has exactly one")
        rows.append(_renamed(frame.to_dict("records")[0]) | {"path": str(run)})
    if not rows:
        raise AnalysisError("no finished run: a summary.csv is written at the end of a run")
    table = pd.DataFrame(rows, dtype=object)
    for column in table.columns if _WITNESS in table else ():
        section, _, leaf = str(column).partition(".")
        if leaf in _EARLIER.get(section, {}):
            lacking = table[column].isna() & table[_WITNESS].notna() & _uses(table, section)
            table[column] = table[column].mask(lacking, _EARLIER[section][leaf])
    return table.astype({column: float for column in RESULTS})


def _uses(table: pd.DataFrame, section: str) -> pd.Series[bool]:
    """The runs whose settings have a section."""
    if section in _SECTIONS:
        return pd.Series(True, index=table.index)
    names = table.get("server", pd.Series("", index=table.index)).map(str).str.split(",")
    found = names.map(lambda servers: section in [name.strip() for name in servers])
    for column in ("algorithm", "dataset"):
        if column in table:
            found |= table[column] == section
    return found


def _renamed(row: dict[Any, Any]) -> dict[Any, Any]:
    """A row of summary.csv with the options of its data set under their present names.

    The number of rounds of a run that stops without progress is an outcome: it is left out.
    """
    found = {}
    if not pd.isna(row.get("train.patience")):
        row = row | {"rounds": None}
    for column, value in row.items():
        new = _RENAMED.get(column, column)
        if new == column or new.startswith(f"{row.get('dataset')}."):
            found[new] = value
    return found


def unit_among(
    table: pd.DataFrame, by: Sequence[str], wanted: ExperimentalUnit
) -> ExperimentalUnit:
    """The unit of intervals and tests of runs of :func:`summaries` that are grouped by columns.

    Partitions can be the ``wanted`` unit where a group has several of them; otherwise it is the
    training seed.

    Raises:
        AnalysisError: partitions are wanted, and are a column to group by, or a run does not say
            which is its own.
    """
    by = expanded(table, by)
    known(table, by)
    if wanted == "seed":
        return "seed"
    if PARTITION in by:
        raise AnalysisError(
            f"--unit partition: the runs are grouped by {PARTITION}, so that each group has one "
            "partition; leave out one of the two"
        )
    without = table["path"] if PARTITION not in table else table["path"][table[PARTITION].isna()]
    if len(without):
        raise AnalysisError(f"--unit partition: {without.iloc[0]}/summary.csv has no {PARTITION}")
    labels = table[by].apply(label_of, axis=1)
    if units.repeats_partitions(table[PARTITION], labels):
        return "partition"
    if table[PARTITION].nunique() > 1:
        raise AnalysisError(
            f"--unit partition: no group has several partitions, though {PARTITION} differs "
            f"between groups ({_values(table[PARTITION])}); each needs the same ones"
        )
    return "seed"


def group(
    table: pd.DataFrame, by: Sequence[str] = ("algorithm",), unit: ExperimentalUnit = "seed"
) -> list[Group]:
    """Groups the runs of :func:`summaries` by method, or by any of its columns.

    ``algorithm`` stands for all of :data:`METHOD`. Known methods come first, in the papers' order.
    A label is the algorithm's name if grouped by it, followed by ``column=value`` for each of the
    other columns that the run has. The ``unit`` is that of :func:`unit_among`.

    Raises:
        AnalysisError: an unknown column, or runs that would be averaged or compared although
            settings other than those that the unit repeats differ; the message names all of them.
    """
    by = expanded(table, by)
    known(table, by)
    repeated = units.COLUMNS[unit]
    free = [column for column in settings(table) if column not in (*by, *repeated)]
    options = tuple(f"{name}." for name in table.get("dataset", pd.Series(dtype=str)).unique())
    _same(table, [c for c in free if _must_agree(c) or c.startswith(options)], by, "the runs")
    _same_data(table, by, options)
    keys = table[by].apply(label_of, axis=1)
    groups = []
    for name in sorted(keys.unique(), key=order):
        runs = table[keys == name].sort_values(list(repeated), kind="stable")
        _same(runs, free, by, f"the runs of {name}")
        twice = runs[runs.duplicated(list(repeated), keep=False)]
        if len(twice):
            first, second = twice["path"].iloc[:2]
            same = " and ".join(f"{column} {twice[column].iloc[0]}" for column in repeated)
            raise AnalysisError(
                f"{name}: two runs with {same} ({first} and {second}); give one of them"
            )
        groups.append(Group(name, runs, unit))
    return groups


def known(table: pd.DataFrame, columns: Sequence[str]) -> None:
    """Raises an AnalysisError if a column is in no run's summary.csv."""
    unknown = [column for column in columns if column not in table.columns]
    if unknown:
        raise AnalysisError(
            f"summary.csv has no column {', '.join(unknown)} to group by; it has "
            f"{', '.join(settings(table))}"
        )


def settings(table: pd.DataFrame) -> list[str]:
    """The columns of :func:`summaries` on which results depend, without the seed."""
    return [
        str(column)
        for column in table.columns
        if column not in _OUTCOMES and not str(column).startswith(_IRRELEVANT)
    ]


def shared(groups: Sequence[Group]) -> dict[str, str]:
    """The settings that are the same in all runs, as text, without those that no run has."""
    table = pd.concat([group.runs for group in groups])
    found = {column: table[column].drop_duplicates() for column in settings(table)}
    return {c: text(v.iloc[0]) for c, v in found.items() if len(v) == 1 and not v.isna().all()}


def differing(groups: Sequence[Group]) -> pd.DataFrame:
    """The settings that differ between runs, as text; one row per group, indexed by label."""
    table = pd.concat([group.runs for group in groups])
    repeated = units.COLUMNS[groups[0].unit]
    columns = [
        c for c in settings(table) if c not in repeated and len(table[c].drop_duplicates()) > 1
    ]
    rows = [[text(group.runs[column].iloc[0]) for column in columns] for group in groups]
    return pd.DataFrame(rows, index=[group.label for group in groups], columns=columns)


def expanded(table: pd.DataFrame, by: Sequence[str]) -> list[str]:
    """``by`` in present columns, with ``algorithm`` first and followed by the rest of METHOD."""
    method = [column for column in METHOD if column in table.columns and "algorithm" in by]
    return list(dict.fromkeys((*method, *(_RENAMED.get(column, column) for column in by))))


def _same(runs: pd.DataFrame, columns: Sequence[str], by: Sequence[str], what: str) -> None:
    differ = [column for column in columns if len(runs[column].drop_duplicates()) > 1]
    if differ:
        found = "; ".join(f"{column} ({_values(runs[column])})" for column in differ)
        more = "".join(f" --by {c}" for c in (*(c for c in by if c not in METHOD[1:]), *differ))
        over = ", or take partitions as the unit with --unit partition" * (PARTITION in differ)
        raise AnalysisError(
            f"{what} differ in {found}: give runs that do not differ, or group with{more}{over}"
        )


def _same_data(table: pd.DataFrame, by: Sequence[str], options: tuple[str, ...]) -> None:
    """Refuses runs of different data, unless they are grouped by what tells the data apart.

    Runs of earlier versions, which do not say what data they had, go with any. A function of the
    user's may draw other data for each partition; fedsim's own readers do not.
    """
    if DATA not in table.columns or DATA in by:
        return
    told = table[table[DATA].notna()]
    apart = [c for c in by if c == "dataset" or c.startswith(("data.", *options))]
    keys = []
    for row in told.to_dict("records"):
        drawn = [PARTITION] if ":" in str(row.get("dataset")) else []
        keys.append(", ".join(text(row.get(column)) for column in (*apart, *drawn)))
    for _, same in told.groupby(pd.Series(keys, index=told.index, dtype=str), sort=False):
        _same(same, [DATA], by, "the runs")


def _values(column: pd.Series[Any]) -> str:
    found = sorted((text(value) for value in column.drop_duplicates()), key=_rank)
    return ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" * (len(found) > SHOWN))


def label_of(row: pd.Series[Any]) -> str:
    """``fedld, margin=none``, without settings that the run does not have."""
    parts = [
        text(value) if column == "algorithm" else f"{column}={text(value)}"
        for column, value in row.dropna().items()
    ]
    return ", ".join(parts) or f"no {row.index[0]}"


def conditions(label: str) -> str:
    """The settings in a label that runs must share to be ranked, such as ``alpha=0.1``."""
    parts = [part for part in label.split(", ") if "=" in part]
    return ", ".join(part for part in parts if _must_agree(part.partition("=")[0]))


def _must_agree(column: str) -> bool:
    return column in _SAME or column.startswith(_SAME_SECTIONS)


def text(value: object) -> str:
    """A setting as text: ``0.5``, ``none``, or ``unset`` if the run does not have it."""
    if pd.isna(value):  # type: ignore[call-overload]
        return "unset"
    return repr(float(value)).removesuffix(".0") if isinstance(value, float) else str(value)


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
