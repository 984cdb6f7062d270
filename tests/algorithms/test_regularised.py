"""Regularised local training: the terms of the loss, and training with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import distributions, nn

import fedsim
from fedsim import algorithms
from fedsim.algorithms.feddecorr import decorrelation
from fedsim.algorithms.fediir import head_gradient
from fedsim.algorithms.fedprox import Proximal
from fedsim.algorithms.fedsam import SharpnessAware, ascent
from fedsim.algorithms.fedsr import gaussian_divergence, lengths
from fedsim.algorithms.moon import contrast
from fedsim.client import Phase
from fedsim.client.criterion import MarginControl
from fedsim.core.errors import ConfigError
from fedsim.core.layout import FlatModel, select
from fedsim.core.rng import seed_for
from fedsim.core.types import ClientUpdate, Layout, Slot, Training
from fedsim.engine.worker import Worker, with_deltas
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from tests.algorithms import training
from tests.algorithms.cases import assert_step, draw, every_cohort, every_input
from tests.algorithms.training import CLASSES, context, scalar_env, train, worker
from tests.oracles import losses, rounds, rules
from tests.rounding import of_update, sgd_operations
from tests.tasks import run, train_local

CURVATURES, CENTRES, SHARES = (1.0, 2.0), (0.0, 3.0), (0.5, 0.5)


def squared_distance(env, a, b):
    objective = 0.5 * a * (env.params[0] - b).square().sum()
    return objective, objective.detach()


@dataclass(frozen=True)
class ProximalQuadratic(Proximal):
    """The same with FedProx's term."""

    a: float
    b: float

    def loss(self, env, s, x, y):
        return squared_distance(env, self.a, self.b)


def trained(rule, w, num_steps, lr):
    env = scalar_env(w, num_steps, lr)
    train_local(rule, env)
    return float(env.flat.vector()[0])


@every_input
@every_cohort
def test_server_oracle(sampler, m):
    g, n, _ = draw(sampler, m)
    assert_step(fedsim.aggregate(g, n, "fedprox"), rules.mean(g, n), g)


def test_step_by_hand():
    # w = 1, w_t = 0.5, gradient 0.2, lr 0.1, mu 0.1: 1 - 0.1 (0.2 + 0.1 * 0.5) = 0.975.
    env = scalar_env(0.5, 1, 0.1)
    env.phase = Phase(1, 0.1)
    env.params = [p for _, p in env.flat.params]
    rule = Proximal(0.1, "squared")
    start = rule.begin(env)
    with torch.no_grad():
        env.params[0].fill_(1.0)
    env.params[0].grad = torch.tensor([0.2])
    rule.adjust_grads(env, start)
    assert 1 - 0.1 * env.params[0].grad.item() == pytest.approx(0.975, rel=1e-6)


def test_the_released_form_by_hand():
    # mu ||w - w_t|| per tensor: the gradient gains mu times the unit vector (3, 4)/5, 0 at w_t.
    env = scalar_env(0.0, 1, 0.1)
    env.params = [torch.tensor([3.0, 4.0]), torch.tensor([1.0])]
    for parameter in env.params:
        parameter.grad = torch.zeros_like(parameter)
    start = [torch.zeros(2), torch.tensor([1.0])]
    Proximal(0.01, "l2_per_tensor").adjust_grads(env, start)
    np.testing.assert_allclose(env.params[0].grad, [0.006, 0.008], rtol=1e-5)
    assert env.params[1].grad.tolist() == [0.0]


