"""The states of clients: a value for the rounds, and a store that keeps them in files.

A state changes when its client takes part. It stays in memory until a segment file is written, with
the states of all clients that changed since the one before; then it is read from there, which the
system's cache makes fast.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsim.core.errors import StoreError
from fedsim.core.types import Array, Vectors
from fedsim.storage import tensors


@dataclass(frozen=True, eq=False)
class ClientStates(Mapping[int, Vectors]):
    """The state of each client that has one, by client id."""

    stored: Mapping[int, Vectors] = field(default_factory=dict)
    """States that are shared with the values before this one."""
    changed: Mapping[int, Vectors] = field(default_factory=dict)
    """What has changed since; an empty state means that the client has none any more."""

    def updated(self, changes: Mapping[int, Vectors]) -> ClientStates:
        """With these clients' states instead; takes no time for all the others."""
        real = {client: state for client, state in changes.items() if state or client in self}
        return ClientStates(self.stored, {**self.changed, **real})

    def __getitem__(self, client: int) -> Vectors:
        state = self.changed.get(client)
        if state is None:
            return self.stored[client]
        if not state:
            raise KeyError(client)
        return state

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
    """A file with the states of several clients; a StoreError where it cannot be used."""

    path: Path
    unwritten: Mapping[int, Vectors] = field(default_factory=dict)
    """The states, until the file is written."""
    size: int = field(kw_only=True)  # bytes of all states in it
    sha256: str = field(default="", kw_only=True)  # of the file, empty until it is written

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
        if state is not None:
            return state
        if client not in self._names:
            raise StoreError(f"{self.path}: has no state of client {client}")
        return {key: self._file.get_tensor(f"{client}/{key}") for key in self._names[client]}

    @cached_property
    def _file(self) -> Any:
        return tensors.opened(self.path)

    @cached_property
    def _names(self) -> dict[int, list[str]]:
        """The names of each client's arrays."""
        names: dict[int, list[str]] = {}
        for name in self._file.keys():  # noqa: SIM118
            client, _, key = name.partition("/")
            names.setdefault(int(client), []).append(key)
        return names


class ClientStateStore(Mapping[int, Vectors]):
    """The states of a run's clients in memory and in segment files; changed in place.

    One thread may read states while another one changes those of other clients. At most ``budget``
    bytes of states wait in memory for a file.
    """

    def __init__(self, folder: Path, budget: float) -> None:
        self.folder, self.budget = folder, budget
        self._sizes: dict[int, int] = {}  # bytes of each client's newest state
        self._unsaved: dict[int, Vectors] = {}  # the newest states that are in no segment
        self._segments: dict[int, Segment] = {}  # which holds it, or will once it is written
        self._lock = threading.Lock()  # while states go to another segment

    def __getitem__(self, client: int) -> Vectors:
        with self._lock:
            state = self._unsaved.get(client)
            return self._segments[client].read(client) if state is None else state

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
            self._sizes.pop(client, None)
            self._segments.pop(client, None)
            self._unsaved.pop(client, None)
            if state:
                self._unsaved[client] = state
                self._sizes[client] = num_bytes(state)

    def load(self, segments: Sequence[tuple[Segment, Sequence[int]]]) -> None:
        """Takes the clients whose newest states are in written files, oldest first."""
        for segment, clients in segments:
            self._segments |= dict.fromkeys(clients, segment)
            self._sizes |= {client: num_bytes(segment.read(client)) for client in clients}

    def new_segment(self, name: str) -> None:
        """Moves all unsaved states to a new segment, which is still to be written, if any.

        It also takes the newest states out of segments that hold mostly outdated ones, about as
        many bytes again at most, so that the files stay below about twice the newest states' size.
        """
        clients = sorted(self._unsaved.keys() | self._in_outdated_segments())
        if clients:
            size = sum(self._sizes[client] for client in clients)
            segment = Segment(self.folder / name, {c: self[c] for c in clients}, size=size)
            with self._lock:
                self._segments |= dict.fromkeys(clients, segment)
                self._unsaved = {}

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
