"""Inner products and weighted sums of m long vectors, at the speed of memory.

Vectors are never stacked. They are cut into pieces at fixed columns; threads take pieces, convert
blocks of them to float64 in a buffer that stays in a core's cache, and multiply there. Products and
sums are float64, and what the pieces give is added in their order, so that neither the number of
threads nor where a piece is computed can change a bit (docs/GRAM.md).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, reduce
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import scipy.linalg  # noqa: F401 - brings a BLAS of its own, which the limit below must know
from threadpoolctl import ThreadpoolController

from fedsim.core.types import F64, Array

SHARD = 1 << 18
"""Pieces end at multiples of so many columns; a piece is the unit of parallel work."""
BUFFER = 1 << 17
"""Entries of a block at most (1 MiB, half a second-level cache), unless ``NARROW`` says more."""
NARROW = 4096
"""Columns of a block at least: shorter copies cost more in calls than in bytes."""
FEW = 10
"""Rows that a weighted sum converts at a time at most, so that blocks stay wide."""
TILE = 20
"""Rows of a factor at most: OpenBLAS multiplies small matrices without repacking them."""
SPAN = 5 << 10
"""Entries of a factor at most (40 KiB, the fastest cache)."""
WIDE = 2048
"""Columns that are summed up at a time."""
LINE = 8
"""Float64 numbers in a line of cache: loads across lines cost products up to half their speed, and
rows a power of two apart would share the same few places of the cache."""

T = TypeVar("T")


class Piece(NamedTuple):
    """Columns ``start`` to ``stop`` of the range number ``of``; within one shard."""

    of: int
    start: int
    stop: int


class Columns(Protocol):
    """The updates of a cohort, in this process or distributed over nodes."""

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Their precision."""

    @property
    def rows(self) -> tuple[Array, ...]:
        """The m vectors (D,).

        Raises:
            ContractError: they are distributed over nodes.
        """

    def products(self, ranges: Sequence[slice], vector: Array | None = None) -> list[F64]:
        """For each range (m, m + 1): inner products of the updates, and with ``vector`` (D,).

        Only columns from the diagonal on are meant; without a vector the last one is 0.
        """

    def combine(self, weights: Sequence[F64], ranges: Sequence[slice], out: Array) -> None:
        """Writes ``sum_i c_i g_i`` into ``out`` (D,) over each range, c its weights (m,).

        The ranges are disjoint.
        """


@dataclass(frozen=True)
class LocalColumns:
    """Updates in this process: m vectors (D,)."""

    rows: tuple[Array, ...]

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision of the updates."""
        return self.rows[0].dtype

    def products(self, ranges: Sequence[slice], vector: Array | None = None) -> list[F64]:
        """See :meth:`Columns.products`."""
        pieces = cut(ranges)
        partials = partial_products(self.rows, pieces, vector)
        return summed(pieces, partials, len(ranges), len(self.rows))

    def combine(self, weights: Sequence[F64], ranges: Sequence[slice], out: Array) -> None:
        """See :meth:`Columns.combine`."""
        combine_pieces(self.rows, cut(ranges), weights, out)


@dataclass(frozen=True)
class ScaledColumns:
    """Updates, each multiplied by its number of the ``factors`` (m,)."""

    columns: Columns
    factors: F64

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision of the updates."""
        return self.columns.dtype

    @property
    def rows(self) -> tuple[Array, ...]:
        """See :meth:`Columns.rows`; made anew each time."""
        pairs = zip(self.factors.tolist(), self.columns.rows, strict=True)
        return tuple(factor * row for factor, row in pairs)

    def products(self, ranges: Sequence[slice], vector: Array | None = None) -> list[F64]:
        """See :meth:`Columns.products`."""
        scale = np.outer(self.factors, [*self.factors, 1.0])
        return [scale * found for found in self.columns.products(ranges, vector)]

    def combine(self, weights: Sequence[F64], ranges: Sequence[slice], out: Array) -> None:
        """See :meth:`Columns.combine`."""
        self.columns.combine([c * self.factors for c in weights], ranges, out)


