"""Random numbers from a counter: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011; Random123).

A word is a function of a key (a client) and a counter (element, call, step): the same whatever else
is drawn beside it, on CPU and GPU, and in a CUDA graph, which reads keys and step where they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

WORD = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
NUMBERS = *MULTIPLIERS, 32, WORD
ARRAYS = tuple(map(np.array, NUMBERS))
"""The same as arrays, with which NumPy is faster."""
INCREMENTS = 0x9E3779B9, 0xBB67AE85
ROUNDS = np.arange(10)[:, None, None] * np.array(INCREMENTS)[:, None]
"""(10, 2, 1) what is added to a key in each round."""
CHUNK = 8192
"""Counters at a time on the CPU, whose intermediate results stay in its cache."""


def words(counter: tuple[Any, Any, Any, Any], keys: Any, numbers: Any = NUMBERS) -> tuple[Any, ...]:
    """The four words of a counter.

    Args:
        counter: four int64 arrays of NumPy or of torch that broadcast, or numbers, of values below
            2**32; products wrap.
        keys: the two words of the key in each round, see :func:`schedule`.
        numbers: :data:`NUMBERS`, or :data:`ARRAYS`.
    """
    (c0, c1, c2, c3), (m0, m1, half, word) = counter, numbers
    for k0, k1 in keys:
        p0, p1 = c0 * m0, c2 * m1
        c0, c1 = (p1 >> half ^ c1 ^ k0) & word, p1
        c2, c3 = (p0 >> half ^ c3 ^ k1) & word, p0
    return c0, c1 & word, c2, c3 & word


def schedule(keys: Any, rounds: Any) -> Any:
    """(10, 2, A, 1) the words of A keys (A, 2) in each round; ``rounds`` are :data:`ROUNDS`."""
    return (keys.T + rounds & WORD)[..., None]


def below(keys: Tensor, step: Tensor, call: int, n: int, bound: int) -> Tensor:
    """(A, n) whether the words of n elements of A clients are below a bound.

    Element e has word e % 4 of the counter (e // 4, call, step, 0).

    Args:
        keys: (A, 2) int64 32-bit words, one key per client.
        step: () int64, on the same device.
        call: number of the draw within the step.
        n: below 2**34.
        bound: 0 to 2**32.
    """
    if keys.device.type == "cpu":
        return torch.from_numpy(_in_numpy(keys.numpy(), step.numpy(), call, n, bound))
    kernel = _kernel() if keys.device.type == "cuda" else None
    return (kernel or in_torch)(keys, step, call, n, bound)


def in_torch(keys: Tensor, step: Tensor, call: int, n: int, bound: int) -> Tensor:
    """:func:`below` in operations of torch, which any device has."""
    elements = torch.arange(-(-n // 4), device=keys.device)[None]
    rounds = torch.from_numpy(ROUNDS).to(keys.device)
    four = words((elements, call, step.view(1, 1), 0), schedule(keys, rounds))
    return (torch.stack(four, dim=-1) < bound).flatten(1)[:, :n]


def _in_numpy(keys: Any, step: Any, call: int, n: int, bound: int) -> Any:
    """:func:`below` on the CPU, where an operation of NumPy has a third of torch's overhead."""
    clients, counters = len(keys), -(-n // 4)
    out, at_once = np.empty((clients, counters, 4), dtype=bool), max(CHUNK // clients, 1)
    step, keys = step.reshape(1, 1), schedule(keys, ROUNDS)
    for start in range(0, counters, at_once):
        here = out[:, start : start + at_once]
        elements = np.arange(start, start + here.shape[1], dtype=np.int64)[None]
        for j, word in enumerate(words((elements, call, step, 0), keys, ARRAYS)):
            np.less(word, bound, out=here[:, :, j])
    return out.reshape(clients, -1)[:, :n]


@functools.cache
def _kernel() -> Callable[[Tensor, Tensor, int, int, int], Tensor] | None:
    """:func:`below` as one kernel of Triton; None where that is missing."""
    try:
        from fedsim.core.philox_kernel import below as kernel
    except ImportError:
        return None
    return kernel
