"""Reads the newest checkpoint of a run that can be used.

A checkpoint that is damaged, or whose files are, is passed over for the one before. Where there are
checkpoints and none can be used nothing begins again by itself: that would cost all rounds so far,
and the user may still have the damaged file elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedsim.core import files
from fedsim.core.errors import ConfigError, StoreError
from fedsim.server.base import RuleState
from fedsim.storage import tensors
from fedsim.storage.checkpoint import (
    FOLDER,
    FORMAT,
    OWN,
    Checkpoints,
    Identity,
    Position,
    ServerState,
    files_of,
    unseal,
)
from fedsim.storage.client_states import ClientStates, Segment, Shelf
from fedsim.storage.run_dir import DIAGNOSTIC, GROWING
from fedsim.version import __version__

Kept = list[tuple[int, frozenset[str]]]
TABLES = frozenset(f"{table}.csv" for table in GROWING)


def records(run: Path) -> list[Path]:
    """The records of a run's checkpoints, newest first.

    Raises:
        StoreError: their folder cannot be read.
    """
    with files.reading(run / FOLDER) as folder:
        there = list(folder.iterdir()) if folder.is_dir() else []
    found = [path for path in there if OWN.fullmatch(path.name) and path.suffix == ".json"]
    return sorted(found, key=_round, reverse=True)


def restore(
    run: Path, identity: Identity, budget: float, keep: int, tell: Callable[[str], None]
) -> tuple[Checkpoints, Position | None]:
    """The newest checkpoint that is whole, and where the next ones go.

    A damaged one is told, and the one before is taken.

    Args:
        run: the run directory.
        identity: what the checkpoint must agree with.
        budget: bytes of client states that may stay in memory.
        keep: how many checkpoints stay.
        tell: shows a line.

    Returns:
        The position is None where there is no checkpoint.

    Raises:
        ConfigError: the newest whole one is of another format, model or configuration.
        StoreError: there are checkpoints, and none of them is whole.
    """
    found = records(run)
    damaged: dict[Path, Exception] = {}
    for number, record in enumerate(found):
        shelf = Shelf(run / FOLDER, budget)
        try:
            content = _read(record)
            _check(record, content, identity, run)
            position = _load(run, content, shelf)
        except (ValueError, StoreError) as error:
            damaged[record] = error
            continue
        for path, reason in damaged.items():
            tell(f"{path} cannot be used: {reason}")
        if content["fedsim"] != __version__:
            tell(f"{record}: written by fedsim {content['fedsim']}, goes on with {__version__}")
        kept = [*_kept(found[number + 1 :]), (position.rounds, files_of(record.name, content))]
        return Checkpoints(run, identity, shelf, keep, kept), position
    if damaged:
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
        raise StoreError(
            f"none of {len(damaged)} checkpoints of {run} can be used: {reasons}; "
            f"remove {run / FOLDER} to start again from round 1"
        )
    return Checkpoints(run, identity, Shelf(run / FOLDER, budget), keep, []), None


def _read(record: Path) -> dict[str, Any]:
    with files.reading(record):
        return unseal(record.read_bytes())


def _check(record: Path, content: Mapping[str, Any], identity: Identity, run: Path) -> None:
    """Refuses a checkpoint that is whole but belongs to something else.

    The names and shapes of the server's and the clients' arrays follow from the layout and the
    settings, and are not compared on their own.

    Raises:
        ConfigError: says in what it differs.
    """
    if content.get("format") != FORMAT:
        raise ConfigError(
            f"{record}: format {content.get('format')}, written by fedsim {content.get('fedsim')}; "
            f"this one reads format {FORMAT}"
        )
    began, now = content["settings"], identity.settings
    for key in sorted(began.keys() & now.keys()):
        if began[key] != now[key]:
            raise ConfigError(
                f"{run / 'config.yaml'} ({key}): {now[key]!r} given, but the run began with "
                f"{began[key]!r}; put that back, or start another run"
            )
    for key in sorted(began.keys() ^ now.keys()):
        raise ConfigError(
            f"{record}: {key} is a setting in only one of fedsim {content['fedsim']}, with which "
            f"the run began, and fedsim {__version__}; go on with the former, or start another run"
        )
    if content["layout"] != identity.layout:
        raise ConfigError(
            f"{record}: the model has other tensors than those that the run began with; its code "
            "or that of fedsim has changed"
        )


def _load(run: Path, content: Mapping[str, Any], shelf: Shelf) -> Position:
    """Reads all files of a checkpoint, which must be those that it was written with.

    Raises:
        ValueError, StoreError: one is not; says which.
    """
    for table, length in content["tables"].items():
        _check_table(run, table, length)
    ((name, digest),) = content["arrays"].items()
    arrays = tensors.load(_checked(run, name, digest))
    parts: dict[str, dict[str, Any]] = {"server": {}, "downlink": {}}
    params = arrays.pop("params")
    for key, array in arrays.items():
        part, _, own = key.partition("/")
        parts[part][own] = array
    segments = []
    for name, entry in sorted(content["segments"].items(), key=lambda item: _round(Path(item[0]))):
        path = _checked(run, name, entry["sha256"])
        segment = Segment(path, sha256=entry["sha256"])
        segments.append((segment, entry["clients"]))
    shelf.adopt(segments)
    return Position(
        content["round"],
        ServerState(
            params,
            RuleState.unflatten(parts["server"]),
            parts["downlink"],
            ClientStates(shelf),
        ),
        content["seconds"],
        content["tables"],
        content["device"],
    )


def _check_table(run: Path, table: str, length: int) -> None:
    """Refuses a table that lost rows; those that say nothing of the results may."""
    if table not in TABLES:
        raise ValueError(f"it names {table!r}, which is no table of a run")
    with files.reading(run / table) as path:
        if path.stem not in DIAGNOSTIC and path.stat().st_size < length:
            raise ValueError(f"{table} is shorter than it was then")


def _checked(run: Path, name: str, digest: str) -> Path:
    """A file of a checkpoint, once its content has been compared."""
    if not OWN.fullmatch(name):
        raise ValueError(f"it names {name!r}, which is no file of a checkpoint")
    with files.reading(run / FOLDER / name) as path:
        if files.sha256(path) != digest:
            raise ValueError(f"{name} is damaged")
        return path


def _kept(older: list[Path]) -> Kept:
    """Round and files of the older checkpoints whose records can be read, oldest first."""
    kept = []
    for record in reversed(older):
        try:
            kept.append((_round(record), files_of(record.name, _read(record))))
        except (ValueError, StoreError):
            continue  # goes with the next checkpoint
    return kept


def _round(file: Path) -> int:
    """The number in the name of a record or a segment."""
    return int(file.stem.partition("-")[2])
