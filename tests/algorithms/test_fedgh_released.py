"""The pairwise hierarchy that the FedLD authors' code calls FedGH, one per tensor."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import fedsim
from tests.oracles import aggregation as oracle
from tests.oracles import samplers

from .cases import EXAMPLES, PRINTED, assert_step, draw, every_cohort, every_input

released = partial(fedsim.aggregate, algorithm="fedgh_released", round=1)


def test_by_hand():
    # Two clients are the final pair: a = (1, 0), b = (-1, 1), <a, b> = -1, 1e-7 neglected.
    # a' = a + 1/2 b = (1/2, 1/2); b' = b + 1/(1/2) a' = (-1, 1) + 2 (1/2, 1/2) = (0, 2);
    # sum / 2 = (1/4, 5/4).
    g, n = EXAMPLES["A2"]
    np.testing.assert_allclose(released(g, n, history=np.ones(2)), [0.25, 1.25], atol=3e-7)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A1", [0.8, 0.4]),
        ("A2", [0.2499999375, 1.249999863]),
        ("A3", [1.5, 2.0]),
        ("A4", [0.1219937207, 0.4776634732, 0.6560462956]),
    ],
)
def test_published_examples(name, expected):
    g, n = EXAMPLES[name]
    step = released(g, n, history=np.ones(g.shape[1]), sizes=[g.shape[1]])
    np.testing.assert_allclose(step, expected, **PRINTED)


@every_input
@every_cohort
def test_oracle(sampler, m):
    g, n, sizes = draw(sampler, m)
    history = np.random.default_rng(7).normal(size=g.shape[1])
    expected = oracle.fedgh_released(g, history, num_users=m, sizes=sizes)
    assert_step(released(g, n, history=history, sizes=sizes), expected, g)
    expected = oracle.fedgh_released(g, history, num_users=m)
    assert_step(released(g, n, history=history), expected, g)


@every_input
@every_cohort
def test_float32_updates(sampler, m):
    g, n, sizes = draw(sampler, m)
    g = g.astype(np.float32)
    history = np.random.default_rng(7).normal(size=g.shape[1]).astype(np.float32)
    expected = oracle.fedgh_released(g, history.astype(np.float64), num_users=m, sizes=sizes)
    assert_step(released(g, n, history=history, sizes=sizes), expected, g, 1e-5)


def test_without_history_it_is_the_plain_mean():
    g, n, sizes = draw(samplers.conflicting, 5)
    assert_step(released(g, n, sizes=sizes, round=0), g.mean(axis=0), g, 1e-14)


def test_without_conflicts_it_is_the_plain_mean():
    g, n, sizes = draw(samplers.agreeing, 10)
    step = released(g, n, history=np.ones(g.shape[1]), sizes=sizes)
    assert_step(step, g.mean(axis=0), g, 1e-13)
