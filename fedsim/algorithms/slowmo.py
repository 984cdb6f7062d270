"""SlowMo: slow momentum in units of the clients' rate (Wang et al., ICLR 2020, Algorithm 1).

    u <- beta u + (w - w_bar) / gamma,   w <- w - alpha gamma u

w_bar = w + sum_i p_i g_i, gamma the clients' learning rate of the round, u_0 = 0. While gamma is
constant this is FedAvgM with eta = alpha. At gamma = 0 no client moves and u only decays. Running
statistics are averaged only.

:client: plain SGD
:server: mean, then momentum of the mean step divided by the clients' learning rate
:state: server: u (P)
:sends: nothing more
:public code: none known
"""

from fedsim.algorithms.base import Algorithm
from fedsim.core.settings import Decay, Positive
from fedsim.server import Average, Server, Weights
from fedsim.server.optimizers import HeavyBall


def build(alpha: Positive = 1.0, beta: Decay = 0.7, weights: Weights = "samples") -> Algorithm:
    """SlowMo.

    Args:
        alpha: slow learning rate, > 0.
        beta: slow momentum, in [0, 1).
        weights: client weights by samples, or uniform (the paper, whose workers weigh the same).
    """
    momentum = HeavyBall(beta=beta, eta=alpha, unit="lr")
    return Algorithm(server=Server(Average(weights), optimizers=(momentum,)))
