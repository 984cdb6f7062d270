"""Banded matrix factorisation: noise that is correlated over rounds (DP-FTRL).

    A (X + C^-1 Z),   A (T, T) prefix sums, X (T, P) the rounds' sums, Z (T, P) N(0, z^2)

C is lower triangular with b bands and columns of norm at most 1. A client that takes part at least
b rounds apart, k times at most, changes C X by at most sqrt(k), since the columns of its rounds
have no row in common: what is released is as private as k Gaussian mechanisms with noise multiplier
z. What of the noise has been added in one round is taken away in the next ones, so that the model,
a prefix sum, carries less of it: the expected squared error of all rounds' models is
``||A C^-1||_F^2``.

Source: Choquette-Choo et al., "(Amplified) banded matrix factorization", NeurIPS 2023,
arXiv:2306.08153, Eq. 6 (the objective) and Algorithm 9 (the noise, row by row). We restrict C to
Toeplitz matrices, ``C[t, t - j] = c_j``, which have b numbers to find for any T and a column norm
below 1 in the last rounds alone; McKenna, arXiv:2405.15913, measures how little that costs. The
noise is made row by row, by forward substitution of C Y = Z,

    y_t = (z_t - sum_j c_j y_(t - j)) / c_0,   j = 1, ..., b - 1,

for which only the last b - 1 rows of Y are needed: the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.signal import correlate, lfilter

from fedsim.core.rng import generator
from fedsim.core.types import F64, Array, RoundContext, Vectors

BLOCK = 1 << 20
"""Normal numbers drawn at a time (8 MiB)."""


def coefficients(bands: int, rounds: int) -> F64:
    """c (b,) of the smallest error over so many rounds, of norm 1, by L-BFGS from those of
    ``(1 - x)^(-1/2)``, the best matrix without bands."""
    bands = min(bands, rounds)
    j = np.arange(1, bands)
    start = np.cumprod((2 * j - 1) / (2 * j))  # binom(2j, j) / 4^j
    if bands > 1:
        start = minimize(
            _objective, start, args=(rounds,), jac=True, method="L-BFGS-B",
            options={"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-10},
        ).x  # fmt: skip
    c = np.concatenate([[1.0], start])
    return c / np.linalg.norm(c)


def error(c: Sequence[float] | F64, rounds: int) -> float:
    """``||A C^-1||_F^2 / T``: squared error per coordinate of a round's model, in units of z^2 C^2.

    That of independent noise, ``c = (1,)``, is ``(T + 1) / 2``.
    """
    sums = _prefix_sums(np.asarray(c, np.float64), rounds)
    return float(np.sum(np.arange(rounds, 0, -1) * sums**2)) / rounds


def _prefix_sums(c: F64, rounds: int) -> F64:
    """(T,) the first column of ``A C^-1``, which is a Toeplitz matrix like both."""
    impulse = np.zeros(rounds)
    impulse[0] = 1.0
    return np.cumsum(lfilter([1.0], c, impulse))


def _objective(tail: F64, rounds: int) -> tuple[float, F64]:
    """``||c||^2 ||A C^-1||_F^2`` of c = (1, tail), and its gradient (b - 1,).

    The derivative of 1 / c(x) by c_j is -x^j / c(x)^2: that of the prefix sums is the sums filtered
    once more, j rounds later.
    """
    c = np.concatenate([[1.0], tail])
    squared = float(c @ c)
    sums, left = _prefix_sums(c, rounds), np.arange(rounds, 0, -1)
    total = float(np.sum(left * sums**2))
    again = lfilter([1.0], c, sums)
    shifted = correlate(left * sums, again)[rounds - 1 :][: len(c)]  # sum_t (.)_t again_(t - j)
    return squared * total, (2 * c * total - 2 * squared * shifted)[1:]


@dataclass(frozen=True)
class BandedNoise:
    """Noise that is correlated over b rounds; with c = (1,) it is that of independent rounds."""

    sent: tuple[slice, ...]  # the coordinates that clients send, P' together; others get none
    coefficients: tuple[float, ...]  # c (b,) of norm 1

    def __call__(
        self, step: Array, scale: float, state: Vectors, ctx: RoundContext
    ) -> tuple[Array, Vectors]:
        """The step (D,) with the noise times ``scale``, and the state for the next round.

        ``step`` is written to. Keeps ``noise``, the last rows of Y (up to b - 1, P') with the
        newest first.
        """
        if scale == 0:
            return step, state
        c = self.coefficients
        total = sum(block.stop - block.start for block in self.sent)
        past = state.get("noise", np.empty((0, total)))
        rows = np.empty((min(len(past) + 1, len(c) - 1), total))
        rng, first = generator(ctx.seed, "dp", ctx.round), 0
        for block in self.sent:
            for start in range(block.start, block.stop, BLOCK):
                stop = min(start + BLOCK, block.stop)
                columns = slice(first, first + stop - start)
                fresh = rng.standard_normal(stop - start)
                for weight, row in zip(c[1:], past[:, columns], strict=False):
                    fresh -= weight * row
                fresh /= c[0]
                step[start:stop] = step[start:stop] + scale * fresh
                if len(rows):
                    rows[0, columns] = fresh
                    rows[1:, columns] = past[: len(rows) - 1, columns]
                first = columns.stop
        return step, {"noise": rows}
