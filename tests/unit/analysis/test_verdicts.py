"""Verdicts on planted values: each word, its interval, and the number of runs that would decide."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import verdicts
from analysis.verdicts import CONFIRMED, CONTRADICTED, EXACTLY, UNDECIDED, UNTESTABLE


def by_seed(*values: float) -> pd.Series[float]:
    return pd.Series(values, index=pd.RangeIndex(len(values), name="seed"), dtype=float)


OURS = by_seed(80.0, 81.0, 82.0, 81.0)  # mean 81, std sqrt(2/3), standard error sqrt(1/6)
ERROR = math.sqrt(1 / 6)


def test_the_intervals_of_a_number_that_is_taken_as_exact() -> None:
    found = verdicts.number(OURS, 80.5, 2.0)
    assert (found.ours, found.n, found.unit, found.difference) == (81.0, 4, "seed", 0.5)
    assert found.half90 == pytest.approx(2.3533634348018264 * ERROR, rel=1e-9)  # t table, df 3
    assert found.half95 == pytest.approx(3.182446305284263 * ERROR, rel=1e-9)
    assert (found.word, found.needed) == (CONFIRMED, None)


@pytest.mark.parametrize(
    ("published", "margin", "word"),
    [
        (80.5, 1.5, CONFIRMED),  # 0.5 + 0.961 inside
        (80.5, 1.4, UNDECIDED),
        (78.0, 1.5, CONTRADICTED),  # 3 - 1.299 above 1.5
        (78.0, 1.8, UNDECIDED),
        (84.0, 1.5, CONTRADICTED),
        (81.5, 1.5, CONFIRMED),
    ],
)
def test_a_number_is_confirmed_inside_and_contradicted_outside_the_margin(
    published: float, margin: float, word: str
) -> None:
    assert verdicts.number(OURS, published, margin).word == word


def test_with_a_published_spread_the_interval_is_that_of_welch() -> None:
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(0, 1, 7), rng.normal(1, 3, 5)
    found = verdicts.number(
        by_seed(*ours), float(theirs.mean()), 1.0, sd=float(theirs.std(ddof=1)), n=5
    )
    welch = stats.ttest_ind(ours, theirs, equal_var=False)
    for level, half in ((0.9, found.half90), (0.95, found.half95)):
        low, high = welch.confidence_interval(level)
        assert found.difference - half == pytest.approx(low, rel=1e-9)
        assert found.difference + half == pytest.approx(high, rel=1e-9)


def test_a_single_published_run_is_taken_to_vary_as_ours_do() -> None:
    found = verdicts.number(OURS, 81.0, 5.0, n=1)
    error = math.sqrt(2 / 3) * math.sqrt(1 / 4 + 1)  # the standard error of a prediction
    assert found.half95 == pytest.approx(3.182446305284263 * error, rel=1e-9)


def test_what_cannot_be_decided_says_how_many_runs_would() -> None:
    found = verdicts.number(OURS, 80.5, 1.0)
    assert found.word == UNDECIDED
    assert found.needed is not None
    std = math.sqrt(2 / 3)

    def chance(n: int) -> float:
        """By hand: P(both tests reject) of n values, difference 0.5, margin 1."""
        t, error = stats.t.ppf(0.95, n - 1), std / math.sqrt(n)
        upper = stats.nct.cdf(-t, n - 1, (0.5 - 1) / error)
        lower = stats.nct.sf(t, n - 1, (0.5 + 1) / error)
        return float(upper + lower - 1)

    assert chance(found.needed) >= 0.8 > chance(found.needed - 1)


def test_the_bound_of_the_power_is_near_what_is_simulated() -> None:
    rng = np.random.default_rng(2)
    draws = rng.normal(0.2, 1.0, (4000, 40))
    mean, error = draws.mean(axis=1), draws.std(axis=1, ddof=1) / math.sqrt(40)
    share = float((np.abs(mean) + stats.t.ppf(0.95, 39) * error < 0.6).mean())
    told = verdicts.power(0.2, 1.0, 40, 0.6, math.nan, None)
    # the standard error of a share of 4000 is at most 0.008
    assert told == pytest.approx(share, abs=0.03)


def test_the_number_of_runs_is_found_where_more_of_them_lower_the_chance() -> None:
    """Welch: with ever more of our runs the degrees of freedom fall to those of two published."""

    def chance(n: int) -> float:
        return verdicts.power(0.0, 1.0, n, 1.1, 0.3, 2)

    assert max(map(chance, (16, 32, 64))) < 0.8
    few = verdicts.fewest(chance)
    assert few is not None
    assert chance(few) >= 0.8 > chance(few - 1)


def test_an_interval_that_is_too_wide_tests_nothing() -> None:
    found = verdicts.number(OURS, 81.0, 5.0, widest=2.5)
    assert found.word == UNTESTABLE
    assert found.reason == "too wide: the 95 % interval is wider than 2.5"
    assert verdicts.number(OURS, 81.0, 5.0, widest=2.7).word == CONFIRMED  # it is 2.598


def test_a_failed_run_leaves_a_number_undecided() -> None:
    found = verdicts.number(by_seed(80.5, math.nan, 80.5, 80.5), 80.5, 1.0)
    assert (found.word, found.reason) == (UNDECIDED, "1 of 4 runs have no value")
    assert verdicts.number(by_seed(80.5), 80.5, 1.0).word == UNDECIDED
    assert verdicts.number(by_seed(), 80.5, 1.0).reason == "no run has a value"


@pytest.mark.parametrize("value", [3.0, 0.62])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_values_without_spread_decide_by_their_difference_from_five_on(
    count: int, value: float
) -> None:
    """On a grid two to four values are alike by chance too often for an error of 5 %."""
    same = by_seed(*[value] * count)
    inside, outside = (verdicts.number(same, value + by, 1.0) for by in (0.5, 1.5))
    if count < 5:
        assert {inside.word, outside.word} == {UNDECIDED}
        assert (inside.needed, inside.reason) == (
            5, f"{count} equal values do not tell how much they vary"
        )  # fmt: skip
    else:
        assert (inside.word, outside.word) == (CONFIRMED, CONTRADICTED)


def test_partitions_count_once_each() -> None:
    index = pd.MultiIndex.from_product([[0, 1], [0, 1]], names=["data.seed", "seed"])
    found = verdicts.number(pd.Series([1.0, 3.0, 4.0, 4.0], index=index), 3.0, 1.0)
    assert (found.n, found.unit, found.ours) == (2, "partition", 3.0)


PUBLISHED = {42: 0.7, 43: 0.8, 44: 0.75}


def exact(*values: float) -> pd.Series[float]:
    return pd.Series(values, index=pd.Index(list(PUBLISHED)[: len(values)], name="seed"))


def test_values_by_seed_are_confirmed_exactly_or_by_their_mean() -> None:
    same = verdicts.seeds(exact(0.7, 0.8, 0.75 + 5e-10), PUBLISHED, 0.1)
    assert (same.word, same.reason) == (EXACTLY, "3 of 3 values equal to 1e-09")
    near = verdicts.seeds(exact(0.7, 0.8, 0.751), PUBLISHED, 0.2)
    assert (near.word, near.reason) == (CONFIRMED, "2 of 3 values equal to 1e-09")
    assert verdicts.seeds(exact(0.9, 1.0, 0.95), PUBLISHED, 0.01).word == CONTRADICTED
    assert verdicts.seeds(exact(0.7, 0.8), PUBLISHED, 0.01).word == UNDECIDED
    other = exact(0.7, 0.8, 0.75).rename({44: 45})
    assert verdicts.seeds(other, PUBLISHED, 0.5).word == CONFIRMED


ABOVE = by_seed(1.0, 2.0, 3.0, 4.0, 5.0)


def test_an_order_is_confirmed_contradicted_or_undecided() -> None:
    lower = ABOVE - by_seed(1.0, 1.1, 0.9, 1.0, 1.05)
    noise = ABOVE + by_seed(1.0, -1.0, 1.0, -1.0, 0.2)
    found = verdicts.orders(
        {"up": (ABOVE, lower), "down": (lower, ABOVE), "none": (ABOVE, noise)}, 0.01
    )
    words = {key: one.word for key, one in found.items()}
    assert words == {"up": CONFIRMED, "down": CONTRADICTED, "none": UNDECIDED}
    p = stats.ttest_rel(ABOVE, lower).pvalue
    assert found["up"].p == pytest.approx(min(1, 3 * p), rel=1e-9)  # Holm over three
    assert found["up"].difference == pytest.approx(1.01, rel=1e-9)
    few = found["none"].needed
    assert few is not None
    effect = abs(found["none"].difference) / np.std(ABOVE - noise, ddof=1)

    def chance(n: int) -> float:
        limit = stats.t.isf(0.05 / 3 / 2, n - 1)
        return float(stats.nct.sf(limit, n - 1, effect * math.sqrt(n)))

    assert chance(few) >= 0.8 > chance(few - 1)


def test_holm_makes_orders_undecided_that_alone_would_be_confirmed() -> None:
    other = ABOVE - by_seed(1.0, 0.2, 0.9, 0.4, 0.1)
    p = stats.ttest_rel(ABOVE, other).pvalue
    assert 0.025 < p < 0.05
    alone = verdicts.orders({"a": (ABOVE, other)})
    both = verdicts.orders({"a": (ABOVE, other), "b": (ABOVE, other)})
    assert (alone["a"].word, both["a"].word) == (CONFIRMED, UNDECIDED)


def test_an_order_inside_the_margin_says_so() -> None:
    near = ABOVE + by_seed(0.001, -0.001, 0.001, -0.001, 0.0)
    found = verdicts.orders({"a": (ABOVE, near)}, 0.1)["a"]
    assert (found.word, found.reason) == (UNDECIDED, "practically equal, within +-0.1")


def test_orders_without_all_values_are_undecided_and_not_counted() -> None:
    lower = ABOVE - by_seed(1.0, 1.1, 0.9, 1.0, 1.05)
    holes = lower.where(lower.index != 2)
    found = verdicts.orders({"whole": (ABOVE, lower), "holes": (ABOVE, holes)})
    assert (found["holes"].word, found["holes"].reason) == (UNDECIDED, "1 of 5 runs have no value")
    assert found["whole"].p == pytest.approx(stats.ttest_rel(ABOVE, lower).pvalue, rel=1e-9)
    same = verdicts.orders({"same": (ABOVE, ABOVE - 1)})["same"]
    assert (same.word, same.reason) == (UNDECIDED, "the same difference for every seed")
    assert verdicts.orders({}) == {}
