"""Robust rules, what stands before them, and FLTrust."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedsim
from fedsim import algorithms
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DivergedError
from fedsim.core.rng import generator
from fedsim.core.types import ClientTask, RoundContext
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from fedsim.server.robust import Faulty
from fedsim.testing.rounds import rounds, small
from fedsim.training.assemble import make_executor, prepare
from fedsim.training.round import root_update
from tests.algorithms.cases import LAYOUT, answers, assert_step, cohort, draw, every_input, single
from tests.oracles import rules, samplers

LINE = [[11.0], [0.0], [3.0], [7.0], [0.0], [8.0]]
"""One coordinate; sums of fourth powers, an error of well-known code, choose 3 with f = 1."""
RULES = {
    "krum": rules.krum,
    "multikrum": rules.multikrum,
    "trimmed_mean": rules.trimmed_mean,
    "coordinate_median": lambda g, f: rules.coordinate_median(g),
    "geometric_median": lambda g, f: rules.geometric_median(g),
    "centered_clipping": lambda g, f: rules.centered_clipping([g], 10.0)[0],
    "mda": rules.mda,
    "bulyan": rules.bulyan,
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
    assert rules.krum_scores(np.array(LINE), 1) == [89, 58, 34, 33, 58, 35]
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
    expected = rules.centered_clipping(rounds, tau, iterations)
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
    assert rules.bulyan(np.array(g), 1).tolist() == [1.0]
    assert single("bulyan", g, f=1).step.tolist() == [1.0]


BEFORE_RULES = {
    "krum": ({"f": 2}, lambda g: rules.krum(g, 2)),
    "multikrum": ({"f": 2}, lambda g: rules.multikrum(g, 2)),
    "mda": ({"f": 2}, lambda g: rules.mda(g, 2)),
    "trimmed_mean": ({"f": 2}, lambda g: rules.trimmed_mean(g, 2)),
    "coordinate_median": ({}, rules.coordinate_median),
    "geometric_median": ({}, rules.geometric_median),
    "centered_clipping": ({"tau": 2.0}, lambda g: rules.centered_clipping([g], 2.0)[0]),
    "fedavg": ({}, lambda g: g.mean(axis=0)),
}
every_rule_after_others = pytest.mark.parametrize("name", BEFORE_RULES)


def drawn(m, seed=0, round=0):
    return generator(seed, "bucketing", round).permutation(m).tolist()


def clipped(g, norm):
    return g * np.minimum(1, norm / np.linalg.norm(g, axis=1))[:, None]


def test_nnm_by_hand():
    # f = 1, m = 4: means of 3. 0, 1, 3, 100 -> 4/3, 4/3, 4/3, 104/3.
    mixed = rules.nnm(np.array([[0.0], [1.0], [3.0], [100.0]]), 1)
    np.testing.assert_allclose(mixed[:, 0], [4 / 3, 4 / 3, 4 / 3, 104 / 3])
    g = [[0.0], [1.0], [3.0], [100.0]]
    step = fedsim.aggregate(g, np.ones(4), "coordinate_median", pre=["nnm"], f=1)
    np.testing.assert_allclose(step, [4 / 3], rtol=1e-14)
    np.testing.assert_allclose(single("nnm", g, f=1).step, [(4 + 104 / 3) / 4], rtol=1e-14)


def test_bucketing_by_hand():
    # Three buckets of 2, 2 and 1 of five clients; alone, the mean of their means.
    a, b, c, d, e = drawn(5)
    g = np.arange(5.0)[:, None] ** 2
    means = [(g[a] + g[b]) / 2, (g[c] + g[d]) / 2, g[e]]
    np.testing.assert_allclose(single("bucketing", g).step, sum(means) / 3, rtol=1e-14)
    np.testing.assert_allclose(
        fedsim.aggregate(g, np.ones(5), "coordinate_median", pre=["bucketing"]),
        np.median(means, axis=0), rtol=1e-14,
    )  # fmt: skip
    assert drawn(5) != drawn(5, round=1)


@every_rule_after_others
@pytest.mark.parametrize("sampler", [samplers.gaussian, samplers.uneven])
def test_the_coefficients_are_those_of_explicit_vectors(name, sampler):
    g, _, _ = draw(sampler, 13)
    n = np.full(13, 7)
    given, rule = BEFORE_RULES[name]
    for pre, vectors in (
        (["nnm"], rules.nnm(g, 2)),
        (["bucketing"], rules.bucketing(g, drawn(13), 2)),
        (["nnm", "bucketing"], rules.bucketing(rules.nnm(g, 2), drawn(13), 2)),
        (["bucketing", "nnm"], rules.nnm(rules.bucketing(g, drawn(13), 2), 2)),
        (["norm_clipping"], clipped(g, 5.0)),
        (["norm_clipping", "nnm"], rules.nnm(clipped(g, 5.0), 2)),
    ):
        own = {**({"f": 2} if "nnm" in pre else {}), **given}
        own |= {"norm": 5.0} if "norm_clipping" in pre else {}
        expected = vectors.mean(axis=0) if name == "fedavg" else rule(vectors)
        if name == "fedavg" and "bucketing" in pre:
            continue  # weighted by the samples of buckets, which are those of clients on average
        assert_step(fedsim.aggregate(g, n, name, pre=pre, **own), expected, g)


def spread(x):
    """Of each column."""
    return x.max(axis=0) - x.min(axis=0)


def test_a_mixed_cohort_is_that_of_the_vectors():
    rng = np.random.default_rng(0)
    g, matrix = rng.normal(size=(5, 6)), rng.uniform(size=(3, 5))
    matrix /= matrix.sum(axis=1, keepdims=True)
    rows = list(g)
    where, vector, out = slice(1, 5), rng.normal(size=6), np.zeros(6)
    explicit = cohort(matrix @ g, layout=LAYOUT)
    for known in (False, True):
        received = cohort(rows, [1, 2, 3, 4, 5], LAYOUT)
        if known:
            received.gram(where)
        mixed = received.mixed(matrix)
        np.testing.assert_allclose(mixed.gram(where), explicit.gram(where), rtol=1e-12)
        np.testing.assert_allclose(mixed.norms(where), explicit.norms(where), rtol=1e-12)
        np.testing.assert_allclose(mixed.rows, explicit.rows, rtol=1e-12)
        np.testing.assert_allclose(mixed.map(spread), explicit.map(spread), rtol=1e-12)
        for ours, theirs in zip(
            mixed.grams_with(vector, [where])[0], explicit.grams_with(vector, [where])[0],
            strict=True,
        ):  # fmt: skip
            np.testing.assert_allclose(ours, theirs, rtol=1e-11)
        mixed.combine(np.array([1.0, -2.0, 0.5]), where, out)
        np.testing.assert_allclose(out[where], ([1, -2, 0.5] @ matrix @ g)[where], rtol=1e-12)
        np.testing.assert_allclose(mixed.num_samples, matrix @ [1, 2, 3, 4, 5])
        assert (len(mixed.updates), mixed.num_clients) == (3, 5)
        assert mixed.mixed(np.ones((1, 3))).num_clients == 5
    scaled = received.scaled(np.arange(5.0))
    np.testing.assert_allclose(scaled.map(spread), spread(np.stack(scaled.rows)))


def test_neighbours_of_equal_updates_include_oneself():
    np.testing.assert_array_equal(single("nnm", np.ones((5, 2)), f=2).step, np.ones(2))
    mixed = Cohort.mixed(cohort(np.eye(3)), np.eye(3))
    np.testing.assert_array_equal(mixed.rows, np.eye(3))


def test_a_fraction_is_one_of_the_clients_not_of_the_buckets():
    # 0.2 of 20 clients are 4; 10 buckets of 2 with f = 4 are too few for krum, 2 f + 3 = 11.
    g = np.random.default_rng(2).normal(size=(20, 3))
    refused = r"krum\.f: 0\.2 given, 4 of 10 means; krum needs at least 2 f \+ 3, .* at most 3$"
    with pytest.raises(ConfigError, match=refused):
        fedsim.aggregate(g, np.ones(20), "krum", pre=["bucketing"])
    expected = rules.krum(rules.bucketing(g, drawn(20), 2), 3)
    step = fedsim.aggregate(g, np.ones(20), "krum", pre=["bucketing"], f=0.15)
    np.testing.assert_allclose(step, expected, rtol=1e-12)
    everybody = small("fedavg", train={"sample_rate": 1.0}).model_dump()
    config = RunConfig(**everybody | {"server": "bucketing,krum", "krum": {"f": 1}})
    with pytest.raises(ConfigError, match=r"krum\.f: 1 given, 1 of 4 means"):
        prepare(config)


def receives(name, server):
    return [part.name for part in algorithms.compose(name, {}, server=server).server.receive]


def test_the_order_of_a_chain():
    composed = algorithms.compose("fedprox", {}, server="nnm,bucketing,krum,fedadam,fedavgm").server
    assert composed.reduction == algorithms.load("krum").server.reduction
    assert len(composed.optimizers) == 2
    assert [part.name for part in composed.receive] == ["nnm", "bucketing"]
    mean = algorithms.compose("fedprox", {}, server="bucketing,nnm,fedadam").server
    assert mean.reduction == algorithms.load("nnm").server.reduction
    assert [part.name for part in mean.receive] == ["bucketing", "nnm"]
    assert algorithms.compose("fedprox", {}, server="nnm,robfedavg").server.needs_whole_updates


def test_what_clients_send_is_read_before_updates_are_mixed():
    assert receives("fednova", "nnm,krum") == ["normalise", "nnm"]
    assert receives("fednova", "norm_clipping,nnm,krum") == ["clip", "normalise", "nnm"]
    assert receives("nnm", "nnm,krum") == ["nnm"]
    assert receives("fednova", "nnm,fednova") == ["normalise", "nnm"]


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        ("krum,nnm", "only the first method gives the reduction, after pre-agg.*'nnm' does not"),
        ("nnm,krum,multikrum", "only the first method gives the reduction"),
        ("nnm,nnm", "names 'nnm' twice"),
        ("nnm,fednova", "server 'fednova' cannot serve fedprox"),
    ],
)
def test_what_makes_no_sense_is_refused(server, reason):
    with pytest.raises(ConfigError, match=reason):
        algorithms.compose("fedprox", {}, server=server)


CTX = RoundContext(round=0, num_rounds=1, num_clients=10, lr=0.1, seed=0)


def step(updates, own):
    return fedsim.aggregate(updates, np.ones(len(updates)), "fltrust", reference=own)


def said(updates, own, layout=None):
    """The server's answer."""
    given = replace(cohort(updates, layout=layout), reference=np.asarray(own, float))
    return algorithms.load("fltrust").server.step(RuleState(), given, CTX)


