"""FedSR: length and divergence of the representation, its draws, and what stays on the client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import distributions

from fedsim import algorithms, models
from fedsim.algorithms.fedsr import gaussian_divergence, lengths
from fedsim.core.errors import ConfigError
from fedsim.core.layout import select
from fedsim.core.rng import seed_for
from fedsim.core.types import ModelSpec, Training
from tests.oracles import client_losses as oracle
from tests.rounding import of_update, sgd_operations

from . import fullbatch
from .training import CLASSES, train, worker


def gaussians(b=5, d=3, seed=0):
    """Means and deviations of two Gaussians for each sample."""
    rng = np.random.default_rng(seed)
    return [
        torch.from_numpy(values)
        for values in (
            rng.normal(size=(b, d)),
            rng.uniform(0.1, 2, size=(b, d)),
            rng.normal(size=(b, d)),
            rng.uniform(0.1, 2, size=(b, d)),
        )
    ]


def test_published_example():
    one = [torch.tensor([[v]], dtype=torch.float64) for v in (0.5, 0.8, -0.2, 1.1)]
    assert gaussian_divergence(*one).item() == pytest.approx(0.2853958799, rel=1.5e-9)


def test_the_divergence_oracle():
    mu, sigma, r_mu, r_sigma = gaussians()
    each = distributions.kl_divergence(
        distributions.Normal(mu, sigma), distributions.Normal(r_mu, r_sigma)
    )
    got = gaussian_divergence(mu, sigma, r_mu, r_sigma)
    assert got.item() == pytest.approx(each.sum().item() / 5, rel=1e-9)


def test_the_length_by_hand():
    # Lengths 5 and 13: mean 9, mean of squares (25 + 169) / 2 = 97.
    z = torch.tensor([[3.0, 4.0], [5.0, 12.0]])
    assert lengths(z, 1).mean().item() == 9
    assert lengths(z, 2).mean().item() == pytest.approx(97)


@pytest.mark.parametrize("power", [1, 2])
def test_a_representation_at_zero_has_a_finite_gradient(power):
    z = torch.zeros(2, 3, requires_grad=True)
    assert torch.autograd.grad(lengths(z, power).mean(), z)[0].abs().max() == 0


def objective_of(w, x, y, a_l2r, a_cmi, power):
    """FedSR's loss in float64, and the cross-entropy in it, with the client's draws in order."""
    draws = torch.Generator().manual_seed(seed_for(0, "client", 0, 0))

    def losses(params):
        hidden, hidden_bias, encoder, encoder_bias, head, head_bias, r_mu, r_sigma, scale = params
        h = torch.clamp(x @ hidden.T + hidden_bias, min=0)
        both = h @ encoder.T + encoder_bias
        z_dim = both.shape[1] // 2
        mu, sigma = both[:, :z_dim], (1 + both[:, z_dim:].exp()).log()
        z = mu + sigma * torch.randn(mu.shape, generator=draws).double()
        ce = oracle.cross_entropy(z @ head.T + head_bias, y)
        c = (1 + scale.exp()).log()
        apart = distributions.kl_divergence(
            distributions.Normal(c * mu, c * sigma),
            distributions.Normal(r_mu[y], (1 + r_sigma[y].exp()).log()),
        )
        total = ce + a_l2r * ((z**2).sum(dim=1).sqrt() ** power).mean()
        return total + a_cmi * apart.sum(dim=1).mean(), ce

    return losses


@pytest.mark.parametrize("power", [1, 2])
def test_training_follows_the_oracle(power):
    # One permutation shuffles the single batch too; the draws belong to its rows.
    once = Training(local_epochs=1, batch_size=64, momentum=0.5, weight_decay=0.01)
    given = {"a_l2r": 0.2, "a_cmi": 0.05, "l2r_power": power, "z_dim": 5, "share_reference": True}
    w = worker("fedsr", model="mlp", training=once, **given)
    start = w.flat.vector()
    reports, deltas = train(w, (0,), lr=0.1)
    x, y = fullbatch.data(w, 0)
    order = torch.Generator().manual_seed(seed_for(0, "shuffle", 0, 0))
    rows = torch.randperm(len(y), generator=order)
    losses = objective_of(w, x[rows], y[rows], 0.2, 0.05, power)
    before = fullbatch.tensors(w, start)
    leaves = [p.clone().requires_grad_() for p in before]
    total, ce = losses(leaves)
    slopes = torch.autograd.grad(total, leaves)
    assert all(slope.abs().max() > 0 for slope in slopes)
    step = [-0.1 * (g + 0.01 * p) for g, p in zip(slopes, before, strict=True)]
    expected = torch.cat([part.flatten() for part in step]).numpy()
    sizes = np.abs(expected).max(), np.abs(start).max()
    error = of_update(np.float32, *sizes, steps=1, operations=sgd_operations(1, 3, 64))
    assert error < 1e-4 * sizes[0]
    np.testing.assert_allclose(deltas[0], expected, rtol=0, atol=error)
    assert reports[0].train_loss == pytest.approx(ce.item(), rel=1e-6)


@pytest.mark.parametrize("power", [1, 2])
def test_the_deterministic_variant_follows_the_oracle(power):
    given = {"deterministic": True, "a_l2r": 0.2, "l2r_power": power}
    w = worker("fedsr", model="mlp", training=fullbatch.TRAINING, **given)
    start = w.flat.vector()
    reports, deltas = train(w, (0,), lr=fullbatch.LR)
    x, _ = fullbatch.data(w, 0)
    plain = fullbatch.classification(w, 0)

    def objective(params):
        h = oracle.network(params, x)[0]
        return plain(params) + 0.2 * ((h**2).sum(dim=1).sqrt() ** power).mean()

    gradient = oracle.gradient_of(objective)
    fullbatch.assert_update(w, deltas[0], start, gradient)
    reported = fullbatch.loss_on_the_way(w, start, plain, gradient)
    assert reports[0].train_loss == pytest.approx(reported, rel=1e-5)


def test_the_deterministic_variant_without_its_term_is_fedavg():
    _, deltas = train(worker("fedsr", deterministic=True, a_l2r=0.0))
    np.testing.assert_array_equal(deltas, train(worker("fedavg"))[1])


def test_without_terms_and_without_noise_it_is_cross_entropy_of_the_mean():
    # sigma = softplus(-1000) = 0, whose divergence is infinite: at a_cmi = 0 it is not asked for.
    once = Training(local_epochs=1, batch_size=64, momentum=0.0, weight_decay=0.0)
    w = worker("fedsr", model="mlp", training=once, a_l2r=0.0, a_cmi=0.0, z_dim=4)
    slots = {s.name: s.where for s in w.flat.layout.slots}
    start = w.flat.vector()
    start[slots["encoder.weight"]].reshape(8, -1)[4:] = 0.0
    start[slots["encoder.bias"]][4:] = -1000.0
    reports, deltas = train(w, (0,), params=start, lr=0.1)
    x, y = fullbatch.data(w, 0)
    hidden, hidden_bias, encoder, encoder_bias, head, head_bias = (
        p.requires_grad_() for p in fullbatch.tensors(w, start)[:6]
    )
    h = torch.clamp(x @ hidden.T + hidden_bias, min=0)
    logits = (h @ encoder.T + encoder_bias)[:, :4] @ head.T + head_bias
    ce = functional.cross_entropy(logits, y)
    assert np.isfinite(deltas).all()
    assert reports[0].train_loss == pytest.approx(ce.item(), rel=1e-6)
    slope = torch.autograd.grad(ce, head)[0]
    np.testing.assert_allclose(
        deltas[0][slots["head.weight"]], -0.1 * slope.flatten(), rtol=0, atol=1e-6
    )


def test_the_reference_stays_on_the_client():
    w = worker("fedsr", z_dim=4)
    assert w.spec.algorithm.one_model
    mask = select(w.flat.layout, w.spec.algorithm.personal)
    assert mask.sum() == 2 * CLASSES * 4 + 1
    start = w.flat.vector()
    reports, deltas = train(w)
    assert np.all(deltas[:, mask] == 0)
    for report in reports:
        assert np.abs(report.state["personal"] - start[mask]).max() > 0
    states = {r.client_id: r.state for r in reports}
    later, _ = train(w, round=1, states=states)
    for before, after in zip(reports, later, strict=True):
        assert np.abs(after.state["personal"] - before.state["personal"]).max() > 0


def test_a_shared_reference_is_a_part_of_the_update():
    w = worker("fedsr", z_dim=4, share_reference=True)
    mask = select(w.flat.layout, lambda slot: slot.name.startswith("reference."))
    reports, deltas = train(w)
    assert np.abs(deltas[:, mask]).max() > 0
    assert not any(r.state for r in reports)


def test_the_draws_belong_to_round_and_client():
    w = worker("fedsr")
    start = w.flat.vector()
    first = train(w, params=start)[1]
    np.testing.assert_array_equal(first, train(w, (2, 0, 1), params=start)[1][[1, 2, 0]])
    assert np.abs(first - train(w, params=start, round=1)[1]).max() > 0


@pytest.mark.parametrize("z_dim", [None, 7])
def test_the_size_of_the_representation(z_dim):
    w = worker("fedsr", z_dim=z_dim)
    shapes = {s.name: s.shape for s in w.flat.layout.slots}
    size = z_dim or 64
    assert shapes["encoder.weight"] == (2 * size, 64)
    assert shapes["head.weight"] == (CLASSES, size)


def test_the_head_stays_of_its_kind():
    # LEAF's perceptron has a sigmoid after its head.
    spec = ModelSpec(
        name="leaf_synthetic", num_classes=5, in_channels=60, image_size=1, inputs="features"
    )
    model = models.build(spec, 0, algorithms.load("fedsr").adapt)
    assert model.head(100 * torch.ones(1, 60)).abs().max() <= 1
    assert model.head.out_features == 5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"l2r_power": 3}, r"fedsr\.l2r_power: 3 given; must be 1 or 2"),
        ({"deterministic": True, "z_dim": 4}, r"fedsr\.deterministic goes with neither"),
        ({"deterministic": True, "share_reference": True}, "neither z_dim nor share_reference"),
    ],
)
def test_bad_values_are_named(given, said):
    with pytest.raises(ConfigError, match=said):
        algorithms.load("fedsr", given)
