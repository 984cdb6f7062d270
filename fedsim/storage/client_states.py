"""The states of clients: a value for the rounds, and a store that keeps them within a budget.

A state changes when its client takes part. The store keeps the most recently changed states in
memory and the others in segment files, each written once, with the states of several clients.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsim.core.types import Array, Vectors
from fedsim.storage import tensors


@dataclass(frozen=True, eq=False)
class ClientStates(Mapping[int, Vectors]):
    """The state of each client that has one, by client id.

    Args:
        stored: states that are shared with the values before this one.
        changed: what has changed since; an empty state means that the client has none any more.
    """

    stored: Mapping[int, Vectors] = field(default_factory=dict)
    changed: Mapping[int, Vectors] = field(default_factory=dict)

    def updated(self, changes: Mapping[int, Vectors]) -> ClientStates:
        """With these clients' states instead; takes no time for all the others."""
        real = {client: state for client, state in changes.items() if state or client in self}
        return ClientStates(self.stored, {**self.changed, **real})

    def __getitem__(self, client: int) -> Vectors:
        if client not in self.changed:
            return self.stored[client]
        if not self.changed[client]:
            raise KeyError(client)
        return self.changed[client]

    def get(self, client: int, /, default: Any = None) -> Any:
        """The state of a client, or the default if it has none.

        Mapping's own method would also return the default when reading a state fails by a KeyError.
        """
        return self[client] if client in self else default  # noqa: SIM401

    def __contains__(self, client: object) -> bool:
        changed = self.changed.get(client)  # type: ignore[call-overload]
        return client in self.stored if changed is None else bool(changed)

    def __iter__(self) -> Iterator[int]:
        yield from (client for client in self.stored if client not in self.changed)
        yield from (client for client, state in self.changed.items() if state)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(eq=False)
class Segment:
    """A file with the states of several clients; a StoreError where it cannot be written or read.

    Args:
        path: of the file.
        unwritten: the states, until the file is written.
        size: bytes of all states in it.
        sha256: of the file, empty until it is written.
    """

    path: Path
    unwritten: Mapping[int, Vectors] = field(default_factory=dict)
    size: int = field(kw_only=True)
    sha256: str = field(default="", kw_only=True)

    def write(self) -> None:
        """Writes the file, unless it is there."""
        if self.sha256:
            return
        named = {f"{c}/{k}": a for c, state in self.unwritten.items() for k, a in state.items()}
        self.sha256 = tensors.save(self.path, named)
        self.unwritten = {}  # only now: another thread may read a state at any time

    def read(self, client: int) -> Vectors:
        """The state of a client; one thread may read while another writes."""
        state = self.unwritten.get(client)
        return tensors.read(self.path, self._entries[client]) if state is None else state

    @cached_property
    def _entries(self) -> dict[int, dict[str, tensors.Entry]]:
        """Where each client's arrays lie in the file."""
        entries: dict[int, dict[str, tensors.Entry]] = {}
        for key, entry in tensors.entries(self.path).items():
            client, _, name = key.partition("/")
            entries.setdefault(int(client), {})[name] = entry
        return entries


