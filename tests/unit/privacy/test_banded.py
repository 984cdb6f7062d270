"""Banded Toeplitz matrices: by hand, against dense matrices, and their laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import toeplitz
from scipy.optimize import approx_fprime, minimize

from fedsim.privacy.banded import _objective, coefficients, error


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


def test_more_bands_have_a_smaller_error():
    errors = [error(coefficients(bands, 60), 60) for bands in (1, 2, 3, 5, 10, 30, 60)]
    assert errors == sorted(errors, reverse=True)
    assert errors[4] < 0.25 * errors[0]


def test_bands_beyond_the_rounds_are_left_out():
    assert len(coefficients(9, 4)) == 4


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
