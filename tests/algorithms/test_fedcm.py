"""FedCM: steps along alpha grad + (1 - alpha) Delta."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles import rounds as oracle

from .cases import PRINTED
from .federation import Federation
from .training import train, worker

RNG = np.random.default_rng(7)
A, B = RNG.uniform(0.5, 2.0, (4, 3)), RNG.normal(size=(4, 3))
STEPS, SAMPLES = (1, 5, 3, 2), (30, 10, 20, 1)
COHORTS = [[0, 1, 2, 3], [0, 2], [1], [3, 1], [0, 1, 2, 3]]


def test_published_example():
    federation = Federation("fedcm")
    rows = []
    for _ in range(3):
        w = federation.run(1)
        rows.append([w, federation.downlink["direction"][0]])
    expected = [[0.0594, -0.297], [0.1700919, -0.5534595], [0.3233072057, -0.7660765283]]
    np.testing.assert_allclose(rows, expected, **PRINTED)


@pytest.mark.parametrize(("alpha", "eta_g"), [(0.1, 1.0), (0.5, 0.8), (1.0, 1.0)])
def test_oracle(alpha, eta_g):
    federation = Federation("fedcm", {"alpha": alpha, "eta_g": eta_g}, A, B, STEPS, SAMPLES)
    path, directions = oracle.fedcm(A, B, COHORTS, STEPS, 0.1, alpha, eta_g)
    for cohort, w, direction in zip(COHORTS, path, directions, strict=True):
        np.testing.assert_allclose(federation.step(cohort), w, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(
            federation.downlink["direction"], direction, rtol=1e-9, atol=1e-12
        )


def test_momentum_counts_in_the_way():
    # One client, F' = g constant: Delta is g whatever the momentum.
    federation = Federation(
        "fedcm", {"alpha": 1.0}, a=(1e-12,), b=(-1e12,), steps=(4,), samples=(1,), momentum=0.9
    )  # fmt: skip
    federation.step()
    np.testing.assert_allclose(federation.downlink["direction"], [1.0], rtol=1e-6)


def test_alpha_one_is_fedavg_with_uniform_weights_bit_for_bit():
    fedcm = train(worker("fedcm", alpha=1.0), downlink={"direction": np.ones(24131, np.float32)})
    fedavg = train(worker("fedavg"))
    np.testing.assert_array_equal(fedcm[1], fedavg[1])
    one = Federation("fedcm", {"alpha": 1.0}, A, B, STEPS, SAMPLES)
    other = Federation("fedavg", {"weights": "uniform"}, A, B, STEPS, SAMPLES)
    for cohort in COHORTS:
        np.testing.assert_array_equal(one.step(cohort), other.step(cohort))


def test_the_first_round_is_fedavg_with_a_smaller_rate():
    first = Federation("fedcm", {"alpha": 0.25}, A, B, STEPS, SAMPLES, lr=0.1).step()
    smaller = Federation("fedavg", {"weights": "uniform"}, A, B, STEPS, SAMPLES, lr=0.025).step()
    np.testing.assert_allclose(first, smaller, rtol=1e-12)
