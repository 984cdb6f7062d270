"""RobFedAvg: outliers are pruned coordinate by coordinate (Uddin et al., IEEE SPL 2022).

For every coordinate with the clients' values x_1..x_m, the kept ones being those in a band:

    iqr:     Q1 - z (Q3 - Q1) <= x_i <= Q3 + z (Q3 - Q1)     (quartiles by linear interpolation)
    zscore:  |x_i - mean| <= z std                           (std over m, not m - 1)
    w <- w + sum_kept p_i x_i / sum_kept p_i,   the median where nothing is kept

A value at the edge of the band is kept, and so is one that only rounding puts beyond it (1e-9 of
the band). The paper's text was not at hand: its abstract says that outlying weights are pruned node
by node, the tests are a reading of it. With three clients at most ``iqr`` prunes nothing at
z = 1.5. The step is no combination of the updates, so that whole updates are needed in one place.

:client: plain SGD
:server: mean of the values that are no outliers, coordinate by coordinate; statistics by weight
:state: none
:sends: nothing more
:public code: none known
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.algorithms.base import Algorithm
from fedsim.core.settings import Positive
from fedsim.core.types import F64, RoundContext, Vectors
from fedsim.server import Cohort, Reduced, Server, Weights, shares

Test = Literal["iqr", "zscore"]
ENTRIES = 1 << 19
"""Values at a time (4 MiB): columns of all clients."""
EDGE, ROUNDING = 1e-9, 8 * np.finfo(np.float64).eps
"""How far beyond the edge a value is kept, in units of the band and of the value."""


def quantile(ordered: F64, q: float) -> F64:
    """(d,) of the columns of ``ordered`` (m, d), interpolated linearly."""
    at = q * (len(ordered) - 1)
    low = ordered[int(at)]
    return low + (at - int(at)) * (ordered[min(int(at) + 1, len(ordered) - 1)] - low)


def inside(x: F64, test: Test, z: float) -> NDArray[Any]:
    """(m, d) booleans: which values of ``x`` (m, d) lie in their column's band."""
    if test == "zscore":
        low = high = x.mean(axis=0)
        reach = z * np.sqrt(np.square(x - low).mean(axis=0))
    else:
        ordered = np.sort(x, axis=0)
        low, high = quantile(ordered, 0.25), quantile(ordered, 0.75)
        reach = z * (high - low)
    beyond = np.maximum(low - x, x - high)
    return beyond <= reach * (1 + EDGE) + ROUNDING * np.abs(x)


@dataclass(frozen=True)
class PrunedMean:
    """The mean of what is kept, and how much was pruned."""

    test: Test
    z: float
    weights: Weights

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        """Keeps no state; ``pruned_share`` is of all clients' parameters."""
        rows, layout, p = cohort.rows, cohort.layout, shares(cohort.num_samples, self.weights)
        step = np.empty(layout.size, cohort.columns.dtype)
        cohort.combine(p, slice(layout.num_params, layout.size), step)
        width, kept = max(1, ENTRIES // len(rows)), 0
        for start in range(0, layout.num_params, width):
            block = slice(start, min(start + width, layout.num_params))
            x = np.stack([row[block] for row in rows], dtype=np.float64)
            keep = inside(x, self.test, self.z)
            mass, total = p @ keep, p @ np.where(keep, x, 0.0)
            empty = mass == 0
            total[empty], mass[empty] = np.median(x[:, empty], axis=0), 1.0
            step[block] = total / mass
            kept += int(np.count_nonzero(keep))
        share = 1 - kept / (len(rows) * layout.num_params)
        return Reduced(step, metrics={"pruned_share": share})


def build(test: Test = "iqr", z: Positive = 1.5, weights: Weights = "samples") -> Algorithm:
    """RobFedAvg.

    Args:
        test: what an outlier is.
        z: width of the band, > 0: interquartile ranges beyond the quartiles, or standard deviations
            around the mean.
        weights: client weights by samples, or uniform.
    """
    return Algorithm(server=Server(PrunedMean(test, z, weights), needs_whole_updates=True))
