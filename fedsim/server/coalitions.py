"""The step of a server rule for some of a round's clients alone, from the same updates.

Nothing is trained again: the rule is applied to fewer updates, with the state from before the
round. The updates are multiplied with each other once, for all coalitions; a rule in their span
then gives coefficients c for each, and with the Gram matrix K = G^T G

    <step(S), step(T)> = c_S^T K c_T,    ||step(S) - step(T)||^2 = (c_S - c_T)^T K (c_S - c_T)

without a look at the vectors. Other steps are computed as vectors: those of a rule that sees
coordinates or whole updates, that adds a vector of its own (momentum, a center), or that server
optimisers follow. All lengths and products are over the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedsim.core.types import F64, Array, Layout, RoundContext
from fedsim.server.base import RuleState, Server
from fedsim.server.cohort import Cohort
from fedsim.server.columns import Columns, symmetric
from fedsim.server.linalg import ByColumn, single_threaded_blas

Coalition = tuple[int, ...]
"""Places of some updates in a cohort, ascending."""
Ranges = tuple[tuple[int, int], ...]


class OutsideSpanError(Exception):
    """A rule looks at more than inner products of the updates."""


@dataclass(frozen=True)
class Known:
    """Updates whose inner products are computed once for each range, and with each vector."""

    columns: Columns
    _products: dict[tuple[int, int], list[tuple[Array | None, F64]]] = field(default_factory=dict)

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision of the updates."""
        return self.columns.dtype

    @property
    def rows(self) -> tuple[Array, ...]:
        """See :attr:`Columns.rows`."""
        return self.columns.rows

    def products(self, ranges: Sequence[slice], vector: Array | None = None) -> list[F64]:
        """See :meth:`Columns.products`."""
        missing = [where for where in ranges if self._find(where, vector) is None]
        if missing:
            computed = self.columns.products(missing, vector)
            for where, products in zip(missing, computed, strict=True):
                with_vector = None if vector is None else vector[where].copy()
                kept = self._products.setdefault((where.start, where.stop), [])
                kept.append((with_vector, products))
        found = [self._find(where, vector) for where in ranges]
        return [products for products in found if products is not None]

    def _find(self, where: slice, vector: Array | None) -> F64 | None:
        for known, products in self._products.get((where.start, where.stop), []):
            if known is None or vector is None:
                if known is vector:
                    return products
            elif np.array_equal(known, vector[where]):
                return products
        return None

    def squares(self, where: slice) -> F64:
        """See :meth:`Columns.squares`."""
        return self.products([where])[0].diagonal().copy()

    def combine(self, weights: Sequence[F64], ranges: Sequence[slice], out: Array) -> None:
        """See :meth:`Columns.combine`."""
        self.columns.combine(weights, ranges, out)

    def map(self, rule: ByColumn, where: slice, out: Array) -> None:
        """See :meth:`Columns.map`."""
        self.columns.map(rule, where, out)


@dataclass(frozen=True)
class Some:
    """Some of the updates of ``columns``, ``index`` (k,) ascending."""

    columns: Columns
    index: Sequence[int]
    m: int

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision of the updates."""
        return self.columns.dtype

    @property
    def rows(self) -> tuple[Array, ...]:
        """See :attr:`Columns.rows`."""
        every = self.columns.rows
        return tuple(every[i] for i in self.index)

    def products(self, ranges: Sequence[slice], vector: Array | None = None) -> list[F64]:
        """See :meth:`Columns.products`."""
        kept = np.ix_(self.index, [*self.index, self.m])
        return [products[kept] for products in self.columns.products(ranges, vector)]

    def squares(self, where: slice) -> F64:
        """See :meth:`Columns.squares`."""
        return self.columns.squares(where)[list(self.index)]

    def combine(self, weights: Sequence[F64], ranges: Sequence[slice], out: Array) -> None:
        """See :meth:`Columns.combine`."""
        self.columns.combine([self.whole(c) for c in weights], ranges, out)

    def map(self, rule: ByColumn, where: slice, out: Array) -> None:
        """See :meth:`Columns.map`."""
        chosen = list(self.index)
        self.columns.map(lambda x: rule(x[chosen]), where, out)

    def whole(self, weights: F64) -> F64:
        """(m,) the weights (k,) of these updates, 0 for the others."""
        whole = np.zeros(self.m)
        whole[list(self.index)] = weights
        return whole


@dataclass(frozen=True)
class Noted:
    """Updates whose sums are noted down, not computed: a rule's coefficients.

    ``sums`` are ranges, each with the weights (m,) of its sum; the sum itself is left at 0.
    """

    columns: Some
    sums: list[tuple[slice, F64]] = field(default_factory=list)

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision of the updates."""
        return self.columns.dtype

    @property
    def rows(self) -> tuple[Array, ...]:
        """Refuses."""
        raise OutsideSpanError

    def products(self, ranges: Sequence[slice], vector: Array | None = None) -> list[F64]:
        """See :meth:`Columns.products`."""
        return self.columns.products(ranges, vector)

    def squares(self, where: slice) -> F64:
        """See :meth:`Columns.squares`."""
        return self.columns.squares(where)

    def combine(self, weights: Sequence[F64], ranges: Sequence[slice], out: Array) -> None:
        """Notes the weights down."""
        for c, where in zip(weights, ranges, strict=True):
            self.sums.append((where, self.columns.whole(c)))
            out[where] = 0

    def map(self, rule: ByColumn, where: slice, out: Array) -> None:
        """Refuses."""
        raise OutsideSpanError


