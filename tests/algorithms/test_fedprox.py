"""FedProx: the mean on the server, CE + mu/2 ||w - w_t||^2 on the clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedsim
from fedsim.algorithms.fedprox import Proximal
from fedsim.client import Phase
from fedsim.client.trainer import train_local
from tests.oracles import aggregation as oracle
from tests.oracles import quadratics

from .cases import assert_step, draw, every_cohort, every_input
from .training import scalar_env, train, worker

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
    assert_step(fedsim.aggregate(g, n, "fedprox"), oracle.mean(g, n), g)


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
        expected = quadratics.gradient_steps(1.5, a, b, 0.1, 4, mu)
        assert got == pytest.approx(expected, rel=1e-6)


def test_mu_zero_is_fedavg_bit_for_bit():
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
