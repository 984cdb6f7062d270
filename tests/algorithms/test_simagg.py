"""SimAgg and RegAgg: weights by the distance from the plain mean."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from tests.oracles import aggregation, robust, samplers

from .cases import EXAMPLES, PRINTED, assert_step, draw, every_cohort, every_input
from .serving import LAYOUT, single

METHODS = ("simagg", "regagg")
every_method = pytest.mark.parametrize("method", METHODS)
every_distance = pytest.mark.parametrize("distance", ["l2", "signed_sum"])


def weights_of(method, name, **options):
    """The weights that give the step of an example, whose updates are independent."""
    g, n = EXAMPLES[name]
    return np.linalg.solve(g.T, fedsim.aggregate(g, n, method, **options))


def test_by_hand():
    # Equal distances d: u = 2d/(d + eps) each, normalised 1/2 (up to eps); v = 3/4, 1/4.
    # SimAgg (1/2 + 3/4, 1/2 + 1/4) / 2 = 5/8, 3/8, up to eps/4; RegAgg v itself.
    np.testing.assert_allclose(weights_of("simagg", "A2"), [0.625, 0.375], atol=1e-6)
    np.testing.assert_allclose(weights_of("regagg", "A2"), [0.75, 0.25], atol=1e-12)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A1", [0.8, 0.4]),
        ("A2", [0.2500003125, 0.3749998437]),
        ("A3", [1.5, 2.0]),
        ("A4", [0.01660515127, 0.07267294113, 0.4163740176]),
    ],
)
def test_published_results(name, expected):
    for blocks in ("tensor", "model"):
        got = fedsim.aggregate(*EXAMPLES[name], "simagg", blocks=blocks)
        np.testing.assert_allclose(got, expected, **PRINTED)


@pytest.mark.parametrize(
    ("method", "distance", "name", "expected"),
    [
        ("simagg", "l2", "A1", [0.5, 0.5]),
        ("simagg", "l2", "A2", [0.6250001563, 0.3749998437]),
        ("regagg", "l2", "A2", [0.75, 0.25]),
        ("simagg", "signed_sum", "A2", [0.6250001563, 0.3749998437]),
        ("simagg", "l2", "A3", [0.5, 0.5]),
        ("simagg", "l2", "A4", [0.2611286307, 0.3224973517, 0.4163740176]),
        ("regagg", "l2", "A4", [0.1798494786, 0.3152620856, 0.5048884358]),
        ("simagg", "signed_sum", "A4", [0.1409304691, 0.5410004306, 0.3180691003]),
    ],
)
def test_published_weights(method, distance, name, expected):
    got = weights_of(method, name, distance=distance)
    np.testing.assert_allclose(got, expected, **PRINTED)


@every_input
@every_cohort
@every_method
def test_oracle(sampler, m, method):
    g, n, sizes = draw(sampler, m)
    whole = robust.similar(g, n, method)
    assert_step(fedsim.aggregate(g, n, method, sizes=sizes, blocks="model"), whole, g)
    each = robust.similar(g, n, method, sizes=sizes)
    assert_step(fedsim.aggregate(g, n, method, sizes=sizes), each, g)
    single_precision = fedsim.aggregate(g.astype(np.float32), n, method, sizes=sizes)
    assert single_precision.dtype == np.float32
    assert_step(single_precision, each, g, 1e-5)


@every_cohort
@every_method
def test_oracle_of_the_released_distance(m, method):
    # Not where the sums of two clients agree up to rounding, which decides against eps then.
    for sampler in (samplers.gaussian, samplers.common_noise, samplers.agreeing, samplers.uneven):
        g, n, sizes = draw(sampler, m)
        for blocks in ("tensor", "model"):
            expected = robust.similar(
                g, n, method, sizes=sizes if blocks == "tensor" else None, distance="signed_sum"
            )
            got = fedsim.aggregate(g, n, method, sizes=sizes, blocks=blocks, distance="signed_sum")
            assert_step(got, expected, g)


@every_method
def test_each_tensor_has_weights_of_its_own(method):
    g, n, sizes = draw(samplers.gaussian, 5)
    got = fedsim.aggregate(g, n, method, sizes=sizes)
    for stop, size in zip(np.cumsum(sizes), sizes, strict=True):
        block = slice(stop - size, stop)
        alone = fedsim.aggregate(np.ascontiguousarray(g[:, block]), n, method)
        np.testing.assert_allclose(got[block], alone, rtol=1e-9, atol=1e-12)
    assert not np.allclose(got, fedsim.aggregate(g, n, method, sizes=sizes, blocks="model"))


@every_method
@every_distance
def test_clients_without_any_distance_are_averaged_by_samples(method, distance):
    # Exactly representable, so that the distances are exactly 0.
    g = np.tile([2.0, -4.0, 8.0], (4, 1))
    got = fedsim.aggregate(g, [1, 2, 3, 4], method, distance=distance)
    np.testing.assert_array_equal(got, fedsim.aggregate(g, [1, 2, 3, 4], "fedavg"))
    one = fedsim.aggregate(g[:1], [7], method, distance=distance)
    np.testing.assert_array_equal(one, g[0])


@every_method
def test_the_released_distance_takes_very_different_tensors_for_the_same(method):
    g, n = np.array([[1.0, -1.0], [8.0, -8.0], [0.0, 0.0]]), [1, 2, 5]
    got = fedsim.aggregate(g, n, method, distance="signed_sum")
    np.testing.assert_allclose(got, aggregation.mean(g, n), rtol=1e-12)
    assert not np.allclose(fedsim.aggregate(g, n, method), got)


@every_distance
def test_equal_distances_give_the_mean_of_shares_and_uniform_weights(distance):
    # Unit vectors in a plane and their opposites: mean 0, distances 1, sums 1 and -1.
    g, n = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), np.array([1, 2, 3, 4])
    w = (n / 10 + 0.25) / 2
    got = fedsim.aggregate(g, n, "simagg", distance=distance)
    np.testing.assert_allclose(got, w @ g, atol=2e-6)


@every_method
def test_statistics_are_averaged_by_samples(method):
    g = np.random.default_rng(8).normal(size=(3, 6))
    answer = single(method, g, [1, 2, 3], layout=LAYOUT)
    np.testing.assert_allclose(answer.step[4:], aggregation.mean(g, [1, 2, 3])[4:], rtol=1e-12)
    expected = robust.similar(g[:, :4], [1, 2, 3], method, sizes=[2, 2])
    np.testing.assert_allclose(answer.step[:4], expected, rtol=1e-9)
