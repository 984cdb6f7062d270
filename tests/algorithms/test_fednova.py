"""FedNova: w <- w + tau_eff sum_i p_i Delta_i / |a_i|_1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedsim
from fedsim import algorithms
from fedsim.client import normaliser
from fedsim.core.errors import ContractError
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from tests.oracles import aggregation as aggregation_oracle
from tests.oracles import rounds as oracle

from .cases import PRINTED, assert_step, draw, every_cohort, every_input
from .federation import Federation

CTX = RoundContext(round=0, num_rounds=1, num_clients=2, lr=0.1, seed=0)
RNG = np.random.default_rng(5)
A, B = RNG.uniform(0.5, 2.0, (3, 4)), RNG.normal(size=(3, 4))
STEPS, SAMPLES = (1, 5, 3), (30, 10, 20)
COHORTS = [[0, 1, 2], [0, 2], [1], [0, 1, 2]]


def cohort(normalisers, steps=(2, 4)):
    layout = Layout(
        (
            Slot(name="w", shape=(2,), start=0, stop=2),
            Slot(name="stat", shape=(1,), start=2, stop=3, role="stat"),
        )
    )
    deltas = (np.array([-1.0, 0.0, 8.0]), np.array([0.0, -2.0, 4.0]))
    samples = (10, 30)
    values = zip(samples, steps, deltas, normalisers, strict=True)
    updates = [
        ClientUpdate(
            client_id=i, num_samples=n, num_steps=t, delta=d, extras={"normaliser": np.array([a])}
        )
        for i, (n, t, d, a) in enumerate(values)
    ]
    return Cohort.of(updates, layout)


def test_published_example_and_plain_statistics():
    # tau = (2, 4), rho = 0.9: |a| = (2.9, 9.049), tau_eff = 7.51175
    a = [normaliser(2, 0.9), normaliser(4, 0.9)]
    np.testing.assert_allclose(a, [2.9, 9.049], rtol=1e-12)
    step = algorithms.load("fednova").server.step(RuleState(), cohort(a), CTX).step
    np.testing.assert_allclose(step[:2], [-0.6475646552, -1.245179025], **PRINTED)
    assert step[2] == 0.25 * 8 + 0.75 * 4


def test_normalisers_by_hand():
    assert normaliser(7, 0.0) == 7.0
    assert normaliser(0, 0.9) == 0.0
    np.testing.assert_allclose(
        [normaliser(t, 0.0, 0.1 * 0.1) for t in (2, 4)], [1.99, 3.940399], rtol=1e-12
    )


@pytest.mark.parametrize("rho", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("tau", [1, 2, 17])
def test_the_recursion_is_the_closed_form(rho, tau):
    closed = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    assert normaliser(tau, rho) == pytest.approx(closed, rel=1e-11)


@pytest.mark.parametrize("tau", [1, 3, 20])
def test_the_proximal_recursion_is_the_closed_form(tau):
    assert normaliser(tau, 0.0, 0.05) == pytest.approx((1 - 0.95**tau) / 0.05, rel=1e-11)


@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_a_constant_gradient_moves_by_the_normaliser(mu, rho):
    # With a -> 0 and a b = -g the gradient is g everywhere: Delta = -lr |a|_1 g.
    lr, tau = 0.1, 6
    federation = Federation(
        "fednova", {"mu": mu}, a=(1e-12,), b=(-1e12,), steps=(tau,), samples=(1,), lr=lr,
        momentum=rho,
    )  # fmt: skip
    way = normaliser(tau, rho, lr * mu)
    effective = tau if mu else way
    # One client: w moves by tau_eff Delta / |a| = -lr tau_eff.
    assert federation.run(1) == pytest.approx(-lr * effective, rel=1e-6)


@pytest.mark.parametrize(("rho", "mu", "gmf"), [(0, 0, 0), (0.9, 0, 0), (0, 0.3, 0), (0.5, 0, 0.6)])
def test_oracle(rho, mu, gmf):
    federation = Federation(
        "fednova", {"mu": mu, "gmf": gmf}, A, B, STEPS, SAMPLES, momentum=rho
    )  # fmt: skip
    found = np.array([federation.step(c) for c in COHORTS])
    expected = oracle.fednova(A, B, COHORTS, STEPS, SAMPLES, 0.1, rho, mu, gmf)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@every_input
@every_cohort
def test_equal_steps_are_fedavg(sampler, m):
    g, n, _ = draw(sampler, m)
    step = fedsim.aggregate(g, n, "fednova", num_steps=[4] * m)
    assert_step(step, aggregation_oracle.mean(g, n), g, 1e-14)


def test_the_server_normalises_by_steps():
    g, n, tau = np.array([[2.0, 0.0], [0.0, 8.0]]), [10, 30], [2, 4]
    # tau_eff = 0.25 * 2 + 0.75 * 4 = 3.5: 3.5 (0.25 (1, 0) + 0.75 (0, 2))
    step = fedsim.aggregate(g, n, "fednova", num_steps=tau)
    np.testing.assert_allclose(step, [0.875, 5.25], rtol=1e-14)
    with pytest.raises(ContractError, match="fednova needs num_steps"):
        fedsim.aggregate(g, n, "fednova")


def test_a_client_without_steps_adds_nothing():
    step = algorithms.load("fednova").server.step(RuleState(), cohort([2.0, 0.0]), CTX).step
    # tau_eff = 0.25 * 2; client 0 alone: 0.5 * 0.25 * (-1, 0) / 2
    np.testing.assert_allclose(step[:2], [-0.0625, 0.0], rtol=1e-14)


@pytest.mark.parametrize("gh_on", ["normalised", "delta"])
def test_where_nobody_made_a_step_nothing_moves(gh_on):
    server = algorithms.load("fednova", {"gh_on": gh_on}).server
    step = server.step(RuleState(), cohort([0.0, 0.0]), CTX).step
    assert step[:2].tolist() == [0.0, 0.0]


def test_the_server_momentum_is_in_units_of_the_rate():
    # buf = update / 0.1, then 0.5 update / 0.1 + update / 0.05; times 0.05: 1.25 update.
    server, sent = algorithms.load("fednova", {"gmf": 0.5}).server, cohort([2.0, 4.0])
    update = algorithms.load("fednova").server.step(RuleState(), sent, CTX).step[:2]
    first = server.step(RuleState(), sent, CTX)
    np.testing.assert_allclose(first.step[:2], update, rtol=1e-14)
    later = server.step(
        first.state, sent, RoundContext(round=1, num_rounds=2, num_clients=2, lr=0.05, seed=0)
    )
    np.testing.assert_allclose(later.step[:2], 1.25 * update, rtol=1e-14)


@pytest.mark.parametrize("gh_on", ["normalised", "delta"])
def test_fedgh_on_normalised_updates_or_on_the_updates(gh_on):
    c = cohort([2.0, 4.0])
    rows = [u.delta[:2] for u in c.updates]
    g = np.array(rows) + np.array([[0.0, 1.0], [0.0, 0.0]])  # <g_0, g_1> = -2: a conflict
    updates = [replace(u, delta=np.append(row, 0.0)) for u, row in zip(c.updates, g, strict=True)]
    c = Cohort.of(updates, c.layout)
    composed = algorithms.compose("fednova", {"fednova": {"gh_on": gh_on}}, server="fedgh")
    found = composed.server.step(RuleState(), c, CTX).step[:2]
    p, a = np.array([0.25, 0.75]), np.array([2.0, 4.0])
    effective = p @ a
    orders = aggregation_oracle.visiting_orders(2, "ascending")
    if gh_on == "normalised":
        projected = aggregation_oracle.fedgh_projected(g / a[:, None], orders)
    else:
        projected = aggregation_oracle.fedgh_projected(g, orders) / a[:, None]
    np.testing.assert_allclose(found, effective * (p @ projected), rtol=1e-12)


def test_momentum_and_proximal_term_by_their_joint_recursion():
    # v = rho v + 1 - lr mu way: 1, then 0.5 + 1 - 0.1 = 1.4; together 2.4
    assert normaliser(2, 0.5, 0.1) == pytest.approx(2.4, rel=1e-15)
