"""Verdicts on published results: equivalence with a number, the order of two methods.

A number is confirmed where the 90 % interval of our mean minus it lies inside the margin (two
one-sided t tests, Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987), and contradicted where the
95 % interval lies outside; an order by a paired t test at level 0.05, with Holm's correction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import pandas as pd
from scipy import stats as distributions

from . import stats, units
from .paired import FEWEST_EQUAL, SIGNIFICANT, Test, tost

K = TypeVar("K")
CONFIRMED, EXACTLY = "confirmed", "confirmed exactly"
CONTRADICTED, UNDECIDED = "contradicted", "not decidable"
UNTESTABLE = "not testable here"
WORDS = (EXACTLY, CONFIRMED, CONTRADICTED, UNDECIDED, UNTESTABLE)  # all verdicts
EQUAL = 1e-9  # values closer than this are equal
MOST = 10_000  # larger numbers of values are not looked for
FAR = 30.0  # from this noncentrality on the normal distribution stands for the noncentral t


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What our values say about a published result."""

    word: str  # one of `WORDS`
    reason: str = ""  # what else is to be known, or why there is no verdict
    ours: float = math.nan  # our mean, of an order that of the method claimed above
    n: int = 0  # number of our seeds or partitions
    unit: str = "seed"  # what they are, ``seed`` or ``partition``
    difference: float = math.nan  # ours minus the published, or the first minus the second
    half90: float = math.nan  # half-width of the 90 % t interval of the difference
    half95: float = math.nan  # of its 95 % interval
    p: float = math.nan  # of an order, with Holm's correction
    needed: int | None = None  # units that would decide it with probability 0.8, if known


def standard_error(std: float, k: int, sd: float, n: int | None) -> tuple[float, float]:
    """Standard error and freedom of our k values' mean minus that of n published: Welch's. Without
    ``sd`` both vary alike; without ``n`` the published number is exact."""
    if n is None:
        return std / math.sqrt(k), k - 1.0
    if math.isnan(sd):
        return std * math.sqrt(1 / k + 1 / n), k - 1.0
    ours, theirs = std**2 / k, sd**2 / n
    spread = ours**2 / (k - 1) + theirs**2 / (n - 1)
    freedom = (ours + theirs) ** 2 / spread if spread > 0 else float(k + n - 2)
    return math.sqrt(ours + theirs), freedom


def number(
    values: pd.Series[float], published: float, margin: float, *, sd: float = math.nan,
    n: int | None = None, widest: float = math.inf,
) -> Verdict:  # fmt: skip
    """The verdict on a published number, by one value of ours per run (NaN: a failed one). ``sd``
    and ``n`` are of the published runs; a 95 % interval beyond ``widest`` tests nothing."""
    each = units.means(units.finite(values).dropna()).to_numpy(float)
    k, unit = len(each), units.unit_of(values.index)
    mean = float(each.mean()) if k else math.nan
    verdict = Verdict(word=UNDECIDED, reason=_lacking(values), ours=mean, n=k, unit=unit)
    if verdict.reason or k < 2:
        alone = f"one {unit} alone: how values vary is not known"
        return replace(verdict, reason=verdict.reason or alone)
    std, difference = float(each.std(ddof=1)) * (np.ptp(each) > EQUAL), mean - published
    error, freedom = standard_error(std, k, sd, n)
    half90, half95 = (float(distributions.t.ppf(q, freedom)) * error for q in (0.95, 0.975))
    verdict = replace(verdict, difference=difference, half90=half90, half95=half95)
    if error == 0 and k < FEWEST_EQUAL:
        reason = f"{k} equal values do not tell how much they vary"
        return replace(verdict, reason=reason, needed=FEWEST_EQUAL)
    if 2 * half95 > widest:
        reason = f"too wide: the 95 % interval is wider than {widest:g}"
        return replace(verdict, word=UNTESTABLE, reason=reason)
    if tost(difference, error, freedom, margin) < SIGNIFICANT:
        return replace(verdict, word=CONFIRMED)
    if abs(difference) - half95 > margin:
        return replace(verdict, word=CONTRADICTED)
    needed = fewest(lambda count: power(difference, std, count, margin, sd, n))
    return replace(verdict, needed=needed)


