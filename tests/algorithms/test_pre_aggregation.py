"""NNM, bucketing and norm clipping before other rules: coefficients against explicit vectors."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from fedsim import algorithms
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.rng import generator
from fedsim.core.types import RoundContext
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from fedsim.testing.rounds import small
from fedsim.training.assemble import prepare
from tests.oracles import byzantine as oracle
from tests.oracles import samplers

from .cases import assert_step, draw
from .serving import LAYOUT, cohort, single

RULES = {
    "krum": ({"f": 2}, lambda g: oracle.krum(g, 2)),
    "multikrum": ({"f": 2}, lambda g: oracle.multikrum(g, 2)),
    "mda": ({"f": 2}, lambda g: oracle.mda(g, 2)),
    "trimmed_mean": ({"f": 2}, lambda g: oracle.trimmed_mean(g, 2)),
    "coordinate_median": ({}, oracle.coordinate_median),
    "geometric_median": ({}, oracle.geometric_median),
    "centered_clipping": ({"tau": 2.0}, lambda g: oracle.centered_clipping([g], 2.0)[0]),
    "fedavg": ({}, lambda g: g.mean(axis=0)),
}
every_rule = pytest.mark.parametrize("name", RULES)


def drawn(m, seed=0, round=0):
    return generator(seed, "bucketing", round).permutation(m).tolist()


def clipped(g, norm):
    return g * np.minimum(1, norm / np.linalg.norm(g, axis=1))[:, None]


def test_nnm_by_hand():
    # f = 1, m = 4: means of 3. 0, 1, 3, 100 -> 4/3, 4/3, 4/3, 104/3.
    mixed = oracle.nnm(np.array([[0.0], [1.0], [3.0], [100.0]]), 1)
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


@every_rule
@pytest.mark.parametrize("sampler", [samplers.gaussian, samplers.uneven])
def test_the_coefficients_are_those_of_explicit_vectors(name, sampler):
    g, _, _ = draw(sampler, 13)
    n = np.full(13, 7)
    given, rule = RULES[name]
    for pre, vectors in (
        (["nnm"], oracle.nnm(g, 2)),
        (["bucketing"], oracle.bucketing(g, drawn(13), 2)),
        (["nnm", "bucketing"], oracle.bucketing(oracle.nnm(g, 2), drawn(13), 2)),
        (["bucketing", "nnm"], oracle.nnm(oracle.bucketing(g, drawn(13), 2), 2)),
        (["norm_clipping"], clipped(g, 5.0)),
        (["norm_clipping", "nnm"], oracle.nnm(clipped(g, 5.0), 2)),
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


@pytest.mark.parametrize("pre", ["nnm", "bucketing"])
@every_rule
def test_statistics_are_mixed_too(name, pre):
    """Those of the parameters' columns, copied, have the parameters' step."""
    half = np.random.default_rng(1).normal(size=(9, 2))
    g = np.concatenate([half, half, half], axis=1)
    given = {} if name in ("fedavg", "centered_clipping") else RULES[name][0]
    given = {**given, "f": 1} if "f" in given else given
    sections = {name: given, "nnm": {"f": 2}}
    server = algorithms.compose("fedprox", sections, server=f"{pre},{name}").server
    ctx = RoundContext(round=0, num_rounds=1, num_clients=9, lr=0.1, seed=0)
    step = server.step(RuleState(), cohort(g, layout=LAYOUT), ctx).step
    np.testing.assert_allclose(step[4:], step[:2], rtol=1e-9, atol=1e-12)


def test_a_fraction_is_one_of_the_clients_not_of_the_buckets():
    # 0.2 of 20 clients are 4; 10 buckets of 2 with f = 4 are too few for krum, 2 f + 3 = 11.
    g = np.random.default_rng(2).normal(size=(20, 3))
    refused = r"krum\.f: 0\.2 given, 4 of 10 means; krum needs at least 2 f \+ 3, .* at most 3$"
    with pytest.raises(ConfigError, match=refused):
        fedsim.aggregate(g, np.ones(20), "krum", pre=["bucketing"])
    expected = oracle.krum(oracle.bucketing(g, drawn(20), 2), 3)
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


def test_hyperparameters_of_python_go_to_all_that_have_them():
    g = np.random.default_rng(3).normal(size=(9, 4))
    both = fedsim.aggregate(g, np.ones(9), "trimmed_mean", pre=["nnm"], f=3)
    assert_step(both, oracle.trimmed_mean(oracle.nnm(g, 3), 3), g)
    one = fedsim.aggregate(g, np.ones(9), "coordinate_median", pre=["nnm"], f=3)
    assert_step(one, oracle.coordinate_median(oracle.nnm(g, 3)), g)
    with pytest.raises(ConfigError, match=r"krum\.tau: unknown hyperparameter"):
        fedsim.aggregate(g, np.ones(9), "krum", pre=["nnm"], tau=3)
    with pytest.raises(ConfigError, match="unknown algorithm 'nmm'"):
        fedsim.aggregate(g, np.ones(9), "krum", pre=["nmm"])
