"""What intervals, tests and decisions promise, in experiments that meet their assumptions.

A share p of N independent experiments has the standard error sqrt(p (1 - p) / N). Each test allows
five of them, which its docstring or name says in numbers; seeds are fixed, so that nothing varies.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from analysis import ranks, stats, units

COUNT = 20_000
Array = np.ndarray


def noise(share: float, count: int = COUNT) -> float:
    """Five standard errors of a share of so many experiments."""
    return 5 * math.sqrt(share * (1 - share) / count)


def resplits(rng: np.random.Generator, count: int, n: int, ratio: float, mean: float) -> Array:
    """(count, n) differences on resplits: correlated by test / (test + training samples)."""
    rho = ratio / (1 + ratio)
    shared, own = rng.normal(size=(count, 1)), rng.normal(size=(count, n))
    return np.asarray(mean + math.sqrt(rho) * shared + math.sqrt(1 - rho) * own)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 5, 10, 30])
def test_the_t_interval_covers_95_percent(n: int) -> None:
    """Normal units: 0.95 +- 0.0077, within 0.93..0.97."""
    values = np.random.default_rng(n).normal(3, 2, (COUNT, n))
    half = stats.half_width(values.std(axis=1, ddof=1), np.full(COUNT, float(n)))
    covered = (np.abs(values.mean(axis=1) - 3) <= half).mean()
    assert covered == pytest.approx(0.95, abs=noise(0.95))


@pytest.mark.slow
@pytest.mark.parametrize(("partitions", "seeds"), [(4, 2), (10, 3)])
def test_the_interval_over_partitions_covers_95_percent(partitions: int, seeds: int) -> None:
    """A nested design, both of whose levels are normal: 0.95 +- 0.0077."""
    rng = np.random.default_rng(seeds)
    runs = rng.normal(1, 0.5, (COUNT, partitions, 1)) + rng.normal(0, 1, (COUNT, partitions, seeds))
    units_ = runs.mean(axis=2)
    half = stats.half_width(units_.std(axis=1, ddof=1), np.full(COUNT, float(partitions)))
    covered = (np.abs(units_.mean(axis=1) - 1) <= half).mean()
    assert covered == pytest.approx(0.95, abs=noise(0.95))


def _error(values: Array, ratio: float) -> Array:
    return np.asarray(values.std(axis=1, ddof=1) * math.sqrt(1 / values.shape[1] + ratio))


def _p(values: Array, ratio: float = 0.0) -> Array:
    t = np.abs(values.mean(axis=1)) / _error(values, ratio)
    return np.asarray(2 * scipy_stats.t.sf(t, values.shape[1] - 1))


def _tost(values: Array, rope: float, ratio: float = 0.0) -> Array:
    margin = rope - np.abs(values.mean(axis=1))
    return np.asarray(scipy_stats.t.sf(margin / _error(values, ratio), values.shape[1] - 1))


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.1, 0.25, 1.0])
@pytest.mark.parametrize("n", [3, 10])
def test_the_corrected_interval_covers_95_percent_and_the_plain_one_fewer(
    n: int, ratio: float
) -> None:
    """Differences on resplits, correlated as Nadeau and Bengio take them: 0.95 +- 0.0077."""
    values = resplits(np.random.default_rng(n), COUNT, n, ratio, 0.7)
    std, count = values.std(axis=1, ddof=1), np.full(COUNT, float(n))
    distance = np.abs(values.mean(axis=1) - 0.7)
    corrected = (distance <= stats.half_width(std, count, ratio)).mean()
    assert corrected == pytest.approx(0.95, abs=noise(0.95))
    plain = (distance <= stats.half_width(std, count)).mean()
    assert plain < 0.95 - noise(0.95)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.0, 0.25])
@pytest.mark.parametrize(("n", "level"), [(3, 0.05), (10, 0.05), (10, 0.05 / 4)])
def test_the_power_at_the_detectable_difference(n: int, level: float, ratio: float) -> None:
    """Rejected with the right sign in 0.8 +- 0.0141 of the experiments.

    The standard deviation that :func:`units.detectable` takes is that within the resplits.
    """
    std = math.sqrt(1 / (1 + ratio))  # sqrt(1 - rho)
    true = units.detectable(std, n, level, ratio)
    values = resplits(np.random.default_rng(n + 1), COUNT, n, ratio, true)
    found = (_p(values, ratio) < level) & (values.mean(axis=1) > 0)
    assert found.mean() == pytest.approx(0.8, abs=noise(0.8))


@pytest.mark.slow
@pytest.mark.parametrize("equal", [4, 2])
def test_holm_keeps_the_family_wise_error(equal: int) -> None:
    """Of four methods some equal the baseline: one gets a star in at most 0.05 + 0.0109."""
    count, n = 10_000, 8
    rng = np.random.default_rng(equal)
    baseline = rng.normal(size=(count, 1, n))
    shift = np.where(np.arange(4) < equal, 0.0, 3.0)[:, None]
    p = np.stack(
        [_p(own) for own in np.moveaxis(rng.normal(shift, 1, (count, 4, n)) - baseline, 1, 0)]
    )
    wrong = [min(stats.holm(column)[:equal]) < 0.05 for column in p.T.tolist()]
    assert np.mean(wrong) <= 0.05 + noise(0.05, count)
    assert np.mean(wrong) > 0.02, "it rejects at all"


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.0, 0.25])
@pytest.mark.parametrize("n", [5, 10])
def test_tost_at_the_margin_errs_in_5_percent(n: int, ratio: float) -> None:
    """The true difference is the rope: practically equal in at most 0.05 + 0.0077; it is found."""
    rope = 3.0
    at_margin = resplits(np.random.default_rng(n), COUNT, n, ratio, rope)
    assert (_tost(at_margin, rope, ratio) < 0.05).mean() == pytest.approx(0.05, abs=noise(0.05))
    outside = resplits(np.random.default_rng(n), COUNT, n, ratio, -1.3 * rope)
    assert (_tost(outside, rope, ratio) < 0.05).mean() <= 0.05
    same = resplits(np.random.default_rng(n), COUNT, n, ratio, 0.0)
    assert (_tost(same, rope, ratio) < 0.05).mean() > 0.8


def simulated_ranks(rng: np.random.Generator, count: int, n: int, levels: Array) -> Array:
    """(count, n, k) ranks of k methods over n blocks with normal noise, 1 for the best."""
    values = levels + rng.normal(size=(count, n, len(levels)))
    return np.asarray(scipy_stats.rankdata(-values, axis=2))


@pytest.mark.slow
@pytest.mark.parametrize(("k", "n"), [(3, 10), (5, 20), (10, 30)])
def test_nemenyi_keeps_the_family_wise_error(k: int, n: int) -> None:
    """Equal methods: some pair is told apart in at most 0.05 + 0.0077 of the experiments."""
    means = simulated_ranks(np.random.default_rng(k), COUNT, n, np.zeros(k)).mean(axis=1)
    wrong = (np.ptp(means, axis=1) > ranks.critical_difference(k, n)).mean()
    assert 0.02 < wrong <= 0.05 + noise(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("k", "n"), [(3, 10), (5, 20)])
def test_friedman_and_iman_davenport_keep_their_level(k: int, n: int) -> None:
    """2,000 experiments with equal methods: at most 0.05 + 0.0244 are significant."""
    count = 2_000
    found = simulated_ranks(np.random.default_rng(n), count, n, np.zeros(k))
    for test in (ranks.friedman, ranks.iman_davenport):
        wrong = np.mean([test(one)[1] < 0.05 for one in found])
        assert wrong <= 0.05 + noise(0.05, count)
        assert wrong > 0.02
