"""SCAFFOLD: gradients corrected by c - c_i, and who keeps which control variate."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from fedsim import algorithms
from fedsim.core.errors import ConfigError, ContractError
from tests.oracles import rounds as oracle

from .cases import PRINTED
from .federation import Federation
from .training import context

RNG = np.random.default_rng(6)
A, B = RNG.uniform(0.5, 2.0, (4, 3)), RNG.normal(size=(4, 3))
STEPS, SAMPLES = (1, 5, 3, 2), (30, 10, 20, 1)
COHORTS = [[0, 1, 2, 3], [0, 2], [1], [3, 1], [0, 1, 2, 3]]


def controls(federation):
    zero = np.zeros(federation.a.shape[1])
    own = [federation.clients.get(i, {}).get("c", zero) for i in range(len(federation.steps))]
    return federation.state.exchange["c"], np.array(own)


def test_published_example():
    federation = Federation("scaffold")
    rows = []
    for _ in range(3):
        w = federation.run(1)
        c, own = controls(federation)
        rows.append([w, c[0], *own[:, 0]])
    expected = [
        [0.54, -2.7, 0.0, -5.4],
        [0.945, -2.025, 0.648, -4.698],
        [1.23849, -1.46745, 1.0314, -3.9663],
    ]
    np.testing.assert_allclose(rows, expected, **PRINTED)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("eta_g", [1.0, 0.7])
def test_oracle(option, eta_g):
    options = {"option": option, "eta_g": eta_g}
    federation = Federation("scaffold", options, A, B, STEPS, SAMPLES)
    path, kept = oracle.scaffold(A, B, COHORTS, STEPS, 0.1, eta_g, option)
    for cohort, w, (c, own) in zip(COHORTS, path, kept, strict=True):
        np.testing.assert_allclose(federation.step(cohort), w, rtol=1e-9, atol=1e-12)
        found, found_own = controls(federation)
        np.testing.assert_allclose(found, c, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found_own, own, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("option", ["I", "II"])
def test_c_is_the_mean_of_all_control_variates(option):
    federation = Federation("scaffold", {"option": option}, A, B, STEPS, SAMPLES)
    for cohort in COHORTS:
        federation.step(cohort)
        c, own = controls(federation)
        np.testing.assert_allclose(c, own.mean(axis=0), rtol=1e-12, atol=1e-14)


def test_control_variates_by_samples_are_flamby_in_other_variables():
    # There each client keeps e_i = c_i - c alone: e_i += (x - y_i) / (K lr) when the next round
    # begins at x = sum_i p_i y_i, for all clients in every round, with K steps each.
    options = {"weights": "samples", "control": "samples"}
    federation = Federation("scaffold", options, A, B, (3, 3, 3, 3), SAMPLES)
    x, e, y = np.zeros(3), np.zeros((4, 3)), [np.zeros(3)] * 4
    for t in range(5):
        if t > 0:
            e += (x - np.array(y)) / (3 * 0.1)
        for i in range(4):
            y[i] = x.copy()
            for _ in range(3):
                y[i] = y[i] - 0.1 * (A[i] * (y[i] - B[i]) - e[i])
        x = np.average(y, axis=0, weights=SAMPLES)
        np.testing.assert_allclose(federation.step(), x, rtol=1e-9, atol=1e-12)


def test_weighted_control_variates_of_a_part_of_the_clients():
    options = {"control": "samples"}
    federation = Federation("scaffold", options, A, B, STEPS, SAMPLES)
    c, before = np.zeros(3), np.zeros((4, 3))
    for cohort in COHORTS:
        federation.step(cohort)
        found, own = controls(federation)
        mean = np.average((own - before)[cohort], axis=0, weights=np.array(SAMPLES)[cohort])
        c, before = c + len(cohort) / 4 * mean, own
        np.testing.assert_allclose(found, c, rtol=1e-12, atol=1e-14)


def test_the_first_round_is_fedavg_with_uniform_weights():
    first = Federation("scaffold", {}, A, B, STEPS, SAMPLES).step()
    fedavg = Federation("fedavg", {"weights": "uniform"}, A, B, STEPS, SAMPLES).step()
    np.testing.assert_array_equal(first, fedavg)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_the_way_is_that_of_the_corrected_mean_gradient(momentum, weight_decay):
    # lr |a|_1 (c_i' - c_i + c) = x - y_i
    federation = Federation(
        "scaffold", {}, A, B, STEPS, SAMPLES, momentum=momentum, weight_decay=weight_decay
    )  # fmt: skip
    federation.step()
    c, before = controls(federation)
    env = federation.env(1, context(lr=0.1))
    rule = federation.algorithm.local
    fedsim.client.trainer.train_local(rule, env)
    uplink = rule.finish(env, rule.begin(env))
    left = env.effective_step_length * (uplink.state["c"] - before[1] + c)
    np.testing.assert_allclose(left, -env.moved.numpy(), rtol=1e-9, atol=1e-13)


def test_option_one_takes_the_gradient_with_weight_decay():
    federation = Federation(
        "scaffold", {"option": "I"}, A, B, STEPS, SAMPLES, weight_decay=0.05, w=np.ones(3)
    )  # fmt: skip
    federation.step()
    expected = A * (1 - B) + 0.05
    np.testing.assert_allclose(controls(federation)[1], expected, rtol=1e-12)


def test_another_reduction_keeps_the_control_variates():
    federation = Federation("scaffold", {}, A, B, STEPS, SAMPLES, server="fedgh")
    for _ in range(3):
        federation.step()
    c, own = controls(federation)
    np.testing.assert_allclose(c, own.mean(axis=0), rtol=1e-12)


def test_what_it_needs_and_what_is_refused():
    with pytest.raises(ContractError, match="scaffold also combines what clients upload"):
        fedsim.aggregate(np.ones((2, 3)), [1, 1], "scaffold")
    with pytest.raises(ConfigError, match="works with what its own clients send"):
        algorithms.compose("fedprox", {}, server="scaffold")
