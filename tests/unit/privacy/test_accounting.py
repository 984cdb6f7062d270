"""Epsilons: against dp-accounting itself, against formulas in NumPy, and their laws."""

from __future__ import annotations

import math
import sys

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from scipy import special
from scipy.optimize import brentq
from scipy.stats import norm

from fedsim.core.errors import ConfigError
from fedsim.privacy import accounting
from fedsim.privacy.accounting import Release, epsilons, statement

RELATION = dp.NeighboringRelation
ORDERS = np.arange(2, 65)
REFERENCE = (
    (50, 5, 100, 1.0, 1e-2, 5.4738, 4.5190),
    (50, 5, 100, 1.0, 1e-5, 8.9277, 7.9729),
    (1000, 50, 1500, 1.0, 1e-6, 17.7996, 16.8448),
    (1000, 100, 200, 1.0, 1e-4, 10.9476, 9.9929),
    (100000, 1000, 1000, 1.0, 1e-6, 2.8673, 2.4367),
    (100, 100, 100, 5.0, 1e-3, 9.4539, 8.4991),
    (100, 100, 100, 5.0, 1e-5, 11.7565, 10.8017),
    (100, 100, 100, 20.0, 1e-5, 2.5263, 2.1680),
)
"""Population, cohort, rounds, z, delta; epsilon by the classic and the improved conversion."""
EXACT = ((5.0, 1e-3, 7.5813), (5.0, 1e-5, 9.9973), (20.0, 1e-5, 1.9931))
"""z, delta and epsilon of 100 rounds in full participation."""


def divergences(q, z):
    """Of the Poisson-subsampled Gaussian at ORDERS (Mironov, Talwar, Zhang, 1908.10530, Eq. 6)."""
    if q == 1:
        return ORDERS / (2 * z**2)
    values = []
    for order in ORDERS:
        k = np.arange(order + 1)
        binomial = (
            special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
        )
        terms = binomial + k * np.log(q) + (order - k) * np.log1p(-q) + (k * k - k) / (2 * z**2)
        values.append(special.logsumexp(terms) / (order - 1))
    return np.array(values)


