"""Means of updates, weighted, robust or matched before it; pooled training."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedsim
from fedsim import algorithms
from fedsim import models as fedsim_models
from fedsim.algorithms import robfedavg
from fedsim.algorithms.fedgh import harmonize_orders
from fedsim.algorithms.matched_mean import MatchedMean, Pair, layers_of
from fedsim.core.errors import ConfigError
from fedsim.core.layout import FlatModel, layout_of
from fedsim.core.rng import torch_generator
from fedsim.core.types import ModelSpec, RoundContext, Training
from fedsim.engine.blocks import shared_out
from fedsim.engine.worker import with_deltas
from fedsim.models import build
from fedsim.schedules.base import Roster
from fedsim.server.base import RuleState
from fedsim.systems.clock import Clock
from fedsim.testing.rounds import config, rounds, small
from tests.algorithms.cases import (
    EXAMPLES,
    LAYOUT,
    PRINTED,
    assert_step,
    cohort,
    draw,
    every_cohort,
    every_input,
    single,
)
from tests.algorithms.training import context, dataset, train, worker
from tests.decomposing import named_tensors
from tests.oracles import rules, samplers
from tests.rounding import of_update, sgd_operations
from tests.tasks import models as tasks_models


def fedavg(updates, n, **options):
    return fedsim.aggregate(updates, n, "fedavg", **options)


def test_fedavg_by_hand():
    # p = (3/4, 1/4): 3/4 * (4, 0) + 1/4 * (0, 8) = (3, 2).
    step = fedavg(np.array([[4.0, 0.0], [0.0, 8.0]]), np.array([30, 10]))
    assert step.tolist() == [3.0, 2.0]
    assert step.dtype == np.float64


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A1", [0.8, 0.4]),
        ("A2", [0.5, 0.25]),
        ("A3", [1.5, 2.0]),
        ("A4", [-0.1, 0.03333333333, 0.5]),
    ],
)
def test_published_examples(name, expected):
    np.testing.assert_allclose(fedavg(*EXAMPLES[name]), expected, **PRINTED)


@every_input
@every_cohort
def test_fedavg_oracle(sampler, m):
    g, n, _ = draw(sampler, m)
    assert_step(fedavg(g, n), rules.mean(g, n), g)
    assert_step(fedavg(list(g), list(n)), rules.mean(g, n), g)
    single = g.astype(np.float32)
    assert_step(fedavg(single, n), rules.mean(single, n), single, 1e-5)


def test_limits():
    g = np.random.default_rng(0).normal(size=(4, 9))
    np.testing.assert_array_equal(fedavg(g[:1], [7]), g[0])
    np.testing.assert_array_equal(fedavg(np.zeros((4, 9)), [1, 2, 3, 4]), np.zeros(9))
    np.testing.assert_allclose(fedavg(np.tile(g[0], (4, 1)), [1, 2, 3, 4]), g[0], rtol=1e-14)


@every_cohort
def test_laws(m):
    g, n, _ = draw(samplers.gaussian, m)
    step = fedavg(g, n)
    assert np.all(step <= g.max(axis=0) + 1e-12)
    assert np.all(step >= g.min(axis=0) - 1e-12)
    shift = np.linspace(-3.0, 3.0, g.shape[1])
    np.testing.assert_allclose(fedavg(g + shift, n), step + shift, rtol=0, atol=1e-13)
    order = np.random.default_rng(1).permutation(m)
    np.testing.assert_allclose(fedavg(g[order], n[order]), step, rtol=0, atol=1e-14)
    np.testing.assert_allclose(fedavg(g, 10 * n), step, rtol=0, atol=1e-15)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_local_training_is_torch_sgd(momentum):
    # One batch holds all data, so the order of the samples is only a matter of rounding.
    training = Training(local_epochs=5, batch_size=100, momentum=momentum, weight_decay=0.01)
    w = worker("fedavg", model="mlp", training=training)
    start = w.flat.vector()
    reports, deltas = train(w, (0,), lr=0.1)
    model = fedsim_models.build(w.spec.model, 0)
    data, index = dataset(), w.spec.partition.train[0]
    x = (torch.tensor(data.x[index]).float() / 255 - 0.5) / 0.5
    y = torch.tensor(data.y[index])
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum, weight_decay=0.01)
    losses = []
    for _ in range(5):
        loss = functional.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    end = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    np.testing.assert_allclose(deltas[0], end - start, rtol=0, atol=2e-6)
    assert np.abs(deltas[0]).max() > 1e-3
    assert reports[0].train_loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert (reports[0].num_samples, reports[0].num_steps) == (30, 5)


def test_a_clients_update_does_not_depend_on_who_else_trains():
    _, together = train(worker("fedavg"))
    w = worker("fedavg")
    start = w.flat.vector()
    for client in (2, 0, 1):
        _, alone = train(w, (client,), params=start)
        np.testing.assert_array_equal(alone[0], together[client])


every_test = pytest.mark.parametrize("test", ["iqr", "zscore"])


def test_published_example():
    # Quartiles 2 and 3, band [0.5, 4.5]: 50 goes, (1 + 2 + 2.5 + 3) / 4 = 2.125.
    answer = single("robfedavg", [[1.0], [2.0], [2.5], [3.0], [50.0]])
    assert answer.step.tolist() == [2.125]
    assert answer.metrics == {"pruned_share": pytest.approx(0.2)}


def test_zscore_by_hand():
    # Mean 4, squared deviations 16, 9, 4, 1, 100 -> 26: std sqrt(26), band 4 -+ 7.65: 14 goes.
    values = [[0.0], [1.0], [2.0], [3.0], [14.0]]
    assert single("robfedavg", values, test="zscore").step[0] == pytest.approx(1.5, rel=1e-14)
    wider = single("robfedavg", values, test="zscore", z=2.0)
    assert wider.step[0] == pytest.approx(4, rel=1e-14)
    assert wider.metrics == {"pruned_share": 0.0}


@pytest.mark.parametrize("scale", ["0.1", "1", "0.3", "1e-6"])
@pytest.mark.parametrize(("test", "z"), [("zscore", "1"), ("zscore", "2"), ("iqr", "0.5")])
def test_values_at_the_edge_are_kept_whatever_rounding_says(test, z, scale):
    """Of multiples of a decimal number; the band is computed in fractions."""
    digits = np.random.default_rng(3).integers(-3, 4, (300, 4)).tolist()
    digits += [[1, 2], [0, 1, 2], [1, 1, 3, 3]]
    for column in digits:
        exact, n = sorted(Fraction(scale) * digit for digit in column), len(column)
        if test == "zscore":
            mean = sum(exact) / n
            square = sum((x - mean) ** 2 for x in exact) / n
            keep = [(x - mean) ** 2 <= Fraction(z) ** 2 * square for x in exact]
        else:
            low, high = (_quantile(exact, Fraction(q)) for q in ("0.25", "0.75"))
            keep = [
                low - Fraction(z) * (high - low) <= x <= high + Fraction(z) * (high - low)
                for x in exact
            ]
        found = robfedavg.inside(np.array(exact, float)[:, None], test, float(z))
        assert found[:, 0].tolist() == keep


def _quantile(ordered, q):
    at = q * (len(ordered) - 1)
    low = ordered[int(at)]
    return low + (at - int(at)) * (ordered[min(int(at) + 1, len(ordered) - 1)] - low)


@every_input
@every_cohort
@every_test
def test_robfedavg_oracle(sampler, m, test):
    g, n, _ = draw(sampler, m)
    expected, share = rules.pruned_mean(g, n, test)
    answer = single("robfedavg", g, n.tolist(), test=test)
    assert_step(answer.step, expected, g)
    assert answer.metrics["pruned_share"] == pytest.approx(share, abs=1e-12)
    assert_step(
        fedsim.aggregate(g.astype(np.float32), n, "robfedavg", test=test), expected, g, 1e-5
    )


@pytest.mark.parametrize("m", [1, 2, 3])
def test_up_to_three_clients_it_is_fedavg(m):
    for sampler in (samplers.gaussian, samplers.uneven, samplers.duplicated):
        g, n, _ = draw(sampler, m)
        answer = single("robfedavg", g, n.tolist())
        assert_step(answer.step, rules.mean(g, n), g, 1e-14)
        assert answer.metrics == {"pruned_share": 0.0}


@every_test
def test_one_huge_value_among_equal_ones_is_removed(test):
    g = np.full((5, 3), 0.1)
    g[2, 1] = 1e6
    answer = single("robfedavg", g, test=test)
    np.testing.assert_allclose(answer.step, [0.1, 0.1, 0.1], rtol=1e-14)
    assert answer.metrics["pruned_share"] == pytest.approx(1 / 15)


def test_where_nothing_is_kept_the_median_is_taken():
    # +-1 and 0.5 std: no value lies within 0.5 std of the mean.
    g = np.array([[1.0, 1.0], [-1.0, 1.0], [1.0, 5.0], [-1.0, 1.0]])
    answer = single("robfedavg", g, [9, 1, 1, 1], test="zscore", z=0.5)
    assert answer.step.tolist() == [0.0, 1.0]


def test_statistics_are_averaged():
    g = np.random.default_rng(11).normal(size=(5, 6))
    g[0] = 1e3
    answer = single("robfedavg", g, [1, 2, 3, 4, 5], layout=LAYOUT)
    np.testing.assert_allclose(answer.step[4:], rules.mean(g, [1, 2, 3, 4, 5])[4:], rtol=1e-12)
    assert np.abs(answer.step[:4]).max() < 3
    assert answer.metrics["pruned_share"] >= 4 / 20


METHODS = ("simagg", "regagg")
every_method = pytest.mark.parametrize("method", METHODS)
every_distance = pytest.mark.parametrize("distance", ["l2", "signed_sum"])


def weights_of(method, name, **options):
    """The weights that give the step of an example, whose updates are independent."""
    g, n = EXAMPLES[name]
    return np.linalg.solve(g.T, fedsim.aggregate(g, n, method, **options))


def test_simagg_by_hand():
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


@every_input
@every_cohort
@every_method
def test_simagg_oracle(sampler, m, method):
    g, n, sizes = draw(sampler, m)
    whole = rules.similar(g, n, method)
    assert_step(fedsim.aggregate(g, n, method, sizes=sizes, blocks="model"), whole, g)
    each = rules.similar(g, n, method, sizes=sizes)
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
            expected = rules.similar(
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
    np.testing.assert_allclose(answer.step[4:], rules.mean(g, [1, 2, 3])[4:], rtol=1e-12)
    expected = rules.similar(g[:, :4], [1, 2, 3], method, sizes=[2, 2])
    np.testing.assert_allclose(answer.step[:4], expected, rtol=1e-9)


def test_regagg_by_hand():
    # Values 0, 3, 6 with mean 3: distances 3, 0, 3 and u = 6 / (d + 1) up to a factor.
    values = np.array([[0.0], [3.0], [6.0]])
    step = single("regagg", values, [1, 2, 3], eps=1.0).step[0]
    w = np.array([1.5 * 1, 6 * 2, 1.5 * 3])
    assert step == pytest.approx(w @ values[:, 0] / w.sum(), rel=1e-14)


def test_equal_distances_leave_the_shares():
    g = np.eye(3)
    np.testing.assert_allclose(
        fedsim.aggregate(g, [1, 2, 3], "regagg"), [1 / 6, 2 / 6, 3 / 6], rtol=1e-12
    )


def test_uniform_clients_weigh_by_similarity_alone():
    # RegAgg's w is u then, SimAgg's (u + 1/m) / 2, both up to eps.
    g, _, _ = draw(samplers.gaussian, 5)
    n = np.ones(5)
    reg = np.linalg.lstsq(g.T, fedsim.aggregate(g, n, "regagg"), rcond=None)[0]
    sim = np.linalg.lstsq(g.T, fedsim.aggregate(g, n, "simagg"), rcond=None)[0]
    np.testing.assert_allclose(sim, (reg + 0.2) / 2, rtol=1e-5)


def released_orders(m):
    """Every task meets all of them in order, itself included."""
    return [list(range(m)) for _ in range(m)]


def test_pcgrad_by_hand():
    # Projected (test_fedgh): (1/2, 1/2) and (0, 1); their sum divided by m = 2.
    step = fedsim.aggregate(*EXAMPLES["A2"], "pcgrad")
    np.testing.assert_allclose(step, [0.25, 0.75], rtol=1e-15)


@every_input
@every_cohort
@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
def test_pcgrad_oracle(sampler, m, order):
    g, n, _ = draw(sampler, m)
    orders = harmonize_orders(m, 3, 8) if order == "random" else rules.visiting_orders(m, order)
    expected = rules.fedgh_projected(g, orders).sum(axis=0) / m
    assert_step(fedsim.aggregate(g, n, "pcgrad", order=order, seed=3, round=8), expected, g)


@every_input
@every_cohort
def test_the_released_code(sampler, m):
    g, n, _ = draw(sampler, m)
    expected = rules.fedgh_projected(g, released_orders(m)).sum(axis=0) / m
    got = fedsim.aggregate(g, n, "pcgrad", order="ascending", include_self=True)
    assert_step(got, expected, g)


def test_random_orders_with_oneself():
    orders = harmonize_orders(5, 1, 2, include_self=True)
    assert [sorted(ids) for ids in orders] == [[0, 1, 2, 3, 4]] * 5
    assert len({tuple(ids) for ids in orders}) > 1


@every_cohort
def test_it_is_fedgh_with_uniform_weights_whatever_the_samples(m):
    g, n, _ = draw(samplers.conflicting, m)
    expected = fedsim.aggregate(g, n, "fedgh", weights="uniform", seed=1, round=2)
    for counts in (n, n[::-1], np.ones(m)):
        got = fedsim.aggregate(g, counts, "pcgrad", seed=1, round=2)
        np.testing.assert_array_equal(got, expected)


@every_cohort
def test_without_conflicts_it_is_uniform_fedavg_bit_for_bit(m):
    for sampler in (samplers.agreeing, samplers.orthogonal, samplers.identical, samplers.all_zero):
        g, n, _ = draw(sampler, m)
        fedavg = fedsim.aggregate(g, n, "fedavg", weights="uniform")
        np.testing.assert_array_equal(fedsim.aggregate(g, n, "pcgrad"), fedavg)


@pytest.mark.parametrize("round", [0, 4])
def test_the_papers_sum_is_a_server_rate_of_m(round):
    g, n, _ = draw(samplers.conflicting, 5)
    mean = fedsim.aggregate(g, n, "pcgrad", round=round)
    total = fedsim.aggregate(g, n, "pcgrad", round=round, eta_g=5.0)
    np.testing.assert_allclose(total, 5 * mean, rtol=1e-12)


SPECS = {
    "logistic": ModelSpec(name="logistic", num_classes=3, in_channels=1, image_size=4),
    "mlp": ModelSpec(name="mlp", num_classes=3, in_channels=1, image_size=4),
    "cnn": ModelSpec(name="cnn", num_classes=3, in_channels=1, image_size=8),
    "cnn_reddi": ModelSpec(name="cnn_reddi", num_classes=3, in_channels=1, image_size=8),
    "cnn_fedavg": ModelSpec(name="cnn_fedavg", num_classes=3, in_channels=1, image_size=16),
}
CTX = RoundContext(round=0, num_rounds=1, num_clients=3, lr=0.1, seed=0)
every_model = pytest.mark.parametrize("name", SPECS)


def perceptron(*widths):
    """Linear layers with BatchNorm and ReLU between them."""
    layers = OrderedDict()
    for at, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        layers[f"layer{at}"] = nn.Linear(inputs, outputs)
        if at + 2 < len(widths):
            layers |= {f"norm{at}": nn.BatchNorm1d(outputs), f"act{at}": nn.ReLU()}
    return nn.Sequential(layers)


def plain_perceptron(*widths):
    pairs = list(itertools.pairwise(widths))
    return nn.Sequential(*(nn.Linear(*pair) for pair in pairs))


def made(name):
    if name in SPECS:
        return fedsim_models.build(SPECS[name], seed=0)
    return perceptron(4, 6, 5, 3)


def drawn(layout, seed):
    """A vector (D,) of a model whose variances are positive."""
    vector = np.random.default_rng(seed).normal(size=layout.size)
    for slot in layout.slots:
        if slot.role == "stat":
            vector[slot.where] = np.abs(vector[slot.where]) + 0.5
    return vector


def shuffled(layout, vector, seed):
    """The vector with all hidden channels in another order, and the share of those that moved."""
    rng = np.random.default_rng(seed)
    pair = Pair(layers_of(layout), vector, vector)
    still = pair.identity
    orders = [still[0], *(rng.permutation(order) for order in still[1:-1]), still[-1]]
    moved = sum(int((a != b).sum()) for a, b in zip(orders, still, strict=True))
    hidden = sum(len(order) for order in still[1:-1])
    return pair.permuted(orders), moved / max(hidden, 1)


def logits(model, layout, vector, x):
    model = model.double().eval()
    named = {k: torch.from_numpy(v.copy()) for k, v in named_tensors(vector, layout).items()}
    model.load_state_dict(named, strict=False)
    with torch.no_grad():
        return model(x).numpy()


def step(layout, params, vectors, samples=None, weights="samples"):
    """Reduction of clients that end at ``vectors``."""
    deltas = [v - params for v in vectors]
    return MatchedMean(weights)(cohort(deltas, samples, layout, params), {}, CTX)


@pytest.mark.parametrize("name", [*SPECS, "perceptron"])
def test_chains_with_hidden_layers_are_taken(name):
    model = made(name)
    adapt = algorithms.load("matched_mean").adapt
    if name == "logistic":
        with pytest.raises(ConfigError, match="hidden layers; the model has none"):
            adapt(model)
    else:
        assert adapt(model) is model


@pytest.mark.parametrize("name", [*SPECS, "perceptron"])
def test_channels_in_another_order_are_the_same_function(name):
    model = made(name)
    layout = layout_of(model)
    vector = drawn(layout, 1)
    other, moved = shuffled(layout, vector, 2)
    spec = SPECS.get(name)
    shape = (5, 4) if spec is None else (5, 1, spec.image_size, spec.image_size)
    x = torch.from_numpy(np.random.default_rng(3).normal(size=shape))
    before, after = (logits(model, layout, v, x) for v in (vector, other))
    np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-9 * np.abs(before).max())
    assert np.any(other != vector) == (name != "logistic")
    assert (moved > 0.5) == (name != "logistic")


@pytest.mark.parametrize("name", [*SPECS, "perceptron"])
def test_a_permuted_copy_is_matched_back_exactly(name):
    layout = layout_of(made(name))
    params, client = drawn(layout, 4), drawn(layout, 5)
    copy, moved = shuffled(layout, client, 6)
    reduced = step(layout, params, [client, copy], [20, 10])
    np.testing.assert_allclose(params + reduced.step, client, rtol=0, atol=1e-13)
    assert reduced.metrics == {"moved_share": pytest.approx(moved, abs=1e-12)}


def test_the_mean_is_that_of_the_unpermuted():
    layout = layout_of(made("cnn"))
    params = drawn(layout, 7)
    rng = np.random.default_rng(8)
    clients = [params + 0.1 * rng.normal(size=layout.size) for _ in range(3)]
    permuted = [clients[0], *(shuffled(layout, c, 9 + i)[0] for i, c in enumerate(clients[1:]))]
    for weights in ("samples", "uniform"):
        got = step(layout, params, permuted, [30, 10, 20], weights).step
        deltas = np.stack(clients) - params
        np.testing.assert_allclose(
            got, rules.mean(deltas, [30, 10, 20], weights), rtol=0, atol=1e-12
        )


def test_the_reference_has_the_most_samples_and_the_lowest_id():
    layout = layout_of(made("perceptron"))
    params, client = drawn(layout, 10), drawn(layout, 11)
    copies = [client, shuffled(layout, client, 12)[0], shuffled(layout, client, 13)[0]]
    for samples, reference in (([1, 5, 5], 1), ([1, 2, 9], 2), ([3, 3, 3], 0)):
        got = params + step(layout, params, copies, samples).step
        np.testing.assert_allclose(got, copies[reference], rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed", range(12))
def test_all_orders_tried(seed):
    # Noise as large as the weights, few inputs: a pass over incoming weights alone misses the best
    # of 4! 4! orders for half of the seeds, going on from the identity alone for a quarter.
    model = plain_perceptron(2, 4, 4, 2)
    layout = layout_of(model)
    rng = np.random.default_rng(seed)
    reference = rng.normal(size=layout.size)
    other = shuffled(layout, reference + rng.normal(size=layout.size), seed)[0]

    def network(vector):
        tensors = list(named_tensors(vector, layout).values())
        return list(zip(tensors[::2], tensors[1::2], strict=True))

    best = rules.best_orders(network(reference), network(other))
    expected = rules.reordered(network(other), best)
    pair = Pair(layers_of(layout), reference, other)
    orders = pair.best()
    assert [order.tolist() for order in orders[1:-1]] == [list(order) for order in best]
    for (w, s), (v, t) in zip(network(pair.permuted(orders)), expected, strict=True):
        np.testing.assert_array_equal(w, v)
        np.testing.assert_array_equal(s, t)
    assert pair.similarity(orders) == pytest.approx(
        rules.similarity(network(reference), expected), rel=1e-12
    )


@every_model
def test_small_steps_from_the_same_start_are_fedavg_bit_for_bit(name):
    model = made(name)
    layout = layout_of(model)
    tensors = model.state_dict()
    params = np.concatenate([tensors[slot.name].numpy().ravel() for slot in layout.slots])
    rng = np.random.default_rng(14)
    deltas = (1e-3 * rng.normal(size=(4, layout.size))).astype(np.float32)
    server = algorithms.load("matched_mean").server
    answer = server.step(RuleState(), cohort(deltas, [1, 4, 2, 3], layout, params), CTX)
    fedavg = algorithms.load("fedavg").server.step(
        RuleState(), cohort(deltas, [1, 4, 2, 3], layout), CTX
    )
    assert answer.metrics == {"moved_share": 0.0}
    assert answer.step.dtype == np.float32
    np.testing.assert_array_equal(answer.step, fedavg.step)


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2_cifar"])
def test_models_with_skips_are_refused(name):
    model = fedsim_models.build(
        ModelSpec(name=name, num_classes=3, in_channels=3, image_size=32), seed=0
    )
    with pytest.raises(ConfigError, match="algorithm=matched_mean: a chain of linear"):
        algorithms.load("matched_mean").adapt(model)


def test_a_normalisation_that_the_vector_does_not_show_is_refused():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2))
    with pytest.raises(ConfigError, match="it has no weights of its own"):
        algorithms.load("matched_mean").adapt(model)


TRAINING = Training(local_epochs=2, batch_size=7, momentum=0.9, weight_decay=0.01)


def plain_loop(start, index, round, lr=0.05):
    """The weights (D,) after torch's SGD on those samples, in fedsim's order of batches."""
    w = worker("centralized", "mlp", training=TRAINING)
    model = FlatModel(build(w.spec.model, 0), torch.device("cpu"))
    model.load(torch.from_numpy(start))
    data, order = dataset(), torch_generator(0, "shuffle", round, 0)
    x = (torch.tensor(data.x[index]).float() / 255 - 0.5) / 0.5
    y = torch.tensor(data.y[index])
    optimiser = torch.optim.SGD(
        model.model.parameters(), lr, momentum=0.9, weight_decay=0.01, fused=True
    )
    for _ in range(TRAINING.local_epochs):
        for batch in torch.randperm(len(x), generator=order).split(TRAINING.batch_size):
            optimiser.zero_grad()
            functional.cross_entropy(model.model(x[batch]), y[batch]).backward()
            optimiser.step()
    return model.vector()


def planned(w, clients, ctx):
    """The tasks of a round of those clients."""
    roster = Roster(
        sizes=[30, 20, 10],
        cohort_size=3,
        held_out=(),
        clock=Clock(),
        assign=w.spec.algorithm.assign,
        lr=lambda _: 0.05,
    )
    return roster.plan(clients, ctx).tasks


def pooled(w, clients, start, ctx):
    """The updates of a round of those clients."""
    work = planned(w, clients, ctx)
    done = with_deltas(*w.run(w.spec.blocks(work), tasks_models(ctx, start), {}))
    return shared_out(done, work, [30, 20, 10])


def test_it_equals_a_plain_pytorch_loop_on_the_same_batches():
    w = worker("centralized", "mlp", training=TRAINING)
    everything = np.concatenate(w.spec.partition.train)
    first = ours = theirs = w.flat.vector()
    for round in range(3):
        updates = pooled(w, [2, 0, 1], ours, context(round))
        ours = ours + updates[0].delta
        theirs = plain_loop(theirs, everything, round)
        steps = 2 * -(-60 // 7) * (round + 1)
        operations = sgd_operations(steps, layers=2, width=64)
        moved, size = np.abs(theirs - first).max(), np.abs(theirs).max()
        error = of_update(np.float32, moved, size, steps, operations)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=error)
        assert [u.num_samples for u in updates] == [30, 20, 10]
        assert {u.num_steps for u in updates} == {2 * -(-60 // 7)}
    assert np.abs(theirs - first).max() > 100 * error


def test_every_client_of_the_round_has_the_update_of_the_pool():
    w = worker("centralized")
    (task,) = planned(w, [2, 1], context())
    assert (task.client, task.owners) == (1, (1, 2))
    updates = pooled(w, [2, 1], w.flat.vector(), context())
    assert [u.client_id for u in updates] == [1, 2]
    assert updates[0].train_loss == updates[1].train_loss
    first, second = (u.delta for u in updates)
    assert first.shape == second.shape == (w.flat.layout.size,)
    assert np.abs(first).max() > 0
    assert first.ctypes.data == second.ctypes.data, "one array, not a copy for each client"
    assert planned(w, [], context()) == ()
    assert w.spec.blocks([]) == []


@pytest.mark.integration
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_at_rate_1_it_is_one_client_with_all_samples_byte_by_byte(model, tmp_path):
    settings = {"model": model, "train": {"sample_rate": 1.0, "local_epochs": 2}}
    pooled = fedsim.run(config("centralized", **settings), tmp_path / "pooled")
    split = pooled.read("split")
    split.loc[split["part"] == "train", "client_id"] = 0
    split.to_csv(tmp_path / "one.csv", index=False, float_format="%.0f")
    data = {"partition_file": str(tmp_path / "one.csv"), "num_clients": 1}
    one = fedsim.run(config("fedavg", data=data, **settings), tmp_path / "one")
    for file in ("classes.csv", "confusion.csv"):
        assert (pooled.path / file).read_bytes() == (one.path / file).read_bytes()
    a, b = (fedsim.load_model(store.path).state_dict() for store in (pooled, one))
    assert all(torch.equal(a[name], b[name]) for name in b)


@pytest.mark.integration
def test_a_round_sees_the_samples_of_its_clients_and_sends_no_model():
    for r in rounds(small("centralized")):
        clients = r.tables["clients"]
        assert [row["client_id"] for row in clients] == r.clients
        total = sum(row["num_samples"] for row in clients)
        assert {row["num_steps"] for row in clients} == {-(-total // 20)}
        assert r.row["uplink_bytes"] == r.row["downlink_bytes"] == 0
        assert r.row["conflict_ratio"] == 0
        assert len(r.after.clients) == 0
