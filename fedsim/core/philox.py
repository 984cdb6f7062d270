"""Random numbers from a counter: Philox4x64-10 (Salmon, Moraes, Dror, Shaw, SC 2011; Random123).

A number is a function of a key (a client) and a counter (element, call, step): the same whatever
else is drawn beside it, on CPU and GPU, and in a CUDA graph, which reads keys and step in place.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WORDS = 1 << 32
"""A word is one of so many numbers; a counter gives eight."""


def words(key: int, step: int, call: int, n: int) -> NDArray[np.uint32]:
    """(n,) the words of the elements 0 to n - 1, on the CPU.

    Elements 8 i to 8 i + 7 are the 64-bit numbers of the counter (i + 1, call, step, 0) and the key
    (key, 0), each with its lower half first; NumPy raises a counter before it draws.
    """
    counter = np.array([0, call, step, 0], dtype=np.uint64)
    generator = np.random.Philox(key=np.array([key, 0], dtype=np.uint64), counter=counter)
    numbers = generator.random_raw(-(-n // 2))
    return np.asarray(numbers).astype("<u8", copy=False).view("<u4")[:n]


def below(keys: Tensor, step: Tensor, call: int, n: int, bound: int) -> Tensor:
    """(A, n) whether the words of n elements of A clients are below a bound.

    Args:
        keys: (A,) int64, not negative, one per client.
        step: () int64, on the same device.
        call: number of the draw within the step.
        n: number of elements of a client.
        bound: 0 to 2**32.
    """
    kernel = _kernel() if keys.device.type == "cuda" else None
    if kernel is not None:
        return kernel(keys, step, call, n, bound)
    out, now = np.empty((len(keys), n), dtype=bool), int(step)
    for row, key in zip(out, keys.tolist(), strict=True):
        np.less(words(key, now, call, n), bound, out=row)
    return torch.from_numpy(out).to(keys.device)


@functools.cache
def _kernel() -> Callable[[Tensor, Tensor, int, int, int], Tensor] | None:
    """:func:`below` as one kernel of Triton; None where that, or its C compiler, is missing."""
    try:
        from fedsim.core.philox_kernel import below as kernel

        zeros = torch.zeros(1, dtype=torch.int64, device="cuda")
        kernel(zeros, zeros[0], 0, 1, 0)  # is compiled now, not while a step is recorded
    except (ImportError, RuntimeError, OSError, subprocess.SubprocessError):
        return None
    return kernel
