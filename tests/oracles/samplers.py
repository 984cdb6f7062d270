"""Matrices of updates (m, d) with a property that is proved in the docstring.

Each takes a generator, m and d >= m, and returns float64.
"""

from __future__ import annotations

import numpy as np


def gaussian(rng, m, d):
    """Independent standard normals: full rank, distinct singular values (with probability 1)."""
    return rng.normal(size=(m, d))


def common_noise(rng, m, d):
    """A shared direction plus noise of half its size.

    <g_i, g_j> = |c|^2 + O(sqrt(d)), about d: few or no conflicts and one dominant axis.
    """
    return rng.normal(size=d) + 0.5 * rng.normal(size=(m, d))


def _orthonormal(rng, m, d):
    q, _ = np.linalg.qr(rng.normal(size=(d, m)))
    return q.T


def conflicting(rng, m, d):
    """Every pair has a negative inner product.

    q_i orthonormal, t their mean, g_i = r_i (q_i - t/2), r_i > 0. <q_i, t> = |t|^2 = 1/m, hence for
    i != j <g_i, g_j> = r_i r_j (0 - 1/m + 1/(4m)) = -3 r_i r_j / (4m) < 0.
    """
    q = _orthonormal(rng, m, d)
    return np.linspace(1.0, 2.0, m)[:, None] * rng.permutation(q - q.mean(axis=0) / 2)


def agreeing(rng, m, d):
    """No pair has a negative inner product: all entries are positive."""
    return rng.uniform(0.1, 1.0, size=(m, d))


def orthogonal(rng, m, d):
    """Exactly orthogonal, lengths distinct: one nonzero entry each, in m different columns.

    K is diagonal with entries 1..m squared over m, so e_l are unit vectors and cos_il is 0 or 1.
    """
    g = np.zeros((m, d))
    g[np.arange(m), rng.permutation(d)[:m]] = np.arange(1, m + 1) / np.sqrt(m)
    return g


def duplicated(rng, m, d):
    """Pairs of equal updates: rank ceil(m/2), the other eigenvalues are exactly 0."""
    rows = rng.normal(size=((m + 1) // 2, d))
    return np.concatenate([rows, rows])[:m]


def with_zero(rng, m, d):
    """Gaussian, but client 0 did not move (for m = 1 nobody did)."""
    g = rng.normal(size=(m, d))
    g[0] = 0.0
    return g


def all_zero(rng, m, d):
    """Nobody moved."""
    return np.zeros((m, d))


def identical(rng, m, d):
    """Everybody moved alike: rank 1."""
    return np.tile(rng.normal(size=d), (m, 1))


def nearly_parallel(rng, m, d, noise=1e-4):
    """One direction, relative deviations of ``noise``: mu_2 / mu_1 is about noise^2 / m."""
    return rng.normal(size=d) + noise * rng.normal(size=(m, d))


def uneven(rng, m, d):
    """Gaussian with lengths spread over two decades."""
    return rng.normal(size=(m, d)) * np.logspace(-1.0, 1.0, m)[:, None]


WELL_POSED = (
    gaussian,
    common_noise,
    conflicting,
    agreeing,
    orthogonal,
    duplicated,
    with_zero,
    all_zero,
    identical,
    nearly_parallel,
    uneven,
)
"""Inputs on which every rule with l1 or l2 weights is well defined."""


def sample_counts(rng, m):
    """(m,) training samples per client, 10 to 200."""
    return rng.integers(10, 200, size=m)
