"""The unit of intervals and tests: training seeds on one partition, or partitions of the data.

With several training seeds (``seed``) on each of several partitions (``data.seed``) the unit is the
partition: its value is the mean over its training seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import optimize, stats

ExperimentalUnit = Literal["seed", "partition"]
"""What is repeated to estimate means and to test differences."""
SEED, PARTITION = "seed", "data.seed"
"""Columns of summary.csv: the seeds of training and of the partition."""
COLUMNS: Mapping[ExperimentalUnit, tuple[str, ...]] = {
    "seed": (SEED,), "partition": (PARTITION, SEED),
}  # fmt: skip
"""The columns that identify a run among the repetitions of one method."""
LARGEST = float(np.finfo(np.float32).max)
"""Networks compute in float32: a larger score or loss is that of a run that has diverged."""
POWER = 0.8  # power of the test at the detectable difference


@dataclass(frozen=True, kw_only=True)
class Levels:
    """The variance of a nested design, split into its two levels; NaN where it cannot be."""

    runs: int  # number of runs
    seeds: str  # of training per partition: ``2``, or ``1 to 2``
    between: float  # variance between partitions, at least 0
    within: float  # variance between the training seeds of a partition
    truncated: bool = False  # whether the estimate of ``between`` was negative and is set to 0

    @property
    def share(self) -> float:
        """The part (0..1) of the variance of a run that is between partitions."""
        whole = self.between + self.within
        return self.between / whole if whole > 0 else math.nan


def unit_of(index: pd.Index[Any]) -> ExperimentalUnit:
    """The unit of values that are indexed by run: by seed, or by partition and seed."""
    return "partition" if PARTITION in index.names else "seed"


def means(values: pd.Series[float]) -> pd.Series[float]:
    """One value per unit from one per run: of a partition the mean over its seeds."""
    if unit_of(values.index) == "seed":
        return values
    return values.dropna().groupby(level=PARTITION).mean()


def finite(values: pd.Series[float]) -> pd.Series[float]:
    """The values, with NaN for those beyond :data:`LARGEST`, which are no result of a run."""
    return values.where(values.astype(float).abs() <= LARGEST)


def infinite(values: pd.Series[float]) -> bool:
    """Whether every run has an infinite value, such as epsilon without noise."""
    return bool(len(values) and (values == math.inf).all())


def repeats_partitions(partitions: pd.Series[Any], groups: pd.Series[Any]) -> bool:
    """Whether any group has runs on several partitions, ``data.seed`` by run."""
    return bool((partitions.groupby(groups).nunique() > 1).any())


def levels(values: pd.Series[float]) -> Levels:
    """Variance between and within partitions of values by (data.seed, seed), without NaN.

    One-way random effects, analysis of variance (Searle, Casella and McCulloch, Variance
    Components, 1992, section 3.6). With y_ij the value of seed j in partition i, n_i seeds in each
    of a partitions, N = sum n_i, the means m_i of the partitions and the mean m of all runs:

        MSB = sum n_i (m_i - m)^2 / (a - 1)        MSW = sum (y_ij - m_i)^2 / (N - a)
        within = MSW      between = (MSB - MSW) / n0      n0 = (N - sum n_i^2 / N) / (a - 1)

    A negative ``between`` is set to 0.
    """
    values = values.dropna()
    groups = values.groupby(level=PARTITION)
    sizes, a, n = groups.count(), groups.ngroups, len(values)
    within = between = math.nan
    if n > a:
        within = float(((values - groups.transform("mean")) ** 2).sum()) / (n - a)
    if n > a > 1:
        msb = float((sizes * (groups.mean() - values.mean()) ** 2).sum()) / (a - 1)
        between = (msb - within) / ((n - float((sizes**2).sum()) / n) / (a - 1))
    ends = [sizes.min(), sizes.max()] if a else [0]
    return Levels(
        runs=n, seeds=" to ".join(map(str, dict.fromkeys(ends))), within=within,
        between=between if math.isnan(between) else max(between, 0.0), truncated=between < 0,
    )  # fmt: skip


def power(effect: float, n: int, level: float, ratio: float = 0.0) -> float:
    """Power of a paired t test over n pairs at ``effect``, a mean over a standard deviation."""
    limit = float(stats.t.isf(level / 2, n - 1))
    return float(stats.nct.sf(limit, n - 1, effect * math.sqrt(n / (1 + n * ratio))))


def detectable(std: float, n: int, level: float, ratio: float = 0.0) -> float:
    """The smallest true difference that a t test finds with :data:`POWER`; NaN below n = 2."""
    if n < 2 or math.isnan(std):
        return math.nan
    high = 1.0
    while power(high, n, level, ratio) < POWER:
        high *= 2
    root = optimize.brentq(lambda effect: power(effect, n, level, ratio) - POWER, 0, high)
    return std * float(root)
