"""SimAgg: clients near the mean weigh more (Khan et al., FeTS challenge 2021).

Per tensor, with distances d_i to the plain mean and v_i = n_i / sum n:

    u_i = sum_j d_j / (d_i + eps),   u_i <- u_i / (sum_j u_j + eps)
    w <- w + sum_i (u_i + v_i) g_i / sum_j (u_j + v_j)

Equal distances give the mean of v and the uniform weights, distances that are all 0 (identical
clients, a single one) FedAvg. eps makes the rule depend on the scale of the updates. Of the
challenge entry the choice of clients and of hyperparameters per round is left out.

:client: plain SGD
:server: mean with the sum of similarity and share as weight, per tensor; statistics by samples
:state: none
:sends: nothing more
:public code: the notebooks of dskhanirfan/FeTS2021 take the absolute difference of the sums of all
    entries as distance, which can be 0 for very different tensors: distance=signed_sum
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsim.algorithms.base import Algorithm
from fedsim.core.settings import Positive
from fedsim.core.types import F64, RoundContext, Vectors
from fedsim.server import Blocks, Cohort, Reduced, Server, blocks_of, shares

Distance = Literal["l2", "signed_sum"]
"""Euclidean, or the difference of the sums of all entries (the released code)."""


def distances_to_mean(gram: F64) -> F64:
    """(m,) ``||g_i - mean||`` from K (m, m): the diagonal of the doubly centred K, 0 at least."""
    squares = gram.diagonal() - 2 * gram.mean(axis=1) + gram.mean()
    return np.sqrt(np.maximum(squares, 0.0))


def similarity_weights(
    distances: F64, v: F64, combine: Literal["sum", "product"], eps: float
) -> F64:
    """(m,) weights that sum to 1; the shares ``v`` where all distances are 0."""
    if not distances.any():
        return v
    u = distances.sum() / (distances + eps)
    u = u / (u.sum() + eps)
    w = u + v if combine == "sum" else u * v
    return w / w.sum()


@dataclass(frozen=True, kw_only=True)
class Similar:
    """The mean with similarity weights, block by block; statistics are averaged by samples.

    ``combine`` is of similarity u and share v: their sum (SimAgg) or product (RegAgg); for the
    other fields see :func:`build`.
    """

    combine: Literal["sum", "product"]
    blocks: Blocks
    distance: Distance
    eps: float

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        layout = cohort.layout
        ranges = blocks_of(layout, self.blocks)
        v = shares(cohort.num_samples, "samples")
        coefficients = [
            similarity_weights(d, v, self.combine, self.eps)
            for d in self._distances(cohort, ranges)
        ]
        statistics = slice(layout.num_params, layout.size)
        return Reduced(cohort.step([*coefficients, v], [*ranges, statistics]))

    def _distances(self, cohort: Cohort, ranges: list[slice]) -> list[F64]:
        if self.distance == "l2":
            return [distances_to_mean(gram) for gram in cohort.grams(ranges)]
        ones = np.ones(cohort.layout.size, cohort.columns.dtype)
        sums = [sums for _, sums in cohort.grams_with(ones, ranges)]
        return [np.abs(s - s.mean()) for s in sums]


def build(blocks: Blocks = "tensor", distance: Distance = "l2", eps: Positive = 1e-5) -> Algorithm:
    """SimAgg.

    Args:
        blocks: a distance and weights for each tensor, or for the whole model.
        distance: Euclidean, or the difference of the sums of all entries (the released code).
        eps: keeps the quotients finite, > 0.
    """
    rule = Similar(combine="sum", blocks=blocks, distance=distance, eps=eps)
    return Algorithm(server=Server(rule))
