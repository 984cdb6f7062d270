"""Forms of well-known code that are not those of the papers: docs/reference/known-code.md.

Each test computes such a form in a few lines of its own, with the number that the page states, and
fails where fedsim computes that form, too.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

import fedsim
from fedsim.attacks.alie import alie_z
from fedsim.attacks.base import AttackedCohort, Malicious
from fedsim.attacks.min_max import MinMax
from fedsim.compressors.qsgd import QSGD
from fedsim.core.errors import ConfigError
from fedsim.core.types import ClientUpdate, RoundContext
from fedsim.privacy.accounting import Release, epsilons
from fedsim.server import Average, Cohort, Server
from fedsim.server.base import RuleState
from fedsim.server.privacy import AdaptiveClip, GaussianNoise, PrivateMean
from fedsim.server.transforms import StalenessWeights
from tests.algorithms.cases import cohort, single, vector_layout

PAGE = Path(__file__).parents[1] / "docs/reference/known-code.md"
DRAWS, M, F, D = 2000, 10, 2, 5
CTX = RoundContext(round=5, num_rounds=9, num_clients=4, lr=0.1, seed=0)
NORMAL = NormalDist()


def column(*values):
    """Updates of one coordinate."""
    return np.array(values, np.float64)[:, None]


def aggregate(rule, updates, samples=None, **options):
    """The step of a rule of fedsim; with one coordinate as a number."""
    step = fedsim.aggregate(updates, samples or [1] * len(updates), rule, **options)
    return float(step[0]) if len(step) == 1 else step


def squared(x):
    """(..., m, m) squared distances of (..., m, d)."""
    return ((x[..., :, None, :] - x[..., None, :, :]) ** 2).sum(-1)


def krum_scores(distances, f=F, more=0):
    """(..., m) sums of the m - f - 2 + more least distances to others."""
    m = distances.shape[-1]
    return np.sort(distances, axis=-1)[..., 1 : m - f - 1 + more].sum(-1)


def krum(x, power=1.0, f=1, more=0):
    """The update with the least score of distances to the ``power`` of their square."""
    return float(x[np.argmin(krum_scores(squared(x) ** power, f, more)), 0])


@pytest.fixture(scope="module")
def draws():
    """Updates (DRAWS, M, D) of clients whose lengths differ, and what fedsim's Krum takes."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((DRAWS, M, D)) * np.exp(rng.normal(0, 0.5, (DRAWS, M, 1)))
    papers = np.argmin(krum_scores(squared(x)), axis=1)
    for g, i in zip(x[:100], papers, strict=False):
        np.testing.assert_array_equal(aggregate("krum", g, f=F), g[i])
    return x, papers


def other_choices(draws, distances, more=0):
    """How many percent of the draws have another client with the least score."""
    return 100 * float(np.mean(np.argmin(krum_scores(distances, more=more), axis=1) != draws[1]))


def test_the_page_names_each_test():
    here = re.findall(r"^def (test_\w+)\(", Path(__file__).read_text(), re.MULTILINE)
    named = re.findall(r"`(test_\w+)`", PAGE.read_text())
    assert sorted(named) == sorted(set(here) - {"test_the_page_names_each_test"})


def test_krum_fourth_powers(draws):
    points = column(11, 0, 3, 7, 0, 8)
    assert krum(points, power=2) == 3
    assert aggregate("krum", points, f=1) == 7
    assert other_choices(draws, squared(draws[0]) ** 2) == pytest.approx(13.6, abs=0.3)


def test_krum_unsquared(draws):
    points = column(3, 7, 12, 19, 20)  # 4 + 5 > 1 + 7, but 4^2 + 5^2 < 1^2 + 7^2
    assert krum(points, power=0.5) == 19
    assert aggregate("krum", points, f=1) == 7
    x = draws[0]
    assert other_choices(draws, np.sqrt(squared(x))) == pytest.approx(10.95, abs=0.3)
    of_two_tensors = np.sqrt(squared(x[..., :2])) + np.sqrt(squared(x[..., 2:]))
    assert other_choices(draws, of_two_tensors) == pytest.approx(18.75, abs=0.3)
    for sizes in ([D], [2, 3]):  # which is one to Krum
        step = fedsim.aggregate(x[0], [1] * M, "krum", f=F, sizes=sizes)
        np.testing.assert_array_equal(step, x[0, draws[1][0]])


