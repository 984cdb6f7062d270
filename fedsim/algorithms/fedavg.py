"""FedAvg: the weighted mean of the clients' updates (McMahan et al., AISTATS 2017, Algorithm 1).

w <- w + sum_i p_i (w_i - w),   p_i = n_i / sum_S n_j  over the cohort S, or 1/m (uniform)

:client: plain SGD
:server: mean by samples
:state: none
:sends: nothing more
:public code: SCAFFOLD's, FedCM's, FedDyn's and FedIIR's average uniformly (``weights=uniform``);
    PFLlib averages the parameters alone, so that the global model has the BatchNorm statistics of
    some client
"""

from fedsim.algorithms.base import Algorithm
from fedsim.server import Average, Server, Weights


def build(weights: Weights = "samples") -> Algorithm:
    """FedAvg.

    Args:
        weights: client weights by samples (the paper), or uniform (several official codes).
    """
    return Algorithm(server=Server(Average(weights)))
