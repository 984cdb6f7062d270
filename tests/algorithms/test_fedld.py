"""FedLD's principal aggregation through ``fedsim.aggregate``, against the naive vector form."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import fedsim
from fedsim.core.errors import FedsimError
from tests.oracles import aggregation as oracle
from tests.oracles import samplers

from .cases import EXAMPLES, PRINTED, assert_step, draw, every_cohort, every_input, revised
from .training import train, worker

fedld = partial(fedsim.aggregate, algorithm="fedld")


def test_by_hand():
    # K = diag(9, 16), L = max(1, floor(1.6)) = 1: the axis e_2 = (0, 1) alone, omega = 1.
    # Client 1 is orthogonal to it and contributes 0, client 2 gives 4 * (0, 1): mean (0, 2).
    # The authors' code divides 0 by 0 for client 1 and returns NaN.
    np.testing.assert_allclose(fedld(np.diag([3.0, 4.0]), [1, 1]), [0.0, 2.0], atol=1e-15)


def test_by_hand_both_axes_kept():
    # Updates (2, 0) and (0, 1), both axes, lambda / sum lambda = (4/5, 1/5): client 1 gives
    # 2 * 4/5 * (1, 0) = (1.6, 0), client 2 gives 1 * 1/5 * (0, 1) = (0, 0.2): mean (0.8, 0.1).
    step = fedld(np.diag([2.0, 1.0]), [1, 1], keep=1.0, norm="l1", scope="all")
    np.testing.assert_allclose(step, [0.8, 0.1], rtol=1e-14)


PUBLISHED = {
    "A1": {
        "default": [0.894427191, 0.4472135955],
        "l1": [0.7155417528, 0.3577708764],
        "l1 uniform": [0.7155417528, 0.3577708764],
        "scalar": [0.894427191, 0.4472135955],
        "all axes": [0.8677218313, 0.4338609156],
        "reference_mean": [0.894427191, 0.4472135955],
    },
    "A2": {
        "default": [0.3372376288, -0.2084243169],
        "l1": [0.2942998581, -0.1818873152],
        "l1 uniform": [-0.1537445267, 0.09501934308],
        "scalar": [0.3372376288, -0.2084243169],
        "all axes": [0.4174639123, -0.07071553263],
        "reference_mean": [-0.9387385838, 0.5801723513],
    },
    "A3": {
        "default": [0.0, 2.0],
        "l1": [0.0, 1.28],
        "l1 uniform": [0.0, 1.28],
        "scalar": [0.0, 2.0],
        "all axes": [0.7353918594, 1.743151074],
        "reference_mean": [0.0, 3.5],
    },
    "A4": {
        "default": [-0.2867515523, -0.2812793411, 0.3992759606],
        "l1": [-0.1834954304, -0.179993703, 0.2555010204],
        "l1 uniform": [-0.07274850856, -0.1582152329, 0.1739839234],
        "scalar": [-0.5319574666, -0.3634085147, 0.6081421224],
        "all axes": [-0.2093949898, -0.169831093, 0.5227255646],
        "reference_mean": [-0.2367882298, -0.7777353828, 0.7862015551],
    },
}
OPTIONS = {
    "default": {},
    "l1": {"norm": "l1", "scope": "all"},
    "l1 uniform": {"norm": "l1", "scope": "all", "weights": "uniform"},
    "scalar": {"norm": "scalar"},
    "all axes": {"keep": 1.0},
    "reference_mean": {"orientation": "reference_mean"},
}


@pytest.mark.parametrize("example", PUBLISHED)
@pytest.mark.parametrize("options", OPTIONS)
def test_published_examples(example, options):
    step = fedld(*EXAMPLES[example], **OPTIONS[options])
    np.testing.assert_allclose(step, PUBLISHED[example][options], **PRINTED)


@every_input
@every_cohort
@pytest.mark.parametrize("blocks", ["model", "tensor"])
def test_oracle(sampler, m, blocks):
    g, n, sizes = draw(sampler, m)
    per_tensor = sizes if blocks == "tensor" else None
    for norm, scope, weights, keep in [
        ("l2", "selected", "samples", 0.8),
        ("l2", "all", "samples", 0.8),
        ("l1", "selected", "uniform", 0.5),
        ("l1", "all", "samples", 0.8),
        ("l2", "selected", "uniform", 1.0),
    ]:
        rule = {"norm": norm, "scope": scope, "weights": weights, "keep": keep}
        expected = oracle.fedld(g, n, sizes=per_tensor, **rule)
        assert_step(fedld(g, n, sizes=sizes, blocks=blocks, **rule), expected, g)


@every_input
@every_cohort
@pytest.mark.parametrize("orientation", ["reference_mean", "reference_vote"])
def test_oracle_of_the_orientations(sampler, m, orientation):
    g, n, sizes = draw(sampler, m)
    expected = oracle.fedld(g, n, orientation=orientation)
    assert_step(fedld(g, n, orientation=orientation), expected, g)
    if sampler is samplers.gaussian:
        expected = oracle.fedld(g, n, sizes=sizes, orientation=orientation)
        step = fedld(g, n, sizes=sizes, blocks="tensor", orientation=orientation)
        assert_step(step, expected, g)


@every_input
@every_cohort
def test_float32_updates(sampler, m):
    g, n, sizes = draw(sampler, m)
    g = g.astype(np.float32)
    assert_step(fedld(g, n), oracle.fedld(g, n), g, 1e-5)
    expected = oracle.fedld(g, n, sizes=sizes, norm="l1", scope="all")
    assert_step(
        fedld(g, n, sizes=sizes, blocks="tensor", norm="l1", scope="all"), expected, g, 1e-5
    )


@pytest.mark.parametrize("norm", ["l2", "l1", "scalar"])
@pytest.mark.parametrize("blocks", ["model", "tensor"])
def test_limits(norm, blocks):
    g, _, sizes = draw(samplers.gaussian, 5)
    rule = {"norm": norm, "blocks": blocks, "sizes": sizes}
    np.testing.assert_array_equal(fedld(g[:1], [9], **rule), g[0])
    np.testing.assert_array_equal(fedld(np.zeros_like(g), [1, 2, 3, 4, 5], **rule), 0 * g[0])
    same = np.tile(g[0], (5, 1))
    np.testing.assert_allclose(fedld(same, [1, 2, 3, 4, 5], **rule), g[0], rtol=1e-12)


def test_rounding_noise_in_place_of_a_zero_cosine_does_not_decide():
    # Orthogonal updates in a rotated frame: cosines with the others' axes are about 1e-17.
    g, n, _ = draw(samplers.orthogonal, 5)
    q, _ = np.linalg.qr(np.random.default_rng(8).normal(size=(g.shape[1], g.shape[1])))
    for options in ({}, {"norm": "scalar", "keep": 1.0}):
        assert_step(fedld(g @ q.T, n, **options), q @ oracle.fedld(g, n, **options), g)


def test_a_tensor_that_did_not_move_stays():
    g, n, sizes = draw(samplers.gaussian, 5)
    g[:, :40] = 0.0
    step = fedld(g, n, blocks="tensor", sizes=sizes)
    assert np.all(step[:40] == 0)
    assert_step(step, oracle.fedld(g, n, sizes=sizes), g)


@pytest.mark.parametrize("m", [2, 5, 10, 50])
def test_laws(m):
    g, n, _ = draw(samplers.gaussian, m)
    step = fedld(g, n)
    rng = np.random.default_rng(3)
    order = rng.permutation(m)
    assert_step(fedld(g[order], n[order]), step, g, 1e-11)
    q, _ = np.linalg.qr(rng.normal(size=(g.shape[1], g.shape[1])))
    assert_step(fedld(g @ q.T, n), q @ step, g, 1e-11)
    assert np.linalg.norm(step) <= n / n.sum() @ np.linalg.norm(g, axis=1) + 1e-12


@pytest.mark.parametrize("m", [2, 5, 10, 50])
def test_published_weights_keep_every_length_and_the_released_shrink_it(m):
    # l2/selected: ||g_i^revise|| = ||g_i|| * ||omega||_2 = ||g_i||. l1/all: ||omega||_2 < 1.
    g, _, _ = draw(samplers.gaussian, m)
    lengths = np.linalg.norm(g, axis=1)
    published = np.linalg.norm(revised(fedld, g), axis=1)
    np.testing.assert_allclose(published, lengths, rtol=1e-10)
    released = np.linalg.norm(revised(partial(fedld, norm="l1", scope="all"), g), axis=1)
    assert np.all(released < lengths)
    np.testing.assert_allclose(released / lengths, released[0] / lengths[0], rtol=1e-10)


@pytest.mark.parametrize("m", [2, 5])
def test_a_client_orthogonal_to_every_kept_axis_contributes_nothing(m):
    # m - 1 clients share the first coordinates, the last moves alone along a weaker coordinate.
    g = np.zeros((m, 6))
    g[:-1, 0] = np.arange(1, m) + 3.0
    g[-1, 5] = 1.0
    contribution = revised(partial(fedld, keep=1.0 / m), g)
    np.testing.assert_allclose(contribution[-1], np.zeros(6), atol=1e-12)


@every_input
@every_cohort
def test_the_ill_posed_corner_stays_finite_and_in_the_span(sampler, m):
    # scalar weights on null or tiny axes are not defined by the rule: bounds only.
    g, n, _ = draw(sampler, m)
    step = fedld(g, n, norm="scalar")
    bound = np.sqrt(m) * (n / n.sum() @ np.linalg.norm(g, axis=1))
    assert np.all(np.isfinite(step))
    assert np.linalg.norm(step) <= bound * (1 + 1e-6)


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({"keep": 0.0}, "keep"),
        ({"keep": 1.5}, "keep"),
        ({"norm": "l3"}, "l3"),
        ({"scope": "some"}, "some"),
        ({"blocks": "layer"}, "layer"),
        ({"weights": "equal"}, "equal"),
        ({"orientation": "vote"}, "vote"),
        ({"blocks": "tensor", "sizes": [2, 2]}, "sizes"),
    ],
)
def test_unusable_options_are_named(options, fragment):
    with pytest.raises(FedsimError, match=fragment):
        fedld(np.ones((2, 3)), [1, 1], **options)


def test_weight_zero_trains_like_fedavg_bit_for_bit():
    _, expected = train(worker("fedavg"))
    np.testing.assert_array_equal(train(worker("fedld", margin_weight=0.0))[1], expected)
    np.testing.assert_array_equal(train(worker("fedld", margin="none"))[1], expected)
    assert not np.array_equal(train(worker("fedld"))[1], expected)
