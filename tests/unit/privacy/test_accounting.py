"""Epsilons and banded noise: against dp-accounting, formulas and dense matrices, and their laws."""

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
from scipy.linalg import solve_triangular, toeplitz
from scipy.optimize import approx_fprime, brentq, minimize
from scipy.stats import norm

from fedsim.core.errors import ConfigError
from fedsim.core.rng import generator
from fedsim.core.types import RoundContext
from fedsim.privacy import accounting, banded
from fedsim.privacy.accounting import CLOSE, Release, epsilons, least_noise, statement
from fedsim.privacy.banded import BandedNoise, _objective, coefficients, error

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


@pytest.mark.parametrize(
    ("population", "cohort", "rounds", "z", "delta"), [row[:5] for row in REFERENCE]
)
def test_the_noise_for_an_epsilon(population, cohort, rounds, z, delta):
    """What the accountant spends for a known z gives it back, from above."""

    def spent(noise):
        return epsilons(Release(noise, population, cohort), [rounds], delta, "rdp")[0]

    found = least_noise(spent, spent(z))
    assert z * (1 - 1e-12) <= found <= z * (1 + 2 * CLOSE)
    assert spent(found) <= spent(z) < spent(found / (1 + 3 * CLOSE))


def test_the_noise_of_tight_epsilons_is_the_least_and_falls_with_them():
    def spent(noise):
        return epsilons(Release(noise, 50, 5), [20], 1e-4)[0]

    found = [least_noise(spent, target) for target in (1.0, 8.0)]
    assert found[0] > found[1]
    for noise, target in zip(found, (1.0, 8.0), strict=True):
        assert spent(noise) <= target < spent(noise / (1 + 3 * CLOSE))


@pytest.mark.parametrize(
    ("spent", "least"),
    [
        (lambda z: 1 / z, 0.125),
        (lambda z: 3e5 / z, 37500.0),
        (lambda z: 1 / (8e5 * z), 1 / 64e5),
        (lambda z: 20.0 if z < 3 else 2.0, 3.0),  # a jump, here below 0.3 to rdp
        (lambda z: 8.1, None),
        (lambda z: math.inf if z < 1e5 else 1.0, 1e5),
    ],
)
def test_bisection_by_hand(spent, least):
    found = least_noise(spent, 8.0)
    if least is None:
        assert found is None
    else:
        assert least * (1 - 1e-12) <= found <= least * (1 + 2 * CLOSE)


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


# noise that is correlated over rounds

SENT = (slice(0, 5), slice(7, 11))
"""Of 12 coordinates."""
INSIDE = [*range(5), *range(7, 11)]


def dense(c, rounds):
    """C (T, T)."""
    column = np.zeros(rounds)
    column[: len(c)] = c[:rounds]
    return toeplitz(column, np.zeros(rounds))


def dense_error(matrix):
    rounds = len(matrix)
    prefix = np.tril(np.ones((rounds, rounds)))
    return np.sum((prefix @ np.linalg.inv(matrix)) ** 2) / rounds


def test_two_rounds_by_hand():
    # c = (1, x): A C^-1 = ((1, 0), (1 - x, 1)), error (1 + x^2) (2 + (1 - x)^2) / 2,
    # whose derivative is 2 x^3 - 3 x^2 + 4 x - 1 up to a factor.
    (x,) = [r.real for r in np.roots([2, -3, 4, -1]) if abs(r.imag) < 1e-9]
    c = coefficients(2, 2)
    assert c[1] / c[0] == pytest.approx(x, abs=1e-7)
    assert error(c, 2) == pytest.approx((1 + x**2) * (2 + (1 - x) ** 2) / 2, rel=1e-12)
    assert error([1.0], 2) == 1.5


@pytest.mark.parametrize(("bands", "rounds"), [(1, 5), (2, 3), (3, 3), (4, 20), (7, 100)])
def test_error_is_that_of_dense_matrices(bands, rounds):
    c = coefficients(bands, rounds)
    assert error(c, rounds) == pytest.approx(dense_error(dense(c, rounds)), rel=1e-9)


def test_gradient_is_that_of_differences():
    tail = np.array([0.5, 0.3, -0.1])
    numbers = approx_fprime(tail, lambda x: _objective(x, 9)[0], 1e-7)
    np.testing.assert_allclose(_objective(tail, 9)[1], numbers, rtol=1e-5)


