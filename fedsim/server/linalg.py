"""Inner products and weighted sums of m long vectors, at memory bandwidth.

Vectors are never stacked. They are cut into pieces at fixed columns. Each thread converts blocks of
a piece to float64 in a buffer of its own and multiplies there. Products and sums are float64, and
the results of the pieces are added in order, so that neither the number of threads nor the node
that computes a piece changes a bit (docs/GRAM.md).
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from fedsim.core.machine import cores
from fedsim.core.types import F64, Array

SHARD = 1 << 17
"""Columns of a shard: pieces end at its multiples. A piece is the unit of parallel work."""
BLOCK, NARROW = 1 << 18, 1 << 13
"""Entries of a block (2 MiB), and its fewest columns, since each row costs a Python call."""
TILE, SPAN = 25, 512
"""Most rows and columns of a factor: OpenBLAS multiplies small matrices without repacking."""

ENTRIES = 1 << 19
"""Values at a time (4 MiB) that a rule by column sees."""

T = TypeVar("T")
ByColumn = Callable[[F64], F64]
"""(width,) from columns (m, width) of all updates; each value from its own column alone."""


@cache
def pool() -> ThreadPoolExecutor:
    """A thread per core, for work that releases the GIL."""
    return ThreadPoolExecutor(cores(), thread_name_prefix="fedsim-columns")


@cache
def _blas(scipy: bool) -> ThreadpoolController:
    """The BLAS libraries of this process. SciPy has its own, and only some methods import it."""
    return ThreadpoolController()


def single_threaded_blas() -> AbstractContextManager[object]:
    """Keeps BLAS and LAPACK at one thread, whose number would otherwise change the last bits."""
    return _blas("scipy.linalg" in sys.modules).limit(limits=1, user_api="blas")


class Piece(NamedTuple):
    """Columns ``start`` to ``stop`` of range number ``of``, within one shard."""

    of: int
    start: int
    stop: int


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
    """(m, m + 1) for each piece, see :meth:`fedsim.server.columns.Columns.products`."""
    m, loaded = len(rows), [*rows] if vector is None else [*rows, vector]
    starts = range(0, m, -(-m // -(-m // TILE)))  # of tiles of nearly equal size

    def work(piece: Piece, buffer: F64) -> F64:
        total, part = np.zeros((m, m + 1)), np.zeros((m, m + 1))
        buffer[m] = 0.0
        for start, stop in _blocks(loaded, piece, buffer):
            n = -(-(stop - start) // SPAN)
            buffer[:, stop - start : n * SPAN] = 0.0
            factors = buffer[:, : n * SPAN].reshape(m + 1, n, SPAN).transpose(1, 0, 2)
            for i in starts:
                left = factors[:, i : min(i + starts.step, m)]
                for j in starts[i // starts.step :]:
                    # One row more than the tile has: the vector beside the last one; and equal
                    # factors would be given to dsyrk, which repacks them.
                    end = min(j + starts.step, m) + 1
                    each = left @ factors[:, j:end].transpose(0, 2, 1)
                    part[i : i + starts.step, j:end] = each.sum(axis=0)
            total += part
        return total

    return _each(work, pieces, m)


def partial_squares(rows: Sequence[Array], pieces: Sequence[Piece]) -> list[F64]:
    """(m,) for each piece: the rows' sums of squares."""

    def work(piece: Piece, buffer: F64) -> F64:
        squares = np.zeros(len(rows))
        for i, row in enumerate(rows):
            for start, stop in _blocks([row], piece, buffer):
                block = buffer[0, : stop - start]
                squares[i] += block @ block
        return squares

    return _each(work, pieces, 8)


def combine_pieces(
    rows: Sequence[Array], pieces: Sequence[Piece], weights: Sequence[F64], out: Array
) -> None:
    """Writes ``sum_i c_i rows_i`` into ``out`` over each piece, c the weights of its range.

    Summed in float64 and rounded once: coefficients may be large and cancel (``fedgh_released``).
    """

    def work(piece: Piece, buffer: F64) -> None:
        for start, stop in _blocks(rows, piece, buffer):
            out[start:stop] = weights[piece.of] @ buffer[:-1, : stop - start]

    _each(work, pieces, len(rows))


def map_pieces(rows: Sequence[Array], pieces: Sequence[Piece], rule: ByColumn, out: Array) -> None:
    """Writes ``rule(x)`` into ``out`` over each piece, x (m, width) some columns of the rows."""
    width = max(1, ENTRIES // len(rows))
    with single_threaded_blas():
        for piece in pieces:
            for start in range(piece.start, piece.stop, width):
                stop = min(start + width, piece.stop)
                out[start:stop] = rule(np.stack([r[start:stop] for r in rows], dtype=np.float64))


def _blocks(rows: Sequence[Array], piece: Piece, buffer: F64) -> Iterator[tuple[int, int]]:
    """Copies the rows block by block to the buffer; start and stop of each block."""
    width = buffer.shape[1]
    for start in range(piece.start, piece.stop, width):
        stop = min(start + width, piece.stop)
        for line, row in zip(buffer, rows, strict=False):
            line[: stop - start] = row[start:stop]
        yield start, stop


def _each(work: Callable[[Piece, F64], T], pieces: Sequence[Piece], m: int) -> list[T]:
    """The results of ``work`` for all pieces, in order; each thread has a buffer of m + 1 rows."""
    longest = max((piece.stop - piece.start for piece in pieces), default=0)
    width = min(max(NARROW, BLOCK // max(m, 1)), longest + SPAN - 1) // SPAN * SPAN
    waiting = iter(list(enumerate(pieces)))
    results: dict[int, T] = {}

    def drain() -> None:
        # Rows a power of two apart would share the same few cache sets.
        buffer = np.empty((m + 1, width + 8))[:, :width]
        for number, piece in waiting:
            results[number] = work(piece, buffer)

    with single_threaded_blas():
        others = [pool().submit(drain) for _ in range(min(cores(), len(pieces)) - 1)]
        drain()
        for other in others:
            other.result()
    return [results[number] for number in range(len(pieces))]
