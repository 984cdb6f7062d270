"""Noise row by row: against dense matrices, and its limit."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve_triangular, toeplitz

from fedsim.core.rng import generator
from fedsim.core.types import RoundContext
from fedsim.privacy.banded import coefficients
from fedsim.server import banded
from fedsim.server.banded import BandedNoise

SENT = (slice(0, 5), slice(7, 11))
"""Of 12 coordinates."""
INSIDE = [*range(5), *range(7, 11)]


def ctx(round):
    return RoundContext(round=round, num_rounds=12, num_clients=3, lr=0.1, seed=4)


def noises(noise, rounds, scale=1.0, state=None, first=0):
    """The noise (T, 12) of some rounds, and the state after them."""
    rows, state = [], {} if state is None else state
    for round in range(first, first + rounds):
        row, state = noise(np.zeros(12), scale, state, ctx(round))
        rows.append(row)
    return np.array(rows), state


def normals(rounds):
    return np.array([generator(4, "dp", round).standard_normal(9) for round in range(rounds)])


@pytest.mark.parametrize("bands", [1, 2, 4, 12])
@pytest.mark.parametrize("block", [3, 1 << 20])
def test_equals_the_dense_solution(bands, block, monkeypatch):
    monkeypatch.setattr(banded, "BLOCK", block)
    c = coefficients(bands, 12)
    found, state = noises(BandedNoise(SENT, tuple(c)), 12, scale=2.0)
    column = np.concatenate([c, np.zeros(12 - bands)])
    expected = solve_triangular(toeplitz(column, np.zeros(12)), normals(12), lower=True)
    np.testing.assert_allclose(found[:, INSIDE], 2.0 * expected, rtol=1e-9, atol=1e-12)
    assert not found[:, [5, 6, 11]].any()
    assert state["noise"].shape == (bands - 1, 9)


def test_one_band_adds_independent_noise_to_the_byte():
    step = np.linspace(-1, 1, 12).astype(np.float32)
    found, state = BandedNoise(SENT, (1.0,))(step.copy(), 0.3, {}, ctx(5))
    expected, fresh = step.copy(), generator(4, "dp", 5).standard_normal(9)
    expected[INSIDE] = step[INSIDE] + 0.3 * fresh
    assert found.tobytes() == expected.tobytes()
    assert state["noise"].shape == (0, 9)


def test_goes_on_from_its_state():
    noise = BandedNoise(SENT, tuple(coefficients(3, 12)))
    whole, end = noises(noise, 9)
    _, state = noises(noise, 4)
    rest, again = noises(noise, 5, state=state, first=4)
    assert rest.tobytes() == whole[4:].tobytes()
    assert again["noise"].tobytes() == end["noise"].tobytes()


def test_no_noise_leaves_the_step():
    step = np.ones(12)
    found, state = BandedNoise(SENT, (0.8, 0.6))(step, 0.0, {}, ctx(0))
    assert found is step
    assert (found == 1).all()
    assert state == {}
