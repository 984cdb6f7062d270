"""FedSAM: the ascent in both variants, two gradients for a step, and the server's direction."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedsim import algorithms
from fedsim.algorithms.fedsam import SharpnessAware, ascent
from fedsim.client import Phase
from fedsim.client.criterion import MarginControl
from fedsim.core.layout import FlatModel, select
from fedsim.core.types import Slot, Training
from fedsim.engine.worker import with_deltas
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from tests.oracles import client_losses as oracle

from . import fullbatch
from .training import context, scalar_env, train, worker

EPS = [0.01212678125, 0.04850712501]
THERE = [1.012126781, 4.1940285]
AFTER = [0.8987873219, 0.58059715]


class Bowl(nn.Module):
    """The point (w1, w2)."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 1.0]))

    def forward(self, x):
        return self.weight.expand(len(x), 2)


class Quadratic(MarginControl):
    """w1^2/2 + 2 w2^2 in place of the cross-entropy."""

    def with_cross_entropy(self, logits, labels):
        value = logits[0, 0] ** 2 / 2 + 2 * logits[0, 1] ** 2
        return value, value


def test_published_example_in_double_precision():
    model = Bowl().double()
    env = SimpleNamespace(
        model=model,
        params=[model.weight],
        slots=lambda: [Slot(name="weight", shape=(2,), start=0, stop=2)],
        criterion=Quadratic(),
    )
    objective, ce = SharpnessAware(0.05, "sam", 0.01).loss(env, None, torch.zeros(1, 1), None)
    slope = torch.autograd.grad(objective, model.weight)[0]
    assert slope.tolist() == pytest.approx(THERE, rel=1.5e-9)
    assert (model.weight - 0.1 * slope).tolist() == pytest.approx(AFTER, rel=1.5e-9)
    assert ce.item() == 2.5
    g = torch.tensor([1.0, 4.0], dtype=torch.float64)
    assert ascent((g,), (torch.ones_like(g),), 0.05)[0].tolist() == pytest.approx(EPS, rel=1.5e-9)


def tensors(seed, sizes=((3, 2), (4,), (5,))):
    rng = np.random.default_rng(seed)
    return tuple(torch.from_numpy(rng.normal(size=size)) for size in sizes)