def test_krum_neighbour_more(draws):
    assert other_choices(draws, squared(draws[0]), more=1) == pytest.approx(20.35, abs=0.3)
    mixing = np.argmin(krum_scores(squared(draws[0][:50]), more=1), axis=1)
    for x, i in zip(draws[0], mixing, strict=False):  # an option in fedsim
        np.testing.assert_array_equal(aggregate("krum", x, f=F, neighbours="mixing"), x[i])


def test_krum_neighbour_less(draws):
    points = column(11, 0, 3, 7, 0, 8)
    with_its_own_zero = np.sort(squared(points), axis=1)[:, : 6 - 1 - 2].sum(1)
    assert points[np.argmin(with_its_own_zero), 0] == 0
    assert aggregate("krum", points, f=1) == 7
    assert other_choices(draws, squared(draws[0]), more=-1) == pytest.approx(21.55, abs=0.3)


def test_krum_of_weights_in_float32():
    updates = column(0.3, 0.0, 0.1, 0.2, 0.1)
    weights = np.float32(4096 + updates)
    norms = np.square(weights).sum(1)
    assert not (norms[:, None] + norms - 2 * weights @ weights.T).any(), "all are equal"
    assert aggregate("krum", updates, f=1) == 0.1
    rng, others = np.random.default_rng(0), 0
    for _ in range(20):
        start = rng.standard_normal(20_000)
        x = 1e-3 * rng.standard_normal((M, 20_000)) * np.exp(rng.normal(0, 0.5, (M, 1)))
        w = np.float32(start + x)
        norms, step = np.square(w).sum(1), aggregate("krum", x, f=F)
        theirs = krum_scores(norms[:, None] + norms - 2 * w @ w.T)
        np.testing.assert_array_equal(step, x[np.argmin(krum_scores(squared_of_many(x)))])
        others += not np.array_equal(step, x[np.argmin(theirs)])
    assert others >= 2


def squared_of_many(x):
    """(m, m) squared distances of long vectors."""
    return np.array([np.square(x - row).sum(1) for row in x])


def test_krum_of_too_few():
    points = column(1, 0, 6, 7)  # one neighbour counts: as near to each other as two honest ones
    assert krum_scores(squared(points), 1).tolist() == [1, 1, 1, 1]
    with pytest.raises(ConfigError, match=r"krum needs at least 2 f \+ 3"):
        aggregate("krum", points, f=1)


def test_multikrum_sum():
    points = column(1, 1, 1, 1, 1)
    assert points[np.argsort(krum_scores(squared(points), 1), kind="stable")[:3]].sum() == 3
    assert aggregate("multikrum", points, f=1, q=3) == 1


def test_multikrum_by_stated_samples():
    points, samples = column(0, 0.1, 0.2, 0.3, 5), [10, 10, 10, 970, 10]
    chosen = np.argsort(krum_scores(squared(points), 1), kind="stable")[:4]
    assert np.average(points[chosen, 0], weights=np.take(samples, chosen)) == pytest.approx(0.294)
    assert aggregate("multikrum", points, samples, f=1) == pytest.approx(0.15)


def around_median(x, count):
    """The mean of the ``count`` values nearest to the median."""
    return float(x[np.argsort(np.abs(x - np.median(x)), kind="stable")[:count]].mean())


def test_bulyan_at_once():
    points = column(4, 2, 9, 10, 5, 8, 7)
    best = points[np.argsort(krum_scores(squared(points), 1), kind="stable")[:5], 0]
    assert around_median(best, 3) == 8
    assert aggregate("bulyan", points, f=1) == 9


def test_bulyan_trimmed():
    points = column(4, 2, 9, 10, 5, 8, 7)
    unsquared = krum_scores(np.sqrt(squared(points)), 1)
    best = np.sort(points[np.argsort(unsquared, kind="stable")[:5], 0])
    assert best[1:-1].mean() == pytest.approx(20 / 3)
    assert aggregate("bulyan", points, f=1) == 9


