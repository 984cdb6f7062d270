"""Coordinate median: each coordinate's median (Yin et al., ICML 2018, arXiv:1803.01498).

    w_j <- w_j + median of g_1j..g_mj,   the mean of the two in the middle for even m

The step is no combination of the updates; it is computed from columns of them, where they are.

:client: plain SGD
:server: median coordinate by coordinate, statistics included
:state: none
:sends: nothing more
:public code: torch.median takes the lower of the two values in the middle
"""

import numpy as np

from fedsim.algorithms.base import Algorithm
from fedsim.core.types import F64
from fedsim.server import ByCoordinate, Server


def median(x: F64, f: int) -> F64:
    """(d,) of the columns of ``x`` (m, d), which are finite."""
    m, ordered = len(x), np.sort(x, axis=0)  # np.median takes four times as long
    return np.asarray((ordered[(m - 1) // 2] + ordered[m // 2]) / 2)


def build() -> Algorithm:
    """Coordinate-wise median."""
    return Algorithm(server=Server(ByCoordinate(median)))
