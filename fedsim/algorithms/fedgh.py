"""FedGH: gradient harmonization on the server (Zhang, Sun, Chen 2023, arXiv:2309.06692, Alg. 1).

    for k in S, for j in S \\ k in random order:
        if <g_k, g_j> < 0:  g_k <- g_k - <g_k, g_j> / ||g_j||^2 g_j     (g_j as received)
    w <- w + sum_k p_k g_k

n in p_k = n_k / n is the sum over the cohort. Not the FedGH of Yi et al. (ACM MM 2023).

:client: plain SGD
:server: each update without its conflicts with the others, then the mean by samples
:state: none
:sends: nothing more
:public code: none by the authors; PFLlib's FedGH is another method; codes of students read Eq. 1
    otherwise, which matters for three clients or more: some go through the pairs once and change
    both updates in place, some project on originals alone and add all corrections up, some change
    only the later update of a pair
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsim.algorithms.base import Algorithm
from fedsim.core.rng import generator
from fedsim.core.types import F64, RoundContext
from fedsim.server import Gram, Server, Weights, shares

Order = Literal["random", "ascending", "descending"]


def harmonize_orders(
    m: int, seed: int, round: int, order: Order = "random", include_self: bool = False
) -> list[list[int]]:
    """For each client k of the cohort, in which order it visits the m - 1 others (Algorithm 1).

    Random orders come from one generator per (seed, round), drawn in ascending k. With
    ``include_self`` client k also visits its own original update.
    """
    rng = generator(seed, "fedgh", round)
    orders = []
    for k in range(m):
        others = [j for j in range(m) if include_self or j != k]
        drawn = rng.permutation(others).tolist()
        orders.append({"random": drawn, "ascending": others, "descending": others[::-1]}[order])
    return orders


def project_conflicts(gram: F64, orders: list[list[int]]) -> F64:
    """(m, m) coefficients, row k: update k after removing its conflicts with the frozen others.

    FedGH Algorithm 1 and PCGrad in coefficient space (docs/GRAM.md): visiting j in order,
    ``if <g_k, g_j> < 0: g_k -= <g_k, g_j> / ||g_j||^2 g_j`` with the original ``g_j``.
    """
    coefficients = np.eye(len(gram))
    for c, row, order in zip(coefficients, gram, orders, strict=True):
        inner = row.copy()
        for j in order:
            if gram[j, j] > 0 and inner[j] < 0:
                t = inner[j] / gram[j, j]
                c[j] -= t
                inner -= t * gram[j]
                inner[j] = 0.0
    return coefficients


@dataclass(frozen=True, kw_only=True)
class Harmonize:
    """Gradient harmonization: ``eta sum_k p_k g_k'``, client weights p (FedGH with eta 1, PCGrad).

    With ``include_self`` each update also visits its own original (released PCGrad code).
    """

    order: Order
    weights: Weights
    include_self: bool = False
    eta: float = 1.0

    def __call__(self, gram: F64, n: F64, ctx: RoundContext) -> F64:
        """Coefficients (m,), never below eta p."""
        orders = harmonize_orders(len(n), ctx.seed, ctx.round, self.order, self.include_self)
        return self.eta * (shares(n, self.weights) @ project_conflicts(gram, orders))


def build(order: Order = "random", weights: Weights = "samples") -> Algorithm:
    """FedGH.

    Args:
        order: in which the other clients are visited; the paper does not say how it is drawn.
        weights: client weights by samples (the paper), or uniform.
    """
    return Algorithm(server=Server(Gram(Harmonize(order=order, weights=weights))))