def seeds(
    values: pd.Series[float], published: Mapping[int, float], margin: float, *,
    widest: float = math.inf,
) -> Verdict:  # fmt: skip
    """That on a number published by seed; exact where all are ours to :data:`EQUAL`."""
    theirs = pd.Series(published)
    equal = int(((values.astype(float) - theirs).abs() <= EQUAL).sum())
    mean, sd = float(np.mean(theirs)), float(theirs.std(ddof=1))
    result = number(values, mean, margin, sd=sd, n=len(theirs), widest=widest)
    reason = f"{equal} of {len(theirs)} values equal to {EQUAL:g}"
    if equal == len(theirs) == len(values):
        return replace(result, word=EXACTLY, reason=reason, needed=None)
    return replace(result, reason="; ".join(filter(None, (result.reason, reason))))


def orders(
    pairs: Mapping[K, tuple[pd.Series[float], pd.Series[float]]], margin: float = math.nan
) -> dict[K, Verdict]:
    """The verdicts on orders of runs (above, below), corrected over all of them."""
    test = Test(rope=None if math.isnan(margin) else margin)
    compared = {key: stats.paired(above, below, test) for key, (above, below) in pairs.items()}
    lacking = {key: _lacking(above, below) for key, (above, below) in pairs.items()}
    p = [math.nan if lacking[key] else one.p for key, one in compared.items()]
    adjusted = dict(zip(compared, stats.holm(p), strict=True))
    level = SIGNIFICANT / max(1, sum(not math.isnan(each) for each in p))
    made = {}
    for key, one in compared.items():
        difference, half90 = one.difference, math.nan
        if difference.n > 1:
            t = float(distributions.t.ppf(0.95, difference.n - 1))
            half90 = t * difference.std / math.sqrt(difference.n)
        word, reason, needed = UNDECIDED, lacking[key] or one.reason, None
        if adjusted[key] < SIGNIFICANT:
            word = CONFIRMED if one.sign > 0 else CONTRADICTED
        elif not reason:
            needed = fewest(
                partial(units.power, abs(difference.mean) / difference.std, level=level)
            )
        if one.equal < SIGNIFICANT and not lacking[key]:
            reason = "; ".join(filter(None, (reason, f"practically equal, within +-{margin:g}")))
        made[key] = Verdict(
            word=word, reason=reason, ours=float(units.means(pairs[key][0]).mean()),
            n=difference.n, unit=difference.unit, difference=difference.mean, half90=half90,
            half95=difference.half, p=adjusted[key], needed=needed,
        )  # fmt: skip
    return made


def power(difference: float, std: float, k: int, margin: float, sd: float, n: int | None) -> float:
    """Chance that k values decide; inside the margin by Bonferroni's bound on the two tests."""
    error, freedom = standard_error(std, k, sd, n)
    distance = abs(difference)
    if error == 0:
        return float(distance != margin and k >= FEWEST_EQUAL)
    if distance >= margin:
        return _exceeds(0.975, freedom, (distance - margin) / error)
    ends = (margin - distance, margin + distance)
    return max(0.0, sum(_exceeds(0.95, freedom, end / error) for end in ends) - 1)


def fewest(chance: Callable[[int], float]) -> int | None:
    """The smallest number from 2 to :data:`MOST` with a chance of 0.8; None without one."""
    low, high = 1, 2
    while chance(high) < units.POWER:
        if high == MOST:
            return None
        low, high = high, min(high + max(1, high // 10), MOST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle) >= units.POWER else (middle, high)
    return high


def _exceeds(quantile: float, freedom: float, shift: float) -> float:
    """P(T > that quantile of t) of the noncentral t distribution."""
    limit = float(distributions.t.ppf(quantile, freedom))
    if shift > FAR:  # scipy's noncentral t loses its digits there
        return float(distributions.norm.sf(limit - shift))
    return float(distributions.nct.sf(limit, freedom, shift))


def _lacking(*values: pd.Series[float]) -> str:
    """Why there is no verdict: how many runs have no value; empty where all have one."""
    runs = pd.concat([units.finite(series) for series in values], axis=1)
    missing = int(runs.isna().any(axis=1).sum())
    if len(runs) == 0:
        return "no run has a value"
    return f"{missing} of {len(runs)} runs have no value" if missing else ""
