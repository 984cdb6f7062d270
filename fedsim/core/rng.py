"""Every random number of a run is derived from (seed, stream, key); nothing is global.

A stream names a purpose ("cohort", "client", "partition", ...), a key the round and the client.
Two streams are independent, and what one of them draws never shifts what another one draws, so
the number of actors, retries and the order of completion cannot change a run.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
"""A process has one global generator of torch: the thread that seeds it has it until it is done."""


@contextmanager
def torch_scope(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Runs torch code that knows only the global generator (initialisers, dropout, transforms).

    The global generators of the CPU and of ``device`` are seeded inside and restored afterwards;
    :func:`seed_torch` may seed them anew inside. Threads of a process take turns: a scope waits for
    the end of another thread's, so that neither changes what the other one draws.
    """
    generators = _global_generators(device)
    with _TURN:
        before = [g.get_state() for g in generators]
        try:
            seed_torch(seed, device)
            yield
        finally:
            for g, state in zip(generators, before, strict=True):
                g.set_state(state)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """One thread for torch inside, as the number of threads can change the last bits of a result.

    Sums of matrix products and of QR decompositions (``orthogonal_``) are split among the threads.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seed_torch(seed: int, device: torch.device | None = None) -> None:
    """Seeds the global generators of the CPU and of ``device``, for use in :func:`torch_scope`.

    ``torch.random.manual_seed`` also seeds devices that nobody uses, and formats a stack trace for
    those that are not initialised: that takes longer than a small client's training.
    """
    for g in _global_generators(device):
        g.manual_seed(seed)


class TorchStreams:
    """The draws of several clients from torch's global generators, for clients that take turns.

    Args:
        seed: that of a client by its number, as :func:`seed_torch` takes it.
        device: that of the generators beside the CPU's.
    """

    def __init__(self, seed: Callable[[int], int], device: torch.device | None = None) -> None:
        self._seed = seed
        self._generators = _global_generators(device)
        self._states: dict[int, list[torch.Tensor]] = {}

    @contextmanager
    def of(self, i: int) -> Iterator[None]:
        """Draws inside continue those of client ``i``."""
        if i in self._states:
            for g, state in zip(self._generators, self._states[i], strict=True):
                g.set_state(state)
        else:
            for g in self._generators:
                g.manual_seed(self._seed(i))
        yield
        self._states[i] = [g.get_state() for g in self._generators]


def _global_generators(device: torch.device | None) -> list[torch.Generator]:
    import torch

    if device is None or device.type != "cuda":
        return [torch.default_generator]
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]
