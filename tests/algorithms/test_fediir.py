"""FedIIR: the head's gradient, the pass before training, the penalty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedsim import algorithms, models
from fedsim.algorithms.fediir import head_gradient
from fedsim.core.errors import ConfigError
from fedsim.core.types import ClientUpdate, Layout, ModelSpec
from fedsim.server.cohort import Cohort
from tests.oracles import client_losses as oracle
from tests.tasks import run

from . import fullbatch
from .training import CLASSES, context, train, worker


def batch(b=6, d=4, classes=3, seed=0):
    """Features, head weight, head bias and labels."""
    rng = np.random.default_rng([seed, b])
    shapes = (b, d), (classes, d), (classes,)
    h, weight, bias = (torch.from_numpy(rng.normal(size=s)).requires_grad_() for s in shapes)
    return h, weight, bias, torch.from_numpy(rng.integers(0, classes, size=b))


def by_autograd(params, x, y, create_graph=False):
    """The gradient of the cross-entropy by the head, (C, d + 1)."""
    loss = oracle.cross_entropy(oracle.network(params, x)[1], y)
    weight, bias = torch.autograd.grad(loss, params[2:4], create_graph=create_graph)
    return torch.cat([weight, bias[:, None]], dim=1)


def probed(w, params=None, clients=(0, 1, 2)):
    """The reports and deltas of the pass before training."""
    start = w.flat.vector() if params is None else params
    return run(w, clients, context(), start, work="probe")


def test_by_hand():
    # h = 2, logits 0 and 0: softmax - onehot = (-1/2, 1/2), times (h, 1): (-1, -1/2), (1, 1/2).
    got = head_gradient(torch.tensor([[2.0]]), torch.zeros(1, 2), torch.tensor([0]))
    assert got.tolist() == [[-1.0, -0.5], [1.0, 0.5]]


def test_the_penalty_has_the_gradient_of_a_double_backward_pass():
    h, weight, bias, y = batch()
    gm = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 5)))
    loss = oracle.cross_entropy(h @ weight.T + bias, y)
    by_weight, by_bias = torch.autograd.grad(loss, (weight, bias), create_graph=True)
    away = torch.cat([by_weight, by_bias[:, None]], dim=1) - gm
    expected = torch.autograd.grad((away**2).sum(), (h, weight, bias))
    penalty = (head_gradient(h, h @ weight.T + bias, y) - gm).square().sum()
    got = torch.autograd.grad(penalty, (h, weight, bias))
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_the_pass_before_training_sums_the_batches_in_the_datas_order():
    # 30 images in batches of 8: three of 8 and one of 6, each with the weight of a batch.
    w = worker("fediir", model="mlp")
    start = w.flat.vector()
    reports, deltas = probed(w)
    assert deltas.shape == (3, 0)
    for client, report in enumerate(reports):
        x, y = fullbatch.data(w, client)
        params = [p.requires_grad_() for p in fullbatch.tensors(w, start)]
        pairs = list(zip(x.split(8), y.split(8), strict=True))
        expected = sum(by_autograd(params, *pair) for pair in pairs)
        np.testing.assert_allclose(report.extras["gradient"], expected, rtol=0, atol=1e-5)
        assert report.extras["batches"].tolist() == [len(pairs)]
    assert [r.extras["batches"].item() for r in reports] == [4, 3, 2]
    np.testing.assert_array_equal(w.flat.vector(), start)


def test_the_pass_before_training_leaves_statistics_and_draws_alone():
    w = worker("fediir", gamma=0.0, weights="samples")
    expected = train(worker("fedavg"))[1]
    probed(w)
    np.testing.assert_array_equal(train(w)[1], expected)


def uploads(*pairs):
    """A cohort of clients that send (gradient, batches)."""
    updates = [
        ClientUpdate(
            client_id=i,
            num_samples=1,
            num_steps=0,
            extras={"gradient": np.array(g), "batches": np.array([b])},
        )
        for i, (g, b) in enumerate(pairs)
    ]
    return Cohort.of(updates, Layout(()))


def test_the_server_keeps_a_running_mean_over_batches():
    # (3 + 5) / (1 + 3) = 2 and (0 + 4) / 4 = 1: gm = 0.05 (2, 1); then (10, 0) / 2 = (5, 0):
    # 0.95 (0.1, 0.05) + 0.05 (5, 0) = (0.345, 0.0475).
    probe = algorithms.load("fediir").probe
    assert probe is not None
    first = probe.digest(uploads(([[3.0, 0.0]], 1), ([[5.0, 4.0]], 3)), {}, context())
    np.testing.assert_allclose(first.state["gm"], [[0.1, 0.05]], rtol=1e-12)
    second = probe.digest(uploads(([[10.0, 0.0]], 2)), first.state, context(1))
    np.testing.assert_allclose(second.state["gm"], [[0.345, 0.0475]], rtol=1e-12)
    np.testing.assert_allclose(second.downlink["gm"], [[0.345, 0.0475]], rtol=1e-6)
    assert second.downlink["gm"].dtype == np.float32


def test_without_a_memory_the_mean_is_the_rounds_own():
    probe = algorithms.load("fediir", {"ema": 0.0}).probe
    assert probe is not None
    answer = probe.digest(uploads(([[3.0]], 2)), {"gm": np.array([[9.0]])}, context())
    assert answer.state["gm"].tolist() == [[1.5]]


@pytest.mark.parametrize("known", [True, False])
def test_training_follows_the_oracle_with_a_double_backward_pass(known):
    w = worker("fediir", model="mlp", training=fullbatch.TRAINING, gamma=0.4)
    start = w.flat.vector()
    gm = np.random.default_rng(0).normal(size=(CLASSES, 65)).astype(np.float32)
    reports, deltas = train(w, (0,), lr=fullbatch.LR, downlink={"gm": gm} if known else {})
    x, y = fullbatch.data(w, 0)
    plain = fullbatch.classification(w, 0)

    def objective(params):
        away = by_autograd(params, x, y, create_graph=True) - known * torch.from_numpy(gm)
        return plain(params) + 0.4 * (away**2).sum()

    gradient = oracle.gradient_of(objective)
    fullbatch.assert_update(w, deltas[0], start, gradient)
    reported = fullbatch.loss_on_the_way(w, start, plain, gradient)
    assert reports[0].train_loss == pytest.approx(reported, rel=1e-5)


def test_no_penalty_where_the_batchs_gradient_is_the_common_one():
    once = replace(fullbatch.TRAINING, local_epochs=1)
    w = worker("fediir", model="mlp", training=once, gamma=100.0)
    start = w.flat.vector()
    extras = probed(w, clients=(0,))[0][0].extras
    _, near = train(w, (0,), downlink={"gm": extras["gradient"] / extras["batches"]})
    _, fedavg = train(worker("fedavg", model="mlp", training=once), (0,))
    np.testing.assert_allclose(near, fedavg, rtol=0, atol=1e-5 * np.linalg.norm(fedavg))
    _, away = train(w, (0,), params=start)
    assert np.linalg.norm(away - fedavg) > 0.1 * np.linalg.norm(fedavg)


def test_gamma_zero_is_fedavg_bit_for_bit():
    gm = np.ones((CLASSES, 65), np.float32)
    _, deltas = train(worker("fediir", gamma=0.0), downlink={"gm": gm})
    np.testing.assert_array_equal(deltas, train(worker("fedavg"))[1])


@pytest.mark.parametrize("head", [nn.Linear(4, 3, bias=False), nn.Conv1d(4, 3, 1), None])
def test_a_head_with_another_gradient_is_refused(head):
    model = nn.Module()
    if head is not None:
        model.head = head
    with pytest.raises(ConfigError, match=r"fediir knows the gradient .* of this model is "):
        algorithms.load("fediir").adapt(model)


def test_a_sigmoid_after_the_head_is_refused():
    spec = ModelSpec(
        name="leaf_synthetic", num_classes=5, in_channels=60, image_size=1, inputs="features"
    )
    with pytest.raises(ConfigError, match="SigmoidLinear"):
        models.build(spec, 0, algorithms.load("fediir").adapt)