def cut(ranges: Sequence[slice]) -> list[Piece]:
    """The pieces of the ranges, range by range, cut at multiples of ``SHARD``."""
    return [
        Piece(of, max(where.start, edge), min(where.stop, edge + SHARD))
        for of, where in enumerate(ranges)
        for edge in range(where.start // SHARD * SHARD, where.stop, SHARD)
        if where.start < where.stop
    ]


def summed(pieces: Sequence[Piece], partials: Sequence[F64], ranges: int, m: int) -> list[F64]:
    """(m, m + 1) for each range: its partial products, added in the order of the columns."""
    totals = [np.zeros((m, m + 1)) for _ in range(ranges)]
    for piece, partial in zip(pieces, partials, strict=True):
        totals[piece.of] += partial
    return totals


def partial_products(
    rows: Sequence[Array], pieces: Sequence[Piece], vector: Array | None = None
) -> list[F64]:
    """(m, m + 1) for each piece, see :meth:`Columns.products`."""
    m = len(rows)
    tile = _even(m, TILE)
    span = _power(SPAN // tile)
    loaded = [*rows] if vector is None else [*rows, vector]

    def work(piece: Piece, buffer: F64) -> F64:
        total, part = np.zeros((m, m + 1)), np.zeros((m, m + 1))
        buffer[m] = 0.0
        for start, stop in _blocks(piece, m):
            factors = _factors(_load(loaded, start, stop, buffer), stop - start, span)
            for i in range(0, m, tile):
                left = factors[:, i : min(i + tile, m)]
                for j in range(i, m, tile):
                    # One row more than the tile has: the vector beside the last tile; and numpy
                    # would hand A @ A.T to dsyrk, which repacks.
                    end = min(j + tile, m) + 1
                    each = left @ factors[:, j:end].transpose(0, 2, 1)
                    part[i : i + tile, j:end] = each.sum(axis=0)
            total += part
        return total

    with single_threaded_blas():
        return _each(work, pieces, m, span)


def combine_pieces(
    rows: Sequence[Array], pieces: Sequence[Piece], weights: Sequence[F64], out: Array
) -> None:
    """Writes ``sum_i c_i rows_i`` into ``out`` over each piece, c the weights of its range.

    Summed in float64 and rounded once: coefficients may be large and cancel (``fedgh_released``).
    """
    few = _even(len(rows), FEW)

    def work(piece: Piece, buffer: F64) -> None:
        c = weights[piece.of]
        for start, stop in _blocks(piece, few):
            sums = []
            for i in range(0, len(rows), few):
                some = rows[i : i + few]
                factors = _factors(_load(some, start, stop, buffer), stop - start, WIDE)
                sums.append(c[i : i + few] @ factors[:, : len(some)])
            out[start:stop] = reduce(np.add, sums).ravel()[: stop - start]

    with single_threaded_blas():
        _each(work, pieces, few, WIDE)


def _even(m: int, most: int) -> int:
    """Rows of a part when m rows are cut into parts of nearly equal size, none above ``most``."""
    return -(-m // -(-m // most))


def _power(n: int) -> int:
    """The largest power of two up to n."""
    return 1 << (n.bit_length() - 1)


def _width(m: int) -> int:
    """Columns of a block of m rows, a power of two as spans are, so that factors fill it."""
    return _power(max(NARROW, BUFFER // m))


def _blocks(piece: Piece, m: int) -> Iterator[tuple[int, int]]:
    for start in range(piece.start, piece.stop, _width(m)):
        yield start, min(start + _width(m), piece.stop)


def _load(rows: Sequence[Array], start: int, stop: int, buffer: F64) -> F64:
    """The buffer with columns ``start`` to ``stop`` of the rows."""
    for line, row in zip(buffer, rows, strict=False):
        line[: stop - start] = row[start:stop]
    return buffer


def _factors(buffer: F64, width: int, span: int) -> F64:
    """The block as (n, rows, at most span) views; columns that fill up the last one are 0."""
    n = -(-width // span)
    each = -(-width // (n * LINE)) * LINE
    buffer[:, width : n * each] = 0.0
    return buffer[:, : n * each].reshape(len(buffer), n, each).transpose(1, 0, 2)


def _each(work: Callable[[Piece, F64], T], pieces: Sequence[Piece], m: int, span: int) -> list[T]:
    """The results for all pieces, in order; every thread has a buffer for m + 1 rows of its own."""
    widest = min(_width(m), max((p.stop - p.start for p in pieces), default=0))
    lines = -(-widest // span) * span // LINE | 1
    waiting = iter(list(enumerate(pieces)))
    results: dict[int, T] = {}

    def drain() -> None:
        buffer = _aligned(m + 1, LINE * lines)
        for number, piece in waiting:
            results[number] = work(piece, buffer)

    if len(pieces) < 2:
        drain()
    else:
        for done in [_pool().submit(drain) for _ in range(min(_cores(), len(pieces)))]:
            done.result()
    return [results[number] for number in range(len(pieces))]


def _aligned(rows: int, columns: int) -> F64:
    """An empty matrix that starts at a line of cache, which numpy's own need not."""
    entries = np.empty(rows * columns + LINE)
    start = -entries.ctypes.data // entries.itemsize % LINE
    return entries[start : start + rows * columns].reshape(rows, columns)


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_cores(), thread_name_prefix="fedsim-columns")


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def single_threaded_blas() -> AbstractContextManager[object]:
    """Keeps BLAS and LAPACK at one thread, whose number would otherwise change the last bits."""
    return _blas().limit(limits=1, user_api="blas")
