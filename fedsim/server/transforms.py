"""Cohort transforms: what changes the updates of a cohort before they are reduced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedsim.core.errors import ConfigError
from fedsim.core.rng import generator
from fedsim.core.types import F64, RoundContext, Vectors
from fedsim.server.base import Received
from fedsim.server.cohort import Cohort
from fedsim.server.robust import Faulty, squared_distances


@dataclass(frozen=True)
class ClipNorms:
    """``g_i <- g_i min(1, C / ||g_i||_2)`` over the parameters, C being ``norm``.

    Running statistics are averaged by samples and not clipped. It bounds what one client can add to
    a mean with equal weights by C / m (McMahan et al., ICLR 2018, Algorithm 1).
    """

    norm: float
    name: ClassVar[str] = "clip"
    by_client: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise ConfigError(f"clipping: norm {self.norm:g} given, must be above 0")

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Received:
        """Keeps no state; reports the share of updates that are ``clipped``."""
        norms = cohort.norms(slice(0, cohort.layout.num_params))
        factors = np.divide(self.norm, norms, out=np.ones_like(norms), where=norms > self.norm)
        clipped = float(np.mean(norms > self.norm))
        scaled = cohort.scaled(factors)
        return Received(cohort=scaled, statistics=cohort, metrics={"clipped": clipped})


@dataclass(frozen=True)
class NearestNeighbourMixing:
    """Each update becomes the mean of the m - f nearest ones, itself included.

    Nothing is computed on the vectors: with M (k, m) the Gram matrix becomes ``M K M^T``, and
    coefficients c (k,) of the new updates are ``M^T c`` of the clients'.
    """

    faulty: Faulty
    name: ClassVar[str] = "nnm"
    mixes: ClassVar[bool] = True

    def check(self, m: int, clients: int) -> int:
        self.faulty.count(m, clients)
        return m

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Received:
        distances = squared_distances(cohort.gram(slice(0, cohort.layout.num_params)))
        f = self.faulty.count(len(distances), cohort.num_clients)
        return Received(cohort=cohort.mixed(nearest_means(distances, f)))


@dataclass(frozen=True)
class Bucketing:
    """Means of ``size`` updates, drawn by seed and round; the last bucket may be smaller."""

    size: int
    name: ClassVar[str] = "bucketing"
    mixes: ClassVar[bool] = True

    def check(self, m: int, clients: int) -> int:
        return -(-m // self.size)

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Received:
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


Form = Literal["polynomial", "hinge", "constant"]


@dataclass(frozen=True)
class StalenessWeights:
    """Weights of stale updates: ``step = sum_i p_i s(d_i) Delta_i``.

    The staleness d_i counts the server's steps from the start of client i's training until its
    update is aggregated. With d = 0 for the newest model, s is 1 (constant), ``(1 + d)^-a``
    (polynomial), or 1 up to b and ``1 / (a (d - b) + 1)`` beyond (hinge): FedAsync (Xie et al., OPT
    2020, arXiv:1903.03934, Section 5.2), whose ``mixing`` scales mixed models; polynomial with
    a = 1/2 is FedBuff's (Nguyen et al., AISTATS 2022). Weights are not normalised to a sum of 1.

    Running statistics are combined as the method combines fresh ones, without these weights, but
    for mixed models, of which they are a part.
    """

    form: Form = "polynomial"  # of s
    exponent: float = 0.5  # a of polynomial
    slope: float = 10.0  # a of hinge
    threshold: float = 4.0  # b of hinge, in server steps
    mixing: float | None = None  # alpha of FedAsync; None where updates are added (FedBuff)
    name: ClassVar[str] = "staleness"

    def weights(self, staleness: F64) -> F64:
        """s(d) (m,) in (0, 1] for a staleness d (m,) in server steps, from 0."""
        if self.form == "polynomial":
            return (1 + staleness) ** -self.exponent
        if self.form == "hinge":
            return 1 / (self.slope * np.maximum(staleness - self.threshold, 0) + 1)
        return np.ones_like(staleness)

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Received:
        """Keeps no state; updates of the newest model alone stay as they are."""
        staleness = np.array([u.staleness for u in cohort.updates], np.float64)
        weights = self.weights(staleness)
        if self.mixing is not None:
            return Received(cohort=cohort.scaled(self.mixing * weights))
        if (weights == 1).all():
            return Received(cohort=cohort)
        return Received(cohort=cohort.scaled_params(weights))
