"""Pre-aggregation: each update becomes a mean of several, ``G' = G M^T``, before a reduction.

Nothing is computed on the vectors. With M (k, m) the Gram matrix becomes ``M K M^T``, and
coefficients c (k,) of the new updates are ``M^T c`` of the clients'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsim.core.rng import generator
from fedsim.core.types import F64, RoundContext, Vectors
from fedsim.server.base import Received
from fedsim.server.cohort import Cohort
from fedsim.server.robust import Faulty, squared_distances


@dataclass(frozen=True)
class NearestNeighbourMixing:
    """Each update becomes the mean of the m - f nearest ones, itself included."""

    faulty: Faulty
    name: ClassVar[str] = "nnm"
    needs_own_clients: ClassVar[bool] = False
    mixes: ClassVar[bool] = True

    def check(self, m: int, clients: int) -> int:
        self.faulty.count(m, clients)
        return m

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Received:
        """Keeps no state."""
        distances = squared_distances(cohort.gram(slice(0, cohort.layout.num_params)))
        f = self.faulty.count(len(distances), cohort.num_clients)
        return Received(cohort=cohort.mixed(nearest_means(distances, f)))


@dataclass(frozen=True)
class Bucketing:
    """Means of ``size`` updates, drawn by seed and round; the last bucket may be smaller."""

    size: int
    name: ClassVar[str] = "bucketing"
    needs_own_clients: ClassVar[bool] = False
    mixes: ClassVar[bool] = True

    def check(self, m: int, clients: int) -> int:
        return -(-m // self.size)

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Received:
        """Keeps no state."""
        drawn = generator(ctx.seed, "bucketing", ctx.round).permutation(len(cohort.updates))
        return Received(cohort=cohort.mixed(bucket_means(drawn.tolist(), self.size)))


def nearest_means(distances: F64, f: int) -> F64:
    """(m, m) row i the mean of the m - f nearest to i; it is one of them, also among equal ones."""
    m = len(distances)
    ordered = distances.copy()
    np.fill_diagonal(ordered, -1.0)
    nearest = np.argsort(ordered, axis=1, kind="stable")[:, : m - f]
    matrix = np.zeros((m, m))
    np.put_along_axis(matrix, nearest, 1 / (m - f), axis=1)
    return matrix


def bucket_means(drawn: list[int], size: int) -> F64:
    """(ceil(m / size), m) each row the mean of the next ``size`` clients of a permutation."""
    buckets = [drawn[start : start + size] for start in range(0, len(drawn), size)]
    matrix = np.zeros((len(buckets), len(drawn)))
    for row, bucket in zip(matrix, buckets, strict=True):
        row[bucket] = 1 / len(bucket)
    return matrix
