"""FedGH: gradient harmonization on the server (Zhang, Sun, Chen 2023, arXiv:2309.06692, Alg. 1).

    for k in S, for j in S \\ k in random order:
        if <g_k, g_j> < 0:  g_k <- g_k - <g_k, g_j> / ||g_j||^2 g_j     (g_j as received)
    w <- w + sum_k p_k g_k

n in p_k = n_k / n is the sum over the cohort. Not the FedGH of Yi et al. (ACM MM 2023).

:client: plain SGD
:server: each update without its conflicts with the others, then the mean by samples
:state: none
:sends: nothing more
:public code: none known of this method; PFLlib's FedGH is another one
"""

from __future__ import annotations

from fedsim.algorithms.base import Algorithm
from fedsim.server import Gram, Server, Weights
from fedsim.server.harmonize import Harmonize, Order


def build(order: Order = "random", weights: Weights = "samples") -> Algorithm:
    """FedGH.

    Args:
        order: in which the other clients are visited; the paper does not say how it is drawn.
        weights: client weights by samples (the paper), or uniform.
    """
    return Algorithm(server=Server(Gram(Harmonize(order=order, weights=weights))))