@dataclass(frozen=True)
class Combination:
    """A step of the parameters as ``sum_i c_i g_i`` over each of some ranges, c (ranges, m)."""

    ranges: Ranges
    coefficients: F64


@dataclass(frozen=True)
class Moved:
    """How a coalition's step stands to that of all clients.

    Args:
        distance: ``||step(S) - step(all)||``.
        cosine: of the two, NaN where one of them is zero.
        along: ``<step(S), step(all)> / ||step(all)||``, the way made in its direction; 0 where it
            is zero.
    """

    distance: float
    cosine: float
    along: float


class Coalitions:
    """The steps of a server for the coalitions of a round's clients.

    What the server answers beside its step is left out. A coalition of nobody makes no step, as a
    round without updates.

    Args:
        server: of the method.
        state: its state before the round.
        cohort: the m updates as the server gets them.
        ctx: of the round.
    """

    def __init__(self, server: Server, state: RuleState, cohort: Cohort, ctx: RoundContext) -> None:
        self.server, self.state, self.ctx = replace(server, exchange=None), state, ctx
        self.cohort = replace(cohort, columns=Known(cohort.columns))
        self.m = len(cohort.updates)
        self.everybody = tuple(range(self.m))
        self._combinations: dict[Coalition, Combination | None] = {}
        self._whole: Array | None = None

    @property
    def layout(self) -> Layout:
        """Of the updates."""
        return self.cohort.layout

    def check(self, smallest: int = 1) -> None:
        """Refuses a rule that needs more updates than ``smallest``, by a ConfigError."""
        self.server.check(smallest)

    def step(self, coalition: Coalition) -> Array:
        """(D,) as :meth:`Server.step` gives it for the coalition's updates."""
        if not coalition:
            return np.zeros(self.layout.size, self.cohort.columns.dtype)
        some = self._some(coalition, Some(self.cohort.columns, coalition, self.m))
        return self.server.step(self.state, some, self.ctx).step

    def combination(self, coalition: Coalition) -> Combination | None:
        """The coefficients of the coalition's step; None where it is none in the span."""
        if coalition not in self._combinations:
            self._combinations[coalition] = self._combination(coalition)
        return self._combinations[coalition]

    @property
    def in_span(self) -> bool:
        """Whether the step of all clients is known by coefficients."""
        return self.combination(self.everybody) is not None

    def moved(self, coalition: Coalition) -> Moved:
        """How the coalition's step stands to that of all clients."""
        own, whole = self.combination(coalition), self.combination(self.everybody)
        if own is None or whole is None or (coalition and own.ranges != whole.ranges):
            return self._apart(coalition)
        grams = self.grams(whole.ranges)
        c = own.coefficients if coalition else np.zeros_like(whole.coefficients)
        w = whole.coefficients
        d = c - w
        return _moved(*(_form(grams, a, b) for a, b in ((d, d), (c, w), (c, c), (w, w))))

    def grams(self, ranges: Ranges) -> list[F64]:
        """The Gram matrix (m, m) of the updates over each range."""
        products = self.cohort.columns.products([slice(*where) for where in ranges])
        return [symmetric(each) for each in products]

    def _some(self, coalition: Coalition, columns: Columns) -> Cohort:
        updates = [self.cohort.updates[i] for i in coalition]
        some = Cohort.of(updates, self.layout, columns, self.cohort.params)
        return replace(some, reference=self.cohort.reference)

    def _combination(self, coalition: Coalition) -> Combination | None:
        if not coalition:
            return Combination((), np.zeros((0, self.m)))
        if self.server.optimizers:
            return None
        noted = Noted(Some(self.cohort.columns, coalition, self.m))
        try:
            with single_threaded_blas():
                some = self._some(coalition, noted)
                reduced, received, _ = self.server.reduced(self.state, some, self.ctx)
        except OutsideSpanError:
            return None
        params = self.layout.num_params
        if np.any(reduced.step[:params]):
            return None  # it added a vector of its own
        sums = sorted(
            ((where.start, min(where.stop, params), c) for where, c in noted.sums),
            key=lambda each: each[:2],
        )
        sums = [each for each in sums if each[0] < each[1]]
        starts, stops = [each[0] for each in sums], [each[1] for each in sums]
        if [*starts, params] != [0, *stops]:
            return None  # not every coordinate is noted once
        ranges = tuple(zip(starts, stops, strict=True))
        return Combination(ranges, received.scale * np.array([each[2] for each in sums]))

    def _apart(self, coalition: Coalition) -> Moved:
        """The same from the vectors."""
        params = slice(0, self.layout.num_params)
        if self._whole is None:
            self._whole = self.step(self.everybody)[params].astype(np.float64)
        own, whole = self.step(coalition)[params].astype(np.float64), self._whole
        with single_threaded_blas():
            d = own - whole
            pairs = ((d, d), (own, whole), (own, own), (whole, whole))
            return _moved(*(float(a @ b) for a, b in pairs))


def _form(grams: Sequence[F64], a: F64, b: F64) -> float:
    """``sum_r a_r^T K_r b_r``."""
    return sum(float(x @ k @ y) for k, x, y in zip(grams, a, b, strict=True))


def _moved(apart: float, inner: float, own: float, whole: float) -> Moved:
    """From the products of the difference with itself, of both, and of each with itself."""
    own, whole = max(own, 0.0) ** 0.5, max(whole, 0.0) ** 0.5
    return Moved(
        distance=max(apart, 0.0) ** 0.5,
        cosine=inner / (own * whole) if own * whole > 0 else float("nan"),
        along=inner / whole if whole > 0 else 0.0,
    )