def test_the_adjusted_gradient_is_that_of_the_objective():
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    anchor = torch.randn(7, generator=generator, dtype=torch.float64)
    env = scalar_env(0.0, 1, 0.1)
    env.params = [w]
    for form in ("squared", "l2_per_tensor"):
        distance = (w - anchor).norm()
        objective = 0.3 * (distance**2 / 2 if form == "squared" else distance)
        expected = torch.autograd.grad(objective, w)[0]
        w.grad = torch.zeros_like(w)
        with torch.no_grad():
            Proximal(0.3, form).adjust_grads(env, [anchor])
        torch.testing.assert_close(w.grad, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_local_steps_follow_the_oracle(mu):
    for a, b in zip(CURVATURES, CENTRES, strict=True):
        got = trained(ProximalQuadratic(mu, "squared", a, b), 1.5, 4, 0.1)
        expected = rounds.gradient_steps(1.5, a, b, 0.1, 4, mu)
        assert got == pytest.approx(expected, rel=1e-6)


def test_fedprox_mu_zero_is_fedavg_bit_for_bit():
    reports, deltas = train(worker("fedprox", mu=0.0))
    expected_reports, expected = train(worker("fedavg"))
    np.testing.assert_array_equal(deltas, expected)
    assert [r.train_loss for r in reports] == [r.train_loss for r in expected_reports]
    assert np.abs(deltas).max() > 0


def test_the_term_is_not_in_the_reported_loss_and_shortens_the_update():
    lengths = [
        np.linalg.norm(train(worker("fedprox", model="mlp", mu=mu))[1], axis=1).sum()
        for mu in (0.0, 1.0, 10.0)
    ]
    assert lengths[0] > lengths[1] > lengths[2] > 0


def moon_features(seed, b=6, d=4):
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


def test_moon_published_example():
    got = contrast(torch.tensor([[1.0, 0.0]], dtype=torch.float64), at(0.9), at(0.4), 0.5)
    assert got.item() == pytest.approx(0.3132616875, rel=1.5e-9)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
def test_moon_oracle(temperature):
    z, near, far = (moon_features(seed).requires_grad_() for seed in range(3))
    got = contrast(z, near, far, temperature)
    expected = losses.contrast(z, near, far, temperature)
    assert got.item() == pytest.approx(expected.item(), rel=1e-9)
    slope, wanted = (torch.autograd.grad(loss, z)[0] for loss in (got, expected))
    torch.testing.assert_close(slope, wanted, rtol=1e-9, atol=1e-12)


def test_only_directions_count():
    z, near, far = (moon_features(seed) for seed in range(3))
    other = contrast(7 * z, 0.1 * near, 3 * far, 0.5)
    assert other.item() == pytest.approx(contrast(z, near, far, 0.5).item(), rel=1e-9)


def test_opposite_directions_at_a_low_temperature_do_not_overflow():
    z = moon_features(0).float()
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
    w = worker("moon", model="mlp", training=training.TRAINING, mu=2.0, temperature=temperature)
    start, states = w.flat.vector(), remembering(w)
    reports, deltas = train(w, (1,), lr=training.LR, states=states)
    x, _ = training.data(w, 1)
    near, far = (
        losses.network(training.tensors(w, vector), x)[0]
        for vector in (start, states[1]["previous"])
    )
    plain = training.classification(w, 1)

    def objective(params):
        z = losses.network(params, x)[0]
        return plain(params) + 2.0 * losses.contrast(z, near, far, temperature)

    gradient = losses.gradient_of(objective)
    training.assert_update(w, deltas[0], start, gradient)
    reported = training.loss_on_the_way(w, start, plain, gradient)
    assert reports[0].train_loss == pytest.approx(reported, rel=1e-5)
    np.testing.assert_allclose(reports[0].state["previous"], start + deltas[0], rtol=0, atol=1e-6)


def test_moon_mu_zero_is_fedavg_bit_for_bit():
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


EXAMPLE = [[1.0, 2.0, 0.0], [2.0, 1.0, 1.0], [4.0, 3.0, 1.0], [0.0, 1.0, 3.0]]
FORMS = ("code", "paper")
every_form = pytest.mark.parametrize("form", FORMS)


def feddecorr_features(b, d, seed=0):
    rng = np.random.default_rng([seed, b, d])
    return torch.from_numpy(rng.normal(size=(b, d)) @ rng.normal(size=(d, d)))


@pytest.mark.parametrize(("form", "value"), [("code", 0.7506151637), ("paper", 0.5557378294)])
def test_feddecorr_published_example(form, value):
    got = decorrelation(torch.tensor(EXAMPLE, dtype=torch.float64), form)
    assert got.item() == pytest.approx(value, rel=1.5e-9)


def test_feddecorr_by_hand():
    # Columns (0, 1) and (0, 1): rho = 1. code: (2 - 1)^2 / 2 * 1; paper: all four are 1.
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    assert decorrelation(x, "code").item() == pytest.approx(0.5, rel=1e-7)
    assert decorrelation(x, "paper").item() == pytest.approx(1.0, rel=1e-7)


@every_form
@pytest.mark.parametrize("b", [2, 5, 40])
@pytest.mark.parametrize("d", [2, 7])
def test_feddecorr_oracle(form, b, d):
    x = feddecorr_features(b, d).requires_grad_()
    got, expected = decorrelation(x, form), losses.decorrelation(x, form)
    assert got.item() == pytest.approx(expected.item(), rel=1e-9)
    assert torch.autograd.grad(got, x)[0].abs().max() > 0


@every_form
def test_gradient(form):
    assert torch.autograd.gradcheck(
        lambda x: decorrelation(x, form), (feddecorr_features(6, 3, 1).requires_grad_(),)
    )


@every_form
def test_moving_and_stretching_a_feature_changes_nothing(form):
    x = feddecorr_features(20, 5)
    other = x * torch.tensor([1.0, 2.0, 30.0, 0.1, 5.0]) + torch.arange(5.0)
    assert decorrelation(other, form).item() == pytest.approx(
        decorrelation(x, form).item(), rel=1e-6
    )


@every_form
def test_one_sample_has_no_term(form):
    x = feddecorr_features(1, 5).requires_grad_()
    assert decorrelation(x, form).item() == 0


@every_form
def test_constant_features_have_correlation_zero_and_a_finite_gradient(form):
    x = feddecorr_features(6, 3).float()
    alone = decorrelation(x, form).item()
    dead = torch.cat([x, torch.zeros(6, 2)], dim=1).requires_grad_()
    term = decorrelation(dead, form)
    pairs = {"code": 3 * 2 / (5 * 4), "paper": 3 * 3 / (5 * 5)}[form]
    assert term.item() == pytest.approx(alone * pairs, rel=1e-5)
    assert torch.isfinite(torch.autograd.grad(term, dead)[0]).all()


@every_form
def test_feddecorr_training_follows_the_oracle(form):
    w = worker("feddecorr", model="mlp", training=training.TRAINING, beta=0.3, form=form)
    start = w.flat.vector()
    reports, deltas = train(w, (0,), lr=training.LR)
    x, _ = training.data(w, 0)
    plain = training.classification(w, 0)

    def objective(params):
        return plain(params) + 0.3 * losses.decorrelation(losses.network(params, x)[0], form)

    gradient = losses.gradient_of(objective)
    # the penalty divides by the deviation of features over the batch, of which they are up to ten
    training.assert_update(w, deltas[0], start, gradient, growth=10)
    reported = training.loss_on_the_way(w, start, plain, gradient)
    assert reports[0].train_loss == pytest.approx(reported, rel=1e-5)


def test_beta_zero_is_fedavg_bit_for_bit():
    reports, deltas = train(worker("feddecorr", beta=0.0))
    expected_reports, expected = train(worker("fedavg"))
    np.testing.assert_array_equal(deltas, expected)
    assert [r.train_loss for r in reports] == [r.train_loss for r in expected_reports]
    assert np.abs(train(worker("feddecorr"))[1] - expected).max() > 0


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


def test_fedsr_published_example():
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

    def objective(params):
        hidden, hidden_bias, encoder, encoder_bias, head, head_bias, r_mu, r_sigma, scale = params
        h = torch.clamp(x @ hidden.T + hidden_bias, min=0)
        both = h @ encoder.T + encoder_bias
        z_dim = both.shape[1] // 2
        mu, sigma = both[:, :z_dim], (1 + both[:, z_dim:].exp()).log()
        z = mu + sigma * torch.randn(mu.shape, generator=draws).double()
        ce = losses.mean_cross_entropy(z @ head.T + head_bias, y)
        c = (1 + scale.exp()).log()
        apart = distributions.kl_divergence(
            distributions.Normal(c * mu, c * sigma),
            distributions.Normal(r_mu[y], (1 + r_sigma[y].exp()).log()),
        )
        total = ce + a_l2r * ((z**2).sum(dim=1).sqrt() ** power).mean()
        return total + a_cmi * apart.sum(dim=1).mean(), ce

    return objective


@pytest.mark.parametrize("power", [1, 2])
def test_fedsr_training_follows_the_oracle(power):
    # One permutation shuffles the single batch too; the draws belong to its rows.
    once = Training(local_epochs=1, batch_size=64, momentum=0.5, weight_decay=0.01)
    given = {"a_l2r": 0.2, "a_cmi": 0.05, "l2r_power": power, "z_dim": 5, "share_reference": True}
    w = worker("fedsr", model="mlp", training=once, **given)
    start = w.flat.vector()
    reports, deltas = train(w, (0,), lr=0.1)
    x, y = training.data(w, 0)
    order = torch.Generator().manual_seed(seed_for(0, "shuffle", 0, 0))
    rows = torch.randperm(len(y), generator=order)
    objective = objective_of(w, x[rows], y[rows], 0.2, 0.05, power)
    before = training.tensors(w, start)
    leaves = [p.clone().requires_grad_() for p in before]
    total, ce = objective(leaves)
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
    w = worker("fedsr", model="mlp", training=training.TRAINING, **given)
    start = w.flat.vector()
    reports, deltas = train(w, (0,), lr=training.LR)
    x, _ = training.data(w, 0)
    plain = training.classification(w, 0)

    def objective(params):
        h = losses.network(params, x)[0]
        return plain(params) + 0.2 * ((h**2).sum(dim=1).sqrt() ** power).mean()

    gradient = losses.gradient_of(objective)
    training.assert_update(w, deltas[0], start, gradient)
    reported = training.loss_on_the_way(w, start, plain, gradient)
    assert reports[0].train_loss == pytest.approx(reported, rel=1e-5)


def test_the_deterministic_variant_without_its_term_is_fedavg():
    _, deltas = train(worker("fedsr", deterministic=True, a_l2r=0.0))
    np.testing.assert_array_equal(deltas, train(worker("fedavg"))[1])


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


def batch(b=6, d=4, classes=3, seed=0):
    """Features, head weight, head bias and labels."""
    rng = np.random.default_rng([seed, b])
    shapes = (b, d), (classes, d), (classes,)
    h, weight, bias = (torch.from_numpy(rng.normal(size=s)).requires_grad_() for s in shapes)
    return h, weight, bias, torch.from_numpy(rng.integers(0, classes, size=b))


def by_autograd(params, x, y, create_graph=False):
    """The gradient of the cross-entropy by the head, (C, d + 1)."""
    loss = losses.mean_cross_entropy(losses.network(params, x)[1], y)
    weight, bias = torch.autograd.grad(loss, params[2:4], create_graph=create_graph)
    return torch.cat([weight, bias[:, None]], dim=1)


def probed(w, params=None, clients=(0, 1, 2)):
    """The reports and deltas of the pass before training."""
    start = w.flat.vector() if params is None else params
    return run(w, clients, context(), start, work="probe")


def test_fediir_by_hand():
    # h = 2, logits 0 and 0: softmax - onehot = (-1/2, 1/2), times (h, 1): (-1, -1/2), (1, 1/2).
    got = head_gradient(torch.tensor([[2.0]]), torch.zeros(1, 2), torch.tensor([0]))
    assert got.tolist() == [[-1.0, -0.5], [1.0, 0.5]]


def test_the_pass_before_training_sums_the_batches_in_the_datas_order():
    # 30 images in batches of 8: three of 8 and one of 6, each with the weight of a batch.
    w = worker("fediir", model="mlp")
    start = w.flat.vector()
    reports, deltas = probed(w)
    assert deltas.shape == (3, 0)
    for client, report in enumerate(reports):
        x, y = training.data(w, client)
        params = [p.requires_grad_() for p in training.tensors(w, start)]
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
    w = worker("fediir", model="mlp", training=training.TRAINING, gamma=0.4)
    start = w.flat.vector()
    gm = np.random.default_rng(0).normal(size=(CLASSES, 65)).astype(np.float32)
    reports, deltas = train(w, (0,), lr=training.LR, downlink={"gm": gm} if known else {})
    x, y = training.data(w, 0)
    plain = training.classification(w, 0)

    def objective(params):
        away = by_autograd(params, x, y, create_graph=True) - known * torch.from_numpy(gm)
        return plain(params) + 0.4 * (away**2).sum()

    gradient = losses.gradient_of(objective)
    training.assert_update(w, deltas[0], start, gradient)
    reported = training.loss_on_the_way(w, start, plain, gradient)
    assert reports[0].train_loss == pytest.approx(reported, rel=1e-5)


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
        ascent(g, scales, 0.3), losses.ascent(w, g, 0.3, eta, (0, 2)), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("variant", "eta"), [("sam", None), ("asam", 0.05)])
