"""Banded Toeplitz matrices and their noise: by hand, against dense matrices, and their laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve_triangular, toeplitz
from scipy.optimize import approx_fprime, minimize

from fedsim.core.rng import generator
from fedsim.core.types import RoundContext
from fedsim.privacy import banded
from fedsim.privacy.banded import BandedNoise, _objective, coefficients, error

SENT = (slice(0, 5), slice(7, 11))
"""Of 12 coordinates."""
INSIDE = [*range(5), *range(7, 11)]


def dense(c, rounds):
    """C (T, T)."""
    column = np.zeros(rounds)
    column[: len(c)] = c[:rounds]
    return toeplitz(column, np.zeros(rounds))


def dense_error(matrix):
    rounds = len(matrix)
    prefix = np.tril(np.ones((rounds, rounds)))
    return np.sum((prefix @ np.linalg.inv(matrix)) ** 2) / rounds


def test_two_rounds_by_hand():
    # c = (1, x): A C^-1 = ((1, 0), (1 - x, 1)), error (1 + x^2) (2 + (1 - x)^2) / 2,
    # whose derivative is 2 x^3 - 3 x^2 + 4 x - 1 up to a factor.
    (x,) = [r.real for r in np.roots([2, -3, 4, -1]) if abs(r.imag) < 1e-9]
    c = coefficients(2, 2)
    assert c[1] / c[0] == pytest.approx(x, abs=1e-7)
    assert error(c, 2) == pytest.approx((1 + x**2) * (2 + (1 - x) ** 2) / 2, rel=1e-12)
    assert error([1.0], 2) == 1.5


@pytest.mark.parametrize(("bands", "rounds"), [(1, 5), (2, 3), (3, 3), (4, 20), (7, 100)])
def test_error_is_that_of_dense_matrices(bands, rounds):
    c = coefficients(bands, rounds)
    assert error(c, rounds) == pytest.approx(dense_error(dense(c, rounds)), rel=1e-9)


def test_gradient_is_that_of_differences():
    tail = np.array([0.5, 0.3, -0.1])
    numbers = approx_fprime(tail, lambda x: _objective(x, 9)[0], 1e-7)
    np.testing.assert_allclose(_objective(tail, 9)[1], numbers, rtol=1e-5)


def test_no_general_banded_matrix_is_much_better():
    rounds, bands = 6, 3

    def general(entries):
        matrix = np.zeros((rounds, rounds))
        matrix[within] = entries
        return dense_error(matrix / np.linalg.norm(matrix, axis=0))

    start = dense(coefficients(bands, rounds), rounds)
    within = (np.tril(np.ones_like(start)) * np.triu(np.ones_like(start), 1 - bands)) > 0
    best = minimize(general, start[within], method="BFGS").fun
    assert best <= error(coefficients(bands, rounds), rounds) < 1.1 * best


@pytest.mark.parametrize(("bands", "rounds"), [(1, 1), (1, 9), (2, 9), (5, 50), (20, 50)])
def test_norm_is_one_and_bands_are_as_asked(bands, rounds):
    c = coefficients(bands, rounds)
    assert len(c) == bands
    assert np.linalg.norm(c) == pytest.approx(1, rel=1e-12)


def test_one_band_is_independent_noise():
    assert coefficients(1, 40).tolist() == [1.0]
    assert error([1.0], 40) == 20.5


@pytest.mark.parametrize("bands", [2, 3])
def test_participations_b_rounds_apart_change_the_release_by_sqrt_k(bands):
    rounds = 9
    matrix = dense(coefficients(bands, rounds), rounds)
    for first in range(bands):
        takes_part = np.zeros(rounds)
        takes_part[first::bands] = 1
        changed = np.linalg.norm(matrix @ takes_part)
        assert changed <= np.sqrt(takes_part.sum()) * (1 + 1e-12)
        signs = takes_part * np.sign(np.cos(np.arange(rounds)))
        assert np.linalg.norm(matrix @ signs) == pytest.approx(changed, rel=1e-12)


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
