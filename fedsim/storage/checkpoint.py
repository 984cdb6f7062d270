"""Checkpoints: everything that the next round depends on, in files that are written atomically.

``checkpoints/round-000012.json`` is written last and makes a checkpoint valid. It names the files
with the arrays and their hashes: ``round-000012.safetensors`` with the global vector and the
server's state, and the segments ``clients-*.safetensors`` with the states of the clients, of which
each checkpoint adds one with those that changed. A model of an earlier round from which tasks of
later rounds start is a file of its own, ``version-*.safetensors``. Damage to what a checkpoint
alone has leaves the previous one usable; segments and versions are shared.

One background thread writes, one checkpoint at a time, values that nobody changes. It rests after
each, so that it takes at most a part ``SHARE`` of the time; a checkpoint that is due meanwhile
follows the first round that ends afterwards.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedsim.core import files
from fedsim.core.background import Background
from fedsim.core.reading import parse_json
from fedsim.core.types import Layout, Sent, Vector, Vectors
from fedsim.server.base import RuleState
from fedsim.storage import tensors
from fedsim.storage.client_states import ClientStates, ClientStateStore, Segment, num_bytes
from fedsim.version import __version__

FORMAT = 1
"""Number of the format; a checkpoint with another one is refused."""
SHARE = 0.05
"""The most of a run's time that is spent on writing checkpoints beside the rounds."""
FOLDER = "checkpoints"
FILE_NAME = re.compile(r"(round|clients|version)-(\d{6,})\.(json|safetensors)")
"""Names of the files that are written here; no others are ever deleted."""

logger = logging.getLogger("fedsim")


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """Everything that the next round depends on."""

    params: Vector  # (D,) the global vector
    server: RuleState = field(default_factory=RuleState)
    downlink: Vectors = field(default_factory=dict)
    """What the server sends to everybody beside the model."""
    clients: ClientStates = field(default_factory=ClientStates)
    schedule: Vectors = field(default_factory=dict)
    versions: Mapping[int, Sent] = field(default_factory=dict)
    """Models of earlier rounds from which tasks of later rounds start."""
    unchanged: tuple[int, ...] = ()
    """Rounds (from 0) since the oldest of these that left the model as it was."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a run stands after so many complete rounds."""

    rounds: int
    state: ServerState
    seconds: float = 0.0
    """Since the run began, without the time between its interruption and its resumption."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each table that exists, by file name."""
    digests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Size and SHA-256 of each table with results, by name."""
    device: Mapping[str, Any] = field(default_factory=dict)
    """Its kind, of :func:`~fedsim.core.machine.kind_of`; empty before the first round."""


@dataclass(frozen=True)
class Fingerprint:
    """What a checkpoint must agree with: hash of the model's layout, and the settings that change
    results, by dotted key."""

    layout: str
    settings: Mapping[str, Any]


def layout_hash(layout: Layout) -> str:
    """SHA-256 of the names, shapes, positions and roles of a model's tensors."""
    return files.sha256_of(_canonical([asdict(slot) for slot in layout.slots]))


def encode_record(content: Mapping[str, Any]) -> bytes:
    """The text of a record: its content with a checksum of it."""
    text = _canonical(content)
    return f'{{"checkpoint":{text},"sha256":"{files.sha256_of(text)}"}}\n'.encode()


def decode_record(text: bytes) -> dict[str, Any]:
    """The content of a record; a ValueError where it is damaged."""
    try:
        record = parse_json(text)
        content: dict[str, Any] = record["checkpoint"]
        intact = files.sha256_of(_canonical(content)) == record["sha256"]
    except (KeyError, TypeError, ValueError):
        intact = False
    if not intact:
        raise ValueError("it is damaged")
    return content


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def files_of(record: str, content: Mapping[str, Any]) -> frozenset[str]:
    """The names of all files of a checkpoint."""
    shared = content["segments"], content.get("versions", {})
    return frozenset({record, *content["arrays"]}).union(*shared)


