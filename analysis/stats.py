"""Means with intervals over seeds, paired comparisons over common seeds, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95
"""Coverage of every interval."""
SIGNIFICANT = 0.05
"""Adjusted p values below this are marked."""
EQUAL = 1e-12
"""Differences that are this close, relative to the values, differ by rounding alone."""
Test = Literal["t", "wilcoxon"]
TESTS: dict[Test, str] = {"t": "paired t test", "wilcoxon": "Wilcoxon signed-rank test"}
"""The paired tests by name, and how they are called."""

Floats = np.ndarray[tuple[Any, ...], np.dtype[np.float64]]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Args:
        mean: NaN without a value.
        std: sample standard deviation (ddof 1), NaN below two values.
        n: number of values.
        half: half-width of the 95 % t interval of the mean, NaN below two values.
    """

    mean: float
    std: float
    n: int
    half: float

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.mean + self.half


@dataclass(frozen=True)
class Comparison:
    """A method against the baseline, over the seeds that both have.

    Args:
        difference: method minus baseline, over the common seeds.
        p: two-sided p value; NaN where it is not available.
        reason: why it is not available, else empty.
    """

    difference: Estimate
    p: float
    reason: str = ""


def half_width(std: Floats, n: Floats) -> Floats:
    """Half-widths of 95 % t intervals, t(0.975, n - 1) s / sqrt(n); NaN for n below 2.

    Args:
        std: sample standard deviations (ddof 1), of any shape.
        n: how many values each comes from, of the same shape.
    """
    factor = np.full(n.shape, math.nan)
    for count in np.unique(n[n > 1]):
        factor[n == count] = stats.t.ppf(0.5 + LEVEL / 2, count - 1) / math.sqrt(count)
    return std * factor


def over_seeds(values: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Mean, std, n and half-width of the 95 % interval by key; empty values count for nothing.

    Args:
        values: a row per seed and key, indexed by (seed, *keys).
        keys: the names of those index levels.

    Returns:
        Indexed by the keys in order, columns (name of the value, mean | std | n | half).
    """
    by = values.groupby(level=list(keys), sort=True)
    mean, std, n = by.mean(), by.std(ddof=1), by.count()
    half = half_width(std.to_numpy(float), n.to_numpy(float))
    parts = {
        "mean": mean,
        "std": std,
        "n": n,
        "half": pd.DataFrame(half, index=mean.index, columns=mean.columns),
    }
    order = [(column, part) for column in values.columns for part in parts]
    return pd.concat(parts, axis=1).swaplevel(axis=1)[order]


def estimate(values: Sequence[float]) -> Estimate:
    """Mean, std and interval of the values that are there (NaN is none)."""
    there = np.asarray([value for value in values if not math.isnan(value)])
    mean = float(there.mean()) if len(there) else math.nan
    std = float(there.std(ddof=1)) if len(there) > 1 else math.nan
    half = half_width(np.array(std), np.array(float(len(there))))
    return Estimate(mean, std, len(there), float(half))


def paired(values: pd.Series[float], baseline: pd.Series[float], test: Test = "t") -> Comparison:
    """Compares two methods over their common seeds.

    A test needs two common seeds and differences that vary; without them p is not available. The
    interval of the difference is the t interval, whatever the test. The Wilcoxon test drops
    differences of zero; over n seeds its p value cannot be below 2 / 2^n.

    Args:
        values: of the method, indexed by seed.
        baseline: of the baseline, indexed by seed.
        test: the paired test.
    """
    ours, theirs = values.dropna().align(baseline.dropna(), join="inner")
    differences = (ours - theirs).to_numpy(float)
    found = estimate(differences.tolist())
    if found.n < 2:
        return Comparison(found, math.nan, ("no" if found.n == 0 else "only one") + " common seed")
    if np.ptp(differences) <= EQUAL * max(ours.abs().max(), theirs.abs().max()):
        return Comparison(found, math.nan, "the same difference for every seed")
    if test == "t":
        return Comparison(found, float(stats.ttest_rel(ours, theirs).pvalue))
    return Comparison(found, float(stats.wilcoxon(differences).pvalue))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction: adjusted p values, in the order given.

    The k-th smallest of m is multiplied by m - k + 1; results are at most 1 and never below that
    of a smaller p. NaN is no comparison: it stays NaN and does not count in m.
    """
    raw = np.asarray(p, dtype=float)
    order = [index for index in np.argsort(raw) if not math.isnan(raw[index])]
    adjusted, highest = raw.copy(), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, float(raw[index]) * (len(order) - rank)))
        adjusted[index] = highest
    return adjusted.tolist()
