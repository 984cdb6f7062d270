"""The published numeric examples and the comparisons that the method tests share."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles import samplers

COHORTS = (1, 2, 5, 10, 50)
PRINTED = {"rtol": 1.5e-9, "atol": 1e-12}
"""1e-9 and the rounding to ten printed digits."""
EXAMPLES = {
    "A1": (np.array([[1.0, 0.0], [0.6, 0.8]]), np.array([1, 1])),
    "A2": (np.array([[1.0, 0.0], [-1.0, 1.0]]), np.array([30, 10])),
    "A3": (np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([1, 1])),
    "A4": (
        np.array([[1.0, 0.0, 0.0], [-0.5, 1.0, 0.0], [-0.2, -0.6, 1.0]]),
        np.array([10, 20, 30]),
    ),
}

every_input = pytest.mark.parametrize("sampler", samplers.WELL_POSED, ids=lambda s: s.__name__)
every_cohort = pytest.mark.parametrize("m", COHORTS)


def tensor_sizes(d):
    """Four tensors that make up d >= 60: one of a single element, one shorter than most cohorts."""
    return [40, 1, 3, d - 44]


def draw(sampler, m, seed=0):
    """Updates (m, d), sample counts (m,) and tensor sizes of a case; d > m."""
    rng = np.random.default_rng([seed, m])
    d = 60 + m
    return sampler(rng, m, d), samplers.sample_counts(rng, m), tensor_sizes(d)


def assert_step(got, expected, updates, tolerance=1e-9):
    """Compares two steps relative to the mean length of the updates."""
    scale = np.linalg.norm(np.asarray(updates, dtype=np.float64), axis=1).mean()
    assert got.shape == expected.shape
    assert np.all(np.isfinite(got))
    assert np.linalg.norm(got - expected) <= tolerance * scale


def revised(aggregate, updates):
    """What a rule that is linear in p turns every client's update into, (m, d).

    With n = 1 + m at client i and 1 elsewhere, p = (1 + m unit_i) / (2 m); m such steps are a
    linear system whose solution is the vector each client contributes.
    """
    m = len(updates)
    n = np.ones((m, m), dtype=np.int64) + m * np.eye(m, dtype=np.int64)
    steps = np.array([aggregate(updates, row) for row in n])
    return np.linalg.solve(n / n.sum(axis=1, keepdims=True), steps)
