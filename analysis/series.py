"""Values of run tables by key (round, client, ...) and column, by run and over units."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd

from . import units
from .files import has_rows, read_table
from .runs import Group
from .stats import over_units

TEXTS = frozenset({"split", "scope", "phase", "group", "name", "status", "model", "node", "error"})
"""Text columns of run tables; all others are numbers."""
WHOLE = "all"  # name of the index level if there is no key
UNIT = "unit"  # name of the first index level of values per unit: a seed or a partition
Take = Literal["all", "last"]
Key = str | Sequence[str]
Where = Mapping[str, str | float] | None


class Part(NamedTuple):
    """The rows of one run's table."""

    label: str  # of the group
    run: Mapping[str, int]  # by column of `analysis.units.COLUMNS`
    path: Path  # of the run
    frame: pd.DataFrame  # never empty


def each(
    groups: Sequence[Group], table: str, columns: Sequence[str], where: Where = None
) -> Iterator[Part]:
    """Yields the named columns of a table (a file's name without ``.csv``), run by run."""
    fields = list(dict.fromkeys((*columns, *(where or ()))))
    texts = [field for field in fields if field in TEXTS]
    numbers = [field for field in fields if field not in TEXTS]
    skipped = set(absent(groups, table, fields))
    for group in groups:
        names = list(units.COLUMNS[group.unit])
        for row in group.runs[[*names, "path"]].to_dict("records"):
            path = Path(row["path"])
            if path in skipped:
                continue
            frame = read_table(path / f"{table}.csv", numbers, texts)[fields]
            for column, value in (where or {}).items():
                frame = frame[frame[column] == value]
            if len(frame):
                yield Part(group.label, {name: int(row[name]) for name in names}, path, frame)


def absent(groups: Sequence[Group], table: str, columns: Sequence[str] = ()) -> list[Path]:
    """The runs whose table is missing, has no rows, or lacks one of the columns."""
    paths = [Path(folder) for group in groups for folder in group.runs["path"]]
    return [path for path in paths if not has_rows(path / f"{table}.csv", columns)]


def by_run(
    groups: Sequence[Group], table: str, columns: Sequence[str], key: Key = "round",
    where: Where = None, take: Take = "all", reduced: str = "mean",
) -> dict[str, pd.DataFrame]:  # fmt: skip
    """Each run's values by key, by label, indexed by (*:data:`analysis.units.COLUMNS`, *key). Rows
    with the same key are ``reduced``, those with an empty one left out; () is one per run.
    ``take="last"`` keeps a run's last round in which any column has a value."""
    keys, columns = [*([key] if isinstance(key, str) else key)], list(columns)
    clock = ["round"] if take == "last" else []
    parts: dict[str, list[pd.DataFrame]] = {}
    for part in each(groups, table, [*keys, *columns, *clock], where):
        frame = part.frame.dropna(subset=keys).dropna(subset=columns, how="all")
        if take == "last":
            frame = frame[frame["round"] == frame["round"].max()]
        if len(frame):
            frame = frame.assign(**part.run, **({} if keys else {WHOLE: 0}))
            values = frame.groupby([*part.run, *_names(key)], sort=False)[columns].agg(reduced)
            parts.setdefault(part.label, []).append(values)
    return {label: pd.concat(frames) for label, frames in parts.items()}


def values(
    groups: Sequence[Group], table: str, columns: Sequence[str], key: Key = "round",
    where: Where = None, take: Take = "all",
) -> dict[str, pd.DataFrame]:  # fmt: skip
    """Means over training seeds by label, indexed by (unit, *key); see :func:`by_run`."""
    runs = by_run(groups, table, columns, key, where, take)
    return {label: per_unit(frame) for label, frame in runs.items()}


def per_unit(frame: pd.DataFrame) -> pd.DataFrame:
    """Values indexed by (unit, *key) from those by run, indexed as in :func:`by_run`."""
    if units.PARTITION not in frame.index.names:
        return frame.rename_axis(index={units.SEED: UNIT})
    rest = [name for name in frame.index.names if name != units.SEED]
    return frame.groupby(level=rest).mean().rename_axis(index={units.PARTITION: UNIT})


def aggregated(
    groups: Sequence[Group], table: str, columns: Sequence[str], key: Key = "round",
    where: Where = None, take: Take = "all",
) -> dict[str, pd.DataFrame]:  # fmt: skip
    """By label :func:`analysis.stats.over_units` of :func:`values`."""
    found = values(groups, table, columns, key, where, take)
    return {label: over_units(frame, _names(key)) for label, frame in found.items()}


def complete(aggregate: pd.DataFrame, column: str) -> pd.DataFrame:
    """One column of an aggregate at the keys where n is largest, so that curves do not jump."""
    part = aggregate[column]
    return part[part["n"] == max(part["n"].max(), 1)]


def _names(key: Key) -> list[str]:
    """The names of the index levels for a key."""
    return [key] if isinstance(key, str) else list(key) or [WHOLE]
