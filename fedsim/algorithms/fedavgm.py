"""FedAvgM: momentum on the server (Hsu, Qi, Brown 2019, arXiv:1909.06335).

    v <- beta v + Delta,   w <- w + eta v          (nesterov: w <- w + eta (Delta + beta v))

Delta = sum_i p_i g_i, v_0 = 0; beta = 0 and eta = 1 are FedAvg. Statistics are averaged only.

:client: plain SGD
:server: mean, then momentum
:state: server: v (P)
:sends: nothing more
:public code: three inequivalent forms: heavy ball (Flower's strategy), Nesterov (FL-bench, Flower's
    baseline; nesterov=true), v <- beta v + (1 - beta) Delta (FedDecorr; damping=true)
"""

from fedsim.algorithms.base import Algorithm
from fedsim.core.settings import Decay, Positive
from fedsim.server import Average, Server, Weights
from fedsim.server.optimizers import HeavyBall


def build(
    beta: Decay = 0.9,
    eta: Positive = 1.0,
    nesterov: bool = False,
    damping: bool = False,
    weights: Weights = "samples",
) -> Algorithm:
    """FedAvgM.

    Args:
        beta: server momentum, in [0, 1).
        eta: server learning rate, > 0.
        nesterov: look ahead by one step of the momentum.
        damping: the mean enters with weight 1 - beta, which is a factor of every step.
        weights: client weights by samples (the paper), or uniform.
    """
    rate = eta * (1 - beta) if damping else eta
    momentum = HeavyBall(beta=beta, eta=rate, nesterov=nesterov)
    return Algorithm(server=Server(Average(weights), optimizers=(momentum,)))