def test_bulyan_value_less():
    points = column(4, 2, 9, 10, 5, 8, 7)
    left, taken = list(range(7)), []
    while len(taken) < 5:
        away = np.sort(np.sqrt(squared(points[left])), axis=1)[:, 1:]
        taken.append(left.pop(int(np.argmin(away[:, : len(left) - 1].sum(1)))))
    assert around_median(points[taken, 0], 5 - 2 - 1) == 7.5
    assert aggregate("bulyan", points, f=1) == 9


def distances_to(z, x):
    """The sum of distances, which the geometric median makes least, and the least distance."""
    away = np.linalg.norm(x - z, axis=1)
    return float(away.sum()), float(away.min())


def test_geometric_median_overwritten_weights():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 50)) * np.exp(rng.normal(0, 0.5, (20, 1)))
    z, alpha = x.mean(0), np.full(20, 1 / 20)
    for _ in range(100):
        alpha = np.maximum(1e-6, alpha / np.maximum(1e-6, np.linalg.norm(x - z, axis=1)))
        alpha /= alpha.sum()
        z = alpha @ x
    theirs, papers = distances_to(z, x), distances_to(aggregate("geometric_median", x), x)
    assert theirs[1] < 1e-8, "an input point"
    assert papers[1] > 1
    assert theirs[0] == pytest.approx(157.1, abs=0.1)
    assert papers[0] == pytest.approx(139.7, abs=0.1)


def test_geometric_median_of_short_updates():
    points = column(*[0.01] * 9, 0.09)
    z = 0.0
    for _ in range(3):
        b = 1 / np.maximum(0.1, np.abs(points[:, 0] - z))
        z = b @ points[:, 0] / b.sum()
    assert z == pytest.approx(points.mean()) == pytest.approx(0.018)
    assert aggregate("geometric_median", points) == pytest.approx(0.01, abs=1e-5)


def test_geometric_median_with_a_set_of_weights():
    points, samples = column(100, 1, 1, 1, 1), [50] * 5
    total = sum(set(samples))
    pairs = list(zip({n / total for n in set(samples)}, points[:, 0].tolist(), strict=False))
    assert pairs == [(1.0, 100.0)], "client 0 alone"
    for weights in ("uniform", "samples"):
        step = aggregate("geometric_median", points, samples, weights=weights)
        assert step == pytest.approx(1, abs=1e-3)


def test_trimmed_mean_by_samples():
    points, samples = column(0, 1, 2, 3, 100), [10, 50, 20, 30, 25]
    kept = np.argsort(samples)[1:-1]
    assert np.average(points[kept, 0], weights=np.take(samples, kept)) == pytest.approx(2630 / 75)
    assert aggregate("trimmed_mean", points, samples, f=1) == 2


def test_clipping_around_a_client():
    points, tau = column(1000, 1, 1, 1, 1), 1
    center = points[0, 0]
    assert center + np.clip(points - center, -tau, tau).mean() == pytest.approx(999.2)
    step = single("centered_clipping", points, tau=tau).step
    assert step[0] == pytest.approx(1)  # around 0, the step before the first


def test_bucketing_in_order_by_samples():
    points, samples = column(0, 100, 0, 0), [1, 99, 50, 50]
    pairs = [np.average(points[i : i + 2, 0], weights=samples[i : i + 2]) for i in (0, 2)]
    assert pairs == [99, 0]
    assert np.average(pairs, weights=[100, 100]) == 49.5
    assert aggregate("bucketing", points, samples, size=2) == 25
    points = column(0, 0, 0, 5, 5, 9)
    medians = {
        aggregate("coordinate_median", points, pre=["bucketing"], round=t) for t in range(20)
    }
    assert len(medians) > 1, "drawn anew in each round"


def test_alie_probability_for_quantile():
    n, f = 50, 10
    assert NORMAL.cdf((n - (n / 2 + 1 - f)) / n) == pytest.approx(0.7517, abs=5e-5)
    assert alie_z(n, f) == pytest.approx(0.2533, abs=5e-5)


