"""Run directories: find them, read their CSV files, group them by method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.errors import AnalysisError
from analysis.style import TITLES

RESULTS = ("final_test_accuracy", "best_test_accuracy", "last10_test_accuracy")
"""The accuracies (0..1) of summary.csv."""
COMMON = ("dataset", "model", "num_clients", "sample_rate", "alpha", "rounds", "best_by")
"""What runs must have in common to be compared, if they are not grouped by it."""
_OUTCOMES = frozenset({"run_id", "seed", "best_round", "total_seconds", "path", *RESULTS})


@dataclass(frozen=True)
class Group:
    """The runs of one line or row: one method under one setting, a run per seed."""

    label: str
    runs: pd.DataFrame


def read(path: Path, numbers: Sequence[str], texts: Sequence[str] = ()) -> pd.DataFrame:
    """A CSV file that must have these columns; an empty field is "not available".

    Args:
        path: the file.
        numbers: columns that must be there and hold numbers or nothing.
        texts: further columns that must be there.

    Raises:
        AnalysisError: the file or a column is missing, or a field is no number (line named).
    """
    if not path.is_file():
        raise AnalysisError(f"{path}: there is no such file")
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    except (ValueError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise AnalysisError(f"{path}: cannot be read as CSV ({reason})") from error
    missing = [column for column in (*numbers, *texts) if column not in frame.columns]
    if missing:
        raise AnalysisError(
            f"{path}: no column {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}"
        )
    for column in numbers:
        values = pd.to_numeric(frame[column], errors="coerce")
        bad = values.isna() & frame[column].notna()
        if bad.any():
            row = int(bad.to_numpy().argmax())
            raise AnalysisError(
                f"{path}, line {row + 2}: {column} is {frame[column].iloc[row]!r}, not a number"
            )
        frame[column] = values
    return frame


def find(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Run directories (with a rounds.csv) at or below ``paths``: (finished, unfinished), sorted.

    A run that has no summary.csv yet is unfinished.

    Raises:
        AnalysisError: a path does not exist, or no run lies there.
    """
    runs: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise AnalysisError(f"{path}: there is no such folder")
        below = {file.parent for file in path.rglob("rounds.csv")}
        if not below:
            raise AnalysisError(f"{path}: no run directory (a folder with rounds.csv) here")
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
        rows.append(frame.assign(path=str(run)).astype(object))
    if not rows:
        raise AnalysisError("no finished run: a summary.csv is written at the end of a run")
    table = pd.concat(rows, ignore_index=True)
    return table.astype({column: float for column in RESULTS})


def group(table: pd.DataFrame, by: Sequence[str] = ("algorithm",)) -> list[Group]:
    """The runs of :func:`summaries` by method, or by any columns of it; each group over seeds.

    Known methods come first, in the papers' order. A label is the first column's value when that is
    the algorithm, followed by ``column=value`` for those of the others that the run has.

    Raises:
        AnalysisError: an unknown column, or runs that would be averaged or compared although they
            differ in a setting other than the seed; the setting is named.
    """
    unknown = [column for column in by if column not in table.columns]
    if unknown:
        allowed = [str(c) for c in table.columns if c not in _OUTCOMES]
        raise AnalysisError(
            f"summary.csv has no column {', '.join(unknown)} to group by; it has "
            f"{', '.join(allowed)}"
        )
    _same(table, [c for c in COMMON if c in table.columns and c not in by], "the runs")
    settings = [c for c in table.columns if c not in _OUTCOMES and c not in by]
    keys = table[list(by)].apply(_label, axis=1)
    groups = []
    for label in sorted(keys.unique(), key=_order):
        runs = table[keys == label].sort_values("seed", kind="stable")
        _same(runs, settings, f"the runs of {label}")
        twice = runs[runs.duplicated("seed", keep=False)]
        if len(twice):
            first, second = twice["path"].iloc[:2]
            raise AnalysisError(
                f"{label}: seed {twice['seed'].iloc[0]} is there twice ({first} and {second}); "
                "give one of them"
            )
        groups.append(Group(label, runs))
    return groups


def _same(runs: pd.DataFrame, columns: Sequence[str], what: str) -> None:
    for column in columns:
        values = runs[column].drop_duplicates()
        if len(values) > 1:
            found = ", ".join(sorted(_text(value) for value in values))
            raise AnalysisError(
                f"{what} differ in {column} ({found}); choose runs of one, or group with "
                f"--by algorithm --by {column}"
            )


def _label(row: pd.Series[Any]) -> str:
    """``fedld, margin=none``; a setting that a run does not have is left out."""
    parts = [
        _text(value) if column == "algorithm" else f"{column}={_text(value)}"
        for column, value in row.dropna().items()
    ]
    return ", ".join(parts) or f"no {row.index[0]}"


def _text(value: object) -> str:
    if pd.isna(value):  # type: ignore[call-overload]
        return "unset"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _order(label: str) -> list[tuple[float, str]]:
    """Known methods as the papers list them, then words; ``alpha=0.5`` before ``alpha=10``."""
    return [_rank(part) for part in label.replace("=", ", ").split(", ")]


def _rank(part: str) -> tuple[float, str]:
    if part in TITLES:
        return list(TITLES).index(part), ""
    try:
        return float(part), ""
    except ValueError:
        return float("inf"), part