def test_by_hand():
    # own = (2, 0). Cosines 1, 0.6, 0, -1; weights 1, 0.6, 0, 0; of length 2: (2, 0), (1.2, 1.6).
    # ((2, 0) + 0.6 (1.2, 1.6)) / 1.6 = (2.72, 0.96) / 1.6 = (1.7, 0.6).
    g = [[5.0, 0.0], [3.0, 4.0], [0.0, 7.0], [-1.0, 0.0]]
    answer = said(g, [2.0, 0.0])
    np.testing.assert_allclose(answer.step, [1.7, 0.6], rtol=1e-14)
    assert answer.metrics == {"trusted": 0.5}


@every_input
@pytest.mark.parametrize("m", [1, 2, 5, 11])
def test_fltrust_oracle(sampler, m):
    g, _, _ = draw(sampler, m)
    rng = np.random.default_rng(m)
    for own in (rng.normal(size=g.shape[1]), 1e-3 * g[0], g.mean(axis=0) + 0.1):
        assert_step(step(g, own), rules.fltrust(g, own), [own])


def test_lengths_and_samples_of_updates_do_not_count():
    rng = np.random.default_rng(1)
    g, own = rng.normal(size=(7, 30)), rng.normal(size=30)
    plain = step(g, own)
    factors = 10.0 ** rng.uniform(-6, 6, size=(7, 1))
    np.testing.assert_allclose(step(factors * g, own), plain, rtol=1e-10, atol=1e-12)
    by_samples = fedsim.aggregate(g, rng.integers(1, 99, 7), "fltrust", reference=own)
    np.testing.assert_array_equal(by_samples, plain)
    np.testing.assert_allclose(step(g, 3 * own), 3 * plain, rtol=1e-12)


