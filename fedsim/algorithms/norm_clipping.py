"""Norm clipping: long updates are shortened (Sun et al. 2019, arXiv:1911.07963).

    g_i <- g_i min(1, C / ||g_i||),   then the mean with equal weights

A pre-aggregation for another rule: ``--server norm_clipping,trimmed_mean``. Running statistics are
not clipped: they are averaged by samples, whatever follows. Updates are clipped as clients send
them: FedNova's normalisation, which comes after, multiplies them by numbers that clients state.

:client: plain SGD
:server: updates shortened to the norm C, then the mean or another rule
:state: none
:sends: nothing more
:public code: in Flower running statistics count in the norm
"""

from fedsim.algorithms.base import Algorithm
from fedsim.core.settings import Positive
from fedsim.server import Average, ClipNorms, Server


def build(norm: Positive = 10.0) -> Algorithm:
    """Norm clipping.

    Args:
        norm: C, in units of the updates.
    """
    return Algorithm(server=Server(Average("uniform"), receive=(ClipNorms(norm),)))
