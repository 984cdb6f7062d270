"""Shapley values: an example by hand, all orders in fractions, and their laws."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

from fedsim.metrics import shapley


def by_all_orders(values, m):
    """(m,) the mean gain over all m! orders, in fractions."""
    total = [Fraction(0)] * m
    for order in permutations(range(m)):
        joined = 0
        for player in order:
            after = joined | 1 << player
            total[player] += Fraction(values[after]) - Fraction(values[joined])
            joined = after
    return [each / math.factorial(m) for each in total]


def drawn(m, seed=0):
    """A game: a value for each of the 2^m coalitions, that of nobody not 0."""
    return np.random.default_rng([seed, m]).standard_normal(1 << m).tolist()


def test_the_glove_game_by_hand():
    # player 0 has a left glove, 1 and 2 a right one each; a pair is worth 1. Player 0 completes a
    # pair unless it comes first (2/3); 1 does only right after 0 as the second of all (1/6)
    values = [float(s & 1 and s & 6 != 0) for s in range(8)]
    np.testing.assert_allclose(shapley.exact(values), [2 / 3, 1 / 6, 1 / 6], rtol=1e-15)


@pytest.mark.parametrize("m", [1, 2, 3, 6])
def test_exact_values_are_the_mean_over_all_orders(m):
    values = drawn(m)
    expected = [float(each) for each in by_all_orders(values, m)]
    np.testing.assert_allclose(shapley.exact(values), expected, rtol=1e-12, atol=1e-14)


def test_who_adds_nothing_gets_nothing_and_equal_ones_get_the_same():
    size = [bin(s & 0b0111).count("1") for s in range(16)]  # player 3 changes nothing
    found = shapley.exact([s**2 for s in size])
    np.testing.assert_allclose(found, [3, 3, 3, 0], atol=1e-14)


def test_an_estimate_and_its_error_by_hand():
    # values 0, 1, 3, 8 of {}, {0}, {1}, {0, 1}: in the order 0, 1 the gains are 1 and 7, in the
    # order 1, 0 they are 5 and 3. Means 3 and 5; deviations of 2 give a variance of 8 (n - 1 = 1)
    # and errors of sqrt(8 / 2) = 2
    estimates, errors = shapley.sampled([[0, 1], [1, 0]], [0.0, 1.0, 3.0, 8.0].__getitem__)
    np.testing.assert_allclose(estimates, [3, 5])
    np.testing.assert_allclose(errors, [2, 2])


def test_estimates_share_the_whole_whatever_the_orders():
    values = drawn(6)
    rng = np.random.default_rng(1)
    orders = [rng.permutation(6).tolist() for _ in range(5)]
    estimates, errors = shapley.sampled(orders, lambda s: values[s])
    assert estimates.sum() == pytest.approx(values[-1] - values[0], abs=1e-12)
    assert (errors > 0).all()
    assert np.isnan(shapley.sampled(orders[:1], lambda s: values[s])[1]).all()


def test_the_error_is_that_of_the_estimates():
    # the estimates of 400 draws of 20 orders spread as their errors say: the ratio of variances is
    # a chi-square of 399 degrees, far within a factor of 1.5 (7 standard deviations of 0.07)
    values = drawn(5, seed=3)
    rng = np.random.default_rng(2)
    made = [
        shapley.sampled([rng.permutation(5).tolist() for _ in range(20)], values.__getitem__)
        for _ in range(400)
    ]
    spread = np.var([estimates for estimates, _ in made], axis=0, ddof=1)
    stated = np.mean([np.square(errors) for _, errors in made], axis=0)
    assert (spread < 1.5 * stated).all()
    assert (stated < 1.5 * spread).all()
    away = np.mean([estimates for estimates, _ in made], axis=0) - shapley.exact(values)
    assert (np.abs(away) < 5 * np.sqrt(stated / 400)).all()
