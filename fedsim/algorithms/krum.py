"""Krum: the update with the nearest neighbours (Blanchard et al., NeurIPS 2017, arXiv:1703.02757).

    s_i = sum of ||g_i - g_j||^2 over the m - f - 2 nearest other updates j
    w <- w + g_i with the least s_i,   m >= 2f + 3

Of equal scores that of the smaller client id wins. Distances are over the parameters.

:client: plain SGD
:server: one client's update; its running statistics too
:state: none
:sends: nothing more
:public code: Blades and the code of EPFL's MLO group sum fourth powers of distances; Flower takes
    the distances of weights, in float32; ByzFL has one neighbour more (``neighbours=mixing``); the
    notebooks of NDSS 2021 have one too few; FederatedScope takes unsquared distances, tensor by
    tensor
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsim.algorithms.base import Algorithm
from fedsim.core.settings import NonNegative
from fedsim.core.types import F64
from fedsim.server import Faulty, Server, Span
from fedsim.server.robust import squared_distances

Neighbours = Literal["paper", "mixing"]


def scores(distances: F64, f: int, neighbours: Neighbours = "paper") -> F64:
    """(m,) Krum scores from squared distances (m, m).

    ``mixing`` has the m - f nearest, itself included (Allouah et al., arXiv:2302.01772).
    """
    others = len(distances) - f - (2 if neighbours == "paper" else 1)
    if others < 1:
        return np.zeros(len(distances))
    return np.sort(distances, axis=1)[:, 1 : others + 1].sum(axis=1)  # the first is its own 0


@dataclass(frozen=True)
class Krum:
    """The coefficient 1 for the least score."""

    neighbours: Neighbours

    def __call__(self, gram: F64, f: int, n: F64) -> F64:
        c = np.zeros(len(gram))
        c[np.argmin(scores(squared_distances(gram), f, self.neighbours))] = 1.0
        return c


def build(f: NonNegative = 0.2, neighbours: Neighbours = "paper") -> Algorithm:
    """Krum.

    Args:
        f: faulty clients: their number, or below 1 their share of the cohort, rounded down.
        neighbours: paper: the m - f - 2 nearest others; mixing: the m - f - 1 nearest others.
    """
    return Algorithm(server=Server(Span(Krum(neighbours), Faulty("krum", f, 2, 3))))
