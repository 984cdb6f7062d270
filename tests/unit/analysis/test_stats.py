"""Intervals, paired tests and Holm's correction, against scipy and by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from analysis import stats

SEEDS = [3, 1, 4, 5, 9]
OURS = pd.Series([0.81, 0.84, 0.80, 0.86, 0.83], index=SEEDS)
THEIRS = pd.Series([0.80, 0.79, 0.81, 0.82, 0.80], index=SEEDS)


def test_estimate_is_scipys_t_interval() -> None:
    got = stats.estimate(OURS.tolist())
    low, high = scipy_stats.t.interval(0.95, 4, loc=OURS.mean(), scale=scipy_stats.sem(OURS))
    assert (got.low, got.high) == pytest.approx((low, high), rel=1e-12)
    assert (got.mean, got.std, got.n) == (pytest.approx(0.828), pytest.approx(OURS.std()), 5)


def test_estimate_leaves_out_what_is_not_there() -> None:
    assert stats.estimate([0.5, math.nan, 0.7]).n == 2
    one = stats.estimate([0.5, math.nan])
    assert (one.mean, one.n) == (0.5, 1)
    assert math.isnan(one.std)
    assert math.isnan(one.half)
    none = stats.estimate([])
    assert none.n == 0
    assert math.isnan(none.mean)


def test_over_seeds_counts_each_key_by_itself() -> None:
    index = pd.MultiIndex.from_product([[0, 1, 2], [1, 2]], names=["seed", "round"])
    values = pd.DataFrame({"loss": [1.0, 5.0, 2.0, math.nan, 3.0, math.nan]}, index=index)
    got = stats.over_seeds(values, ["round"])["loss"]
    # round 1: 1 2 3, s = 1, half = t(0.975, 2) / sqrt(3) = 4.302652730 / 1.7320508; round 2: 5
    assert got.loc[1].tolist() == pytest.approx([2, 1, 3, 2.4841377])
    assert got.loc[2, ["mean", "n"]].tolist() == [5, 1]
    assert got.loc[2, ["std", "half"]].isna().all()


def test_paired_t_is_scipys_over_the_common_seeds() -> None:
    more = pd.concat([THEIRS.iloc[::-1], pd.Series({77: 0.1})])
    got = stats.paired(OURS, more)
    want = scipy_stats.ttest_rel(OURS, THEIRS)
    assert got.p == pytest.approx(want.pvalue, rel=1e-12)
    interval = want.confidence_interval(0.95)
    assert (got.difference.low, got.difference.high) == pytest.approx(tuple(interval), rel=1e-12)
    assert got.difference.n == 5


def test_wilcoxon_by_hand() -> None:
    # all five differences positive: the most extreme of 2^5 signs on either side, p = 2 / 32
    above = OURS + pd.Series([0.01, 0.02, 0.03, 0.04, 0.05], index=SEEDS)
    assert stats.paired(above, OURS, "wilcoxon").p == pytest.approx(2 / 32)
    # a difference of zero is dropped: four are left, all positive, p = 2 / 16
    equal = above.where(above.index != SEEDS[0], OURS)
    assert stats.paired(equal, OURS, "wilcoxon").p == pytest.approx(2 / 16)
    # differences 1 5 -1 4 3 (per cent): ties and a mixed sign, as scipy has it
    want = scipy_stats.wilcoxon(OURS - THEIRS).pvalue
    assert stats.paired(OURS, THEIRS, "wilcoxon").p == pytest.approx(want)


@pytest.mark.parametrize("test", ["t", "wilcoxon"])
@pytest.mark.parametrize(
    ("ours", "theirs", "n", "reason"),
    [
        ({0: 0.5}, {1: 0.5}, 0, "no common seed"),
        ({0: 0.5, 1: 0.6}, {1: 0.5, 2: 0.7}, 1, "only one common seed"),
        ({0: 0.5, 1: math.nan}, {0: 0.4, 1: 0.7}, 1, "only one common seed"),
        ({0: 0.5, 1: 0.6}, {0: 0.5, 1: 0.6}, 2, "the same difference for every seed"),
        # 0.3 - 0.2 and 0.9 - 0.8 differ in the last bits
        ({0: 0.3, 1: 0.9}, {0: 0.2, 1: 0.8}, 2, "the same difference for every seed"),
    ],
)
def test_degenerate_pairs_have_no_p_and_say_why(
    ours: dict[int, float], theirs: dict[int, float], n: int, reason: str, test: stats.Test
) -> None:
    got = stats.paired(pd.Series(ours), pd.Series(theirs), test)
    assert math.isnan(got.p)
    assert (got.difference.n, got.reason) == (n, reason)


def test_holm_by_hand() -> None:
    # sorted 0.005 0.01 0.03 0.04: times 4, 3, 2, 1 = 0.02 0.03 0.06 0.04, and never falling
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.6, 0.5]) == pytest.approx([1.0, 1.0])
    assert stats.holm([]) == []


def test_holm_does_not_count_what_is_not_available() -> None:
    got = stats.holm([math.nan, 0.02, 0.03])
    assert math.isnan(got[0])
    assert got[1:] == pytest.approx([0.04, 0.04])


def test_holm_rejects_no_more_than_raw_and_no_fewer_than_bonferroni() -> None:
    raw = np.random.default_rng(0).uniform(0, 0.2, 30)
    adjusted = np.array(stats.holm(raw.tolist()))
    assert (adjusted >= raw).all()
    assert (adjusted <= np.minimum(1, 30 * raw) + 1e-15).all()
    assert (np.diff(adjusted[raw.argsort()]) >= 0).all()
