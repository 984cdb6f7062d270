"""PCGrad: FedGH's projections with unit weights; the projections themselves are tested there."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from fedsim.algorithms.fedgh import harmonize_orders
from tests.oracles import aggregation as oracle
from tests.oracles import samplers

from .cases import EXAMPLES, assert_step, draw, every_cohort, every_input
from .serving import LAYOUT, single


def released_orders(m):
    """Every task meets all of them in order, itself included."""
    return [list(range(m)) for _ in range(m)]


def test_by_hand():
    # Projected (test_fedgh): (1/2, 1/2) and (0, 1); their sum divided by m = 2.
    step = fedsim.aggregate(*EXAMPLES["A2"], "pcgrad")
    np.testing.assert_allclose(step, [0.25, 0.75], rtol=1e-15)


@every_input
@every_cohort
@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
def test_oracle(sampler, m, order):
    g, n, _ = draw(sampler, m)
    orders = harmonize_orders(m, 3, 8) if order == "random" else oracle.visiting_orders(m, order)
    expected = oracle.fedgh_projected(g, orders).sum(axis=0) / m
    assert_step(fedsim.aggregate(g, n, "pcgrad", order=order, seed=3, round=8), expected, g)


@every_input
@every_cohort
def test_the_released_code(sampler, m):
    g, n, _ = draw(sampler, m)
    expected = oracle.fedgh_projected(g, released_orders(m)).sum(axis=0) / m
    got = fedsim.aggregate(g, n, "pcgrad", order="ascending", include_self=True)
    assert_step(got, expected, g)


def test_the_own_update_matters_after_other_projections():
    # Angles 170, -170, 0 degrees: the last one ends with an inner product of -0.028 with itself.
    angles = np.radians([170.0, -170.0, 0.0])
    g = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    last = oracle.fedgh_projected(g, oracle.visiting_orders(3, "ascending"))[2]
    assert last @ g[2] == pytest.approx(-0.028, abs=5e-4)
    without, included = (
        fedsim.aggregate(g, [1] * 3, "pcgrad", order="ascending", include_self=own)
        for own in (False, True)
    )
    expected = oracle.fedgh_projected(g, [[1, 2], [0, 2], [0, 1]]).mean(axis=0)
    np.testing.assert_allclose(without, expected, atol=1e-14)
    # Only the last one meets a conflict with itself, which removes what it has along 0 degrees.
    np.testing.assert_allclose(included - without, -(last @ g[2]) * g[2] / 3, atol=1e-14)


def test_random_orders_with_oneself():
    orders = harmonize_orders(5, 1, 2, include_self=True)
    assert [sorted(ids) for ids in orders] == [[0, 1, 2, 3, 4]] * 5
    assert len({tuple(ids) for ids in orders}) > 1


@every_cohort
def test_it_is_fedgh_with_uniform_weights_whatever_the_samples(m):
    g, n, _ = draw(samplers.conflicting, m)
    expected = fedsim.aggregate(g, n, "fedgh", weights="uniform", seed=1, round=2)
    for counts in (n, n[::-1], np.ones(m)):
        got = fedsim.aggregate(g, counts, "pcgrad", seed=1, round=2)
        np.testing.assert_array_equal(got, expected)


@every_cohort
def test_without_conflicts_it_is_uniform_fedavg_bit_for_bit(m):
    for sampler in (samplers.agreeing, samplers.orthogonal, samplers.identical, samplers.all_zero):
        g, n, _ = draw(sampler, m)
        fedavg = fedsim.aggregate(g, n, "fedavg", weights="uniform")
        np.testing.assert_array_equal(fedsim.aggregate(g, n, "pcgrad"), fedavg)


@pytest.mark.parametrize("round", [0, 4])
def test_the_papers_sum_is_a_server_rate_of_m(round):
    g, n, _ = draw(samplers.conflicting, 5)
    mean = fedsim.aggregate(g, n, "pcgrad", round=round)
    total = fedsim.aggregate(g, n, "pcgrad", round=round, eta_g=5.0)
    np.testing.assert_allclose(total, 5 * mean, rtol=1e-12)


def test_statistics_are_averaged_uniformly_whatever_the_rate():
    g = np.random.default_rng(9).normal(size=(3, 6))
    answer = single("pcgrad", g, [1, 2, 30], layout=LAYOUT, eta_g=3.0)
    np.testing.assert_allclose(answer.step[4:], g[:, 4:].mean(axis=0), rtol=1e-12)
