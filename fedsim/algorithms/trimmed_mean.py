"""Trimmed mean: extremes are dropped by coordinate (Yin et al., ICML 2018, arXiv:1803.01498).

    w_j <- w_j + mean of g_1j..g_mj without the f smallest and the f largest,   m >= 2f + 1

The step is no combination of the updates; it is computed from columns of them, where they are.

:client: plain SGD
:server: trimmed mean coordinate by coordinate, statistics included
:state: none
:sends: nothing more
:public code: FedML's sorts clients by their number of samples and drops whole clients
"""

import numpy as np

from fedsim.algorithms.base import Algorithm
from fedsim.core.settings import NonNegative
from fedsim.core.types import F64
from fedsim.server import ByCoordinate, Faulty, Server


def trimmed(x: F64, f: int) -> F64:
    """(d,) means of the columns of ``x`` (m, d) without f values at each end."""
    return np.asarray(np.sort(x, axis=0)[f : len(x) - f].mean(axis=0))


def build(f: NonNegative = 0.2) -> Algorithm:
    """Coordinate-wise trimmed mean.

    Args:
        f: faulty clients: their number, or below 1 their share of the cohort, rounded down.
    """
    rule = ByCoordinate(trimmed, Faulty("trimmed_mean", f))
    return Algorithm(server=Server(rule))
