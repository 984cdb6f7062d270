"""FedAdam: Adam on the server (Reddi et al., ICLR 2021, Algorithm 2).

    m <- b1 m + (1 - b1) Delta,   v <- b2 v + (1 - b2) Delta^2,   w <- w + eta m / (sqrt(v) + tau)

Delta = sum_i p_i g_i, m_0 = 0, v_0 = tau^2, no bias correction. Statistics are averaged only.

:client: plain SGD
:server: mean, then Adam
:state: server: m and v (2 P)
:sends: nothing more
:public code: most starts at v = 0 (v0=zero); Flower moreover corrects the bias with the exponent
    round + 1, round from 1 (bias_correction=true), and has tau = 1e-9 in ``flwr.server.strategy``
    and 1e-3 in ``flwr.serverapp.strategy``; FL-bench has beta2 = 0.999
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
    bias_correction: bool = False,
    weights: Weights = "samples",
) -> Algorithm:
    """FedAdam.

    Args:
        eta: server learning rate, > 0.
        beta1: decay of the first moment, in [0, 1).
        beta2: decay of the second moment, in [0, 1).
        tau: degree of adaptivity, > 0.
        v0: the second moment starts at tau^2 (the paper), or at 0.
        bias_correction: that of Flower's FedAdam; the paper has none.
        weights: client weights by samples (most code), or uniform (the paper's Algorithm 2).
    """
    optimizer = Adaptive(
        kind="adam",
        eta=eta,
        beta1=beta1,
        beta2=beta2,
        tau=tau,
        v0=v0,
        bias_correction=bias_correction,
    )
    return Algorithm(server=Server(Average(weights), optimizers=(optimizer,)))