def test_fedsam_training_follows_the_oracle(variant, eta):
    given = {} if eta is None else {"eta": eta}
    w = worker("fedsam", model="mlp", training=training.TRAINING, rho=0.5, variant=variant, **given)
    start = w.flat.vector()
    reports, deltas = train(w, (0,), lr=training.LR)
    plain = training.classification(w, 0)
    slope = losses.gradient_of(plain)

    def gradient(params):
        e = losses.ascent(params, slope(params), 0.5, eta, weights=(0, 2))
        return slope([p + part for p, part in zip(params, e, strict=True)])

    training.assert_update(w, deltas[0], start, gradient)
    reported = training.loss_on_the_way(w, start, plain, gradient)
    assert reports[0].train_loss == pytest.approx(reported, rel=1e-5)
    wrong = training.expected(w, start, slope)
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
    cohort = Cohort.of(with_deltas(reports, deltas), ours.flat.layout)
    step, wanted = (
        algorithms.load(name, given).server.step(RuleState(), cohort, context())
        for name, given in (("fedsam", {"alpha": 0.3, "weights": "uniform"}), ("fedcm", {}))
    )
    np.testing.assert_allclose(step.step, wanted.step, rtol=1e-6)
    np.testing.assert_array_equal(step.downlink["direction"], wanted.downlink["direction"])
    assert np.abs(step.downlink["direction"]).max() > 0
