"""Files with the states of several clients, each written once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedsim import tensorfile
from fedsim.contracts import Array, Vectors
from fedsim.tensorfile import Place


@dataclass
class Segment:
    """A file with the states of several clients.

    Args:
        path: of the file.
        states: what is still to be written.
        size: bytes of all states in it.
        live: the clients whose newest saved state it holds.
        live_size: bytes of their states.
        places: where each client's arrays lie, once written.
        sha256: of the file, once written.
    """

    path: Path
    states: dict[int, Vectors] = field(default_factory=dict)
    size: int = 0
    live: set[int] = field(default_factory=set)
    live_size: int = 0
    places: dict[int, dict[str, Place]] = field(default_factory=dict)
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
        digest, places = tensorfile.write(self.path, named)
        self.places = by_client(places)  # before the states go: a state is always in one of both
        self.states = {}
        self.sha256 = digest

    def read(self, client: int) -> Vectors:
        """The state of a client; one thread may read while another writes.

        Raises:
            StoreError: the file cannot be read.
        """
        waiting = self.states.get(client)
        return tensorfile.read(self.path, self.places[client]) if waiting is None else waiting


def by_client(places: Mapping[str, Place]) -> dict[int, dict[str, Place]]:
    """Sorts names such as ``12/personal`` by client."""
    found: dict[int, dict[str, Place]] = {}
    for name, place in places.items():
        client, _, key = name.partition("/")
        found.setdefault(int(client), {})[key] = place
    return found


def size_of(own: Mapping[str, Array | Place]) -> int:
    """Bytes of a state, in memory or in a file."""
    return sum(array.nbytes for array in own.values())
