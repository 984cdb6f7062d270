"""Bulyan: Krum again and again, then by coordinate (El Mhamdi, Guerraoui, Rouault, ICML 2018).

    S: theta = m - 2f updates, taken one by one by Krum among those that are left
    w_j <- w_j + mean of the theta - 2f values of S that are nearest to their median,   m >= 4f + 3

Krum among r updates counts r - f - 2 neighbours, at least one (arXiv:1802.07927).

:client: plain SGD
:server: mean around the median, by coordinate, of updates chosen by Krum; statistics too
:state: none
:sends: nothing more
:public code: Flower's newer strategy and FederatedScope choose all theta at once; FedML takes
    unsquared distances, m - f neighbours, and one value too few in the mean
"""

import numpy as np

from fedsim.algorithms.base import Algorithm
from fedsim.core.settings import NonNegative
from fedsim.core.types import F64
from fedsim.server import ByCoordinate, Faulty, Server


def selected(distances: F64, f: int) -> list[int]:
    """The m - 2f updates that Krum takes one after the other."""
    left, taken = list(range(len(distances))), list[int]()
    while len(taken) < len(distances) - 2 * f:
        among = np.sort(distances[np.ix_(left, left)], axis=1)
        scores = among[:, 1 : max(2, len(left) - f - 1)].sum(axis=1)
        taken.append(left.pop(int(np.argmin(scores))))
    return sorted(taken)


def around_median(x: F64, f: int) -> F64:
    """(d,) means of the theta - 2f values nearest to the median of each column of (theta, d).

    In a sorted column they stand side by side. They begin behind each value that is farther from
    the median than the one theta - 2f places on; of two that are equally far the lower counts.
    """
    ordered, count = np.sort(x, axis=0), len(x) - 2 * f
    median = (ordered[(len(x) - 1) // 2] + ordered[len(x) // 2]) / 2
    first = (median - ordered[: 2 * f] > ordered[count:] - median).sum(axis=0)
    place = np.arange(len(x))[:, None]
    ordered *= (first <= place) & (place < first + count)
    return np.asarray(ordered.sum(axis=0) / count)


def build(f: NonNegative = 0.1) -> Algorithm:
    """Bulyan.

    Args:
        f: faulty clients: their number, or below 1 their share of the cohort, rounded down.
    """
    rule = ByCoordinate(around_median, Faulty("bulyan", f, 4, 3), selected)
    return Algorithm(server=Server(rule))
