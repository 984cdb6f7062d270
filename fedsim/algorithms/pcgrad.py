"""PCGrad: projections of conflicting updates, summed (Yu et al., NeurIPS 2020, Algorithm 1).

    for k in S, for j in S \\ k in random order:
        if <g_k, g_j> < 0:  g_k <- g_k - <g_k, g_j> / ||g_j||^2 g_j     (g_j as received)
    w <- w + eta_g (1/m) sum_k g_k

The paper's step is the sum; with 1/m and eta_g = 1 it is on the scale of FedAvg's, and eta_g = m is
the sum. Beside the unit weights it is FedGH.

:client: plain SGD
:server: mean of the updates after removing from each its conflicts with the others; statistics
    averaged uniformly
:state: none
:sends: nothing more
:public code: tianheyu927/PCGrad discards the result of its shuffle and lets every task visit all
    tasks, itself included, in fixed order: order=ascending, include_self=true
"""

from fedsim.algorithms.base import Algorithm
from fedsim.algorithms.fedgh import Harmonize, Order
from fedsim.core.settings import Positive
from fedsim.server import Gram, Server


def build(order: Order = "random", include_self: bool = False, eta_g: Positive = 1.0) -> Algorithm:
    """PCGrad.

    Args:
        order: in which the other clients are visited; random is the paper.
        include_self: a client also visits its own original update (the released code).
        eta_g: server learning rate, > 0.
    """
    rule = Harmonize(order=order, weights="uniform", include_self=include_self, eta=eta_g)
    return Algorithm(server=Server(Gram(rule)))
