"""Matched mean: hidden channels are put into one order, then averaged."""

from __future__ import annotations

import itertools
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import fedsim
from fedsim import algorithms, models
from fedsim.algorithms.matched_mean import MatchedMean, Pair, layers_of, links_of
from fedsim.core.errors import ConfigError, ContractError
from fedsim.core.layout import layout_of
from fedsim.core.types import ModelSpec, RoundContext
from fedsim.models.chain import chain
from fedsim.server.base import RuleState
from tests.decomposing import named_tensors
from tests.oracles import aggregation, matching

from .serving import LAYOUT, cohort
from .training import train, worker

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
        return models.build(SPECS[name], seed=0)
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
def test_the_chain_is_read_off_the_vector(name):
    model = made(name)
    assert links_of(layout_of(model)) == chain(model)
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
            got, aggregation.mean(deltas, [30, 10, 20], weights), rtol=0, atol=1e-12
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

    best = matching.best_orders(network(reference), network(other))
    expected = matching.reordered(network(other), best)
    pair = Pair(layers_of(layout), reference, other)
    orders = pair.best()
    assert [order.tolist() for order in orders[1:-1]] == [list(order) for order in best]
    for (w, s), (v, t) in zip(network(pair.permuted(orders)), expected, strict=True):
        np.testing.assert_array_equal(w, v)
        np.testing.assert_array_equal(s, t)
    assert pair.similarity(orders) == pytest.approx(
        matching.similarity(network(reference), expected), rel=1e-12
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


def test_trained_clients_are_averaged_as_they_are():
    w, other = worker("matched_mean"), worker("fedavg")
    (_, deltas), (_, expected) = train(w), train(other)
    np.testing.assert_array_equal(deltas, expected)
    sent = cohort(deltas, [30, 20, 10], w.flat.layout, w.flat.vector())
    reduced = MatchedMean("samples")(sent, {}, CTX)
    assert reduced.metrics == {"moved_share": 0.0}


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2_cifar"])
def test_models_with_skips_are_refused(name):
    model = models.build(ModelSpec(name=name, num_classes=3, in_channels=3, image_size=32), seed=0)
    with pytest.raises(ConfigError, match="algorithm=matched_mean: a chain of linear"):
        algorithms.load("matched_mean").adapt(model)


def test_a_normalisation_that_the_vector_does_not_show_is_refused():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2))
    with pytest.raises(ConfigError, match="BatchNorm has to have weights"):
        algorithms.load("matched_mean").adapt(model)


def test_updates_alone_are_not_enough():
    with pytest.raises(ContractError, match="needs all of their weights"):
        fedsim.aggregate(np.ones((2, 3)), [1, 1], "matched_mean")
    with pytest.raises(ContractError, match="global vector"):
        MatchedMean("samples")(cohort(np.ones((2, 6)), layout=LAYOUT), {}, CTX)


@pytest.mark.parametrize(
    ("name", "server"), [("fedprox", "matched_mean"), ("matched_mean", "fedgh")]
)
def test_it_serves_its_own_clients_alone(name, server):
    with pytest.raises(ConfigError, match="matches the channels"):
        algorithms.compose(name, {}, server=server)