def test_the_ascent_of_sam_has_the_gradients_direction_and_length_rho():
    g = tensors(0)
    e = torch.cat([part.flatten() for part in ascent(g, tuple(map(torch.ones_like, g)), 0.2)])
    along = torch.cat([part.flatten() for part in g])
    assert e.norm().item() == pytest.approx(0.2, rel=1e-9)
    torch.testing.assert_close(e, 0.2 * along / along.norm(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("eta", [0.01, 0.5])
def test_the_ascent_of_asam_follows_the_oracle(eta):
    w, g = tensors(0), tensors(1)
    scales = (w[0].abs() + eta, torch.ones_like(w[1]), w[2].abs() + eta)
    for got, expected in zip(
        ascent(g, scales, 0.3), oracle.ascent(w, g, 0.3, eta, (0, 2)), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("variant", "eta"), [("sam", None), ("asam", 0.05)])
def test_training_follows_the_oracle(variant, eta):
    given = {} if eta is None else {"eta": eta}
    w = worker(
        "fedsam", model="mlp", training=fullbatch.TRAINING, rho=0.5, variant=variant, **given
    )
    start = w.flat.vector()
    reports, deltas = train(w, (0,), lr=fullbatch.LR)
    plain = fullbatch.classification(w, 0)
    slope = oracle.gradient_of(plain)

    def gradient(params):
        e = oracle.ascent(params, slope(params), 0.5, eta, weights=(0, 2))
        return slope([p + part for p, part in zip(params, e, strict=True)])

    fullbatch.assert_update(w, deltas[0], start, gradient)
    reported = fullbatch.loss_on_the_way(w, start, plain, gradient)
    assert reports[0].train_loss == pytest.approx(reported, rel=1e-5)
    wrong = fullbatch.expected(w, start, slope)
    assert np.linalg.norm(deltas[0][: len(wrong)] - wrong) > 0.05 * np.linalg.norm(wrong)


@pytest.mark.parametrize("model", ["cnn", "cnn_reddi"])
@pytest.mark.parametrize("variant", ["sam", "asam"])
def test_rho_zero_is_fedavg_bit_for_bit(variant, model):
    # cnn_reddi has dropout: a second pass would be another draw
    reports, deltas = train(worker("fedsam", model, rho=0.0, variant=variant))
    expected_reports, expected = train(worker("fedavg", model))
    np.testing.assert_array_equal(deltas, expected)
    assert [r.train_loss for r in reports] == [r.train_loss for r in expected_reports]
    assert not any(r.extras for r in reports)


def statistics(w, deltas):
    return deltas[:, select(w.flat.layout, lambda slot: slot.role == "stat")]


def test_running_statistics_are_those_of_the_first_pass():
    # At lr 0 the first pass is FedAvg's; a second update would move the statistics further.
    w = worker("fedsam", rho=5.0)
    _, deltas = train(w, lr=0.0)
    np.testing.assert_array_equal(deltas, train(worker("fedavg"), lr=0.0)[1])
    assert np.abs(statistics(w, deltas)).max() > 0


def test_frozen_running_statistics_stay_and_serve_both_passes():
    frozen = Training(batch_size=8, frozen_bn=True)
    w = worker("fedsam", training=frozen, rho=0.5)
    _, deltas = train(w)
    assert np.all(statistics(w, deltas) == 0)
    assert np.abs(deltas - train(worker("fedavg", training=frozen))[1]).max() > 1e-5


def test_the_second_pass_in_half_precision_sees_the_moved_weights():
    # Autocast keeps the half-precision copies of the weights for as long as its context lasts.
    env = scalar_env(0.0, 1, 0.1)
    env = replace(env, flat=FlatModel(nn.Linear(4, 3), torch.device("cpu")), num_classes=3)
    env.params, env.phase = [p for _, p in env.flat.params], Phase(1, 0.1)
    x, y = torch.ones(5, 4), torch.tensor([0, 1, 2, 0, 0])
    with torch.autocast("cpu", torch.bfloat16):
        objective, ce = SharpnessAware(1.0, "sam", 0.01).loss(env, None, x, y)
    assert objective.item() > ce.item() + 0.1


def test_momentum_without_ascent_is_fedcm_bit_for_bit():
    ours, theirs = worker("fedsam", rho=0.0, alpha=0.3), worker("fedcm", alpha=0.3)
    size = ours.flat.layout.num_params
    down = {"direction": np.random.default_rng(0).normal(size=size).astype(np.float32)}
    reports, deltas = train(ours, downlink=down)
    expected_reports, expected = train(theirs, downlink=down)
    np.testing.assert_array_equal(deltas, expected)
    assert [r.extras for r in reports] == [r.extras for r in expected_reports]
    cohort = Cohort.of(
        with_deltas(reports, deltas),
        ours.flat.layout,
    )
    step, wanted = (
        algorithms.load(name, given).server.step(RuleState(), cohort, context())
        for name, given in (("fedsam", {"alpha": 0.3, "weights": "uniform"}), ("fedcm", {}))
    )
    np.testing.assert_allclose(step.step, wanted.step, rtol=1e-6)
    np.testing.assert_array_equal(step.downlink["direction"], wanted.downlink["direction"])
    assert np.abs(step.downlink["direction"]).max() > 0


def test_momentum_mixes_the_gradient_at_the_moved_weights():
    alpha, rho = 0.3, 0.5
    w = worker("fedsam", model="mlp", training=fullbatch.TRAINING, rho=rho, alpha=alpha)
    start = w.flat.vector()
    rng = np.random.default_rng(0)
    down = {"direction": rng.normal(size=start.size).astype(np.float32) / 100}
    _, deltas = train(w, (0,), lr=fullbatch.LR, downlink=down)
    direction = fullbatch.tensors(w, down["direction"])
    slope = oracle.gradient_of(fullbatch.classification(w, 0))

    def gradient(params):
        e = oracle.ascent(params, slope(params), rho)
        there = slope([p + part for p, part in zip(params, e, strict=True)])
        return [alpha * g + (1 - alpha) * d for g, d in zip(there, direction, strict=True)]

    fullbatch.assert_update(w, deltas[0], start, gradient)


def test_margin_control_is_part_of_both_gradients():
    spec_of = partial(worker, "fedsam", model="mlp", training=fullbatch.TRAINING, rho=0.5)
    w = spec_of()
    w.spec = replace(
        w.spec, algorithm=replace(w.spec.algorithm, criterion=MarginControl("spectral", 0.2))
    )
    start = w.flat.vector()
    _, deltas = train(w, (0,), lr=fullbatch.LR)
    x, _ = fullbatch.data(w, 0)
    plain = fullbatch.classification(w, 0)

    def objective(params):
        logits = oracle.network(params, x)[1]
        return plain(params) + 0.2 * (logits**2).sum(dim=1).mean()

    slope = oracle.gradient_of(objective)

    def gradient(params):
        e = oracle.ascent(params, slope(params), 0.5)
        return slope([p + part for p, part in zip(params, e, strict=True)])

    fullbatch.assert_update(w, deltas[0], start, gradient)
