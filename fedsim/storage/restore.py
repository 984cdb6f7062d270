"""Reads checkpoints: the newest to resume from, or any one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedsim.config.sections import fields
from fedsim.core import files
from fedsim.core.errors import ConfigError, DataError, StoreError
from fedsim.core.machine import kind_of
from fedsim.server.base import RuleState
from fedsim.storage import tensors
from fedsim.storage.checkpoint import (
    FILE_NAME,
    FOLDER,
    FORMAT,
    Checkpoints,
    Fingerprint,
    Position,
    ServerState,
    files_of,
    read_record,
    records,
    round_of,
)
from fedsim.storage.client_states import ClientStates, ClientStateStore, Segment
from fedsim.storage.run_dir import DIAGNOSTIC
from fedsim.storage.tables import changed_tables
from fedsim.version import __version__

logger = logging.getLogger("fedsim")


def read(
    run: Path, record: Path, fingerprint: Fingerprint, store: ClientStateStore
) -> tuple[Position, dict[str, Any]]:
    """A checkpoint and its record; the states of its clients go to the store.

    A ConfigError where it is of another format, model or configuration, a ValueError or StoreError
    where it is damaged.
    """
    content = read_record(record)
    if content["round"] != round_of(record):
        raise ValueError(f"it is that of round {content['round']}")
    _check(record, content, fingerprint, run)
    return _load(run, content, store), content


def restore(
    run: Path, fingerprint: Fingerprint, *, budget: float, keep: int, every: int = 0
) -> tuple[Checkpoints, Position | None]:
    """Reads the newest checkpoint that is intact; a warning names each damaged one before it.

    Returns where the next checkpoints go, and the position, None where there is no checkpoint. A
    ConfigError where it is of another format, model or configuration, a DataError where a table is
    not what was written before it, a StoreError where no checkpoint is intact.
    """
    written, damaged = records(run), dict[Path, Exception]()
    checkpoints = partial(Checkpoints, run, fingerprint, keep=keep, every=every)
    for number, record in enumerate(written):
        store = ClientStateStore(run / FOLDER, budget)
        try:
            position, content = read(run, record, fingerprint, store)
        except (ValueError, StoreError) as error:
            damaged[record] = error
            continue
        for path, reason in damaged.items():
            logger.warning("%s cannot be used: %s", path, reason)
        for path in changed_tables(run, content["digests"]):
            raise DataError(
                f"{path}: not what fedsim wrote; put that back, since a run does not go on from "
                f"changed results, or remove {run / FOLDER} to start again from round 1"
            )
        if content["fedsim"] != __version__:
            logger.warning(
                "%s: written by fedsim %s, goes on with %s", record, content["fedsim"], __version__
            )
        kept = [*_kept(written[number + 1 :]), (position.rounds, files_of(record.name, content))]
        versions = content.get("versions")
        return checkpoints(client_states=store, kept=kept, versions=versions), position
    if damaged:
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
        raise StoreError(
            f"none of {len(damaged)} checkpoints of {run} can be used: {reasons}; "
            f"remove {run / FOLDER} to start again from round 1"
        )
    return checkpoints(client_states=ClientStateStore(run / FOLDER, budget)), None


def _check(record: Path, content: Mapping[str, Any], fingerprint: Fingerprint, run: Path) -> None:
    """Refuses an intact checkpoint that belongs to another run by a ConfigError."""
    if content.get("format") != FORMAT:
        raise ConfigError(
            f"{record}: format {content.get('format')}, written by fedsim {content.get('fedsim')}; "
            f"this one reads format {FORMAT}"
        )
    began, now = content["settings"], fingerprint.settings
    for key in sorted(began.keys() & now.keys()):
        if began[key] != now[key]:
            raise ConfigError(
                f"{run / 'config.yaml'} ({key}): {now[key]!r} given, but the run began with "
                f"{began[key]!r}; put that back, or start another run"
            )
    defaults = {key: field.default for key, field in fields().items()}
    later = {key for key in now.keys() - began.keys() if now[key] == defaults.get(key, now)}
    if others := sorted((began.keys() ^ now.keys()) - later):
        raise ConfigError(
            f"{record}: the run began {'with' if others[0] in began else 'without'} the key "
            f"{others[0]}: another version of fedsim, or of your own method, wrote it"
        )
    if content["layout"] != fingerprint.layout:
        raise ConfigError(
            f"{record}: the model has other tensors than those that the run began with; its code "
            "or that of fedsim has changed"
        )


def _load(run: Path, content: Mapping[str, Any], store: ClientStateStore) -> Position:
    """Reads all files of a checkpoint; a ValueError or StoreError names one that has changed."""
    for table, length in content["tables"].items():
        with files.reading(run / table) as path:
            if path.stem not in DIAGNOSTIC and path.stat().st_size < length:
                raise ValueError(f"{table} is shorter than it was then")
    ((name, digest),) = content["arrays"].items()
    arrays = tensors.load(_checked(run, name, digest))
    parts: dict[str, dict[str, Any]] = {"server": {}, "downlink": {}, "schedule": {}}
    params = arrays.pop("params")
    for key, array in arrays.items():
        part, _, rest = key.partition("/")
        parts[part][rest] = array
    versions = {}
    for name, digest in content.get("versions", {}).items():
        sent = tensors.load(_checked(run, name, digest))
        start = sent.pop("params")
        downlink = {key.removeprefix("downlink/"): array for key, array in sent.items()}
        versions[round_of(Path(name))] = start, downlink
    segments = []
    for name, entry in sorted(content["segments"].items(), key=lambda it: round_of(Path(it[0]))):
        path = _checked(run, name, entry["sha256"])
        segment = Segment(path, size=path.stat().st_size, sha256=entry["sha256"])
        segments.append((segment, entry["clients"]))
    store.load(segments)
    return Position(
        rounds=content["round"],
        state=ServerState(
            params=params,
            server=RuleState.unflatten(parts["server"]),
            downlink=parts["downlink"],
            clients=ClientStates(store),
            schedule=parts["schedule"],
            versions=versions,
            unchanged=tuple(content.get("unchanged", ())),
        ),
        seconds=content["seconds"],
        tables=content["tables"],
        device=kind_of(content),
    )


def _checked(run: Path, name: str, digest: str) -> Path:
    """The path of a checkpoint's file, once its content has been compared."""
    if not FILE_NAME.fullmatch(name):
        raise ValueError(f"it names {name!r}, which is no file of a checkpoint")
    with files.reading(run / FOLDER / name) as path:
        if files.sha256(path) != digest:
            raise ValueError(f"{name} is damaged")
        return path


def _kept(older: list[Path]) -> list[tuple[int, frozenset[str]]]:
    """Round and files of the older checkpoints whose records can be read, oldest first."""
    kept = []
    for record in reversed(older):
        try:
            kept.append((round_of(record), files_of(record.name, read_record(record))))
        except (ValueError, StoreError):
            continue  # goes with the next checkpoint
    return kept
