"""Checkpoints: everything that the next round depends on, in files that are whole or not there.

``checkpoints/round-000012.json`` is written last and makes a checkpoint valid. It names the files
with the arrays and their hashes: ``round-000012.safetensors`` with the global vector and the
server's state, and the segments ``clients-*.safetensors`` with the states of the clients, of which
each checkpoint adds one with those that changed.

Damage to what a checkpoint alone has (record, vector and server state, the segment that it adds)
leaves the one before usable. Older segments are shared: damage to one of them may leave no
checkpoint that is whole; going on is then refused, and nothing is changed.

Files are written by one background thread, one checkpoint at a time: all that it writes are values
that nobody changes. A round waits for the disk only after the last one, and where client states
exceed their memory; a checkpoint that falls due while another is being written follows the first
round that ends after that.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from concurrent import futures
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsim.core import files
from fedsim.core.types import Layout, Vector, Vectors
from fedsim.server.base import RuleState
from fedsim.storage import tensors
from fedsim.storage.client_states import ClientStates, Segment, Shelf, size_of
from fedsim.version import __version__


@dataclass(frozen=True)
class ServerState:
    """Everything that the next round depends on.

    Args:
        params: (D,) the global vector.
        server: what each part of the method's server keeps.
        downlink: what the server sends to everybody beside the model.
        clients: the state of each client that has one, by client id.
    """

    params: Vector
    server: RuleState = field(default_factory=RuleState)
    downlink: Vectors = field(default_factory=dict)
    clients: ClientStates = field(default_factory=ClientStates)


FORMAT = 1
"""Number of the format; a checkpoint with another one is refused."""
FOLDER = "checkpoints"
OWN = re.compile(r"(round|clients)-(\d{6,})\.(json|safetensors)")
"""Names of the files that are written here; no others are ever deleted."""


@dataclass(frozen=True)
class Identity:
    """What a checkpoint must agree with: the model's layout, and settings that change results."""

    layout: str
    settings: Mapping[str, Any]


def layout_hash(layout: Layout) -> str:
    """SHA-256 of the names, shapes, places and roles of a model's tensors."""
    return _sha256(_canonical([asdict(slot) for slot in layout.slots]))


def seal(content: Mapping[str, Any]) -> bytes:
    """The text of a record: its content with a checksum of it."""
    return _canonical({"checkpoint": content, "sha256": _sha256(_canonical(content))}) + b"\n"


