"""Robust reductions: steps that ``f`` faulty clients among m cannot move far.

A rule in the span of the updates gives coefficients from their Gram matrix K, which has their
squared distances: ``||g_i - g_j||^2 = K_ii + K_jj - 2 K_ij`` over the parameters. A rule by
coordinate sees blocks of columns. Clients have equal weights, since a weight by samples is the
client's own statement; running statistics go through the same rule, unless a cohort transform
before it (FedNova's normalisation, stale updates) has them averaged by samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsim.core.errors import ConfigError
from fedsim.core.types import F64, RoundContext, Vectors
from fedsim.server.base import Reduced
from fedsim.server.cohort import Cohort

SpanRule = Callable[[F64, int, F64], F64]
"""Coefficients (m,) from the Gram matrix (m, m), the number of faulty clients and that of samples
(m,) of each client."""
ColumnRule = Callable[[F64, int], F64]
"""(d,) from the values (m, d) of all clients and the number of faulty clients."""
Selection = Callable[[F64, int], list[int]]
"""Which updates count, from squared distances (m, m) and the number of faulty clients."""


@dataclass(frozen=True)
class Faulty:
    """How many of m clients a rule takes to be faulty; it needs m >= times f + plus.

    Args:
        of: the rule, for messages.
        f: a number of clients, or below 1 a fraction of the cohort, rounded down.
        times: of the bound, which does not matter where f is 0.
        plus: of the bound.
    """

    of: str
    f: float
    times: int = 2
    plus: int = 1

    def __post_init__(self) -> None:
        """See the class."""
        if self.f >= 1 and self.f != int(self.f):
            raise ConfigError(
                f"{self.of}.f: {self.f:g} given; must be a whole number of clients, or a fraction "
                "of the cohort below 1"
            )

    def count(self, m: int, clients: int | None = None) -> int:
        """The number of faulty ones among m updates.

        Args:
            m: updates, of which each may be a combination of those of clients.
            clients: of the cohort, m by default.
        """
        of = m if clients is None else clients
        f = int(self.f) if self.f >= 1 else math.floor(self.f * of + 1e-9)
        if f and m < self.times * f + self.plus:
            raise ConfigError(
                f"{self.of}.f: {self.f:g} given, {f} of {m} {'clients' if of == m else 'means'}; "
                f"{self.of} needs at least {self.times} f + {self.plus}, so f may be at most "
                f"{max(0, (m - self.plus) // self.times)}"
            )
        return f


NONE = Faulty("", 0)
"""Of rules that have no f."""


def squared_distances(gram: F64) -> F64:
    """(m, m) squared distances of the updates from their Gram matrix; 0 on the diagonal."""
    squares = gram.diagonal()
    distances = np.maximum(squares[:, None] + squares - 2 * gram, 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances


def squared_distances_to(gram: F64, c: F64) -> F64:
    """(m,) squared distances of points to ``sum_j c_j x_j``: ``K_ii - 2 (K c)_i + c^T K c``.

    From distances alone, ``(D c)_i - c^T D c / 2``, a far point of weight 1 / R would bring two
    numbers of order R, whose difference is lost.
    """
    inner = gram @ c
    return np.maximum(gram.diagonal() - 2 * inner + c @ inner, 0.0)


@dataclass(frozen=True)
class Span:
    """A rule in the span of the updates, whose coefficients add up to 1."""

    rule: SpanRule
    faulty: Faulty = NONE

    def check(self, m: int, clients: int) -> int:
        f = self.faulty.count(m, clients)
        self.rule(np.zeros((m, m)), f, np.ones(m))  # which refuses what it cannot do
        return 1

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        """Keeps no state."""
        layout, n = cohort.layout, cohort.num_samples
        gram = cohort.gram(slice(0, layout.num_params))
        f = self.faulty.count(len(n), cohort.num_clients)
        return Reduced(cohort.step([self.rule(gram, f, n)], [slice(0, layout.size)]))


@dataclass(frozen=True)
class ByCoordinate:
    """A rule for every coordinate by itself, of all updates or of those that ``select`` names."""

    rule: ColumnRule
    faulty: Faulty = NONE
    select: Selection | None = None

    def check(self, m: int, clients: int) -> int:
        self.faulty.count(m, clients)
        return 1

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        """Keeps no state."""
        m = len(cohort.updates)
        f = self.faulty.count(m, cohort.num_clients)
        chosen = list(range(m))
        if self.select is not None:
            gram = cohort.gram(slice(0, cohort.layout.num_params))
            chosen = self.select(squared_distances(gram), f)
        rule = self.rule
        return Reduced(cohort.map(lambda x: rule(x[chosen], f)))