class Checkpoints(AbstractContextManager["Checkpoints"]):
    """The checkpoints of a run; what writes or waits raises a StoreError where a file cannot be
    written."""

    def __init__(
        self,
        run: Path,
        fingerprint: Fingerprint,
        *,
        client_states: ClientStateStore,  # whose files are written here too
        keep: int,  # of the newest
        every: int = 0,  # the one of every so many rounds stays, too
        kept: Iterable[tuple[int, frozenset[str]]] = (),  # that are there: rounds and files
        versions: Mapping[str, str] | None = None,  # that are written: SHA-256 by file name
    ) -> None:
        self.run, self.folder = run, run / FOLDER
        self.fingerprint, self.client_states = fingerprint, client_states
        self.keep, self.every = keep, every
        self._kept = list(kept)
        self._versions = dict(versions or {})
        self.newest = self._kept[-1][0] if self._kept else 0  # written or being written
        self._thread = Background("checkpoint")
        self._rested = 0.0  # when the thread may write again, by time.monotonic()

    def __exit__(self, *_: object) -> None:
        """Waits for the checkpoint that is being written, also after a second Ctrl-C."""
        self._thread.__exit__()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written, or was just now."""
        return self._thread.busy or time.monotonic() < self._rested

    def store_client_states(self, state: ServerState) -> ServerState:
        """The same state with its client states in the store; of the values before it only that
        of :meth:`storing` may still be used."""
        self.client_states.put(state.clients.changed)
        return replace(state, clients=ClientStates(self.client_states))

    def storing(self, state: ServerState) -> ServerState:
        """The same state for the next round, while a thread stores its client states."""
        changed = ClientStates(self.client_states, state.clients.changed)
        return replace(state, clients=ClientStates(changed))

    def spill(self, rounds: int) -> None:
        """Writes the client states that wait in memory where they exceed the budget."""
        store = self.client_states
        if store.unsaved_bytes > store.budget:
            self.wait()
            store.new_segment(f"clients-{rounds:06d}.safetensors")
            segments = store.segments()
            self._write_segments(segments)
            self._prune(segments)

    def size(self, state: ServerState) -> int:
        """Bytes of the arrays that a checkpoint of the state adds."""
        parts = [state.server.flatten(), state.downlink, state.schedule]
        parts += [*state.clients.changed.values(), *self._unwritten(state).values()]
        unsaved = self.client_states.unsaved_bytes
        return state.params.nbytes + unsaved + sum(map(num_bytes, parts))

    def save(self, position: Position) -> None:
        """Begins to write a checkpoint, once the one before is written."""
        self.wait()
        self.client_states.new_segment(f"clients-{position.rounds:06d}.safetensors")
        self.newest = position.rounds
        self._thread.begin(partial(self._write, position, self.client_states.segments()))

    def wait(self) -> None:
        """Returns when nothing is being written."""
        self._thread.wait()

    def finish(self, position: Position) -> None:
        """Returns when there is a checkpoint of the position; none is needed before round 1."""
        self.wait()
        written = self._kept[-1][0] if self._kept else 0
        if position.rounds > written:
            self.save(position)
            self.wait()

    def _write(self, position: Position, segments: Mapping[Segment, list[int]]) -> None:
        begun = time.monotonic()
        self._write_segments(segments)
        state = position.state
        arrays = {"params": state.params}
        parts = {"server": state.server.flatten(), "downlink": state.downlink}
        for part, named in (parts | {"schedule": state.schedule}).items():
            arrays |= {f"{part}/{key}": array for key, array in named.items()}
        for file, version in self._unwritten(state).items():
            self._versions[file] = tensors.save(self.folder / file, version)
        versions = {file: self._versions[file] for file in map(_version_file, state.versions)}
        name = f"round-{position.rounds:06d}.safetensors"
        digest = tensors.save(self.folder / name, arrays)
        for table in position.tables:
            with files.writing(self.run / table) as path:
                files.sync(path)
        content = {
            "format": FORMAT,
            "fedsim": __version__,
            "round": position.rounds,
            "seconds": position.seconds,
            "device": dict(position.device),
            "layout": self.fingerprint.layout,
            "settings": dict(self.fingerprint.settings),
            "tables": dict(position.tables),
            "digests": dict(position.digests),
            "arrays": {name: digest},
            "segments": {
                segment.path.name: {"sha256": segment.sha256, "clients": sorted(clients)}
                for segment, clients in segments.items()
            },
        }
        content |= {"versions": versions} if versions else {}
        content |= {"unchanged": list(state.unchanged)} if state.unchanged else {}
        record = f"round-{position.rounds:06d}.json"
        files.write(self.folder / record, encode_record(content))
        self._kept.append((position.rounds, files_of(record, content)))
        self._prune(segments)
        now = time.monotonic()
        self._rested = now + (now - begun) * (1 / SHARE - 1)

    def _unwritten(self, state: ServerState) -> dict[str, Vectors]:
        """By file the models of earlier rounds that are not written yet."""
        return {
            file: {"params": params} | {f"downlink/{key}": a for key, a in downlink.items()}
            for version, (params, downlink) in state.versions.items()
            if (file := _version_file(version)) not in self._versions
        }

    def _write_segments(self, segments: Iterable[Segment]) -> None:
        with files.writing(self.folder) as path:
            path.mkdir(exist_ok=True)
        for segment in segments:
            segment.write()

    def _prune(self, segments: Iterable[Segment]) -> None:
        """Deletes what neither the newest checkpoints nor the run's client states need."""
        older, newest = self._kept[: -self.keep], self._kept[-self.keep :]
        milestones = [each for each in older if self.every and each[0] % self.every == 0]
        self._kept = [*milestones, *newest]
        needed = {segment.path.name for segment in segments}
        needed = needed.union(*(names for _, names in self._kept))
        with files.writing(self.folder):
            # the record first: what it names is there as long as it is
            for path in sorted(self.folder.iterdir(), key=lambda p: p.suffix != ".json"):
                if FILE_NAME.fullmatch(path.name) and path.name not in needed:
                    path.unlink()


def records(run: Path) -> list[Path]:
    """The records of a run's checkpoints, newest first."""
    with files.reading(run / FOLDER) as folder:
        written = [path for path in folder.glob("*.json") if FILE_NAME.fullmatch(path.name)]
    return sorted(written, key=round_of, reverse=True)


def read_record(record: Path) -> dict[str, Any]:
    """The content of a record's file; a ValueError where it is damaged."""
    with files.reading(record):
        return decode_record(record.read_bytes())


def round_of(file: Path) -> int:
    """The number in the name of a record, a segment or a version."""
    return int(file.stem.partition("-")[2])


def _version_file(version: int) -> str:
    """The name of the file of a model of an earlier round."""
    return f"version-{version:06d}.safetensors"
