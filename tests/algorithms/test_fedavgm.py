"""FedAvgM: the mean, then momentum on the server."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from tests.oracles import aggregation, optimisers

from .cases import PRINTED, draw, every_cohort, every_input
from .serving import LAYOUT, answers, path

DELTAS = np.random.default_rng(5).normal(size=12)


def test_published_example():
    np.testing.assert_allclose(path("fedavgm", [0.3, -0.2]), [0.3, 0.37], **PRINTED)


def test_nesterov_by_hand():
    # v = 0.3, step 0.3 + 0.9 * 0.3; v = 0.27 - 0.2, step -0.2 + 0.9 * 0.07.
    np.testing.assert_allclose(
        path("fedavgm", [0.3, -0.2], nesterov=True), [0.57, 0.433], rtol=1e-14
    )


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("damping", [False, True])
def test_oracle(nesterov, damping):
    options = {"beta": 0.7, "eta": 0.4, "nesterov": nesterov}
    got = path("fedavgm", DELTAS, damping=damping, **options)
    expected = optimisers.momentum(DELTAS, damped=damping, **options)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


@every_input
@every_cohort
def test_the_first_round_and_no_momentum_are_fedavg_bit_for_bit(sampler, m):
    g, n, _ = draw(sampler, m)
    fedavg = fedsim.aggregate(g, n, "fedavg")
    np.testing.assert_array_equal(fedsim.aggregate(g, n, "fedavgm"), fedavg)
    for answer in answers("fedavgm", [g, g], samples=n.tolist(), beta=0.0):
        np.testing.assert_array_equal(answer.step, fedavg)


def test_constant_updates_reach_the_limit_of_the_geometric_series():
    steps = np.diff(path("fedavgm", [0.2] * 400, beta=0.9))
    assert steps[-1] == pytest.approx(0.2 / (1 - 0.9), rel=1e-12)


def test_statistics_follow_their_mean_alone_and_state_is_of_parameters():
    updates = np.random.default_rng(6).normal(size=(3, 2, 6))
    said = answers("fedavgm", updates, layout=LAYOUT, eta=0.5)
    for answer, g in zip(said, updates, strict=True):
        np.testing.assert_allclose(answer.step[4:], aggregation.mean(g, [1, 1])[4:], rtol=1e-12)
    (kept,) = said[-1].state.optimizers
    assert {k: v.shape for k, v in kept.items()} == {"m": (4,)}
