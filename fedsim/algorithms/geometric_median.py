"""RFA: the geometric median (Pillutla, Kakade, Harchaoui, IEEE TSP 2022, arXiv:1912.13445).

    z_0 = sum_i a_i g_i,   a_i = 1/m
    z <- sum_i b_i g_i / sum_i b_i,   b_i = a_i / max(nu, ||z - g_i||)     (smoothed Weiszfeld)
    w <- w + z

Distances are over the parameters. An iteration is on m x m numbers, so that there may be many: each
brings z closer to the majority by a factor, and after few, far outliers still pull.

:client: plain SGD
:server: smoothed geometric median of the updates; running statistics with its coefficients
:state: none
:sends: nothing more
:public code: the authors' has 4 iterations, fewer where the objective falls by less than 1e-6 of
    it, and a_i by samples; Blades and FedML overwrite the a_i in each iteration, which converges to
    one client's update; ByzFL starts at 0 with nu = 0.1
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.base import Algorithm
from fedsim.core.settings import Positive
from fedsim.core.types import F64
from fedsim.server import Server, Span, Weights, shares
from fedsim.server.robust import squared_distances_to


@dataclass(frozen=True)
class Weiszfeld:
    """Smoothed Weiszfeld iterations on coefficients."""

    iterations: int
    nu: float
    weights: Weights

    def __call__(self, gram: F64, f: int, n: F64) -> F64:
        c = alphas = shares(n, self.weights)
        for _ in range(self.iterations):
            away = np.sqrt(squared_distances_to(gram, c))
            before, c = c, alphas / np.maximum(self.nu, away)
            c /= c.sum()
            if np.allclose(c, before, rtol=1e-12, atol=0):
                break
        return c


def build(
    iterations: Annotated[int, Field(ge=1)] = 1000,
    nu: Positive = 1e-5,
    weights: Weights = "uniform",
) -> Algorithm:
    """Geometric median.

    Args:
        iterations: of Weiszfeld's algorithm at most; it ends where no coefficient changes.
        nu: the least distance, in units of the updates.
        weights: uniform, or by samples as in the paper, where one client may state a majority.
    """
    return Algorithm(server=Server(Span(Weiszfeld(iterations, nu, weights))))
