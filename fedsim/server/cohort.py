"""The updates of a round: m flat vectors, never stacked.

Most server rules need two things of them (docs/GRAM.md): the Gram matrix ``K = G^T G``, one
pass in float64, and one weighted sum ``G c``, a second pass; see :mod:`fedsim.server.linalg`. With
the clients sorted by id, arrival order cannot change a bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedsim.core.errors import ContractError
from fedsim.core.types import F64, Array, ClientUpdate, Layout
from fedsim.server.columns import (
    Columns,
    LocalColumns,
    MixedColumns,
    ScaledColumns,
    mirrored,
    symmetric,
)
from fedsim.server.linalg import ByColumn


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """The updates of a round sorted by client id; build it with :meth:`of`.

    ``params`` (D,) is the newest global vector, None where it is unknown, ``reference`` (D,) the
    server's own update, where it trains itself. Where the updates are combinations of those of
    clients, ``mixed_from`` is the number of these.
    """

    updates: tuple[ClientUpdate, ...]
    layout: Layout
    columns: Columns
    params: Array | None = None
    reference: Array | None = None
    mixed_from: int | None = None
    _grams: dict[tuple[int, int], F64] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        updates: Iterable[ClientUpdate],
        layout: Layout,
        columns: Columns | None = None,
        params: Array | None = None,
    ) -> Cohort:
        """Sorts the updates by client id and checks their length.

        Args:
            updates: one per client.
            layout: of the vectors.
            columns: the vectors in order of client id where they stay on their nodes; ``delta`` is
                ignored then.
            params: (D,) the newest global vector.
        """
        ordered = tuple(sorted(updates, key=lambda u: u.client_id))
        if not ordered:
            raise ContractError("a cohort needs at least one update")
        ids = [u.client_id for u in ordered]
        if len(set(ids)) != len(ids):
            raise ContractError(f"a client id occurs twice in the cohort: {ids}")
        if columns is None:
            for u in ordered:
                if u.delta.shape != (layout.size,):
                    raise ContractError(
                        f"client {u.client_id}: delta has shape {u.delta.shape}, "
                        f"the layout has {layout.size} entries"
                    )
            columns = LocalColumns(tuple(u.delta for u in ordered))
        return cls(updates=ordered, layout=layout, columns=columns, params=params)

    @classmethod
    def empty(cls, layout: Layout, params: Array) -> Cohort:
        """No update, as where no client was drawn."""
        return cls(updates=(), layout=layout, columns=LocalColumns(()), params=params)

    def scaled(self, factors: F64) -> Cohort:
        """The cohort with update i multiplied by ``factors[i]``; nothing is copied."""
        return replace(self, columns=ScaledColumns(self.columns, factors), _grams={})

    def scaled_params(self, factors: F64) -> Cohort:
        """As :meth:`scaled`, but running statistics stay as they are."""
        if self.layout.num_params == self.layout.size:
            return self.scaled(factors)
        columns = MixedColumns(self.columns, np.diag(factors), self.layout.num_params)
        return replace(self, columns=columns, _grams={})

    def mixed(self, matrix: F64) -> Cohort:
        """The cohort of k combinations of its updates, the rows of ``matrix`` (k, m).

        Nothing is copied, and Gram matrices that are known are mixed. Samples are combined alike;
        all else of an update is that of the first client in it.
        """
        first = np.argmax(matrix != 0, axis=1).tolist()
        updates = tuple(self.updates[i] for i in first)
        columns = MixedColumns(self.columns, matrix, self.layout.size)
        grams = {key: mirrored(matrix @ gram @ matrix.T) for key, gram in self._grams.items()}
        mixed = replace(
            self, updates=updates, columns=columns, mixed_from=self.num_clients, _grams=grams
        )
        return mixed.weighted(matrix @ self.num_samples)

    @property
    def num_clients(self) -> int:
        """From how many clients the updates are."""
        return len(self.updates) if self.mixed_from is None else self.mixed_from

    def map(self, rule: ByColumn) -> Array:
        """(D,) what a rule makes of each column (m,), where the updates are; in their precision."""
        out = np.empty(self.layout.size, self.columns.dtype)
        self.columns.map(rule, slice(0, self.layout.size), out)
        return out

    def weighted(self, num_samples: F64) -> Cohort:
        """The cohort with other numbers of samples, from which rules compute client weights."""
        pairs = zip(self.updates, num_samples.tolist(), strict=True)
        return replace(self, updates=tuple(replace(u, num_samples=n) for u, n in pairs))

    @property
    def rows(self) -> tuple[Array, ...]:
        """The m deltas, each (D,)."""
        return self.columns.rows

    @property
    def num_samples(self) -> F64:
        """(m,) training samples."""
        return np.array([u.num_samples for u in self.updates], dtype=np.float64)

    def gram(self, where: slice) -> F64:
        """(m, m) inner products over the coordinates ``where``, products and sums in float64."""
        return self.grams([where])[0]

    def grams(self, ranges: Sequence[slice]) -> list[F64]:
        """The Gram matrix of each range, in one pass over the updates.

        Computed once per range: the rule, the conflict ratio and the norms share it.
        """
        keys = {(where.start, where.stop): where for where in ranges}
        missing = {key: where for key, where in keys.items() if key not in self._grams}
        computed = self.columns.products(list(missing.values())) if missing else []
        for key, products in zip(missing, computed, strict=True):
            self._grams[key] = symmetric(products)
        return [self._grams[where.start, where.stop] for where in ranges]

    def norms(self, where: slice) -> F64:
        """(m,) 2-norms over the coordinates ``where``: from the Gram matrix where it is known."""
        gram = self._grams.get((where.start, where.stop))
        return np.sqrt(self.columns.squares(where) if gram is None else gram.diagonal())

    def grams_with(self, vector: Array | None, ranges: Sequence[slice]) -> list[tuple[F64, F64]]:
        """The Gram matrix of each range, and the (m,) inner products with ``vector`` (D,) there.

        One pass over the updates; without a vector the inner products are 0.
        """
        computed = self.columns.products(ranges, vector)
        return [(symmetric(products), products[:, -1]) for products in computed]

    def combine(self, coefficients: F64, where: slice, out: Array) -> None:
        """Writes ``sum_i c_i g_i`` over ``where`` into ``out[where]``, in its precision."""
        self.columns.combine([np.asarray(coefficients, np.float64)], [where], out)

    def step(self, coefficients: Sequence[F64], ranges: Sequence[slice]) -> Array:
        """(D,) ``sum_i c_i g_i`` over each range with its own coefficients, in one pass.

        In the updates' precision.
        """
        covered = sum(where.stop - where.start for where in ranges)
        if covered != self.layout.size:
            raise ContractError(
                f"a step of {self.layout.size} entries was given coefficients for {covered}"
            )
        out = np.empty(self.layout.size, self.columns.dtype)
        weights = [np.asarray(c, np.float64) for c in coefficients]
        self.columns.combine(weights, ranges, out)
        return out


def gram(rows: Sequence[Array], where: slice) -> F64:
    """(m, m) float64 Gram matrix of m vectors over the coordinates ``where``."""
    return symmetric(LocalColumns(tuple(rows)).products([where])[0])
