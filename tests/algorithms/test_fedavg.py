"""FedAvg's server rule: sum_i p_i g_i with p_i = n_i / sum n."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

import fedsim
from fedsim import models
from fedsim.core.errors import FedsimError
from fedsim.core.types import Training
from tests.oracles import aggregation as oracle
from tests.oracles import samplers

from .cases import EXAMPLES, PRINTED, assert_step, draw, every_cohort, every_input
from .training import dataset, train, worker


def fedavg(updates, n, **options):
    return fedsim.aggregate(updates, n, "fedavg", **options)


def test_by_hand():
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
def test_oracle(sampler, m):
    g, n, _ = draw(sampler, m)
    assert_step(fedavg(g, n), oracle.mean(g, n), g)
    assert_step(fedavg(list(g), list(n)), oracle.mean(g, n), g)
    single = g.astype(np.float32)
    assert_step(fedavg(single, n), oracle.mean(single, n), single, 1e-5)


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


@pytest.mark.parametrize(
    ("updates", "n", "fragment"),
    [
        (np.ones((2, 3)), [1, 2, 3], "3"),
        (np.ones((2, 3)), [1, -1], "-1"),
        (np.ones(3), [1], "length"),
        (np.array([[1.0, np.nan], [0.0, 0.0]]), [1, 1], "0"),
    ],
    ids=["more counts than clients", "negative count", "one vector", "not a number"],
)
def test_unusable_input_is_named(updates, n, fragment):
    with pytest.raises(FedsimError, match=r".") as caught:
        fedavg(updates, n)
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_local_training_is_torch_sgd(momentum):
    # One batch holds all data, so the order of the samples is only a matter of rounding.
    training = Training(local_epochs=5, batch_size=100, momentum=momentum, weight_decay=0.01)
    w = worker("fedavg", model="mlp", training=training)
    start = w.flat.vector()
    reports, deltas = train(w, (0,), lr=0.1)
    model = models.build(w.spec.model, 0)
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
