"""Every random number of a run is derived from (seed, stream, key); nothing is global.

A stream names a purpose ("cohort", "client", "partition", ...), a key the round and the client.
Two streams are independent, and what one of them draws never shifts what another one draws, so
the number of actors, retries and the order of completion cannot change a run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


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
    return torch.Generator().manual_seed(seed_for(seed, stream, *key))


@contextmanager
def torch_scope(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Runs torch code that knows only the global generator (initialisers, dropout, transforms).

    The global generators of the CPU and of ``device`` are seeded inside and restored afterwards.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.random.manual_seed(seed)
        yield
