"""RegAgg: SimAgg's similarity times the client's share (Khan et al., FeTS challenge 2022).

Per tensor, with distances d_i to the plain mean and v_i = n_i / sum n:

    u_i = sum_j d_j / (d_i + eps),   u_i <- u_i / (sum_j u_j + eps)
    w <- w + sum_i u_i v_i g_i / sum_j u_j v_j

Distances that are all 0 (identical clients, a single one) leave no weights and give FedAvg. eps
makes the rule depend on the scale of the updates.

:client: plain SGD
:server: mean with the product of similarity and share as weight, per tensor; statistics by samples
:state: none
:sends: nothing more
:public code: the notebooks of dskhanirfan/FeTS2021 take the absolute difference of the sums of all
    entries as distance, which can be 0 for very different tensors: distance=signed_sum
"""

from fedsim.algorithms.base import Algorithm
from fedsim.algorithms.simagg import Distance, Similar
from fedsim.core.settings import Positive
from fedsim.server import Blocks, Server


def build(blocks: Blocks = "tensor", distance: Distance = "l2", eps: Positive = 1e-5) -> Algorithm:
    """RegAgg.

    Args:
        blocks: a distance and weights for each tensor, or for the whole model.
        distance: Euclidean, or the difference of the sums of all entries (the released code).
        eps: keeps the quotients finite, > 0.
    """
    rule = Similar(combine="product", blocks=blocks, distance=distance, eps=eps)
    return Algorithm(server=Server(rule))