def test_flipped_updates_have_no_weight():
    rng = np.random.default_rng(2)
    own = rng.normal(size=30)
    benign = own + rng.normal(size=(4, 30)) / 5
    everybody = [*benign, *(-1e9 * benign)]
    np.testing.assert_allclose(step(everybody, own), step(benign, own), rtol=1e-12)
    assert np.linalg.norm(step(everybody, own)) <= np.linalg.norm(own) * (1 + 1e-12)


def test_without_anybody_who_agrees_the_model_stays():
    for g, own in (([[-1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [2.0, 0.0]), ([[1.0, 1.0]], [0.0, 0.0])):
        answer = said(g, own)
        np.testing.assert_array_equal(answer.step, [0, 0])
        assert answer.metrics == {"trusted": 0.0}


def test_statistics_are_averaged_by_the_cosines():
    g = np.random.default_rng(3).normal(size=(3, 6))
    g[:, :4] = [[2, 0, 0, 0], [3, 4, 0, 0], [-1, 0, 0, 0]]
    found = said(g, [1.0, 0, 0, 0, 50, 50], LAYOUT).step
    np.testing.assert_allclose(found[:4], [1.36 / 1.6, 0.48 / 1.6, 0, 0], rtol=1e-14)
    np.testing.assert_allclose(found[4:], (g[0, 4:] + 0.6 * g[1, 4:]) / 1.6, rtol=1e-14)


def test_the_root_set_is_of_the_validation_part():
    config = small("fltrust", "mlp")
    setup = prepare(config)
    own = setup.root
    assert len(own) == len(set(own.tolist())) == 100
    assert set(own.tolist()) < set(setup.dataset.val.tolist())
    fewer = prepare(small("fltrust", "mlp", fltrust={"samples": 10})).root
    assert len(fewer) == 10
    np.testing.assert_array_equal(prepare(config).root, own)
    other = small("fltrust", "mlp", data={"seed": 1})
    assert not np.array_equal(prepare(other).root, own)


def composed(name, **sections):
    """``--server fltrust`` for a method."""
    given = small("fltrust", **sections.pop("small", {})).model_dump(by_alias=True)
    return RunConfig(**given | {"algorithm": name, "server": "fltrust"} | sections)


@pytest.mark.integration
def test_a_round_is_the_rule_on_the_servers_own_training(monkeypatch):
    """Its update is that of a client with these samples, in one step over all of them."""
    own, sent = [], []

    def seen(*given):
        own.append(root_update(*given))
        return own[-1]

    def arrival(updates):
        sent.extend(u.delta.astype(np.float64) for u in updates)
        return updates

    monkeypatch.setattr("fedsim.training.round.root_update", seen)
    config = small("fltrust", "mlp", train={"rounds": 1, "batch_size": 100, "lr": 0.1})
    (made,) = rounds(config, arrival=arrival)
    expected = rules.fltrust(sent, own[0].astype(np.float64))
    assert_step(made.after.params - made.before.params, expected, own, 1e-5)

    setup = prepare(config)
    train = (setup.root, *setup.partition.train[1:])
    setup = replace(setup, partition=replace(setup.partition, train=train))
    with closing(make_executor(setup)) as executor:
        ctx = replace(CTX, num_clients=8)
        models = {0: (setup.initial, {})}
        (client,) = executor.run([ClientTask(client=0, ctx=ctx)], models, {})
    assert_step(own[0], client.delta, own, 1e-5)


@pytest.mark.integration
def test_a_server_that_diverges_ends_the_run():
    with pytest.raises(
        DivergedError, match=r"round 1, the server's own training: tensor .* is NaN"
    ):
        rounds(small("fltrust", "mlp", train={"lr": 1e30}, engine={"on_client_failure": "drop"}))


@pytest.mark.integration
def test_the_root_set_is_marked_in_the_split(tmp_path):
    config = small("fltrust", "mlp", train={"rounds": 1})
    run = fedsim.run(config, tmp_path / "run").path
    rows = pd.read_csv(run / "split.csv")
    assert len(fedsim.predict(run)), "the split of now has it too"
    assert rows.loc[rows["root"] == 1, "part"].eq("val").all()
    np.testing.assert_array_equal(
        np.sort(rows.loc[rows["root"] == 1, "sample"]), prepare(config).root
    )


@pytest.mark.integration
def test_privacy_of_samples_adds_no_noise_to_the_servers_own_training():
    given = {"train": {"rounds": 1, "lr": 0.1}}
    dp = {"level": "example", "clip": 0.1, "noise_multiplier": 5.0, "accountant": "rdp"}
    own = []
    for config in (small("fltrust", "mlp", **given), small("fltrust", "mlp", **given, dp=dp)):
        setup = prepare(config)
        with closing(make_executor(setup)) as executor:
            own.append(root_update(setup, executor, {0: (setup.initial, {})}, CTX))
    assert own[0].tobytes() == own[1].tobytes()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "other"), [("trimmed_mean", "TrMean"), ("mda", "MDA")], ids=["trimmed_mean", "mda"]
)
@pytest.mark.parametrize("pre", [[], ["nnm"]], ids=["alone", "nnm"])
def test_as_byzfl(name, other, pre, seed):
    byzfl = pytest.importorskip("byzfl")
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(9, 12)) * rng.uniform(0.3, 3, size=(9, 1))
    f = 2
    mixed = byzfl.NNM(f)(x) if pre else x
    wanted = getattr(byzfl, other)(f)(np.asarray(mixed))
    step = fedsim.aggregate(x, np.ones(9), name, f=f, pre=pre)
    np.testing.assert_allclose(step, wanted, rtol=1e-9, atol=1e-12)
