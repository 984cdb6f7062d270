"""MDA: minimum-diameter averaging (El-Mhamdi et al., Distributed Computing 35, 2022).

    w <- w + mean of the m - f updates whose greatest distance from each other is least

m >= 2f + 1. Distances are over the parameters. One of the farthest pair has to go, f times: 2^f
subsets are looked at, not all (m over f). The paper leaves ties open: of pairs at the same distance
(duplicates, small integers) that of smaller ids counts as farther, so that ties depend on the order
of the clients. Of subsets with the same farthest pair that with the least sum of squared distances
is taken.

:client: plain SGD
:server: the mean of the m - f updates that lie closest together; statistics too
:state: none
:sends: nothing more
:public code: ByzFL goes through all subsets
"""

import numpy as np

from fedsim.algorithms.base import Algorithm
from fedsim.core.errors import ConfigError
from fedsim.core.settings import NonNegative
from fedsim.core.types import F64
from fedsim.server import Faulty, Server, Span
from fedsim.server.robust import squared_distances

MOST = 16
"""Faulty clients: 65,536 subsets of 33 updates take about a second."""


def minimum_diameter(gram: F64, f: int, n: F64) -> F64:
    """Coefficients (m,)."""
    m, distances = len(gram), squared_distances(gram)
    if f > MOST:
        raise ConfigError(f"mda.f: {f} of {m} clients; mda looks at 2^f subsets, f at most {MOST}")
    best: tuple[F64, tuple[int, int], F64, list[int]] | None = None
    open_nodes = [(list(range(m)), f)]
    while open_nodes:
        kept, left = open_nodes.pop()
        among = distances[np.ix_(kept, kept)]
        i, j = divmod(int(np.argmax(among)), len(kept))
        if left and i != j:
            open_nodes += [(kept[:k] + kept[k + 1 :], left - 1) for k in (i, j)]
        else:  # with some left all are equal
            pair = -kept[i], -kept[j]
            subset = among[i, j], pair, among.sum(), kept[: len(kept) - left]
            best = min(best or subset, subset)
    c = np.zeros(m)
    c[best[-1] if best else []] = 1 / (m - f)
    return c


def build(f: NonNegative = 0.2) -> Algorithm:
    """Minimum-diameter averaging.

    Args:
        f: faulty clients: their number, or below 1 their share of the cohort, rounded down.
    """
    return Algorithm(server=Server(Span(minimum_diameter, Faulty("mda", f))))
