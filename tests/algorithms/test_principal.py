"""FedLD and FedGH, and their authors' code."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import numpy as np
import pytest

import fedsim
from fedsim.algorithms.fedgh import harmonize_orders
from tests.algorithms.cases import (
    EXAMPLES,
    PRINTED,
    assert_step,
    draw,
    every_cohort,
    every_input,
    revised,
)
from tests.algorithms.training import train, worker
from tests.oracles import rules, samplers

fedld = partial(fedsim.aggregate, algorithm="fedld")


def test_fedld_by_hand():
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
FEDLD_OPTIONS = {
    "default": {},
    "l1": {"norm": "l1", "scope": "all"},
    "l1 uniform": {"norm": "l1", "scope": "all", "weights": "uniform"},
    "scalar": {"norm": "scalar"},
    "all axes": {"keep": 1.0},
    "reference_mean": {"orientation": "reference_mean"},
}


@pytest.mark.parametrize("example", PUBLISHED)
@pytest.mark.parametrize("options", FEDLD_OPTIONS)
def test_fedld_published_examples(example, options):
    step = fedld(*EXAMPLES[example], **FEDLD_OPTIONS[options])
    np.testing.assert_allclose(step, PUBLISHED[example][options], **PRINTED)


@every_input
@every_cohort
@pytest.mark.parametrize("blocks", ["model", "tensor"])
def test_fedld_oracle(sampler, m, blocks):
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
        expected = rules.fedld(g, n, sizes=per_tensor, **rule)
        assert_step(fedld(g, n, sizes=sizes, blocks=blocks, **rule), expected, g)


@every_input
@every_cohort
@pytest.mark.parametrize("orientation", ["reference_mean", "reference_vote"])
def test_oracle_of_the_orientations(sampler, m, orientation):
    g, n, sizes = draw(sampler, m)
    expected = rules.fedld(g, n, orientation=orientation)
    assert_step(fedld(g, n, orientation=orientation), expected, g)
    if sampler is samplers.gaussian:
        expected = rules.fedld(g, n, sizes=sizes, orientation=orientation)
        step = fedld(g, n, sizes=sizes, blocks="tensor", orientation=orientation)
        assert_step(step, expected, g)


@every_input
@every_cohort
def test_fedld_float32_updates(sampler, m):
    g, n, sizes = draw(sampler, m)
    g = g.astype(np.float32)
    assert_step(fedld(g, n), rules.fedld(g, n), g, 1e-5)
    expected = rules.fedld(g, n, sizes=sizes, norm="l1", scope="all")
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
        assert_step(fedld(g @ q.T, n, **options), q @ rules.fedld(g, n, **options), g)


def test_a_tensor_that_did_not_move_stays():
    g, n, sizes = draw(samplers.gaussian, 5)
    g[:, :40] = 0.0
    step = fedld(g, n, blocks="tensor", sizes=sizes)
    assert np.all(step[:40] == 0)
    assert_step(step, rules.fedld(g, n, sizes=sizes), g)


@pytest.mark.parametrize("m", [2, 5, 10, 50])
def test_fedld_laws(m):
    g, n, _ = draw(samplers.gaussian, m)
    step = fedld(g, n)
    rng = np.random.default_rng(3)
    order = rng.permutation(m)
    assert_step(fedld(g[order], n[order]), step, g, 1e-11)
    q, _ = np.linalg.qr(rng.normal(size=(g.shape[1], g.shape[1])))
    assert_step(fedld(g @ q.T, n), q @ step, g, 1e-11)
    assert np.linalg.norm(step) <= n / n.sum() @ np.linalg.norm(g, axis=1) + 1e-12


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


def test_weight_zero_trains_like_fedavg_bit_for_bit():
    _, expected = train(worker("fedavg"))
    np.testing.assert_array_equal(train(worker("fedld", margin_weight=0.0))[1], expected)
    np.testing.assert_array_equal(train(worker("fedld", margin="none"))[1], expected)
    assert not np.array_equal(train(worker("fedld"))[1], expected)


fedld_released_released = partial(fedsim.aggregate, algorithm="fedld_released", round=1)


def test_fedld_released_by_hand():
    # Two tensors: (3, 0 | 0, 4) and a single element (1 | 5). m = 2: int(1.6) = 1 axis.
    # First: axis (0, 1), lambda share 16/25; client 1 gives 0 (the authors' code: NaN), client 2
    # 4 * 0.64 = 2.56; uniform mean (0, 1.28). Second: the plain mean (1 + 5) / 2 = 3.
    g = np.array([[3.0, 0.0, 1.0], [0.0, 4.0, 5.0]])
    step = fedld_released_released(g, [10, 90], sizes=[2, 1])
    np.testing.assert_allclose(step, [0.0, 1.28, 3.0], rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A1", [0.7155417528, 0.3577708764]),
        ("A2", [-0.1537445267, 0.09501934308]),
        ("A3", [0.0, 1.28]),
        ("A4", [-0.07274850856, -0.1582152329, 0.1739839234]),
    ],
)
def test_fedld_released_published_examples(name, expected):
    g, n = EXAMPLES[name]
    np.testing.assert_allclose(
        fedld_released_released(g, n, sizes=[g.shape[1]]), expected, **PRINTED
    )


@every_input
@every_cohort
@pytest.mark.parametrize("round", [0, 1, 7])
def test_fedld_released_oracle(sampler, m, round):
    g, n, sizes = draw(sampler, m)
    expected = rules.fedld_released(g, sizes, round=round)
    assert_step(fedld_released_released(g, n, sizes=sizes, round=round), expected, g)
    single = g.astype(np.float32)
    expected = rules.fedld_released(single, sizes, round=round)
    assert_step(
        fedld_released_released(single, n, sizes=sizes, round=round), expected, single, 1e-5
    )


def test_the_first_round_is_the_plain_mean():
    g, n, sizes = draw(samplers.gaussian, 5)
    assert_step(fedld_released_released(g, n, sizes=sizes, round=0), g.mean(axis=0), g, 1e-14)


def test_a_single_client_loses_its_update():
    # int(0.8 * 1) = 0 axes: the documented exception to "one client is FedAvg".
    g, n, sizes = draw(samplers.gaussian, 1)
    step = fedld_released_released(g, n, sizes=sizes)
    assert step[40] == g[0, 40]
    assert np.all(np.delete(step, 40) == 0)


def test_fedld_released_laws():
    g, n, sizes = draw(samplers.gaussian, 10)
    step = fedld_released_released(g, n, sizes=sizes)
    np.testing.assert_array_equal(fedld_released_released(g, 1 + 0 * n, sizes=sizes), step)
    for scale in (-1.0, 1e-10, 1e10):
        assert_step(fedld_released_released(scale * g, n, sizes=sizes) / scale, step, g, 1e-11)
    order = np.random.default_rng(6).permutation(10)
    assert_step(fedld_released_released(g[order], n, sizes=sizes), step, g, 1e-11)


fedgh = partial(fedsim.aggregate, algorithm="fedgh")


def test_fedgh_by_hand():
    # g_1 = (1, 0), g_2 = (-1, 1), inner product -1, squared lengths 1 and 2.
    # g_1' = g_1 + 1/2 g_2 = (1/2, 1/2), g_2' = g_2 + 1 g_1 = (0, 1); p = (3/4, 1/4):
    # 3/4 (1/2, 1/2) + 1/4 (0, 1) = (0.375, 0.625).
    np.testing.assert_allclose(fedgh(*EXAMPLES["A2"]), [0.375, 0.625], rtol=1e-15)


@pytest.mark.parametrize(
    ("name", "order", "expected"),
    [
        ("A1", "random", [0.8, 0.4]),
        ("A2", "random", [0.375, 0.625]),
        ("A3", "random", [1.5, 2.0]),
        ("A4", "ascending", [-0.02476190476, 0.2257142857, 0.6904761905]),
        ("A4", "descending", [0.1238095238, 0.2238095238, 0.6428571429]),
    ],
)
def test_fedgh_published_examples(name, order, expected):
    np.testing.assert_allclose(fedgh(*EXAMPLES[name], order=order), expected, **PRINTED)


@every_input
@every_cohort
@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
def test_fedgh_oracle(sampler, m, order):
    g, n, _ = draw(sampler, m)
    orders = harmonize_orders(m, 3, 8) if order == "random" else rules.visiting_orders(m, order)
    assert_step(fedgh(g, n, order=order, seed=3, round=8), rules.fedgh(g, n, orders), g)
    single = g.astype(np.float32)
    expected = rules.fedgh(single, n, orders)
    assert_step(fedgh(single, n, order=order, seed=3, round=8), expected, single, 1e-5)


def test_the_orders_of_a_round():
    orders = harmonize_orders(6, 1, 2)
    assert [sorted(ids) for ids in orders] == [[j for j in range(6) if j != k] for k in range(6)]
    assert harmonize_orders(6, 1, 2) == orders
    assert harmonize_orders(6, 1, 3) != orders
    assert harmonize_orders(6, 2, 2) != orders
    assert any(ids != sorted(ids) for ids in orders)


@every_cohort
def test_without_conflicts_it_is_fedavg_bit_for_bit(m):
    for sampler in (samplers.agreeing, samplers.orthogonal, samplers.identical, samplers.all_zero):
        g, n, _ = draw(sampler, m)
        np.testing.assert_array_equal(fedgh(g, n), fedsim.aggregate(g, n, "fedavg"))


@every_cohort
def test_coefficients_only_grow(m):
    # Independent updates: the coefficients c of the step G c are unique.
    for sampler in (samplers.gaussian, samplers.conflicting):
        g, n, _ = draw(sampler, m)
        c = np.linalg.lstsq(g.T, fedgh(g, n), rcond=None)[0]
        assert np.all(c >= n / n.sum() - 1e-10)


def test_two_clients_end_orthogonal_to_each_others_update():
    g, _, _ = draw(samplers.conflicting, 2)
    projected = revised(fedgh, g)
    assert abs(projected[0] @ g[1]) < 1e-12
    assert abs(projected[1] @ g[0]) < 1e-12


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_clients_in_the_other_order_meet_in_the_other_order(order):
    g, n, _ = draw(samplers.conflicting, 5)
    other = {"ascending": "descending", "descending": "ascending"}[order]
    assert_step(fedgh(g[::-1], n[::-1], order=other), fedgh(g, n, order=order), g, 1e-13)


fedgh_released_released = partial(fedsim.aggregate, algorithm="fedgh_released", round=1)


def test_fedgh_released_by_hand():
    # Two clients are the final pair: a = (1, 0), b = (-1, 1), <a, b> = -1, 1e-7 neglected.
    # a' = a + 1/2 b = (1/2, 1/2); b' = b + 1/(1/2) a' = (-1, 1) + 2 (1/2, 1/2) = (0, 2);
    # sum / 2 = (1/4, 5/4).
    g, n = EXAMPLES["A2"]
    np.testing.assert_allclose(
        fedgh_released_released(g, n, history=np.ones(2)), [0.25, 1.25], atol=3e-7
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A1", [0.8, 0.4]),
        ("A2", [0.2499999375, 1.249999863]),
        ("A3", [1.5, 2.0]),
        ("A4", [0.1219937207, 0.4776634732, 0.6560462956]),
    ],
)
def test_fedgh_released_published_examples(name, expected):
    g, n = EXAMPLES[name]
    step = fedgh_released_released(g, n, history=np.ones(g.shape[1]), sizes=[g.shape[1]])
    np.testing.assert_allclose(step, expected, **PRINTED)


@every_input
@every_cohort
def test_fedgh_released_oracle(sampler, m):
    g, n, sizes = draw(sampler, m)
    history = np.random.default_rng(7).normal(size=g.shape[1])
    expected = rules.fedgh_released(g, history, num_users=m, sizes=sizes)
    assert_step(fedgh_released_released(g, n, history=history, sizes=sizes), expected, g)
    expected = rules.fedgh_released(g, history, num_users=m)
    assert_step(fedgh_released_released(g, n, history=history), expected, g)


def test_without_history_it_is_the_plain_mean():
    g, n, sizes = draw(samplers.conflicting, 5)
    assert_step(fedgh_released_released(g, n, sizes=sizes, round=0), g.mean(axis=0), g, 1e-14)


def test_without_conflicts_it_is_the_plain_mean():
    g, n, sizes = draw(samplers.agreeing, 10)
    step = fedgh_released_released(g, n, history=np.ones(g.shape[1]), sizes=sizes)
    assert_step(step, g.mean(axis=0), g, 1e-13)


KAPPA = {
    "trimmed_mean": lambda n, f: 6 * f / (n - 2 * f) * (1 + f / (n - 2 * f)),
    "krum": lambda n, f: 6 * (1 + f / (n - 2 * f)),
    "geometric_median": lambda n, f: 4 * (1 + f / (n - 2 * f)) ** 2,
    "coordinate_median": lambda n, f: 4 * (1 + f / (n - 2 * f)) ** 2,
}
KAPPA_OPTIONS = {
    "trimmed_mean": lambda f: {"f": f},
    "krum": lambda f: {"f": f, "neighbours": "mixing"},
    "geometric_median": lambda f: {"iterations": 1000},
    "coordinate_median": lambda f: {},
}


def worst_ratio(x, f, step):
    """The largest squared error by the variance of the updates, over all S."""
    found = []
    for chosen in combinations(range(len(x)), len(x) - f):
        own = x[list(chosen)]
        mean = own.mean(axis=0)
        spread = np.square(own - mean).sum(axis=1).mean()
        found.append(np.square(step - mean).sum() / spread)
    return max(found)


def inputs(n, f, d, seed):
    """Honest updates, with f that are among them, near, shifted together, or far."""
    rng = np.random.default_rng(seed)
    for heterogeneous in (False, True):
        x = rng.normal(size=(n, d))
        if heterogeneous:
            x *= rng.uniform(0.1, 5, size=(n, 1))
        yield x
        for where in (0.5, 1.5, 3.0, 10.0, 1e3):
            moved = x.copy()
            moved[:f] = x[f:].mean(axis=0) + where * x[f:].std(axis=0) + 1e-3 * x[:f]
            yield moved


@pytest.mark.parametrize("pre", [[], ["nnm"]], ids=["alone", "nnm"])
@pytest.mark.parametrize("name", KAPPA)
@pytest.mark.parametrize(("n", "f"), [(5, 1), (7, 2), (9, 3)])
def test_the_error_is_bounded_by_the_variance(name, n, f, pre):
    kappa = KAPPA[name](n, f)
    if pre:
        kappa = 8 * f / (n - f) * (kappa + 1)
    for x in (x for seed in range(3) for d in (1, 6) for x in inputs(n, f, d, seed)):
        step = single(x, name, f, pre)
        assert worst_ratio(x, f, step) <= kappa * (1 + 1e-9)


def single(x, name, f, pre):
    """The step; ``f`` of a rule that has none is that of NNM alone."""
    options = KAPPA_OPTIONS[name](f)
    if pre and "f" not in options:
        options["f"] = f
    return fedsim.aggregate(x, np.ones(len(x)), name, pre=pre, **options)


def test_the_mean_has_no_kappa():
    x = np.random.default_rng(0).normal(size=(7, 4))
    found = []
    for far in (1e1, 1e3, 1e5):
        x[0] = far
        found.append(worst_ratio(x, 2, x.mean(axis=0)))
    assert found[2] > 100 * found[1] > 100 * 100 * found[0]