def test_alie_table_read_backwards():
    table = {3: 0.69847, 5: 0.7054, 8: 0.71904, 10: 0.72575, 12: 0.73891}
    times = {}
    for f, z in table.items():
        honest, supporters = 50 - f, 26 - f
        assert NORMAL.inv_cdf(z) == pytest.approx((honest - supporters) / honest, abs=0.01)
        times[f] = z / alie_z(50, f)
    assert times[3] == pytest.approx(26.2, abs=0.1)
    assert times[10] == pytest.approx(2.9, abs=0.1)
    assert min(times.values()) == pytest.approx(2.2, abs=0.1)


def test_min_max_start_value():
    benign = np.array([[0.0, 100.0], [0.0, -100.0], [1.0, 0.0]])
    mean, gamma, step, best = benign.mean(0), 10.0, 10.0, 0.0
    limit = squared(benign).max()
    unit = mean / np.linalg.norm(mean)
    while abs(best - gamma) > 1e-5:
        step /= 2
        if np.square(benign - (mean - gamma * unit)).sum(1).max() <= limit:
            best, gamma = gamma, gamma + step
        else:
            gamma -= step
    assert best == pytest.approx(20, abs=1e-4)
    attack = AttackedCohort(Malicious(frozenset([3])), MinMax())
    sent = attack(cohort([*benign, [0.0, 0.0]]), {}, CTX).cohort.rows[3]
    assert np.linalg.norm(mean - sent) == pytest.approx(173.5, abs=0.1)
    assert np.square(benign - sent).sum(1).max() == pytest.approx(limit)


def weight(staleness, **options):
    return StalenessWeights(**options).weights(np.array([staleness], np.float64))[0]


def test_staleness_from_one():
    def theirs(staleness):
        return 1 / (1 + np.sqrt(staleness + 1))

    assert theirs(0) == 0.5
    assert weight(0) == 1
    assert theirs(3) == pytest.approx(1 / 3)
    assert weight(3) == 0.5


def test_staleness_normalised():
    theirs = [(1 + d) ** -0.5 / (1 + 1) ** -0.5 for d in (0, 1, 3)]
    assert theirs == pytest.approx([1.4142, 1, 0.7071], abs=1e-4)
    assert [weight(d) for d in (0, 1, 3)] == pytest.approx([1, 0.7071, 0.5], abs=1e-4)


def test_staleness_exponent_one():
    assert (1 + 3) ** -1.0 == 0.25
    assert weight(3) == 0.5
    assert weight(3, exponent=1.0) == 0.25  # an option in fedsim


def step(deltas, staleness, **options):
    """The step of a buffer of updates of one coordinate."""
    updates = [
        ClientUpdate(client_id=i, num_samples=1, num_steps=1, delta=d, staleness=s)
        for i, (d, s) in enumerate(zip(column(*deltas)[:, None, 0], staleness, strict=True))
    ]
    server = Server(Average(), receive=(StalenessWeights(**options),))
    return float(server.step(RuleState(), Cohort.of(updates, vector_layout(1)), CTX).step[0])


def test_staleness_decay_in_place():
    theirs = 0.5
    for _ in range(10):  # updates of staleness 1
        theirs *= 2**-0.5
    assert theirs == pytest.approx(0.0156, abs=1e-4)
    for _ in range(10):
        assert step([1.0], [1], mixing=0.5) == pytest.approx(0.3536, abs=1e-4)


def test_staleness_left_out():
    deltas, staleness = [1.0, 1.0], [0, 8]
    assert np.mean(deltas) == 1
    assert step(deltas, staleness) == pytest.approx((1 + 1 / 3) / 2)


def test_models_in_place_of_updates():
    server, starts, deltas, staleness = 10.0, np.array([10.0, 4.0]), np.ones(2), np.array([0, 8])
    s = (1 + staleness) ** -0.5
    assert s @ (starts + deltas) / s.sum() == pytest.approx(9.5), "a step of -0.5"
    assert server + step(deltas, staleness) == pytest.approx(10.667, abs=1e-3)


