"""FedGH's projections through ``fedsim.aggregate``, against Algorithm 1's loop over vectors."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import fedsim
from fedsim.algorithms.fedgh import harmonize_orders
from tests.oracles import aggregation as oracle
from tests.oracles import samplers

from .cases import EXAMPLES, PRINTED, assert_step, draw, every_cohort, every_input, revised

fedgh = partial(fedsim.aggregate, algorithm="fedgh")


def test_by_hand():
    # g_1 = (1, 0), g_2 = (-1, 1), inner product -1, squared lengths 1 and 2.
    # g_1' = g_1 + 1/2 g_2 = (1/2, 1/2), g_2' = g_2 + 1 g_1 = (0, 1); p = (3/4, 1/4):
    # 3/4 (1/2, 1/2) + 1/4 (0, 1) = (0.375, 0.625).
    np.testing.assert_allclose(fedgh(*EXAMPLES["A2"]), [0.375, 0.625], rtol=1e-15)


@pytest.mark.parametrize(
    ("name", "order", "expected"),
    [
        ("A1", "random", [0.8, 0.4]),
        ("A2", "random", [0.375, 0.625]),
        ("A3", "random", [1.5, 2.0]),
        ("A4", "ascending", [-0.02476190476, 0.2257142857, 0.6904761905]),
        ("A4", "descending", [0.1238095238, 0.2238095238, 0.6428571429]),
    ],
)
def test_published_examples(name, order, expected):
    np.testing.assert_allclose(fedgh(*EXAMPLES[name], order=order), expected, **PRINTED)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (
            "ascending",
            [
                [0.7428571429, 0.2285714286, 0.2857142857],
                [-0.08571428571, 0.7428571429, 0.4285714286],
                [-0.24, -0.12, 1.0],
            ],
        ),
        (
            "descending",
            [
                [0.7428571429, 0.3714285714, 0.1428571429],
                [0.0, 0.7857142857, 0.3571428571],
                [0.0, -0.2, 1.0],
            ],
        ),
    ],
)
def test_published_projected_updates(order, expected):
    projected = revised(partial(fedgh, order=order), EXAMPLES["A4"][0])
    np.testing.assert_allclose(projected, expected, rtol=1.5e-9, atol=1e-12)


@every_input
@every_cohort
@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
def test_oracle(sampler, m, order):
    g, n, _ = draw(sampler, m)
    orders = harmonize_orders(m, 3, 8) if order == "random" else oracle.visiting_orders(m, order)
    assert_step(fedgh(g, n, order=order, seed=3, round=8), oracle.fedgh(g, n, orders), g)
    single = g.astype(np.float32)
    expected = oracle.fedgh(single, n, orders)
    assert_step(fedgh(single, n, order=order, seed=3, round=8), expected, single, 1e-5)


def test_the_orders_of_a_round():
    orders = harmonize_orders(6, 1, 2)
    assert [sorted(ids) for ids in orders] == [[j for j in range(6) if j != k] for k in range(6)]
    assert harmonize_orders(6, 1, 2) == orders
    assert harmonize_orders(6, 1, 3) != orders
    assert harmonize_orders(6, 2, 2) != orders
    assert any(ids != sorted(ids) for ids in orders)


@every_cohort
def test_without_conflicts_it_is_fedavg_bit_for_bit(m):
    for sampler in (samplers.agreeing, samplers.orthogonal, samplers.identical, samplers.all_zero):
        g, n, _ = draw(sampler, m)
        np.testing.assert_array_equal(fedgh(g, n), fedsim.aggregate(g, n, "fedavg"))


@every_cohort
def test_coefficients_only_grow(m):
    # Independent updates: the coefficients c of the step G c are unique.
    for sampler in (samplers.gaussian, samplers.conflicting):
        g, n, _ = draw(sampler, m)
        c = np.linalg.lstsq(g.T, fedgh(g, n), rcond=None)[0]
        assert np.all(c >= n / n.sum() - 1e-10)


def test_two_clients_end_orthogonal_to_each_others_update():
    g, _, _ = draw(samplers.conflicting, 2)
    projected = revised(fedgh, g)
    assert abs(projected[0] @ g[1]) < 1e-12
    assert abs(projected[1] @ g[0]) < 1e-12


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_clients_in_the_other_order_meet_in_the_other_order(order):
    g, n, _ = draw(samplers.conflicting, 5)
    other = {"ascending": "descending", "descending": "ascending"}[order]
    assert_step(fedgh(g[::-1], n[::-1], order=other), fedgh(g, n, order=order), g, 1e-13)