class ClientStateStore(Mapping[int, Vectors]):
    """The states of a run's clients in memory and in segment files; changed in place.

    One thread may read states while another one changes those of other clients.

    Reading a state from its file does not bring it back into memory: an evaluation of all clients
    reads each of them once, and would only evict those that training needs.

    Args:
        folder: of the segment files.
        budget: bytes of states that may stay in memory.
    """

    def __init__(self, folder: Path, budget: float) -> None:
        self.folder, self.budget = folder, budget
        self._memory: dict[int, Vectors] = {}  # the most recently changed last
        self._bytes = 0  # of the states in memory
        self._sizes: dict[int, int] = {}  # bytes of each client's newest state
        self._segments: dict[int, Segment] = {}  # which holds it, or will once it is written
        self._unsaved: set[int] = set()  # the clients whose newest state is in none
        self._lock = threading.Lock()  # while a state goes from memory, or a file, to another file

    def __getitem__(self, client: int) -> Vectors:
        with self._lock:
            if client in self._memory:
                return self._memory[client]
            return self._segments[client].read(client)

    def __contains__(self, client: object) -> bool:
        return client in self._sizes

    def __iter__(self) -> Iterator[int]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def unsaved_bytes(self) -> int:
        """Bytes of the states that no segment holds yet."""
        return sum(self._sizes[client] for client in self._unsaved)

    def segments(self) -> dict[Segment, list[int]]:
        """The segments that are needed, and the clients whose newest state each of them holds."""
        clients: dict[Segment, list[int]] = {}
        for client, segment in self._segments.items():
            clients.setdefault(segment, []).append(client)
        return clients

    def put(self, changes: Mapping[int, Vectors]) -> None:
        """Takes the newest states, all or none; an empty one: the client has none any more."""
        copies = {c: {k: owned(a) for k, a in state.items()} for c, state in changes.items()}
        for client, state in copies.items():  # nothing can fail from here on
            size = self._sizes.pop(client, 0)
            self._segments.pop(client, None)
            self._unsaved.discard(client)
            if self._memory.pop(client, None) is not None:
                self._bytes -= size
            if state:
                self._add(client, state)
                self._unsaved.add(client)

    def load(self, segments: Sequence[tuple[Segment, Sequence[int]]]) -> None:
        """Takes states from written files, the newest into memory as far as they fit.

        Args:
            segments: with the clients whose newest states they hold, oldest first.
        """
        for segment, clients in segments:
            for client in clients:
                self._add(client, segment.read(client))
                self._segments[client] = segment
            self.evict()  # for each client it would look past all that were evicted before

    def new_segment(self, name: str) -> None:
        """Moves all unsaved states to a new segment, which is still to be written, if any.

        It also takes the newest states out of segments that hold mostly outdated ones, about as
        many bytes again at most, so that the files stay below about twice the newest states' size.
        """
        clients = sorted(self._unsaved | self._in_outdated_segments())
        if clients:
            size = sum(self._sizes[client] for client in clients)
            segment = Segment(self.folder / name, {c: self[c] for c in clients}, size=size)
            with self._lock:
                self._segments |= dict.fromkeys(clients, segment)
            self._unsaved.clear()

    def evict(self) -> bool:
        """Drops the states changed longest ago that are in files; True if the rest fits."""
        evicted = []
        for client in self._memory:
            if self._bytes <= self.budget:
                break
            segment = self._segments.get(client)
            if segment is not None and segment.sha256:
                evicted.append(client)
                self._bytes -= self._sizes[client]
        with self._lock:
            for client in evicted:
                del self._memory[client]
        return self._bytes <= self.budget

    def _add(self, client: int, state: Vectors) -> None:
        self._memory[client] = state
        self._sizes[client] = num_bytes(state)
        self._bytes += self._sizes[client]

    def _in_outdated_segments(self) -> set[int]:
        """The clients of the emptiest segments, while these are over twice the newest states."""
        segments, room, moved = self.segments(), self.unsaved_bytes, set[int]()
        live = {s: sum(self._sizes[c] for c in clients) for s, clients in segments.items()}
        excess = sum(segment.size for segment in live) - 2 * sum(live.values())
        for segment in sorted(live, key=lambda s: live[s] / max(1, s.size)):
            if excess > 0 and live[segment] <= room:
                moved.update(segments[segment])
                room -= live[segment]
                excess -= segment.size - live[segment]
        return moved


def num_bytes(state: Vectors) -> int:
    """Bytes of a state's arrays."""
    return sum(array.nbytes for array in state.values())


def owned(array: Array) -> Array:
    """The array, copied if it is a view: a view would keep alive what it is a view of."""
    return array if array.flags.owndata else array.copy()
