"""Bucketing: means of random buckets (Karimireddy, He, Jaggi, ICLR 2022, arXiv:2006.09365).

    pi a permutation of the m clients, drawn by seed and round
    g_b' = mean of g_pi(s b)..g_pi(s b + s - 1),   b = 0..ceil(m / s) - 1

A pre-aggregation for another rule: ``--server bucketing,geometric_median``. The rule sees
ceil(m / s) updates, of which as many may be faulty as there are faulty clients: a fraction f stays
one of the clients. Alone it is followed by the mean of the buckets.

:client: plain SGD
:server: means of random buckets of updates, then the mean or another rule
:state: none
:sends: nothing more
:public code: FedML takes consecutive clients, and weights by samples
"""

from typing import Annotated

from pydantic import Field

from fedsim.algorithms.base import Algorithm
from fedsim.server import Average, Bucketing, Server


def build(size: Annotated[int, Field(ge=1)] = 2) -> Algorithm:
    """Bucketing.

    Args:
        size: updates in a bucket.
    """
    return Algorithm(server=Server(Average("uniform"), receive=(Bucketing(size),)))
