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

from collections.abc import Iterable, Mapping
from concurrent import futures
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedsim import durable, tensorfile
from fedsim.clientstates import ClientStates, Shelf
from fedsim.record import FOLDER, FORMAT, OWN, Identity, files_of, seal
from fedsim.segments import Segment, size_of
from fedsim.state import ServerState
from fedsim.version import __version__


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
        parts = (state.server, state.downlink, *state.clients.fresh.values())
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
        arrays |= {f"server/{key}": array for key, array in state.server.items()}
        arrays |= {f"downlink/{key}": array for key, array in state.downlink.items()}
        name = f"round-{position.rounds:06d}.safetensors"
        digest, _ = tensorfile.write(self.folder / name, arrays)
        for table in position.tables:
            with durable.writing(self.run / table) as path:
                durable.sync(path)
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
        durable.write(self.folder / record, [seal(content)])
        self._kept.append((position.rounds, files_of(record, content)))
        self._prune({s.path.name for s, _ in live})

    def _make_folder(self) -> None:
        with durable.writing(self.folder) as path:
            path.mkdir(exist_ok=True)

    def _prune(self, live: set[str]) -> None:
        """Deletes what no checkpoint of the last ones needs, nor the run itself."""
        self._kept = self._kept[-self.keep :]
        needed = live.union(*(files for _, files in self._kept))
        with durable.writing(self.folder):
            # the record first: what it names is there as long as it is
            for path in sorted(self.folder.iterdir(), key=lambda p: p.suffix != ".json"):
                if OWN.fullmatch(path.name) and path.name not in needed:
                    path.unlink()
