"""MOON: the contrastive term, and what a client remembers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsim.algorithms.moon import contrast
from fedsim.core.layout import select
from fedsim.engine.worker import Worker
from tests.oracles import client_losses as oracle

from . import fullbatch
from .training import train, worker


def features(seed, b=6, d=4):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(b, d)))


def at(cosine):
    """A vector with that cosine to (1, 0)."""
    return torch.tensor([[cosine, math.sqrt(1 - cosine**2)]], dtype=torch.float64)


def remembering(w, seed=1, scale=0.05):
    """States in which every client has been at a place near the start."""
    start = w.flat.vector()
    rng = np.random.default_rng(seed)
    there = start + np.float32(scale) * rng.normal(size=start.shape).astype(np.float32)
    there[select(w.flat.layout, lambda slot: slot.role == "stat")] = 1.0
    return {client: {"previous": there} for client in range(3)}


def test_published_example():
    got = contrast(torch.tensor([[1.0, 0.0]], dtype=torch.float64), at(0.9), at(0.4), 0.5)
    assert got.item() == pytest.approx(0.3132616875, rel=1.5e-9)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
def test_oracle(temperature):
    z, near, far = (features(seed).requires_grad_() for seed in range(3))
    got = contrast(z, near, far, temperature)
    expected = oracle.contrast(z, near, far, temperature)
    assert got.item() == pytest.approx(expected.item(), rel=1e-9)
    slope, wanted = (torch.autograd.grad(loss, z)[0] for loss in (got, expected))
    torch.testing.assert_close(slope, wanted, rtol=1e-9, atol=1e-12)


def test_only_directions_count():
    z, near, far = (features(seed) for seed in range(3))
    other = contrast(7 * z, 0.1 * near, 3 * far, 0.5)
    assert other.item() == pytest.approx(contrast(z, near, far, 0.5).item(), rel=1e-9)


def test_opposite_directions_at_a_low_temperature_do_not_overflow():
    z = features(0).float()
    assert contrast(z, -z, z, 1e-3).item() == pytest.approx(2000, rel=1e-5)
    assert contrast(z, z, -z, 1e-3).item() == 0


def test_the_first_participation_is_fedavg_and_is_remembered():
    w = worker("moon", mu=5.0)
    start = w.flat.vector()
    reports, deltas = train(w)
    np.testing.assert_array_equal(deltas, train(worker("fedavg"))[1])
    for report, delta in zip(reports, deltas, strict=True):
        np.testing.assert_allclose(report.state["previous"], start + delta, rtol=0, atol=1e-6)
        assert not report.extras


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_later_participations_follow_the_oracle(temperature):
    w = worker("moon", model="mlp", training=fullbatch.TRAINING, mu=2.0, temperature=temperature)
    start, states = w.flat.vector(), remembering(w)
    reports, deltas = train(w, (1,), lr=fullbatch.LR, states=states)
    x, _ = fullbatch.data(w, 1)
    near, far = (
        oracle.network(fullbatch.tensors(w, vector), x)[0]
        for vector in (start, states[1]["previous"])
    )
    plain = fullbatch.classification(w, 1)

    def objective(params):
        z = oracle.network(params, x)[0]
        return plain(params) + 2.0 * oracle.contrast(z, near, far, temperature)

    gradient = oracle.gradient_of(objective)
    fullbatch.assert_update(w, deltas[0], start, gradient)
    reported = fullbatch.loss_on_the_way(w, start, plain, gradient)
    assert reports[0].train_loss == pytest.approx(reported, rel=1e-5)
    np.testing.assert_allclose(reports[0].state["previous"], start + deltas[0], rtol=0, atol=1e-6)


def test_mu_zero_is_fedavg_bit_for_bit():
    w = worker("moon", mu=0.0)
    np.testing.assert_array_equal(train(w, states=remembering(w))[1], train(worker("fedavg"))[1])
    w = worker("moon", mu=1.0)
    assert np.abs(train(w, states=remembering(w))[1] - train(worker("fedavg"))[1]).max() > 1e-4


def test_the_older_models_change_no_statistics():
    # At a huge temperature the term is constant: what its forward passes leave behind would show.
    w = worker("moon", temperature=1e30)
    np.testing.assert_array_equal(train(w, states=remembering(w))[1], train(worker("fedavg"))[1])


def test_a_projection_head_is_contrasted_and_trained():
    spec = worker("moon").spec
    spec = replace(spec, model=replace(spec.model, projection=16))
    w = Worker(spec, torch.device("cpu"))
    assert [s.shape for s in w.flat.layout.slots if s.head] == [(3, 16), (3,)]
    start, states = w.flat.vector(), remembering(w)
    with_term = train(w, params=start, states=states)[1]
    without = train(w, params=start)[1]
    last = select(w.flat.layout, lambda slot: slot.name.startswith("features.projection.2"))
    assert last.any()
    assert np.abs(with_term - without)[:, last].max() > 1e-5
