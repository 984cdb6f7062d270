"""Tables of many runs, a few files in memory at a time, reduced to what is asked for.

A run is kept as a value per key (its rounds, its clients, ...) and column, never as its raw table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd

from analysis.runs import Group, read
from analysis.stats import over_seeds

TEXTS = frozenset({"split", "scope", "phase", "group", "name", "status", "model", "node", "error"})
"""Columns of run tables that hold words; all others hold numbers."""
WHOLE = "all"
"""Name of the index level where there is no key."""
BATCH = 1 << 17
"""So many rows are reduced together: pandas takes longer to start than to add."""
Take = Literal["all", "last"]


class Part(NamedTuple):
    """A table of one run; ``frame`` is never empty."""

    label: str
    seed: int
    path: Path
    frame: pd.DataFrame


def each(
    groups: Sequence[Group],
    table: str,
    columns: Sequence[str],
    where: Mapping[str, str | float] | None = None,
) -> Iterator[Part]:
    """The named columns of a table, run by run; runs in :func:`absent` are skipped.

    Args:
        groups: from :func:`analysis.runs.group`.
        table: the file's name without ``.csv``.
        columns: of the table; numbers are checked, those of :data:`TEXTS` are text.
        where: column and value of the rows to keep.

    Raises:
        AnalysisError: a file is no CSV, or a field is no number (file, line and column named).
    """
    fields = list(dict.fromkeys((*columns, *(where or ()))))
    numbers = [field for field in fields if field not in TEXTS]
    texts = [field for field in fields if field in TEXTS]
    skipped = set(absent(groups, table, fields))
    for group in groups:
        for seed, folder in zip(group.runs["seed"], group.runs["path"], strict=True):
            path = Path(folder)
            if path in skipped:
                continue
            frame = read(path / f"{table}.csv", numbers, texts)[fields]
            frame = _kept(frame, where)
            if len(frame):
                yield Part(group.label, int(seed), path, frame)


def absent(groups: Sequence[Group], table: str, columns: Sequence[str] = ()) -> list[Path]:
    """The runs that have no such table, no row in it, or not all of these columns of it."""
    paths = [Path(folder) for group in groups for folder in group.runs["path"]]
    return [path for path in paths if not _has(path / f"{table}.csv", columns)]


def values(
    groups: Sequence[Group],
    table: str,
    columns: Sequence[str],
    key: str | Sequence[str] = "round",
    where: Mapping[str, str | float] | None = None,
    take: Take = "all",
) -> dict[str, pd.DataFrame]:
    """Each run's values by key: what paired tests and the aggregates below are made of.

    Rows with the same key are averaged within the run, so ``key="phase"`` is a mean over rounds and
    ``key="round"`` on cosines.csv a mean over pairs; rows with an empty key are left out, so
    ``key="group"`` takes the group rows of evaluations.csv and ``key="client_id"`` the others.

    Args:
        groups: from :func:`analysis.runs.group`.
        table: the file's name without ``.csv``.
        columns: numeric columns of it.
        key: one or several columns that tell a run's values apart; none for one value per run.
        where: column and value of the rows to keep.
        take: ``last`` keeps a run's rows of its last round in which any of the columns has a value.

    Returns:
        By label, indexed by (seed, *key); groups without any such value are not in it.

    Raises:
        AnalysisError: see :func:`each`.
    """
    keys = [name for name in _names(key) if name != WHOLE]
    clock = ["round"] if take == "last" else []
    fields = [*keys, *columns, *clock, *(where or ())]
    found: dict[str, list[pd.DataFrame]] = {}
    for label, batch in _batches(each(groups, table, fields)):
        frame = _kept(batch, where).dropna(subset=keys).dropna(subset=list(columns), how="all")
        if take == "last":
            frame = frame[frame["round"] == frame.groupby("seed")["round"].transform("max")]
        whole = frame if keys else frame.assign(**{WHOLE: 0})
        reduced = whole.groupby(["seed", *_names(key)], sort=False)[list(columns)].mean()
        found.setdefault(label, []).append(reduced)
    joined = {label: pd.concat(parts) for label, parts in found.items()}
    return {label: frame for label, frame in joined.items() if len(frame)}


def series(
    groups: Sequence[Group],
    table: str,
    columns: Sequence[str],
    key: str | Sequence[str] = "round",
    where: Mapping[str, str | float] | None = None,
) -> dict[str, pd.DataFrame]:
    """Mean, std, n and half-width of the 95 % interval over seeds, by group and key.

    Args:
        groups: from :func:`analysis.runs.group`.
        table: the file's name without ``.csv``.
        columns: numeric columns of it.
        key: see :func:`values`.
        where: column and value of the rows to keep.

    Returns:
        By label, indexed by the key in order; columns (column, mean | std | n | half). std and half
        are NaN for n below 2. A mean is over the n runs that have a value at that key; where n
        changes along a curve use :func:`complete`.

    Raises:
        AnalysisError: see :func:`each`.
    """
    found = values(groups, table, columns, key, where)
    return {label: over_seeds(frame, _names(key)) for label, frame in found.items()}


def last(
    groups: Sequence[Group],
    table: str,
    columns: Sequence[str],
    key: str | Sequence[str] = (),
    where: Mapping[str, str | float] | None = None,
) -> dict[str, pd.DataFrame]:
    """As :func:`series`, of each run's last round with a value; one row without a key.

    Columns that are not evaluated in the same rounds need a call each.
    """
    found = values(groups, table, columns, key, where, take="last")
    return {label: over_seeds(frame, _names(key)) for label, frame in found.items()}


def complete(aggregate: pd.DataFrame, column: str) -> pd.DataFrame:
    """One column of an aggregate (mean, std, n, half) at the keys where most runs have a value.

    A curve through means of different seeds would jump where seeds come and go.
    """
    part = aggregate[column]
    return part[part["n"] == max(part["n"].max(), 1)]


def _batches(parts: Iterator[Part]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Frames of whole runs of one label, with a column ``seed``, until there are BATCH rows."""
    label, waiting, size = "", list[pd.DataFrame](), 0
    for part in parts:
        if waiting and (part.label != label or size >= BATCH):
            yield label, pd.concat(waiting)
            waiting, size = [], 0
        label = part.label
        waiting.append(part.frame.assign(seed=part.seed))
        size += len(part.frame)
    if waiting:
        yield label, pd.concat(waiting)


def _kept(frame: pd.DataFrame, where: Mapping[str, str | float] | None) -> pd.DataFrame:
    for column, value in (where or {}).items():
        frame = frame[frame[column] == value]
    return frame


def _names(key: str | Sequence[str]) -> list[str]:
    """The names of the index levels for a key."""
    return [key] if isinstance(key, str) else list(key) or [WHOLE]


def _has(file: Path, columns: Sequence[str]) -> bool:
    """Whether the table is there, with these columns and a row."""
    if not file.is_file():
        return False
    with file.open(encoding="utf-8") as lines:
        header = [name.strip().strip('"') for name in lines.readline().split(",")]
        return bool(lines.readline().strip()) and set(columns) <= set(header)
