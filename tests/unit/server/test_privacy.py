"""The private mean on the server: clipping, noise, adaptive clipping, sums of other uploads."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedsim.algorithms.scaffold import server_control
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot
from fedsim.server import Average, Server
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from fedsim.server.privacy import (
    AdaptiveClip,
    GaussianNoise,
    PrivateMean,
    PrivateSum,
    noise_beside_count,
)

P = 4
LAYOUT = Layout((Slot(name="w", shape=(P,), start=0, stop=P),))
EVERYTHING = GaussianNoise((slice(0, P),))


def context(round=0, seed=0):
    return RoundContext(round=round, num_rounds=99, num_clients=10, lr=0.1, seed=seed)


def cohort(rows, samples=None, extras=None, layout=LAYOUT):
    samples = [1] * len(rows) if samples is None else samples
    extras = [{}] * len(rows) if extras is None else extras
    sent = [
        ClientUpdate(client_id=i, num_samples=n, num_steps=1, delta=np.asarray(row), extras=own)
        for i, (row, n, own) in enumerate(zip(rows, samples, extras, strict=True))
    ]
    return Cohort.of(sent, layout)


def draw(m=6, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(m, P)) * 10.0 ** rng.uniform(-2, 1, size=(m, 1))).astype(dtype)


def mean(**settings):
    return PrivateMean(**{"clip": 1.0, "noise_multiplier": 0.0, "noise": EVERYTHING} | settings)


def test_by_hand():
    # norms 5 and 1: (3, 4) becomes (0.6, 0.8); two of four expected clients answered
    found = mean(expected=4)(cohort([[3.0, 4, 0, 0], [0.0, 0, 1, 0]]), {}, context())
    np.testing.assert_allclose(found.step, [0.15, 0.2, 0.25, 0], rtol=1e-15)
    assert found.metrics == {"clip": 1.0, "clipped": 0.5}
    # weights 1/2 and 1, of which 1.5 are expected
    weighted = mean(expected=1.5, max_samples=20)
    found = weighted(cohort([[3.0, 4, 0, 0], [0.0, 0, 1, 0]], [10, 30]), {}, context())
    np.testing.assert_allclose(found.step, [0.2, 0.8 / 3, 2 / 3, 0], rtol=1e-15)


@pytest.mark.parametrize("most", [None, 25])
def test_against_a_loop_over_clients(most):
    rows, samples = draw(), [10, 20, 30, 40, 50, 60]
    wanted = [0.0] * P
    for row, n in zip(rows, samples, strict=True):
        norm = math.sqrt(sum(value**2 for value in row))
        weight = 1.0 if most is None else min(n / most, 1.0)
        for j in range(P):
            wanted[j] += weight * row[j] * min(1.0, 0.7 / norm) / 3.5
    private = mean(clip=0.7, expected=3.5, max_samples=most)
    found = private(cohort(rows, samples), {}, context())
    np.testing.assert_allclose(found.step, wanted, rtol=1e-12)


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e6])
def test_one_client_moves_the_step_by_the_clipping_norm_at_most(factor):
    rows = draw(seed=3)
    private = mean(clip=0.5, expected=6)
    whole = private(cohort(rows), {}, context()).step
    removed = private(cohort(rows[1:]), {}, context()).step
    replaced = private(cohort([factor * rows[1], *rows[1:]]), {}, context()).step
    assert np.linalg.norm(whole - removed) <= 0.5 / 6 * (1 + 1e-12)
    assert np.linalg.norm(whole - replaced) <= 2 * 0.5 / 6 * (1 + 1e-12)


def test_without_noise_and_clipping_it_is_the_mean_to_the_last_bit():
    c = cohort(draw(dtype=np.float32))
    found = mean(clip=1e30, expected=6)(c, {}, context())
    assert np.array_equal(found.step, Average("uniform")(c, {}, context()).step)


def test_the_noise_has_the_variance_of_the_mechanism():
    """Without a client the step is noise alone: its squares over the variance are chi-squared."""
    size, kept = 50_000, 100
    layout = Layout((Slot(name="w", shape=(size,), start=0, stop=size),))
    private = mean(
        clip=3.0, noise_multiplier=2.0, expected=4, noise=GaussianNoise((slice(kept, size),))
    )
    nobody = Cohort.empty(layout, np.zeros(size, np.float32))
    one, two = (private(nobody, {}, context(round)).step for round in range(2))
    assert one.dtype == np.float32
    assert not one[:kept].any()  # what is not sent
    n = size - kept
    for step in (one, two):
        squares = np.sum(np.square(step[kept:], dtype=np.float64)) / (2.0 * 3.0 / 4) ** 2
        assert 1e-4 < stats.chi2.cdf(squares, n) < 1 - 1e-4
    assert abs(np.corrcoef(one[kept:], two[kept:])[0, 1]) < 4 / math.sqrt(n)
    again = private(nobody, {}, context(1)).step
    assert np.array_equal(two, again)


def test_noise_is_added_to_the_clipped_sum():
    rows = draw()
    private = mean(clip=0.5, noise_multiplier=1.5, expected=5)
    nobody = Cohort.empty(LAYOUT, np.zeros(P))
    noise = private(nobody, {}, context()).step
    quiet = mean(clip=0.5, expected=5)(cohort(rows), {}, context()).step
    found = private(cohort(rows), {}, context()).step
    np.testing.assert_allclose(found, quiet + noise, atol=1e-7)


def test_adaptive_clipping_by_hand():
    # two of three norms are at most 1: b = 2/3, and C shrinks, since half of them should be
    adaptive = AdaptiveClip(quantile=0.5, lr=0.2, count_noise=0.0, expected=3)
    found = adaptive(1.0, np.array([0.2, 1.0, 7.0]), context())
    assert found == pytest.approx(math.exp(-0.2 * (2 / 3 - 1 / 2)), rel=1e-14)
    # two of four expected clients answer, none is clipped: b = 1/2 + (1/2 + 1/2) / 4
    fewer = AdaptiveClip(quantile=0.5, lr=0.2, count_noise=0.0, expected=4)
    assert fewer(1.0, np.array([0.2, 0.3]), context()) == pytest.approx(math.exp(-0.05), rel=1e-14)
    assert fewer(1.0, np.empty(0), context()) == 1.0


@pytest.mark.parametrize(("lr", "count_noise"), [(1e6, 0.0), (0.2, 1e9)])
def test_adaptive_clipping_does_not_overflow(lr, count_noise):
    adaptive = AdaptiveClip(quantile=0.5, lr=lr, count_noise=count_noise, expected=3)
    grown = adaptive(1.0, np.array([2.0, 3.0]), context())
    assert abs(math.log(grown)) == pytest.approx(10)


@pytest.mark.parametrize("start", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("quantile", [0.3, 0.8])
def test_adaptive_clipping_converges_to_the_quantile(start, quantile):
    """Norms are 1 in the median, log-normal; C converges to their quantile and stays there."""
    adaptive = AdaptiveClip(quantile=quantile, lr=0.2, count_noise=2.5, expected=50)
    rng, clip, last = np.random.default_rng(1), start, []
    for round in range(400):
        clip = adaptive(clip, rng.lognormal(0.0, 0.5, 50), context(round))
        last.append(clip)
    wanted = stats.lognorm(0.5).ppf(quantile)
    assert np.exp(np.mean(np.log(last[200:]))) == pytest.approx(wanted, rel=0.05)
    assert max(last[200:]) / min(last[200:]) < 1.6


def test_the_state_of_adaptive_clipping_is_the_norm_of_the_next_round():
    adaptive = AdaptiveClip(quantile=0.5, lr=0.2, count_noise=0.5, expected=6)
    private = mean(clip=0.3, expected=6, adaptive=adaptive)
    server, c = Server(private), cohort(draw(dtype=np.float32))
    first = server.step(RuleState(), c, context(0))
    assert first.metrics["clip"] == 0.3
    stored = RuleState.unflatten(first.state.flatten())
    second = server.step(stored, c, context(1))
    norms = c.norms(slice(0, P))
    assert second.metrics["clip"] == adaptive(0.3, norms, context(0)) != 0.3


@pytest.mark.parametrize(
    ("count", "beside"), [(5.0, 1.00504), (2.5, 1.02062), (0.55, 2.4004), (0.5, None), (0.1, None)]
)
def test_the_noise_of_the_sum_beside_that_of_the_count(count, beside):
    """1905.03871, Theorem 1, at z = 1 for a count_noise of a twentieth of 100, 50 and 11."""
    found = noise_beside_count(1.0, count)
    assert found == (None if beside is None else pytest.approx(beside, rel=1e-4))
    if found is not None:
        assert found**-2 + (2 * count) ** -2 == pytest.approx(1.0, rel=1e-12)
    assert noise_beside_count(0.0, count) == 0.0


def test_sums_of_other_uploads_are_clipped_and_noised():
    extras = [{"c": np.array([3.0, 4, 0, 0])}, {"c": np.array([0.0, 0, 1, 0])}]
    c = cohort(draw(2), extras=extras)
    quiet = PrivateSum(server_control, "c", 1.0, 0.0)
    found = quiet(c, {"c": np.array([1.0, 0, 0, 0])}, context())
    np.testing.assert_allclose(found.state["c"], [1.06, 0.08, 0.1, 0], rtol=1e-14)
    loose = PrivateSum(server_control, "c", 1e30, 0.0)(c, {}, context())
    wanted = server_control(c, {}, context())
    np.testing.assert_allclose(loose.state["c"], wanted.state["c"], rtol=1e-14)
    noised = PrivateSum(server_control, "c", 1.0, 2.0)(c, {}, context())
    size = 50_000
    layout = Layout((Slot(name="w", shape=(size,), start=0, stop=size),))
    nobody = Cohort.empty(layout, np.zeros(size, np.float32))
    noise = PrivateSum(server_control, "c", 3.0, 2.0)(nobody, {}, context()).state["c"]
    squares = np.sum(np.square(noise)) / (2.0 * 3.0 / 10) ** 2
    assert 1e-4 < stats.chi2.cdf(squares, size) < 1 - 1e-4
    assert not np.array_equal(noised.state["c"], found.state["c"])
