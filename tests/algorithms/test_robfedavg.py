"""RobFedAvg: outliers are pruned coordinate by coordinate."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import fedsim
from fedsim.algorithms import robfedavg
from tests.oracles import aggregation, robust, samplers

from .cases import assert_step, draw, every_cohort, every_input
from .serving import LAYOUT, single

every_test = pytest.mark.parametrize("test", ["iqr", "zscore"])


def test_published_example():
    # Quartiles 2 and 3, band [0.5, 4.5]: 50 goes, (1 + 2 + 2.5 + 3) / 4 = 2.125.
    answer = single("robfedavg", [[1.0], [2.0], [2.5], [3.0], [50.0]])
    assert answer.step.tolist() == [2.125]
    assert answer.metrics == {"pruned_share": pytest.approx(0.2)}


def test_zscore_by_hand():
    # Mean 4, squared deviations 16, 9, 4, 1, 100 -> 26: std sqrt(26), band 4 -+ 7.65: 14 goes.
    values = [[0.0], [1.0], [2.0], [3.0], [14.0]]
    assert single("robfedavg", values, test="zscore").step[0] == pytest.approx(1.5, rel=1e-14)
    wider = single("robfedavg", values, test="zscore", z=2.0)
    assert wider.step[0] == pytest.approx(4, rel=1e-14)
    assert wider.metrics == {"pruned_share": 0.0}


def test_weights_are_those_of_the_kept():
    values, n = [[1.0], [2.0], [2.5], [3.0], [50.0]], [1, 2, 3, 4, 90]
    expected = (1 + 4 + 7.5 + 12) / 10
    assert single("robfedavg", values, n).step[0] == pytest.approx(expected, rel=1e-14)
    uniform = single("robfedavg", values, n, weights="uniform").step[0]
    assert uniform == pytest.approx(2.125, rel=1e-14)


@pytest.mark.parametrize("scale", ["0.1", "1", "0.3", "1e-6"])
@pytest.mark.parametrize(("test", "z"), [("zscore", "1"), ("zscore", "2"), ("iqr", "0.5")])
def test_values_at_the_edge_are_kept_whatever_rounding_says(test, z, scale):
    """Of multiples of a decimal number; the band is computed in fractions."""
    digits = np.random.default_rng(3).integers(-3, 4, (300, 4)).tolist()
    digits += [[1, 2], [0, 1, 2], [1, 1, 3, 3]]
    for column in digits:
        exact, n = sorted(Fraction(scale) * digit for digit in column), len(column)
        if test == "zscore":
            mean = sum(exact) / n
            square = sum((x - mean) ** 2 for x in exact) / n
            keep = [(x - mean) ** 2 <= Fraction(z) ** 2 * square for x in exact]
        else:
            low, high = (_quantile(exact, Fraction(q)) for q in ("0.25", "0.75"))
            keep = [
                low - Fraction(z) * (high - low) <= x <= high + Fraction(z) * (high - low)
                for x in exact
            ]
        found = robfedavg.inside(np.array(exact, float)[:, None], test, float(z))
        assert found[:, 0].tolist() == keep


def _quantile(ordered, q):
    at = q * (len(ordered) - 1)
    low = ordered[int(at)]
    return low + (at - int(at)) * (ordered[min(int(at) + 1, len(ordered) - 1)] - low)


@every_input
@every_cohort
@every_test
def test_oracle(sampler, m, test):
    g, n, _ = draw(sampler, m)
    expected, share = robust.pruned_mean(g, n, test)
    answer = single("robfedavg", g, n.tolist(), test=test)
    assert_step(answer.step, expected, g)
    assert answer.metrics["pruned_share"] == pytest.approx(share, abs=1e-12)
    assert_step(
        fedsim.aggregate(g.astype(np.float32), n, "robfedavg", test=test), expected, g, 1e-5
    )


@pytest.mark.parametrize("m", [1, 2, 3])
def test_up_to_three_clients_it_is_fedavg(m):
    for sampler in (samplers.gaussian, samplers.uneven, samplers.duplicated):
        g, n, _ = draw(sampler, m)
        answer = single("robfedavg", g, n.tolist())
        assert_step(answer.step, aggregation.mean(g, n), g, 1e-14)
        assert answer.metrics == {"pruned_share": 0.0}


@every_test
def test_one_huge_value_among_equal_ones_is_removed(test):
    g = np.full((5, 3), 0.1)
    g[2, 1] = 1e6
    answer = single("robfedavg", g, test=test)
    np.testing.assert_allclose(answer.step, [0.1, 0.1, 0.1], rtol=1e-14)
    assert answer.metrics["pruned_share"] == pytest.approx(1 / 15)


def test_where_nothing_is_kept_the_median_is_taken():
    # +-1 and 0.5 std: no value lies within 0.5 std of the mean.
    g = np.array([[1.0, 1.0], [-1.0, 1.0], [1.0, 5.0], [-1.0, 1.0]])
    answer = single("robfedavg", g, [9, 1, 1, 1], test="zscore", z=0.5)
    assert answer.step.tolist() == [0.0, 1.0]


def test_statistics_are_averaged():
    g = np.random.default_rng(11).normal(size=(5, 6))
    g[0] = 1e3
    answer = single("robfedavg", g, [1, 2, 3, 4, 5], layout=LAYOUT)
    np.testing.assert_allclose(
        answer.step[4:], aggregation.mean(g, [1, 2, 3, 4, 5])[4:], rtol=1e-12
    )
    assert np.abs(answer.step[:4]).max() < 3
    assert answer.metrics["pruned_share"] >= 4 / 20