def test_no_general_banded_matrix_is_much_better():
    rounds, bands = 6, 3

    def general(entries):
        matrix = np.zeros((rounds, rounds))
        matrix[within] = entries
        return dense_error(matrix / np.linalg.norm(matrix, axis=0))

    start = dense(coefficients(bands, rounds), rounds)
    within = (np.tril(np.ones_like(start)) * np.triu(np.ones_like(start), 1 - bands)) > 0
    best = minimize(general, start[within], method="BFGS").fun
    assert best <= error(coefficients(bands, rounds), rounds) < 1.1 * best


@pytest.mark.parametrize(("bands", "rounds"), [(1, 1), (1, 9), (2, 9), (5, 50), (20, 50)])
def test_norm_is_one_and_bands_are_as_asked(bands, rounds):
    c = coefficients(bands, rounds)
    assert len(c) == bands
    assert np.linalg.norm(c) == pytest.approx(1, rel=1e-12)


def test_one_band_is_independent_noise():
    assert coefficients(1, 40).tolist() == [1.0]
    assert error([1.0], 40) == 20.5


@pytest.mark.parametrize("bands", [2, 3])
def test_participations_b_rounds_apart_change_the_release_by_sqrt_k(bands):
    rounds = 9
    matrix = dense(coefficients(bands, rounds), rounds)
    for first in range(bands):
        takes_part = np.zeros(rounds)
        takes_part[first::bands] = 1
        changed = np.linalg.norm(matrix @ takes_part)
        assert changed <= np.sqrt(takes_part.sum()) * (1 + 1e-12)
        signs = takes_part * np.sign(np.cos(np.arange(rounds)))
        assert np.linalg.norm(matrix @ signs) == pytest.approx(changed, rel=1e-12)


def ctx(round):
    return RoundContext(round=round, num_rounds=12, num_clients=3, lr=0.1, seed=4)


def noises(noise, rounds, scale=1.0, state=None, first=0):
    """The noise (T, 12) of some rounds, and the state after them."""
    rows, state = [], {} if state is None else state
    for round in range(first, first + rounds):
        row, state = noise(np.zeros(12), scale, state, ctx(round))
        rows.append(row)
    return np.array(rows), state


def normals(rounds):
    return np.array([generator(4, "dp", round).standard_normal(9) for round in range(rounds)])


@pytest.mark.parametrize("bands", [1, 2, 4, 12])
@pytest.mark.parametrize("block", [3, 1 << 20])
def test_equals_the_dense_solution(bands, block, monkeypatch):
    monkeypatch.setattr(banded, "BLOCK", block)
    c = coefficients(bands, 12)
    result, state = noises(BandedNoise(SENT, tuple(c)), 12, scale=2.0)
    column = np.concatenate([c, np.zeros(12 - bands)])
    expected = solve_triangular(toeplitz(column, np.zeros(12)), normals(12), lower=True)
    np.testing.assert_allclose(result[:, INSIDE], 2.0 * expected, rtol=1e-9, atol=1e-12)
    assert not result[:, [5, 6, 11]].any()
    assert state["noise"].shape == (bands - 1, 9)


def test_one_band_adds_independent_noise_to_the_byte():
    step = np.linspace(-1, 1, 12).astype(np.float32)
    result, state = BandedNoise(SENT, (1.0,))(step.copy(), 0.3, {}, ctx(5))
    expected, fresh = step.copy(), generator(4, "dp", 5).standard_normal(9)
    expected[INSIDE] = step[INSIDE] + 0.3 * fresh
    assert result.tobytes() == expected.tobytes()
    assert state["noise"].shape == (0, 9)


def test_goes_on_from_its_state():
    noise = BandedNoise(SENT, tuple(coefficients(3, 12)))
    whole, end = noises(noise, 9)
    _, state = noises(noise, 4)
    rest, again = noises(noise, 5, state=state, first=4)
    assert rest.tobytes() == whole[4:].tobytes()
    assert again["noise"].tobytes() == end["noise"].tobytes()


def test_no_noise_leaves_the_step():
    step = np.ones(12)
    result, state = BandedNoise(SENT, (0.8, 0.6))(step, 0.0, {}, ctx(0))
    assert result is step
    assert (result == 1).all()
    assert state == {}
