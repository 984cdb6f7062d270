"""The FedLD authors' aggregation: per tensor, uniform weights, int(0.8 m) axes, l1 over all."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import fedsim
from tests.oracles import aggregation as oracle
from tests.oracles import samplers

from .cases import EXAMPLES, PRINTED, assert_step, draw, every_cohort, every_input

released = partial(fedsim.aggregate, algorithm="fedld_released", round=1)


def test_by_hand():
    # Two tensors: (3, 0 | 0, 4) and a single element (1 | 5). m = 2: int(1.6) = 1 axis.
    # First: axis (0, 1), lambda share 16/25; client 1 gives 0 (the authors' code: NaN), client 2
    # 4 * 0.64 = 2.56; uniform mean (0, 1.28). Second: the plain mean (1 + 5) / 2 = 3.
    g = np.array([[3.0, 0.0, 1.0], [0.0, 4.0, 5.0]])
    step = released(g, [10, 90], sizes=[2, 1])
    np.testing.assert_allclose(step, [0.0, 1.28, 3.0], rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A1", [0.7155417528, 0.3577708764]),
        ("A2", [-0.1537445267, 0.09501934308]),
        ("A3", [0.0, 1.28]),
        ("A4", [-0.07274850856, -0.1582152329, 0.1739839234]),
    ],
)
def test_published_examples(name, expected):
    g, n = EXAMPLES[name]
    np.testing.assert_allclose(released(g, n, sizes=[g.shape[1]]), expected, **PRINTED)


@every_input
@every_cohort
@pytest.mark.parametrize("round", [0, 1, 7])
def test_oracle(sampler, m, round):
    g, n, sizes = draw(sampler, m)
    expected = oracle.fedld_released(g, sizes, round=round)
    assert_step(released(g, n, sizes=sizes, round=round), expected, g)
    single = g.astype(np.float32)
    expected = oracle.fedld_released(single, sizes, round=round)
    assert_step(released(single, n, sizes=sizes, round=round), expected, single, 1e-5)


def test_the_first_round_is_the_plain_mean():
    g, n, sizes = draw(samplers.gaussian, 5)
    assert_step(released(g, n, sizes=sizes, round=0), g.mean(axis=0), g, 1e-14)


def test_a_single_client_loses_its_update():
    # int(0.8 * 1) = 0 axes: the documented exception to "one client is FedAvg".
    g, n, sizes = draw(samplers.gaussian, 1)
    step = released(g, n, sizes=sizes)
    assert step[40] == g[0, 40]
    assert np.all(np.delete(step, 40) == 0)


def test_laws():
    g, n, sizes = draw(samplers.gaussian, 10)
    step = released(g, n, sizes=sizes)
    np.testing.assert_array_equal(released(g, 1 + 0 * n, sizes=sizes), step)
    for scale in (-1.0, 1e-10, 1e10):
        assert_step(released(scale * g, n, sizes=sizes) / scale, step, g, 1e-11)
    order = np.random.default_rng(6).permutation(10)
    assert_step(released(g[order], n, sizes=sizes), step, g, 1e-11)


def test_a_tensor_whose_history_is_zero_everywhere_is_averaged():
    # One zero among others changes nothing: the values of the history are not used otherwise.
    g, n, sizes = draw(samplers.gaussian, 5)
    step, mean = released(g, n, sizes=sizes), g.mean(axis=0)
    history = np.ones(g.shape[1])
    history[0] = 0.0
    np.testing.assert_array_equal(released(g, n, sizes=sizes, history=history), step)
    first = slice(0, sizes[0])
    history[first] = 0.0
    averaged = released(g, n, sizes=sizes, history=history)
    np.testing.assert_allclose(averaged[first], mean[first], rtol=1e-12)
    np.testing.assert_array_equal(averaged[first.stop :], step[first.stop :])
    assert np.abs(step[first] - mean[first]).max() > 0.01
