"""The unit of intervals and tests: training seeds on one partition, or partitions of the data.

In a nested design every method is trained with several training seeds (``seed``) on each of several
partitions (``data.seed``). The unit is then the partition: its value is the mean over its training
seeds. The tables of ``fedsim sweep`` use this module too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
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
POWER = 0.8
"""Power of the test at the detectable difference."""


@dataclass(frozen=True, kw_only=True)
class Levels:
    """The variance of a nested design, split into its two levels.

    Args:
        partitions: number of partitions.
        runs: number of runs.
        fewest: training seeds of the partition with the fewest.
        most: training seeds of the partition with the most.
        between: variance between partitions, at least 0.
        within: variance between the training seeds of a partition.
        truncated: whether the estimate of ``between`` was negative and is set to 0.

    The variances are in squared units of the values, and NaN if they cannot be estimated.
    """

    partitions: int
    runs: int
    fewest: int
    most: int
    between: float
    within: float
    truncated: bool = False

    @property
    def seeds(self) -> str:
        """The number of training seeds per partition: ``2``, or ``1 to 2``."""
        return str(self.most) if self.fewest == self.most else f"{self.fewest} to {self.most}"

    @property
    def share(self) -> float:
        """The part (0..1) of the variance of a run that is between partitions."""
        whole = self.between + self.within
        return self.between / whole if whole > 0 else math.nan


def unit_of(index: pd.Index[Any]) -> ExperimentalUnit:
    """The unit of values that are indexed by run: by seed, or by partition and seed."""
    return "partition" if PARTITION in index.names else "seed"


def means(values: pd.Series[float]) -> pd.Series[float]:
    """One value per unit from one value per run.

    Values by seed come back as they are. Of values by partition and seed the result has the mean
    over the seeds of each partition, without NaN: every partition counts once, whatever the number
    of its seeds.
    """
    if unit_of(values.index) == "seed":
        return values
    return values.dropna().groupby(level=PARTITION).mean()


def finite(values: pd.Series[float]) -> pd.Series[float]:
    """The values, with NaN for those beyond :data:`LARGEST`, which are no result of a run."""
    return values.where(values.astype(float).abs() <= LARGEST)


def infinite(values: pd.Series[float]) -> bool:
    """Whether every run has an infinite value, such as epsilon without noise."""
    return bool(len(values) and (values == math.inf).all())


def complete(values: pd.Series[float], runs: Collection[Any]) -> bool:
    """Whether each of the runs has a finite value.

    The rule by which methods are ranked, and the trials of ``fedsim tune``: one that lacks the
    value of a run is not chosen and does not lead, whatever its other runs give, since a run that
    fails is rarely one that would have done well.

    Args:
        values: one per run, indexed by run.
        runs: all that there should be, as in the index.
    """
    return set(runs) <= set(finite(values).dropna().index)


def repeats_partitions(partitions: pd.Series[Any], groups: pd.Series[Any]) -> bool:
    """Whether any group has runs on more than one partition.

    Args:
        partitions: ``data.seed`` of each run; runs without it do not count.
        groups: what each run repeats, such as a method; same index.
    """
    return bool((partitions.groupby(groups).nunique() > 1).any())


def levels(values: pd.Series[float]) -> Levels:
    """Variance between and within partitions: one-way random effects, analysis of variance.

    With y_ij the value of seed j in partition i, n_i seeds in each of a partitions, N = sum n_i,
    the means m_i of the partitions and the mean m of all runs:

        MSB = sum n_i (m_i - m)^2 / (a - 1)        MSW = sum (y_ij - m_i)^2 / (N - a)
        within = MSW      between = (MSB - MSW) / n0      n0 = (N - sum n_i^2 / N) / (a - 1)

    (Searle, Casella and McCulloch, Variance Components, 1992, section 3.6). A negative ``between``
    is set to 0. With one seed in every partition neither can be told from the other, and with one
    partition there is nothing between: the variances concerned are NaN.

    Args:
        values: indexed by (data.seed, seed); NaN values are excluded.
    """
    known = values.dropna()
    groups = known.groupby(level=PARTITION)
    sizes, centres = groups.count(), groups.mean()
    a, n = len(sizes), len(known)
    fewest, most = (int(sizes.min()), int(sizes.max())) if a else (0, 0)
    within = between = math.nan
    if n > a:
        own = centres.reindex(known.index.get_level_values(PARTITION)).to_numpy()
        within = float(((known.to_numpy() - own) ** 2).sum()) / (n - a)
    if n > a > 1:
        msb = float((sizes * (centres - known.mean()) ** 2).sum()) / (a - 1)
        between = (msb - within) / ((n - float((sizes**2).sum()) / n) / (a - 1))
    return Levels(
        partitions=a, runs=n, fewest=fewest, most=most, within=within,
        between=max(between, 0.0) if between == between else between,
        truncated=between < 0,
    )  # fmt: skip


def power(effect: float, n: int, level: float, ratio: float = 0.0) -> float:
    """Probability that a two-sided paired t test over n units finds a difference.

    A rejection with the wrong sign finds nothing; at a power of 0.8 its probability is below 1e-5.

    Args:
        effect: true mean difference over the standard deviation of the differences.
        n: number of pairs, at least 2.
        level: of the test.
        ratio: test over training samples, for the corrected resampled t test.
    """
    limit = float(stats.t.isf(level / 2, n - 1))
    return float(stats.nct.sf(limit, n - 1, effect * math.sqrt(n / (1 + n * ratio))))


def detectable(std: float, n: int, level: float, ratio: float = 0.0) -> float:
    """The smallest true difference that a paired t test finds with probability :data:`POWER`.

    The test statistic has the noncentral t distribution with n - 1 degrees of freedom and
    noncentrality difference / (std sqrt(1 / n + ratio)). ``std`` is the standard deviation of the
    differences over the n units, taken as the true one. NaN below two units.
    """
    if n < 2 or math.isnan(std):
        return math.nan
    high = 1.0
    while power(high, n, level, ratio) < POWER:
        high *= 2
    return std * float(
        optimize.brentq(lambda effect: power(effect, n, level, ratio) - POWER, 0, high)
    )
