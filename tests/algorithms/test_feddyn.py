"""FedDyn: linear and quadratic terms of each client, and the server's h."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from fedsim import algorithms
from fedsim.core.errors import ConfigError, ContractError
from tests.oracles import rounds as oracle

from .cases import PRINTED
from .federation import Federation

RNG = np.random.default_rng(8)
A, B = RNG.uniform(0.5, 2.0, (4, 3)), RNG.normal(size=(4, 3))
MANY, SAMPLES = (70, 70, 70, 70), (30, 10, 20, 5)
COHORTS = [[0, 1, 2, 3], [0, 2], [1], [3, 1], [0, 1, 2, 3]]


def duals(federation):
    zero = np.zeros(federation.a.shape[1])
    own = [federation.clients.get(i, {}).get("lambda", zero) for i in range(len(federation.steps))]
    return federation.state.optimizers[0]["h"], np.array(own)


def test_published_example():
    federation = Federation("feddyn", {"alpha": 0.5}, steps=(25, 25), lr=0.5)
    rows = []
    for _ in range(3):
        w = federation.run(1)
        h, own = duals(federation)
        rows.append([w, h[0], *own[:, 0]])
    expected = [[2.4, -0.6, 0.0, -1.2], [2.0, -0.2, 0.8, -1.2], [1.92, -0.08, 1.2, -1.36]]
    np.testing.assert_allclose(rows, expected, rtol=1.5e-9, atol=1e-11)


@pytest.mark.parametrize("client_alpha", ["equal", "by_samples"])
def test_oracle(client_alpha):
    options = {"alpha": 0.4, "client_alpha": client_alpha}
    federation = Federation("feddyn", options, A, B, MANY, SAMPLES, lr=0.4)
    samples = SAMPLES if client_alpha == "by_samples" else None
    path, kept = oracle.feddyn(A, B, COHORTS, 0.4, samples)
    for cohort, w, (h, own) in zip(COHORTS, path, kept, strict=True):
        np.testing.assert_allclose(federation.step(cohort), w, rtol=1e-9, atol=1e-11)
        found, found_own = duals(federation)
        np.testing.assert_allclose(found, h, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(found_own, own, rtol=1e-9, atol=1e-11)


def test_laws_of_exact_local_solves():
    # lambda_i = grad F_i(theta_i), h = mean of all lambda_i, first round: 2 mean(theta) - w
    federation = Federation("feddyn", {"alpha": 0.4}, A, B, MANY, SAMPLES, w=np.ones(3), lr=0.4)
    first = federation.step()
    h, own = duals(federation)
    theta = (A * B + 0.4 * np.ones(3)) / (A + 0.4)
    np.testing.assert_allclose(own, A * (theta - B), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(h, own.mean(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(first, 2 * theta.mean(axis=0) - 1, rtol=1e-9)
    for cohort in COHORTS:
        federation.step(cohort)
        h, own = duals(federation)
        np.testing.assert_allclose(h, own.mean(axis=0), rtol=1e-11, atol=1e-13)


def test_one_gradient_step_by_hand():
    # F' = 2 (1 - 3) = -4, alpha (1 - 1) = 0: theta = 1 + 0.1 * 4 = 1.4, lambda = -0.5 * 0.4
    federation = Federation("feddyn", {"alpha": 0.5}, (2.0,), (3.0,), (1,), (1,), w=[1.0])
    federation.step()
    h, own = duals(federation)
    np.testing.assert_allclose([own[0, 0], h[0]], [-0.2, -0.2], **PRINTED)
    # w = 1.4 + 0.2 / 0.5
    np.testing.assert_allclose(federation.w, [1.8], **PRINTED)


def test_what_cannot_be_combined():
    with pytest.raises(ConfigError, match="cannot serve feddyn, which subtracts h / alpha"):
        algorithms.compose("feddyn", {}, server="fedgh")
    with pytest.raises(ConfigError, match="'feddyn' cannot serve fedavg: it subtracts h / alpha"):
        algorithms.compose("fedavg", {}, server="feddyn")
    with pytest.raises(ContractError, match="feddyn subtracts h / alpha"):
        fedsim.aggregate(np.ones((2, 3)), [1, 1], "feddyn")
