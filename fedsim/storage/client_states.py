"""The states of clients: a value for the rounds, and a shelf that keeps them within a budget.

A state changes when its client takes part. The shelf holds the most recently changed states in
memory and the others in segment files, each written once, with the states of several clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, overload

from fedsim.core import files
from fedsim.core.types import Array, Vectors
from fedsim.storage import tensors


@dataclass
class Segment:
    """A file with the states of several clients.

    Args:
        path: of the file.
        states: what is still to be written.
        size: bytes of all states in it.
        live: the clients whose newest saved state it holds.
        live_size: bytes of their states.
        sha256: of the file, once written.
    """

    path: Path
    states: dict[int, Vectors] = field(default_factory=dict)
    size: int = 0
    live: set[int] = field(default_factory=set)
    live_size: int = 0
    sha256: str = ""

    @property
    def written(self) -> bool:
        """Whether states can be read from it."""
        return bool(self.sha256)

    def write(self) -> None:
        """Writes the file, unless it is there.

        Raises:
            StoreError: it cannot be written.
        """
        if self.written:
            return
        named = {f"{c}/{k}": a for c, own in self.states.items() for k, a in own.items()}
        self.sha256 = tensors.save(self.path, named)
        self.states = {}  # only now: a state is always in one of both

    def read(self, client: int) -> Vectors:
        """The state of a client; one thread may read while another writes.

        Raises:
            StoreError: the file cannot be read.
        """
        waiting = self.states.get(client)
        return tensors.load(self.path, f"{client}/") if waiting is None else waiting


def size_of(own: Vectors) -> int:
    """Bytes of a state."""
    return sum(array.nbytes for array in own.values())


T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ClientStates(Mapping[int, Vectors]):
    """The state of each client that has one, by client id.

    Args:
        base: states that are shared with the values before this one.
        fresh: what has changed since; an empty state means that the client has none any more.
    """

    base: Mapping[int, Vectors] = field(default_factory=dict)
    fresh: Mapping[int, Vectors] = field(default_factory=dict)

    def updated(self, changes: Mapping[int, Vectors]) -> ClientStates:
        """With these clients' states instead; takes no time for all the others."""
        real = {client: own for client, own in changes.items() if own or client in self}
        return ClientStates(self.base, {**self.fresh, **real})

    def __getitem__(self, client: int) -> Vectors:
        if client not in self.fresh:
            return self.base[client]
        if not self.fresh[client]:
            raise KeyError(client)
        return self.fresh[client]

    @overload
    def get(self, client: int, /) -> Vectors | None: ...
    @overload
    def get(self, client: int, /, default: Vectors | T) -> Vectors | T: ...
    def get(self, client: int, /, default: Vectors | T | None = None) -> Vectors | T | None:
        """The state of a client that has one, else the default.

        Mapping's own would take any KeyError on the way to a state for a client that has none.
        """
        return self[client] if client in self else default  # noqa: SIM401

    def __contains__(self, client: object) -> bool:
        own = self.fresh.get(client)  # type: ignore[call-overload]
        return client in self.base if own is None else bool(own)

    def __iter__(self) -> Iterator[int]:
        yield from (client for client in self.base if client not in self.fresh)
        yield from (client for client, own in self.fresh.items() if own)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Shelf(Mapping[int, Vectors]):
    """The base of the :class:`ClientStates` of a run; it alone is changed in place.

    Reading a state from its file does not bring it back into memory: an evaluation of all clients
    reads each of them once, and would only push out those that training needs.

    Args:
        folder: of the segment files.
        budget: bytes of states that may stay in memory.
    """

    def __init__(self, folder: Path, budget: float) -> None:
        self.folder, self.budget = folder, budget
        self.segments: dict[str, Segment] = {}
        self._memory: dict[int, Vectors] = {}  # the most recently changed last
        self._bytes = 0
        self._saved: dict[int, Segment] = {}
        self._sizes: dict[int, int] = {}
        self._unsaved: set[int] = set()

    def __getitem__(self, client: int) -> Vectors:
        if client in self._memory:
            return self._memory[client]
        return self._saved[client].read(client)

    def __contains__(self, client: object) -> bool:
        return client in self._sizes

    def __iter__(self) -> Iterator[int]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def bytes_in_memory(self) -> int:
        """Bytes of the states in memory."""
        return self._bytes

    @property
    def unsaved_bytes(self) -> int:
        """Bytes of the states that no segment holds yet."""
        return sum(self._sizes[client] for client in self._unsaved)

    def put(self, changes: Mapping[int, Vectors]) -> None:
        """Takes the newest states, all or none; an empty one: the client has none any more."""
        own = {c: {k: compact(a) for k, a in state.items()} for c, state in changes.items()}
        for client, state in own.items():  # nothing can fail from here on
            self._forget(client)
            if state:
                self._memory[client] = state
                self._sizes[client] = size_of(state)
                self._bytes += self._sizes[client]
                self._unsaved.add(client)

    def adopt(self, segments: Sequence[tuple[Segment, Sequence[int]]]) -> None:
        """Takes some clients' states in written files, the newest into memory as far as they fit.

        Args:
            segments: and the clients whose newest states they hold, oldest first.

        Raises:
            StoreError: a file cannot be read.
        """
        for segment, clients in segments:
            self.segments[segment.path.name] = segment
            with files.reading(segment.path) as path:
                segment.size = path.stat().st_size
            for client in clients:
                self._memory[client] = state = segment.read(client)
                self._save(client, segment, size_of(state))
                self._bytes += self._sizes[client]
                self.evict()

    def collect(self, name: str) -> None:
        """Adds a segment with all unsaved states, still to be written, if there are any.

        It also takes the live states of files that hold mostly dead ones, about as many bytes
        again at most, so that the files stay below about twice what lives in them.
        """
        self.segments = {n: s for n, s in self.segments.items() if s.live}
        clients = sorted(self._unsaved | self._scattered())
        if not clients:
            return
        segment = Segment(self.folder / name, {c: self[c] for c in clients})
        for client in clients:
            self._leave(client)
            self._save(client, segment, self._sizes[client])
        segment.size = segment.live_size
        self._unsaved.clear()
        self.segments[name] = segment

    def evict(self) -> bool:
        """Lets go of the states changed longest ago that are in files; True within the budget."""
        if self._bytes > self.budget:
            for client in list(self._memory):
                segment = self._saved.get(client)
                if segment is not None and segment.written:
                    self._bytes -= self._sizes[client]
                    del self._memory[client]
                if self._bytes <= self.budget:
                    break
        return self._bytes <= self.budget

    def _scattered(self) -> set[int]:
        """The live clients of the emptiest files, while the files hold over twice what lives."""
        excess = sum(s.size - 2 * s.live_size for s in self.segments.values())
        left = self.unsaved_bytes
        found: set[int] = set()
        for segment in sorted(self.segments.values(), key=lambda s: s.live_size / max(1, s.size)):
            if excess <= 0 or left <= 0:
                break
            if segment.live_size > left:
                continue
            found |= segment.live
            left -= segment.live_size
            excess -= segment.size - segment.live_size
        return found

    def _save(self, client: int, segment: Segment, size: int) -> None:
        """Notes that the segment holds a client's newest state, or will."""
        self._saved[client] = segment
        self._sizes[client] = size
        segment.live.add(client)
        segment.live_size += size

    def _leave(self, client: int) -> None:
        """Notes that a client's saved state is no longer the newest, or has another place."""
        segment = self._saved.pop(client, None)
        if segment is not None:
            segment.live.discard(client)
            segment.live_size -= self._sizes[client]

    def _forget(self, client: int) -> None:
        self._leave(client)
        self._unsaved.discard(client)
        size = self._sizes.pop(client, 0)
        if self._memory.pop(client, None) is not None:
            self._bytes -= size


def compact(array: Array) -> Array:
    """The array in memory of its own: a view would keep alive what it is a view of."""
    return array if array.flags.owndata else array.copy()
