"""The updates of a cohort, local or distributed: inner products and sums over column ranges."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedsim.core.types import F64, Array
from fedsim.server.linalg import (
    ByColumn,
    combine_pieces,
    cut,
    map_pieces,
    partial_products,
    partial_squares,
    single_threaded_blas,
    summed,
)


class Columns(Protocol):
    """The updates of a cohort, in this process or distributed over nodes."""

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision of the updates."""

    @property
    def rows(self) -> tuple[Array, ...]:
        """The m vectors (D,)."""

    def products(self, ranges: Sequence[slice], vector: Array | None = None) -> list[F64]:
        """For each range (m, m + 1): inner products of the updates, and with ``vector`` (D,).

        Entries below the diagonal are undefined; without a vector the last column is 0.
        """

    def squares(self, where: slice) -> F64:
        """(m,) squared 2-norms over the coordinates ``where``."""

    def combine(self, weights: Sequence[F64], ranges: Sequence[slice], out: Array) -> None:
        """Writes ``sum_i c_i g_i`` into ``out`` (D,) over each range, c its weights (m,).

        The ranges are disjoint.
        """

    def map(self, rule: ByColumn, where: slice, out: Array) -> None:
        """Writes what a rule makes of each column of ``where`` into ``out`` (D,).

        The columns (m, width) are float64, and come in blocks that depend on nothing but m and D.
        """


@dataclass(frozen=True)
class LocalColumns:
    """Updates in this process: m vectors (D,)."""

    rows: tuple[Array, ...]

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision of the updates; that of models where there are none."""
        return self.rows[0].dtype if self.rows else np.dtype(np.float32)

    def products(self, ranges: Sequence[slice], vector: Array | None = None) -> list[F64]:
        pieces = cut(ranges)
        partials = partial_products(self.rows, pieces, vector)
        return summed(pieces, partials, len(ranges), len(self.rows))

    def squares(self, where: slice) -> F64:
        return sum(partial_squares(self.rows, cut([where])), start=np.zeros(len(self.rows)))

    def combine(self, weights: Sequence[F64], ranges: Sequence[slice], out: Array) -> None:
        combine_pieces(self.rows, cut(ranges), weights, out)

    def map(self, rule: ByColumn, where: slice, out: Array) -> None:
        map_pieces(self.rows, cut([where]), rule, out)


@dataclass(frozen=True)
class WrappedColumns:
    """Updates made of others, of the same precision; ``rows`` are computed at each access."""

    columns: Columns

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision of the updates."""
        return self.columns.dtype


@dataclass(frozen=True)
class ScaledColumns(WrappedColumns):
    """Updates, each multiplied by its own of the ``factors`` (m,)."""

    factors: F64

    @property
    def rows(self) -> tuple[Array, ...]:
        pairs = zip(self.factors.tolist(), self.columns.rows, strict=True)
        return tuple(factor * row for factor, row in pairs)

    def products(self, ranges: Sequence[slice], vector: Array | None = None) -> list[F64]:
        scale = np.outer(self.factors, [*self.factors, 1.0])
        return [scale * products for products in self.columns.products(ranges, vector)]

    def squares(self, where: slice) -> F64:
        return self.factors**2 * self.columns.squares(where)

    def combine(self, weights: Sequence[F64], ranges: Sequence[slice], out: Array) -> None:
        self.columns.combine([c * self.factors for c in weights], ranges, out)

    def map(self, rule: ByColumn, where: slice, out: Array) -> None:
        factors = self.factors[:, None]
        self.columns.map(lambda x: rule(factors * x), where, out)


@dataclass(frozen=True)
class MixedColumns(WrappedColumns):
    """Updates whose first ``params`` coordinates are linear combinations of those of ``columns``.

    There update i is ``sum_j mix[i, j] g_j``, with ``mix`` (k, m). The rest is its own, for k = m;
    otherwise there must be none.
    """

    mix: F64
    params: int

    @property
    def rows(self) -> tuple[Array, ...]:
        rows, identity = self.columns.rows, np.eye(*self.mix.shape)
        return tuple(
            rows[i] if np.array_equal(c, identity[i]) else self._row(c, rows[min(i, len(rows) - 1)])
            for i, c in enumerate(self.mix)
        )

    def _row(self, coefficients: F64, row: Array) -> Array:
        mixed = row.copy()
        self.columns.combine([coefficients], [slice(0, self.params)], mixed)
        return mixed

    def products(self, ranges: Sequence[slice], vector: Array | None = None) -> list[F64]:
        parts = [part for where in ranges for part in self._parts(where)]
        products = iter(self.columns.products(parts, vector))
        totals = []
        for _, rest in map(self._parts, ranges):
            mixed, unmixed = next(products), next(products)
            with single_threaded_blas():
                both = self.mix @ symmetric(mixed) @ self.mix.T, self.mix @ mixed[:, -1:]
            totals.append(np.hstack(both) + (unmixed if rest.start < rest.stop else 0.0))
        return totals

    def squares(self, where: slice) -> F64:
        return self.products([where])[0].diagonal()

    def combine(self, weights: Sequence[F64], ranges: Sequence[slice], out: Array) -> None:
        with single_threaded_blas():
            both = [c for coefficients in weights for c in (coefficients @ self.mix, coefficients)]
        parts = [part for where in ranges for part in self._parts(where)]
        kept = [(c, part) for c, part in zip(both, parts, strict=True) if part.start < part.stop]
        self.columns.combine([c for c, _ in kept], [part for _, part in kept], out)

    def map(self, rule: ByColumn, where: slice, out: Array) -> None:
        mix = self.mix
        mixed, rest = self._parts(where)
        self.columns.map(lambda x: rule(mix @ x), mixed, out)
        self.columns.map(rule, rest, out)

    def _parts(self, where: slice) -> tuple[slice, slice]:
        """What of a range is mixed, and the rest; either may be empty."""
        edge = min(max(where.start, self.params), where.stop)
        return slice(where.start, edge), slice(edge, where.stop)


def symmetric(products: F64) -> F64:
    """The Gram matrix (m, m) in what :meth:`Columns.products` gives for a range."""
    return mirrored(products[:, :-1])


def mirrored(products: F64) -> F64:
    """(m, m) with the upper triangle in place of the lower, which rounding makes another."""
    upper = np.triu(products)
    return upper + np.triu(upper, 1).T