def gaussian_delta(epsilon, mu):
    """Of the Gaussian mechanism with sensitivity / sigma = mu."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(
    ("population", "cohort", "rounds", "z", "delta", "classic", "improved"), REFERENCE
)
def test_reference_table(population, cohort, rounds, z, delta, classic, improved):
    rdp = rounds * divergences(cohort / population, z)
    assert min(rdp + np.log(1 / delta) / (ORDERS - 1)) == pytest.approx(classic, abs=6e-5)
    better = np.log((ORDERS - 1) / ORDERS) - np.log(ORDERS) / (ORDERS - 1)
    assert min(rdp + np.log(1 / delta) / (ORDERS - 1) + better) == pytest.approx(improved, abs=6e-5)
    release = Release(z, population, cohort)
    (ours,) = epsilons(release, [rounds], delta, "rdp")
    assert 0.95 * improved < ours < improved + 6e-5  # fractional orders gain a little
    (tight,) = epsilons(release, [rounds], delta)
    assert 0.75 * ours < tight < ours


def test_one_rounds_divergences_are_those_of_the_formula():
    orders, rdp = accounting._rdp(Release(1.3, 40, 5))
    at = [list(orders).index(order) for order in range(2, 64)]
    np.testing.assert_allclose(rdp[at], divergences(0.125, 1.3)[:-1], rtol=1e-9)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize(
    ("release", "relation", "event"),
    [
        (
            Release(2.5, 40, 5),
            RELATION.ADD_OR_REMOVE_ONE,
            dp.PoissonSampledDpEvent(0.125, dp.GaussianDpEvent(2.5)),
        ),
        (
            Release(2.5, 40, 5, "fixed"),
            RELATION.REPLACE_ONE,
            dp.SampledWithoutReplacementDpEvent(40, 5, dp.GaussianDpEvent(1.25)),
        ),
        (Release(4.0, 7, 7, "full"), RELATION.ADD_OR_REMOVE_ONE, dp.GaussianDpEvent(4.0)),
    ],
    ids=["poisson", "fixed", "full"],
)
def test_equals_direct_calls(release, relation, event, accountant):
    rounds = (1, 7, 60)
    for count, ours in zip(rounds, epsilons(release, rounds, 1e-4, accountant), strict=True):
        if accountant == "rdp":
            direct = RdpAccountant(neighboring_relation=relation)
            direct.compose(event, count)
            assert ours == pytest.approx(direct.get_epsilon(1e-4), rel=1e-12)
        elif release.sampling == "full":
            assert ours == dp.get_epsilon_gaussian(4.0 / math.sqrt(count), 1e-4)
        elif release.sampling == "poisson":
            one = from_gaussian_mechanism(2.5, sampling_prob=0.125)
            direct = one.self_compose(count).get_epsilon_for_delta(1e-4)
            assert ours == pytest.approx(direct, rel=1e-12)
        else:
            assert not PLDAccountant(relation).supports(event)


@pytest.mark.parametrize(("z", "delta", "expected"), EXACT)
def test_full_participation_is_one_gaussian_mechanism(z, delta, expected):
    mu = math.sqrt(100) / z
    exact = brentq(lambda e: gaussian_delta(e, mu) - delta, 0, 50, xtol=1e-13)
    assert exact == pytest.approx(expected, abs=6e-5)
    (ours,) = epsilons(Release(z, 10, 10, "full"), [100], delta)
    assert ours == pytest.approx(exact, rel=1e-9)
    (poisson,) = epsilons(Release(z, 10, 10, "poisson"), [100], delta)
    assert poisson == ours
    (replaced,) = epsilons(Release(2 * z, 10, 10, "fixed"), [100], delta)
    assert replaced == ours  # replacing one changes the sum by 2 C


def test_one_round_without_replacement_has_the_closed_form():
    q, mu = 0.1, 2 / 2.5  # delta(e) = q delta_G(log(1 + (exp(e) - 1) / q)), sensitivity 2 C
    exact = brentq(
        lambda e: q * gaussian_delta(math.log1p(math.expm1(e) / q), mu) - 1e-5, 1e-3, 9, xtol=1e-13
    )
    (ours,) = epsilons(Release(2.5, 50, 5, "fixed"), [1], 1e-5)
    assert exact <= ours < exact + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("z", [1.0, 2.5])
def test_without_replacement_lies_between_its_bounds(z):
    fixed, worst = Release(z, 50, 5, "fixed"), Release(z / 2, 50, 5)
    rounds = [10, 100]
    tight, upper = epsilons(fixed, rounds, 1e-5), epsilons(fixed, rounds, 1e-5, "rdp")
    # One pair of neighbours: all other contributions are -C u, and one is -C u or C u.
    lower = epsilons(worst, rounds, 1e-5)
    for low, middle, high in zip(lower, tight, upper, strict=True):
        assert low * (1 - 1e-3) < middle < high


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "full"])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_laws(sampling, accountant):
    def epsilon(z=2.0, cohort=5, rounds=20, delta=1e-5):
        population = cohort if sampling == "full" else 50
        release = Release(z, population, cohort, sampling)
        return epsilons(release, [rounds], delta, accountant)[0]

    assert 0 < epsilon() < epsilon(rounds=21) < epsilon(rounds=40)
    assert epsilon(z=4.0) < epsilon(z=2.001) < epsilon() < epsilon(z=1.999)
    assert epsilon(delta=1e-6) > epsilon()
    if sampling != "full":
        assert epsilon() < epsilon(cohort=6) < epsilon(cohort=50)
    assert epsilon(z=0.0) == math.inf
    assert epsilon(z=0.0, rounds=0) == epsilon(rounds=0) == 0


def test_statement_names_relation_sampling_and_delta():
    assert statement(Release(1.0, 50, 5), 1e-5) == (
        "neighbours add or remove one, Poisson sampling with q=0.1, delta=1e-05, pld accountant"
    )
    assert statement(Release(1.0, 50, 5, "fixed"), 1e-2, "rdp") == (
        "neighbours replace one, 5 of 50 drawn without replacement, delta=0.01, rdp accountant"
    )
    assert "full participation" in statement(Release(1.0, 5, 5, "full"), 0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Release(-1.0, 5, 5), "-1 given; it is >= 0"),
        (lambda: Release(math.nan, 5, 5), "nan given; it is >= 0"),
        (lambda: Release(1.0, 5, 6), "a cohort of 6 from a population of 5"),
        (lambda: Release(1.0, 5, 0), "a cohort of 0"),
        (lambda: Release(1.0, 5, 4, "full"), "full participation with a cohort of 4 from 5"),
        (lambda: Release(1.0, 5, 1.5, "fixed"), "fixed size 1.5"),
        (lambda: epsilons(Release(1.0, 5, 5), [1], 1.0), "delta=1 given"),
        (lambda: epsilons(Release(1.0, 5, 5), [3, -1], 0.1), "-1 rounds given"),
    ],
)
def test_bad_values_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedsim-ray\[privacy\]'"):
        epsilons(Release(1.0, 5, 5), [1], 1e-5)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize(("sampling", "cohort"), [("poisson", 5), ("fixed", 5), ("full", 50)])
def test_the_most_noise_that_a_run_takes(sampling, cohort, accountant):
    one, many = epsilons(Release(1e6, 50, cohort, sampling), [1, 1000], 1e-5, accountant)
    assert 0 <= one <= many < 0.1


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_next_to_no_noise_has_an_infinite_epsilon(sampling, accountant):
    assert epsilons(Release(1e-200, 50, 5, sampling), [1], 1e-5, accountant) == [math.inf]
    (least,) = epsilons(Release(1e-8, 50, 5, sampling), [1], 1e-5, "rdp")
    assert 1e15 < least < math.inf
