"""The updates of a round: m flat vectors, never stacked.

Most server rules need two things of them (docs/GRAM.md): the Gram matrix ``K = G^T G``, one
pass in float64, and one weighted sum ``G c``, a second pass. Both run over fixed blocks of
columns with the clients sorted by id, and block sums are added in index order, so neither arrival
order nor the number of threads can change a bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

import numpy as np
import scipy.linalg  # noqa: F401 - brings a BLAS of its own, which the limit below must know
from threadpoolctl import ThreadpoolController

from fedsim.contracts import F64, Array, ClientUpdate, Layout
from fedsim.errors import ContractError

SHARD = 1 << 20
"""Columns per unit of parallel work; partial sums are added in the order of the shards."""
BUFFER = 1 << 17
"""Entries of the float64 buffer that a thread converts a block of all m updates into (1 MiB)."""
COMBINE = 1 << 16
"""Columns of the float64 sum that stays in cache while the m updates are added to it."""

T = TypeVar("T")


@dataclass(frozen=True)
class Cohort:
    """The updates of a round sorted by client id; build it with :meth:`of`."""

    updates: tuple[ClientUpdate, ...]
    layout: Layout
    _grams: dict[tuple[int, int], F64] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, updates: Iterable[ClientUpdate], layout: Layout) -> Cohort:
        """Sorts the updates by client id and checks their length.

        Raises:
            ContractError: no update, an id twice, or a delta that is not (D,).
        """
        ordered = tuple(sorted(updates, key=lambda u: u.client_id))
        if not ordered:
            raise ContractError("a cohort needs at least one update")
        ids = [u.client_id for u in ordered]
        if len(set(ids)) != len(ids):
            raise ContractError(f"a client id occurs twice in the cohort: {ids}")
        for u in ordered:
            if u.delta.shape != (layout.size,):
                raise ContractError(
                    f"client {u.client_id}: delta has shape {u.delta.shape}, "
                    f"the layout has {layout.size} entries"
                )
        return cls(ordered, layout)

    @property
    def rows(self) -> list[Array]:
        """The m deltas, each (D,)."""
        return [u.delta for u in self.updates]

    @property
    def num_samples(self) -> F64:
        """(m,) training samples."""
        return np.array([u.num_samples for u in self.updates], dtype=np.float64)

    def gram(self, where: slice) -> F64:
        """(m, m) inner products over the coordinates ``where``, products and sums in float64.

        Computed once per range: the rule, the conflict ratio and the norms share it.
        """
        key = (where.start, where.stop)
        if key not in self._grams:
            self._grams[key] = gram(self.rows, where)
        return self._grams[key]

    def dots(self, vector: Array, where: slice) -> F64:
        """(m,) inner products with ``vector`` (D,) over ``where``, in float64."""
        return dots(self.rows, vector, where)

    def combine(self, coefficients: F64, where: slice, out: Array) -> None:
        """Writes ``sum_i c_i g_i`` over ``where`` into ``out[where]``, in its precision."""
        combine(self.rows, coefficients, where, out)


def gram(rows: Sequence[Array], where: slice) -> F64:
    """(m, m) float64 Gram matrix of m vectors over the coordinates ``where``."""
    total = _summed(rows, where, lambda block, _: block @ block.T)
    return (total + total.T) / 2


def dots(rows: Sequence[Array], vector: Array, where: slice) -> F64:
    """(m,) float64 inner products of m vectors with one over the coordinates ``where``."""
    total = _summed(rows, where, lambda block, at: block @ vector[at, None].astype(np.float64))
    return total[:, 0]


def _summed(rows: Sequence[Array], where: slice, product: Callable[[F64, slice], F64]) -> F64:
    """The sum of the products of blocks (m, width) of float64, in the order of the blocks."""
    m = len(rows)
    width = max(1024, BUFFER // m)

    def partial(bounds: tuple[int, int]) -> F64:
        total: F64 = np.zeros((m, 1))
        buffer = np.empty((m, width))
        for start in range(bounds[0], bounds[1], width):
            at = slice(start, min(start + width, bounds[1]))
            block = buffer[:, : at.stop - at.start]
            for row, vector in zip(block, rows, strict=True):
                row[:] = vector[at]
            total = total + product(block, at)
        return total

    with single_threaded_blas():
        return sum(_in_order(partial, _shards(where)), np.zeros((m, 1)))


def combine(rows: Sequence[Array], coefficients: F64, where: slice, out: Array) -> None:
    """Writes ``sum_i c_i rows_i`` over ``where`` into ``out[where]``.

    Summed in float64 in the order of the rows and rounded once: coefficients may be large and
    cancel (``fedgh_released``).
    """
    c = np.asarray(coefficients, dtype=np.float64)

    def part(bounds: tuple[int, int]) -> None:
        buffers = np.empty((2, COMBINE))
        for start in range(bounds[0], bounds[1], COMBINE):
            stop = min(start + COMBINE, bounds[1])
            total, product = buffers[:, : stop - start]
            total[:] = 0.0
            for vector, weight in zip(rows, c, strict=True):
                np.multiply(vector[start:stop], weight, out=product, dtype=np.float64)
                total += product
            out[start:stop] = total

    for _ in _in_order(part, _shards(where)):
        pass


def _shards(where: slice) -> list[tuple[int, int]]:
    return [(a, min(a + SHARD, where.stop)) for a in range(where.start, where.stop, SHARD)]


def _in_order(work: Callable[[tuple[int, int]], T], shards: list[tuple[int, int]]) -> Iterable[T]:
    """The results in the order of the shards; several shards run on all cores."""
    return map(work, shards) if len(shards) < 2 else _pool().map(work, shards)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="fedsim-cohort")


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def single_threaded_blas() -> AbstractContextManager[object]:
    """Keeps BLAS and LAPACK at one thread, whose number would otherwise change the last bits."""
    return _blas().limit(limits=1, user_api="blas")
