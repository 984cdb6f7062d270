"""FedPer: base layers are shared, personal layers stay (Arivazhagan et al. 2019, arXiv:1912.00818).

Client i trains the base w and its personal layers v_i together, Algorithms 1 and 2:

    (w_i, v_i) <- SGD from (w, v_i);   w <- sum_i p_i w_i,   p_i = n_i / sum_S n_j

``layers=head`` is the paper's K_P = 1; patterns of tensor names keep more (``head,features.6.*``).
With all layers it is Local, without any FedAvg; both are refused.

:client: plain SGD from the shared layers and its own
:server: mean by samples of the shared layers
:state: client its personal layers, by default the head
:sends: less, nothing of the personal layers
:public code: the authors publish none; PFLlib and FL-bench keep the head, as here, but PFLlib also
    BatchNorm's running statistics; FedRep's official code keeps one layer more
"""

from fedsim.algorithms.base import Algorithm, Layers
from fedsim.server import Average, Server, Weights


def build(layers: str = "head", weights: Weights = "samples") -> Algorithm:
    """FedPer.

    Args:
        layers: what stays on the client: ``head``, or patterns of tensor names between commas.
        weights: client weights by samples (the paper), or uniform.
    """
    return Algorithm(personal=Layers(layers), server=Server(Average(weights)))
