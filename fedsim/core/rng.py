"""Every random number of a run is derived from (seed, stream, key); nothing is global.

A stream names a purpose ("cohort", "client", "partition", ...), a key the round and the client.
Two streams are independent, and what one of them draws never shifts what another one draws, so
the number of actors, retries and the order of completion cannot change a run.
"""

from __future__ import annotations

import hashlib
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch  # a second to import, which the help of the command line does without


def seed_for(seed: int, stream: str, *key: int) -> int:
    """A 63-bit seed that is a hash of the arguments, the same on every machine and version."""
    text = ":".join((str(seed), stream, *map(str, key)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, stream: str, *key: int) -> np.random.Generator:
    """A NumPy generator of its own for (seed, stream, key)."""
    return np.random.Generator(np.random.PCG64(seed_for(seed, stream, *key)))


def torch_generator(seed: int, stream: str, *key: int) -> torch.Generator:
    """A CPU torch generator of its own for (seed, stream, key)."""
    import torch

    return torch.Generator().manual_seed(seed_for(seed, stream, *key))


_TURN = threading.RLock()
"""A process has one global generator of a kind: the thread that seeds it has it until the end."""


@contextmanager
def torch_scope(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Runs code that knows only global generators (initialisers, dropout, a user's model).

    Those of torch for the CPU and ``device``, of NumPy and of Python are seeded inside and restored
    afterwards. Threads of a process take turns.
    """
    with _TURN:
        restore = remembered(device)
        try:
            seed_torch(seed, device)
            yield
        finally:
            restore()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """One thread for torch inside: the last bits of sums depend on their number."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seed_torch(seed: int, device: torch.device | None = None) -> None:
    """Seeds all global generators in :func:`torch_scope`, those of torch for ``device`` too."""
    for g in _global_generators(device):
        g.manual_seed(seed)


class TorchStreams:
    """The draws of several clients that take turns from the global generators, those of ``device``
    too; ``seed`` gives that of a client by its number.
    """

    def __init__(self, seed: Callable[[int], int], device: torch.device | None = None) -> None:
        self._seed = seed
        self._generators = _global_generators(device)
        self._states: dict[tuple[int, int], Any] = {}

    @contextmanager
    def of(self, i: int, torch_only: bool = True) -> Iterator[None]:
        """Draws inside continue those of client ``i``; ``torch_only`` saves time."""
        generators = self._generators[: -len(_OTHERS) if torch_only else None]
        for k, g in enumerate(generators):
            if (i, k) in self._states:
                g.set_state(self._states[i, k])
            else:
                g.manual_seed(self._seed(i))
        yield
        for k, g in enumerate(generators):
            self._states[i, k] = g.get_state()


class _OfNumPy:
    """NumPy's global generator with the methods of torch's."""

    def manual_seed(self, seed: int) -> None:
        np.random.seed(seed % 2**32)  # noqa: NPY002, TID251 - here alone

    def get_state(self) -> Any:
        return np.random.get_state()  # noqa: NPY002

    def set_state(self, state: Any) -> None:
        np.random.set_state(state)  # noqa: NPY002


class _OfPython:
    """Python's global generator with the methods of torch's."""

    def manual_seed(self, seed: int) -> None:
        random.seed(seed)

    def get_state(self) -> Any:
        return random.getstate()

    def set_state(self, state: Any) -> None:
        random.setstate(state)


_OTHERS = (_OfNumPy(), _OfPython())


def remembered(device: torch.device | None = None) -> Callable[[], None]:
    """Remembers where the global generators are; the result puts them back there."""
    generators = _global_generators(device)
    states = [g.get_state() for g in generators]

    def restore() -> None:
        for g, state in zip(generators, states, strict=True):
            g.set_state(state)

    return restore


def draws() -> bytes:
    """Where the global generators of NumPy and Python are: changes with every draw from them."""
    return pickle.dumps([g.get_state() for g in _OTHERS])


def _global_generators(device: torch.device | None) -> list[Any]:
    """Those of torch, then :data:`_OTHERS`."""
    import torch

    if device is None or device.type != "cuda":
        return [torch.default_generator, *_OTHERS]
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index], *_OTHERS]
