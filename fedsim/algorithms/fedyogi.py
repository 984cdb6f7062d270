"""FedYogi: Yogi on the server (Reddi et al., ICLR 2021, Algorithm 2).

    m <- b1 m + (1 - b1) Delta,   v <- v - (1 - b2) Delta^2 sign(v - Delta^2)
    w <- w + eta m / (sqrt(v) + tau)

Delta = sum_i p_i g_i, m_0 = 0, v_0 = tau^2. Statistics are averaged only.

:client: plain SGD
:server: mean, then Yogi
:state: server: m and v (2 P)
:sends: nothing more
:public code: most starts at v = 0 (v0=zero)
"""

from fedsim.algorithms.base import Algorithm
from fedsim.core.settings import Decay, Positive
from fedsim.server import Average, Server, Weights
from fedsim.server.optimizers import Adaptive, Start


def build(
    eta: Positive = 0.1,
    beta1: Decay = 0.9,
    beta2: Decay = 0.99,
    tau: Positive = 1e-3,
    v0: Start = "paper",
    weights: Weights = "samples",
) -> Algorithm:
    """FedYogi.

    Args:
        eta: server learning rate, > 0.
        beta1: decay of the first moment, in [0, 1).
        beta2: 1 - beta2 is the rate of the second moment, in [0, 1).
        tau: degree of adaptivity, > 0.
        v0: the second moment starts at tau^2 (the paper), or at 0.
        weights: client weights by samples (most code), or uniform (the paper's Algorithm 2).
    """
    optimizer = Adaptive(kind="yogi", eta=eta, beta1=beta1, beta2=beta2, tau=tau, v0=v0)
    return Algorithm(server=Server(Average(weights), optimizers=(optimizer,)))
