"""Robust rules: by hand, against loops over vectors, and what they promise about faulty clients."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, ContractError
from fedsim.server.robust import Faulty, squared_distances_to
from fedsim.testing.rounds import small
from fedsim.training.assemble import prepare
from tests.oracles import byzantine as oracle
from tests.oracles import samplers

from .cases import assert_step, draw, every_input
from .serving import LAYOUT, answers, single

LINE = [[11.0], [0.0], [3.0], [7.0], [0.0], [8.0]]
"""One coordinate; sums of fourth powers, an error of well-known code, choose 3 with f = 1."""
RULES = {
    "krum": oracle.krum,
    "multikrum": oracle.multikrum,
    "trimmed_mean": oracle.trimmed_mean,
    "coordinate_median": lambda g, f: oracle.coordinate_median(g),
    "geometric_median": lambda g, f: oracle.geometric_median(g),
    "centered_clipping": lambda g, f: oracle.centered_clipping([g], 10.0)[0],
    "mda": oracle.mda,
    "bulyan": oracle.bulyan,
}
WITH_F = ("krum", "multikrum", "trimmed_mean", "mda", "bulyan")
every_rule = pytest.mark.parametrize("name", RULES)


def options(name, f):
    return {"f": f} if name in WITH_F else {}


def most(name, m):
    """The largest f that every rule allows, and that of Bulyan."""
    return max(0, (m - 3) // (4 if name == "bulyan" else 2))


def test_krum_by_hand():
    # f = 1: the 3 nearest others. 7: 1 + 16 + 16 = 33; 3: 9 + 9 + 16 = 34; 8: 1 + 9 + 25 = 35;
    # 0: 0 + 9 + 49 = 58; 11: 9 + 16 + 64 = 89. The mixing variant has 4: 7: 33 + 49 = 82,
    # 3: 34 + 25 = 59, 8: 35 + 64 = 99, 0: 58 + 64 = 122, 11: 89 + 121 = 210.
    assert oracle.krum_scores(np.array(LINE), 1) == [89, 58, 34, 33, 58, 35]
    assert single("krum", LINE, f=1).step.tolist() == [7.0]
    assert single("krum", LINE, f=1, neighbours="mixing").step.tolist() == [3.0]


def test_multikrum_by_hand():
    # The best by the scores above: 7, 3, 8, then the two zeros, then 11.
    for q, expected in ((1, 7), (2, 5), (3, 6), (0, 18 / 5), (6, 29 / 6)):
        step = single("multikrum", LINE, [9, 1, 1, 1, 1, 1], f=1, q=q).step
        np.testing.assert_allclose(step, [expected], rtol=1e-14)


def test_coordinate_rules_by_hand():
    g = [[0.0, 5.0], [1.0, -9.0], [2.0, 5.0], [50.0, 6.0]]
    assert single("coordinate_median", g).step.tolist() == [1.5, 5.0]
    assert single("trimmed_mean", g, f=1).step.tolist() == [1.5, 5.0]
    assert single("trimmed_mean", g, f=0).step.tolist() == [13.25, 1.75]


def test_geometric_median_by_hand():
    # z_0 = (0 + 0 + 3) / 3 = 1, distances 1, 1, 2, weights 1, 1, 1/2: z_1 = (3/2) / (5/2) = 3/5;
    # then 1/0.6, 1/0.6, 1/2.4: z_2 = (3/2.4) / (2/0.6 + 1/2.4) = 1.25 / 3.75 = 1/3.
    for iterations, expected in ((1, 0.6), (2, 1 / 3)):
        step = single("geometric_median", [[0.0], [0.0], [3.0]], iterations=iterations).step
        np.testing.assert_allclose(step, [expected], rtol=1e-13)
    by_samples = single("geometric_median", [[0.0], [4.0]], [3, 1], iterations=1, weights="samples")
    # z_0 = 1, weights 3/4 and (1/4) / 3: (4/12) / (10/12) = 0.4.
    np.testing.assert_allclose(by_samples.step, [0.4], rtol=1e-13)


def test_centered_clipping_by_hand():
    # From 0 with tau = 2: (1 + 2 - 2) / 3 = 1/3. From there the differences are 2/3, 2 and -2:
    # 1/3 + 2/9 = 5/9, in the same round or the next.
    g = [[1.0], [8.0], [-9.0]]
    twice = answers("centered_clipping", [g, g], tau=2.0)
    np.testing.assert_allclose([a.step[0] for a in twice], [1 / 3, 5 / 9], rtol=1e-13)
    assert twice[0].metrics == {"clipped": pytest.approx(2 / 3)}
    both = single("centered_clipping", g, tau=2.0, iterations=2)
    np.testing.assert_allclose(both.step, [5 / 9], rtol=1e-13)


@every_input
@pytest.mark.parametrize("m", [1, 2, 5, 11])
@every_rule
def test_oracle(name, sampler, m):
    if (name, sampler, m) == ("mda", samplers.duplicated, 5):
        pytest.skip("diameters that are equal but for rounding")
    g, n, _ = draw(sampler, m)
    f = most(name, m)
    expected = RULES[name](g, f)
    assert_step(single(name, g, n.tolist(), **options(name, f)).step, expected, g)
    float32 = fedsim.aggregate(g.astype(np.float32), n, name, **options(name, f))
    if name not in (
        "krum",
        "multikrum",
        "mda",
        "bulyan",
    ):  # whose choice may change with the last bits
        assert_step(float32, expected, g, 1e-5)


@pytest.mark.parametrize(("tau", "iterations"), [(0.5, 1), (2.0, 3), (100.0, 2)])
def test_three_rounds_of_centered_clipping(tau, iterations):
    rounds = np.random.default_rng(1).normal(size=(3, 7, 40))
    said = answers("centered_clipping", rounds, tau=tau, iterations=iterations)
    expected = oracle.centered_clipping(rounds, tau, iterations)
    for answer, step in zip(said, expected, strict=True):
        assert_step(answer.step, step, rounds[0])


def test_a_wide_radius_is_the_mean():
    g = np.random.default_rng(2).normal(size=(6, 9))
    np.testing.assert_allclose(
        single("centered_clipping", g, tau=1e6).step, g.mean(axis=0), rtol=1e-12
    )


def test_the_geometric_median_is_a_minimum():
    g = np.random.default_rng(3).standard_t(2, size=(9, 4))

    def objective(z):
        return np.linalg.norm(g - z, axis=1).sum()

    z = fedsim.aggregate(g, np.ones(9), "geometric_median", iterations=1000)
    for direction in np.random.default_rng(4).normal(size=(30, 4)):
        assert objective(z) <= objective(z + 1e-4 * direction)


def test_distances_to_a_combination():
    rng = np.random.default_rng(5)
    x, c = rng.normal(size=(6, 20)), rng.uniform(size=6)
    c /= c.sum()
    found = squared_distances_to(x @ x.T, c)
    np.testing.assert_allclose(found, np.square(x - c @ x).sum(axis=1), rtol=1e-11)


@every_rule
def test_translations_and_scales(name):
    """Of centered clipping the radius has to scale too, and it does not move with the updates."""
    g, n, _ = draw(samplers.gaussian, 11)
    f = options(name, 2 if name == "bulyan" else 3)
    step = fedsim.aggregate(g, n, name, **f)
    for scale in (1e-3, 1e3):
        units = {"geometric_median": {"nu": 1e-5 * scale}, "centered_clipping": {"tau": 10 * scale}}
        scaled = fedsim.aggregate(scale * g, n, name, **f, **units.get(name, {}))
        assert_step(scaled / scale, step, g, 1e-12)
    if name != "centered_clipping":
        away = np.linspace(-1, 1, g.shape[1])
        assert_step(fedsim.aggregate(g + away, n, name, **f) - away, step, g, 1e-10)


@every_rule
@pytest.mark.parametrize("where", [1e2, 1e6, -1e9, 1e30])
def test_far_outliers_do_not_move_the_step(name, where):
    """Four (two) of 11, with nearly all samples: the step stays where the others are."""
    far = [0, 3, 4, 9][: most(name, 11)]
    g = np.random.default_rng(7).normal(size=(11, 30))
    g[far] = where + np.random.default_rng(8).normal(size=(len(far), 30))
    n = np.where(np.isin(np.arange(11), far), 1000, 1)
    benign = g[n == 1]
    f = {"tau": 1.0} if name == "centered_clipping" else options(name, len(far))
    step = fedsim.aggregate(g, n, name, **f)
    reach = np.linalg.norm(benign - benign.mean(axis=0), axis=1).max()
    assert np.linalg.norm(step - benign.mean(axis=0)) <= 1.01 * reach
    assert np.linalg.norm(fedsim.aggregate(g, n, "fedavg") - benign.mean(axis=0)) > 5 * reach


def test_a_fraction_is_one_of_the_cohort():
    g = np.random.default_rng(9).normal(size=(10, 8))
    for name in ("krum", "multikrum", "trimmed_mean", "mda"):
        for f, number in ((0.3, 3), (0.19, 1), (0.0, 0), (0.09, 0)):
            np.testing.assert_array_equal(
                fedsim.aggregate(g, np.ones(10), name, f=f),
                fedsim.aggregate(g, np.ones(10), name, f=number),
            )
    assert Faulty("krum", 0.29).count(100) == 29  # 0.29 * 100 = 28.999999999999996


@pytest.mark.parametrize(
    ("name", "m", "bound"),
    [
        *(("krum", 6, 1), ("multikrum", 9, 3), ("trimmed_mean", 4, 1), ("mda", 5, 2)),
        *(("bulyan", 10, 1), ("nnm", 4, 1)),
    ],
)
def test_too_many_faulty_clients_are_refused_with_the_bound(name, m, bound):
    g = np.random.default_rng(10).normal(size=(m, 4))
    fedsim.aggregate(g, np.ones(m), name, f=bound)
    more = bound + 1
    needs = rf"{name}\.f: {more} given, {more} of {m} clients; .* f may be at most {bound}$"
    with pytest.raises(ConfigError, match=needs):
        fedsim.aggregate(g, np.ones(m), name, f=more)
    with pytest.raises(ConfigError, match=rf"{name}\.f: 0\.6 given"):
        fedsim.aggregate(g, np.ones(m), name, f=0.6)
    with pytest.raises(ConfigError, match=rf"{name}\.f: 1\.5 given; must be a whole number"):
        fedsim.aggregate(g, np.ones(m), name, f=1.5)
    with pytest.raises(ConfigError, match=rf"{name}\.f: -1 given; must be "):
        fedsim.aggregate(g, np.ones(m), name, f=-1)


def test_a_run_is_refused_before_it_starts():
    with pytest.raises(ConfigError, match=r"krum\.f: 1 given, 1 of 4 clients; krum needs at least"):
        prepare(small("krum", krum={"f": 1}))
    buffered = {
        "clock": {"mode": "async", "samples_per_second": "lognormal(100, 0.8)"},
        "async": {"buffer": 5},
    }
    config = small("krum", krum={"f": 2}).model_dump()
    with pytest.raises(ConfigError, match=r"krum\.f: 2 given, 2 of 5 clients"):
        prepare(RunConfig(**config | buffered))
    with pytest.raises(ConfigError, match=r"multikrum\.q: 5 given, but the cohort has 4 updates"):
        single("multikrum", np.ones((4, 2)), q=5)


def test_rounds_after_the_first_need_a_run():
    g = np.ones((3, 2))
    with pytest.raises(ContractError, match="centered_clipping keeps a state from round to round"):
        fedsim.aggregate(g, [1, 1, 1], "centered_clipping", round=1)


@every_rule
def test_statistics_go_through_the_rule(name):
    """Those of a far client do not count, or count as its update does."""
    g = np.random.default_rng(11).normal(size=(5, 6))
    step = single(name, g, layout=LAYOUT, **options(name, int(name != "bulyan"))).step
    if name in ("coordinate_median", "trimmed_mean"):
        assert_step(step, RULES[name](g, 1), g)
    elif name == "bulyan":  # with f = 0 the mean
        assert_step(step, g.mean(axis=0), g)
    elif name == "centered_clipping":
        np.testing.assert_allclose(step[4:], g[:, 4:].mean(axis=0), rtol=1e-12)  # none is clipped
    else:
        c = np.linalg.lstsq(g.T, step, rcond=None)[0]
        np.testing.assert_allclose(step, c @ g, rtol=1e-9)
        assert c.sum() == pytest.approx(1, rel=1e-9)
        assert_step(step[:4], RULES[name](g[:, :4], 1), g)


def test_mda_by_hand():
    # Of 4 of 0, 1, 5, 6, 20: 0, 1, 5, 6 has diameter 6. Of 3, diameter 5: 0, 1, 5 and 1, 5, 6, each
    # with squared distances 1 + 25 + 16. With 5.5 in place of 5, diameter 5: 1, 5.5, 6.
    g = [[0.0], [1.0], [5.0], [6.0], [20.0]]
    assert single("mda", g, f=1).step.tolist() == [3.0]
    assert single("mda", [[0.0], [1.0], [5.5], [6.0], [20.0]], f=2).step[0] == pytest.approx(
        12.5 / 3
    )
    np.testing.assert_allclose(
        fedsim.aggregate(np.ones((5, 3)), np.ones(5), "mda", f=2), np.ones(3)
    )
    with pytest.raises(ConfigError, match=r"mda\.f: 17 of 40 clients; .* at most 16"):
        fedsim.aggregate(np.ones((40, 3)), np.ones(40), "mda", f=17)


def test_mda_of_ties_by_hand():
    # A, A, B, B, C = (0, 0), (0, 0), (10, 0), (10, 0), (5, 8): every diameter is 10. The
    # farthest pair is 1-2 without client 0, 0-3 without 2, else 0-2; of these 1-2 is the least.
    g = [[0.0, 0.0], [0.0, 0.0], [10.0, 0.0], [10.0, 0.0], [5.0, 8.0]]
    assert single("mda", g, f=1).step.tolist() == [6.25, 2.0]
    assert single("mda", [g[i] for i in (4, 0, 1, 2, 3)], f=1).step.tolist() == [6.25, 2.0]


def test_bulyan_by_hand():
    # f = 1, m = 7. Krum takes 5 of 0, 1, 2, 4, 7, 11, 100, with r - 3 neighbours among r: 2 with
    # 4 + 1 + 4 + 25 = 34; 4 with 16 + 9 + 9 = 34; 1 with 1 + 36 = 37; 7 with 16 (11: the same, a
    # larger id); 0 with 121 (11: the same). The median of 0, 1, 2, 4, 7 is 2; the three nearest are
    # 2, 1, and of 0 and 4, which are equally near, the smaller id.
    g = [[0.0], [1.0], [2.0], [4.0], [7.0], [11.0], [100.0]]
    assert oracle.bulyan(np.array(g), 1).tolist() == [1.0]
    assert single("bulyan", g, f=1).step.tolist() == [1.0]