def test_qsgd_max_norm():
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    of_max = float(np.abs(x / np.abs(x).max()).sum())
    of_norm = float(np.abs(x / np.linalg.norm(x)).sum())
    assert of_max == pytest.approx(2000, abs=100), "expected entries that are not 0, at s = 1"
    assert of_norm == pytest.approx(80, abs=1)
    sent = QSGD(1)(x, [slice(0, len(x))], np.random.default_rng(1))
    assert np.count_nonzero(sent.vector) == pytest.approx(of_norm, abs=40)
    with np.errstate(invalid="ignore"):
        assert np.isnan(np.zeros(3) / np.zeros(3).max()).all()
    nothing = QSGD(1)(np.zeros(3, np.float32), [slice(0, 3)], np.random.default_rng(1))
    assert not nothing.vector.any()


def test_epsilon_of_another_sampling():
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    population, cohort, rounds, delta, q = 50, 5, 100, 1e-5, 0.1
    theirs = min(
        rounds
        / (a - 1)
        * math.log(
            sum(
                math.comb(a, k) * (1 - q) ** (a - k) * q**k * math.exp(k * (k - 1) / 2)
                for k in range(a + 1)
            )
        )
        + math.log(1 / delta) / (a - 1)
        for a in range(2, 20)
    )
    assert theirs == pytest.approx(8.93, abs=0.01)
    poisson = epsilons(Release(1.0, population, cohort, "poisson"), [rounds], delta)[0]
    fixed = epsilons(Release(1.0, population, cohort, "fixed"), [rounds], delta)[0]
    assert poisson == pytest.approx(7.05, abs=0.05)
    assert poisson < theirs
    assert fixed == pytest.approx(34.2, abs=0.2)


def test_epsilon_of_one_round():
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    epsilon, delta, rounds = 1.0, 1e-5, 100
    z = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    release = Release(z, 1, 1, "full")
    assert epsilons(release, [1], delta)[0] < epsilon
    found = epsilons(release, [rounds], delta)[0]
    assert found == pytest.approx(10.39, abs=0.01)
    mu = math.sqrt(rounds) / z  # of Gaussian differential privacy
    tail = NORMAL.cdf(mu / 2 - found / mu) - math.exp(found) * NORMAL.cdf(-mu / 2 - found / mu)
    assert tail == pytest.approx(delta, rel=1e-3)


def run_of_clips(start, adapt):
    """The clipping norm after 200 rounds with 50 clients, whose norms have the median 1."""
    rng, clip = np.random.default_rng(0), start
    for t in range(200):
        clip = adapt(clip, np.exp(rng.normal(0, 0.5, 50)), replace(CTX, round=t))
    return clip


def test_adaptive_clipping_runs_away():
    def theirs(clip, norms, ctx):
        return clip * math.exp(-0.2 * (float(np.mean(norms > clip)) - 0.5))

    adapt = AdaptiveClip(quantile=0.5, lr=0.2, count_noise=0.0, expected=50.0)
    assert run_of_clips(0.1, theirs) < 1e-9
    assert run_of_clips(3.0, theirs) > 1e8
    for start in (0.1, 1.0, 3.0):
        assert run_of_clips(start, adapt) == pytest.approx(1, abs=0.15)


def private_step(updates, samples, noise, seed=0):
    """The step of a private mean with C = 1."""
    mean = PrivateMean(
        clip=1.0,
        noise_multiplier=noise,
        expected=float(len(updates)),
        noise=GaussianNoise((slice(0, len(updates[0])),)),
    )
    return mean(cohort(updates, samples), {}, replace(CTX, seed=seed)).step


def test_noise_beside_weights_by_samples():
    samples = [91, *[1] * 9]
    updates = np.zeros((10, 1))
    without = np.average(updates[:, 0], weights=samples)
    updates[0] = 1.0
    theirs = abs(np.average(updates[:, 0], weights=samples) - without)
    assert theirs == pytest.approx(0.91), "nine times C / m, to which the noise z C / m belongs"
    assert private_step(updates, samples, 0.0)[0] == pytest.approx(0.1)


def test_noise_in_place_of_the_model():
    updates = np.full((10, 1000), 1 / math.sqrt(1000))
    noise = 1.0 * np.random.default_rng(0).standard_normal(1000) / 10
    assert abs(noise @ updates[0]) < 0.5, "the model is gone"
    assert private_step(updates, [1] * 10, 1.0) @ updates[0] == pytest.approx(1, abs=0.5)
