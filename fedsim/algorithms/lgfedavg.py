"""LG-FedAvg: local representations, a global head (Liang et al. 2020, arXiv:2001.01523, Alg. 1).

Client i trains its own layers l_i and the global ones theta together:

    (l_i, theta_i) <- SGD from (l_i, theta);   theta <- sum_i p_i theta_i

``layers=head`` shares the last layer, patterns of tensor names share more. With all layers it is
FedAvg, without any Local; both are refused.

:client: plain SGD from its own representation and the shared head
:server: mean by samples of the shared layers, by default the head
:state: client its representation
:sends: less, the shared layers alone
:public code: the official code averages uniformly (``lgfedavg.weights=uniform``), starts from a
    network that FedAvg has trained (``model.weights``), and scores each client's best round on the
    test data; PFLlib shares the head, as here; FL-bench (007d88e) shares the first layers: FedPer
"""

from fedsim.algorithms.base import Algorithm, Layers
from fedsim.server import Average, Server, Weights


def build(layers: str = "head", weights: Weights = "samples") -> Algorithm:
    """LG-FedAvg.

    Args:
        layers: what is shared: ``head``, or patterns of tensor names between commas.
        weights: client weights by samples (the paper), or uniform (the official code).
    """
    return Algorithm(personal=Layers(layers, others=True), server=Server(Average(weights)))
