"""Attacks by malicious clients that know updates of the round, and work together.

Each replaces the parameters of every malicious update by one vector, computed from the h updates
x_i that they see, mu their mean: the benign ones (omniscient), or what the malicious clients
trained themselves. All but those :class:`ByCoordinate` lie in the span of the updates: they need
their Gram matrix alone, and are applied where the updates are. Running statistics stay those of
training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.core.types import F64, Array, RoundContext, Vectors
from fedsim.server.cohort import Cohort
from fedsim.server.columns import LocalColumns, MixedColumns
from fedsim.server.linalg import single_threaded_blas

BLOCK = 1 << 16
"""Coordinates whose mean and standard deviation are computed at a time."""
Knowledge = Literal["benign", "own"]
Mask = NDArray[np.bool_]
"""(m,) of some updates of a cohort."""


@dataclass(frozen=True)
class Omniscient(ABC):
    """Changes the updates of malicious clients, some of a cohort and not all.

    ``in_span`` says whether what they send are sums of updates; else whole vectors are read.
    They know the benign updates of the round, or their own ones as they trained them.
    """

    knows: Knowledge = field(default="benign", kw_only=True)
    in_span: ClassVar[bool] = True

    def __call__(
        self, cohort: Cohort, malicious: Mask, state: Vectors, ctx: RoundContext
    ) -> tuple[Cohort, Vectors]:
        """The cohort as it is sent; keeps what :meth:`prepare` keeps."""
        with single_threaded_blas():
            attack, state = self.prepare(cohort, self.seen(malicious), state, ctx)
            return attack.attack(cohort, malicious), state

    def prepare(
        self, cohort: Cohort, seen: Mask, state: Vectors, ctx: RoundContext
    ) -> tuple[Omniscient, Vectors]:
        """The attack on this round, and the state for the next one; by default itself and {}."""
        return self, {}

    def seen(self, malicious: Mask) -> Mask:
        """(m,) whose updates the malicious clients know."""
        return malicious if self.knows == "own" else ~malicious

    @abstractmethod
    def attack(self, cohort: Cohort, malicious: Mask) -> Cohort:
        """The cohort with other malicious updates: some and not all."""


class InSpan(Omniscient):
    """An attack ``sum_i c_i x_i``."""

    def attack(self, cohort: Cohort, malicious: Mask) -> Cohort:
        """The cohort as a linear combination of itself."""
        mix = np.diag(np.where(malicious, 0.0, 1.0))
        seen = self.seen(malicious)
        mix[np.ix_(malicious, seen)] = self.coefficients(cohort, seen)
        columns = MixedColumns(cohort.columns, mix, cohort.layout.num_params)
        return replace(cohort, columns=columns, _grams={})

    @abstractmethod
    def coefficients(self, cohort: Cohort, seen: Mask) -> F64:
        """(h,) the coefficients of the updates that are seen."""


class ByCoordinate(Omniscient):
    """An attack whose vector is computed coordinate by coordinate, from whole updates."""

    in_span: ClassVar[bool] = False

    def with_vector(self, cohort: Cohort, malicious: Mask, sent: Callable[[F64], F64]) -> Cohort:
        """The cohort with ``sent``, (h, width) to (width,) by blocks, as malicious updates."""
        rows, params = cohort.rows, cohort.layout.num_params
        vector: Array = np.empty(params, rows[0].dtype)
        for block, x in self.blocks(cohort, malicious):
            vector[block] = sent(x)
        changed = [
            np.concatenate([vector, row[params:]]) if attacks else row
            for row, attacks in zip(rows, malicious, strict=True)
        ]
        return replace(cohort, columns=LocalColumns(tuple(changed)), _grams={})

    def blocks(self, cohort: Cohort, malicious: Mask) -> Iterator[tuple[slice, F64]]:
        """Blocks of parameters, each with the updates that are seen (h, width)."""
        params, seen = cohort.layout.num_params, self.seen(malicious)
        rows = [row for row, knows in zip(cohort.rows, seen, strict=True) if knows]
        for start in range(0, params, BLOCK):
            block = slice(start, min(start + BLOCK, params))
            yield block, np.stack([row[block] for row in rows], dtype=np.float64)


def deviation(x: F64) -> F64:
    """(width,) the standard deviation of columns (h, width), with h - 1; 0 for one update."""
    return x.std(axis=0, ddof=1) if len(x) > 1 else np.zeros(x.shape[1])
