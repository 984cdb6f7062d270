"""Reads the newest checkpoint of a run that can be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedsim import tensorfile
from fedsim.checkpoint import FOLDER, FORMAT, OWN, Checkpoints, Identity, Position, files_of, unseal
from fedsim.clientstates import ClientStates, Segment, Shelf, by_client
from fedsim.errors import ConfigError, StoreError
from fedsim.state import ServerState
from fedsim.store import file_sha256

Kept = list[tuple[int, frozenset[str]]]


def records(run: Path) -> list[Path]:
    """The records of a run's checkpoints, newest first."""
    found = [p for p in (run / FOLDER).glob("round-*.json") if OWN.fullmatch(p.name)]
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
        The position is None where no checkpoint can be used.

    Raises:
        ConfigError: the newest whole one is of another format, model or configuration.
    """
    found = records(run)
    for number, record in enumerate(found):
        shelf = Shelf(run / FOLDER, budget)
        try:
            content = unseal(record.read_bytes())
            _check(record, content, identity, run)
            position = _load(run, content, shelf)
        except (ValueError, OSError, StoreError) as error:
            tell(f"{record} cannot be used: {_reason(error)}")
            continue
        kept = [*_kept(found[number + 1 :]), (position.rounds, files_of(record.name, content))]
        return Checkpoints(run, identity, shelf, keep, kept), position
    return Checkpoints(run, identity, Shelf(run / FOLDER, budget), keep, []), None


def _check(record: Path, content: Mapping[str, Any], identity: Identity, run: Path) -> None:
    """Refuses a checkpoint that is whole but belongs to something else."""
    if content.get("format") != FORMAT:
        raise ConfigError(
            f"{record}: format {content.get('format')}, written by fedsim {content.get('fedsim')}; "
            f"this one reads format {FORMAT}"
        )
    began = content["settings"]
    for key in sorted(began.keys() | identity.settings.keys()):
        now = identity.settings.get(key)
        if began.get(key) != now:
            raise ConfigError(
                f"{run / 'config.yaml'} ({key}): {now!r} given, but the run began with "
                f"{began.get(key)!r}; put that back, or start another run"
            )
    if content["layout"] != identity.layout:
        raise ConfigError(
            f"{record}: the model has other tensors than those that the run began with; its code "
            "or that of fedsim has changed"
        )


def _load(run: Path, content: Mapping[str, Any], shelf: Shelf) -> Position:
    """Reads all files of a checkpoint, which must be those that it was written with.

    Raises:
        ValueError, OSError, StoreError: one is not; says which.
    """
    for table, length in content["tables"].items():
        if (run / table).stat().st_size < length:
            raise ValueError(f"{table} is shorter than it was then")
    ((name, digest),) = content["arrays"].items()
    path = _verified(run / FOLDER / name, digest)
    parts: dict[str, dict[str, Any]] = {"server": {}, "downlink": {}}
    arrays = tensorfile.read(path, tensorfile.places(path))
    params = arrays.pop("params")
    for key, array in arrays.items():
        part, _, own = key.partition("/")
        parts[part][own] = array
    for name, entry in content["segments"].items():
        path = _verified(run / FOLDER / name, entry["sha256"])
        segment = Segment(path, places=by_client(tensorfile.places(path)), sha256=entry["sha256"])
        shelf.adopt(segment, entry["clients"])
    return Position(
        content["round"],
        ServerState(params, parts["server"], parts["downlink"], ClientStates(shelf)),
        content["seconds"],
        content["tables"],
        content["device"],
    )


def _verified(path: Path, digest: str) -> Path:
    if file_sha256(path) != digest:
        raise ValueError(f"{path.name} is damaged")
    return path


def _kept(older: list[Path]) -> Kept:
    """Round and files of the older checkpoints whose records can be read, oldest first."""
    kept = []
    for record in reversed(older):
        try:
            kept.append((_round(record), files_of(record.name, unseal(record.read_bytes()))))
        except ValueError:
            continue  # goes with the next checkpoint
    return kept


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{Path(error.filename).name}: {error.strerror}"
    return str(error)


def _round(record: Path) -> int:
    return int(record.stem.removeprefix("round-"))
