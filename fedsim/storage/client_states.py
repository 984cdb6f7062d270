"""The states of clients: a value for the rounds, and a store that keeps them within a budget.

A state changes when its client takes part. The store keeps the most recently changed states in
memory and the others in segment files, each written once, with the states of several clients.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.core.errors import StoreError
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
        checksums: CRC-32 of each client's state, known once it was written or read; a state that is
            read later must have it.
    """

    path: Path
    unwritten: Mapping[int, Vectors] = field(default_factory=dict)
    size: int = field(kw_only=True)
    sha256: str = field(default="", kw_only=True)
    checksums: dict[int, int] = field(default_factory=dict, kw_only=True)
    entries: dict[int, dict[str, tensors.Entry]] = field(default_factory=dict, kw_only=True)
    """Where each client's arrays lie in the file, known once one of them was read."""

    def write(self) -> None:
        """Writes the file, unless it is there."""
        if self.sha256:
            return
        named = {f"{c}/{k}": a for c, state in self.unwritten.items() for k, a in state.items()}
        self.checksums = {client: _checksum(state) for client, state in self.unwritten.items()}
        self.sha256 = tensors.save(self.path, named)
        self.unwritten = {}  # only now: another thread may read a state at any time

    def read(self, client: int) -> Vectors:
        """The state of a client; one thread may read while another writes."""
        state = self.unwritten.get(client)
        if state is None:
            state = tensors.read(self.path, self._entries().get(client, {}))
            checksum = _checksum(state)
            if self.checksums.setdefault(client, checksum) != checksum:
                raise StoreError(f"{self.path}: damaged: the state of client {client} has changed")
        return state

    def _entries(self) -> dict[int, dict[str, tensors.Entry]]:
        if not self.entries:
            entries: dict[int, dict[str, tensors.Entry]] = {}
            for key, entry in tensors.entries(self.path).items():
                client, _, name = key.partition("/")
                entries.setdefault(int(client), {})[name] = entry
            self.entries = entries
        return self.entries


def _checksum(state: Vectors) -> int:
    checksum = 0
    for name in sorted(state):
        checksum = zlib.crc32(np.ascontiguousarray(state[name]).data, checksum)
    return checksum


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
        self._live: dict[Segment, set[int]] = {}  # the same by segment
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
        return {segment: list(clients) for segment, clients in self._live.items()}

    def put(self, changes: Mapping[int, Vectors]) -> None:
        """Takes the newest states, all or none; an empty one: the client has none any more."""
        copies = {c: {k: owned(a) for k, a in state.items()} for c, state in changes.items()}
        for client, state in copies.items():  # nothing can fail from here on
            size = self._sizes.pop(client, 0)
            self._move(client, None)
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
                self._move(client, segment)
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
                for client in clients:
                    self._move(client, segment)
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

    def _move(self, client: int, segment: Segment | None) -> None:
        """The newest state of a client is in another segment, or in none any more."""
        before = self._segments.pop(client, None)
        if before is not None:
            self._live[before].discard(client)
            if not self._live[before]:
                del self._live[before]
        if segment is not None:
            self._segments[client] = segment
            self._live.setdefault(segment, set()).add(client)

    def _in_outdated_segments(self) -> set[int]:
        """The clients of the emptiest segments, while these are over twice the newest states."""
        left, moved = self.unsaved_bytes, set[int]()
        saved = sum(self._sizes.values()) - left
        excess = sum(segment.size for segment in self._live) - 2 * saved
        if excess <= 0:
            return moved
        live = {s: sum(self._sizes[c] for c in clients) for s, clients in self._live.items()}
        for segment in sorted(live, key=lambda s: live[s] / max(1, s.size)):
            if excess <= 0 or left <= 0:
                break
            if live[segment] <= left:
                moved.update(self._live[segment])
                left -= live[segment]
                excess -= segment.size - live[segment]
        return moved


def num_bytes(state: Vectors) -> int:
    """Bytes of a state's arrays."""
    return sum(array.nbytes for array in state.values())


def owned(array: Array) -> Array:
    """The array, copied if it is a view: a view would keep alive what it is a view of."""
    return array if array.flags.owndata else array.copy()
