"""SlowMo: the mean, then momentum in units of the clients' learning rate."""

from __future__ import annotations

import numpy as np

from tests.oracles import optimisers

from .serving import path

DELTAS = np.random.default_rng(7).normal(size=12)


def test_by_hand_with_a_falling_rate():
    # u = -0.3 / 0.1 = -3, x = 0.3; u = 0.5 * -3 + 0.2 / 0.05 = 2.5, x = 0.3 - 0.05 * 2.5.
    got = path("slowmo", [0.3, -0.2], rates=[0.1, 0.05], beta=0.5)
    np.testing.assert_allclose(got, [0.3, 0.175], rtol=1e-14)


def test_oracle():
    rates = np.linspace(0.3, 0.01, len(DELTAS))
    got = path("slowmo", DELTAS, rates=rates, alpha=0.6, beta=0.8)
    expected = optimisers.slow_momentum(DELTAS, rates, alpha=0.6, beta=0.8)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_at_a_constant_rate_it_is_fedavgm():
    got = path("slowmo", DELTAS, rates=[0.03] * 12, alpha=0.6, beta=0.8)
    np.testing.assert_allclose(got, path("fedavgm", DELTAS, eta=0.6, beta=0.8), rtol=1e-12)
    other = path("slowmo", DELTAS, rates=[0.03, 0.3] * 6, alpha=0.6, beta=0.8)
    assert not np.allclose(other, got)


def test_rounds_at_rate_zero_move_nothing_and_let_the_momentum_decay():
    # A warm-up begins at rate 0: the clients stay where they are.
    got = path("slowmo", [0.0, 0.3, 0.0, 0.3], rates=[0.0, 0.1, 0.0, 0.1], beta=0.5)
    np.testing.assert_allclose(got, [0.0, 0.3, 0.3, 0.3 + 0.3 + 0.25 * 0.3], rtol=1e-14)