def unseal(text: bytes) -> dict[str, Any]:
    """The content of a record.

    Raises:
        ValueError: it is damaged.
    """
    try:
        record = json.loads(text)
        content, digest = record["checkpoint"], record["sha256"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("it is damaged") from error
    if not isinstance(content, dict) or _sha256(_canonical(content)) != digest:
        raise ValueError("its checksum is wrong")
    return content


def files_of(record: str, content: Mapping[str, Any]) -> frozenset[str]:
    """The names of all files of a checkpoint."""
    return frozenset({record, *content["arrays"], *content["segments"]})


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Position:
    """Where a run stands after a complete round.

    Args:
        rounds: how many rounds are complete.
        state: what the next one depends on.
        seconds: since the run began, without the time in which it lay still.
        tables: length in bytes of each table that exists, by file name.
        device: that the clients trained on, empty before the first round.
    """

    rounds: int
    state: ServerState
    seconds: float = 0.0
    tables: Mapping[str, int] = field(default_factory=dict)
    device: str = ""


class Checkpoints:
    """The checkpoints of a run; at most one is being written at a time.

    Args:
        run: the run directory.
        identity: goes into every checkpoint.
        shelf: holds the client states; its files are written here too.
        keep: how many checkpoints stay.
        kept: those that are there already, oldest first: rounds and files.
    """

    def __init__(
        self,
        run: Path,
        identity: Identity,
        shelf: Shelf,
        keep: int,
        kept: Iterable[tuple[int, frozenset[str]]] = (),
    ) -> None:
        self.run, self.folder = run, run / FOLDER
        self.identity, self.shelf, self.keep = identity, shelf, keep
        self._kept = list(kept)
        self.newest = self._kept[-1][0] if self._kept else 0  # written or being written
        self._pool = futures.ThreadPoolExecutor(1, "checkpoint")
        self._writing: futures.Future[None] | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        """Waits for the checkpoint that is being written, also after a second Ctrl-C."""
        self._pool.shutdown()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    def take(self, state: ServerState) -> ServerState:
        """The same state with its client states on the shelf.

        The values before it must not be used any more.
        """
        self.shelf.put(state.clients.fresh)
        return replace(state, clients=ClientStates(self.shelf))

    def spill(self, rounds: int) -> None:
        """Brings the client states in memory within the budget.

        Raises:
            StoreError: those that have no place in memory cannot be written.
        """
        if self.shelf.evict():
            return
        self.wait()
        if self.shelf.evict():
            return
        self._make_folder()
        self.shelf.collect(f"clients-{rounds:06d}.safetensors")
        for segment in self.shelf.segments.values():
            segment.write()
        self.shelf.evict()
        self._prune({s.path.name for s in self.shelf.segments.values() if s.live})

    def size(self, state: ServerState) -> int:
        """Bytes of the arrays that a checkpoint of the state adds."""
        parts = (state.server.flatten(), state.downlink, *state.clients.fresh.values())
        return state.params.nbytes + self.shelf.unsaved_bytes + sum(map(size_of, parts))

    def save(self, position: Position) -> None:
        """Begins to write a checkpoint.

        Raises:
            StoreError: the one before could not be written.
        """
        self.wait()
        self.shelf.collect(f"clients-{position.rounds:06d}.safetensors")
        live = [(s, tuple(s.live)) for s in self.shelf.segments.values()]
        self.newest = position.rounds
        self._writing = self._pool.submit(self._write, position, live)

    def wait(self) -> None:
        """Returns when nothing is being written.

        Raises:
            StoreError: what was being written could not be.
        """
        if self._writing is not None:
            futures.wait([self._writing])  # an interrupt here leaves it to the next call
            writing, self._writing = self._writing, None
            writing.result()

    def finish(self, position: Position) -> None:
        """Returns when there is a checkpoint of the position; none is needed before round 1.

        Raises:
            StoreError: it cannot be written.
        """
        self.wait()
        written = self._kept[-1][0] if self._kept else 0
        if position.rounds > written:
            self.save(position)
            self.wait()

    def _write(self, position: Position, live: list[tuple[Segment, tuple[int, ...]]]) -> None:
        self._make_folder()
        for segment, _ in live:
            segment.write()
        state = position.state
        arrays = {"params": state.params}
        arrays |= {f"server/{key}": array for key, array in state.server.flatten().items()}
        arrays |= {f"downlink/{key}": array for key, array in state.downlink.items()}
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
            "device": position.device,
            "layout": self.identity.layout,
            "settings": dict(self.identity.settings),
            "tables": dict(position.tables),
            "arrays": {name: digest},
            "segments": {
                s.path.name: {"sha256": s.sha256, "clients": sorted(clients)} for s, clients in live
            },
        }
        record = f"round-{position.rounds:06d}.json"
        files.write(self.folder / record, seal(content))
        self._kept.append((position.rounds, files_of(record, content)))
        self._prune({s.path.name for s, _ in live})

    def _make_folder(self) -> None:
        with files.writing(self.folder) as path:
            path.mkdir(exist_ok=True)

    def _prune(self, live: set[str]) -> None:
        """Deletes what no checkpoint of the last ones needs, nor the run itself."""
        self._kept = self._kept[-self.keep :]
        needed = live.union(*(names for _, names in self._kept))
        with files.writing(self.folder):
            # the record first: what it names is there as long as it is
            for path in sorted(self.folder.iterdir(), key=lambda p: p.suffix != ".json"):
                if OWN.fullmatch(path.name) and path.name not in needed:
                    path.unlink()
