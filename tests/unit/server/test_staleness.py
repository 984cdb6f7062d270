"""Weights of stale updates, and the step that they make."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsim import algorithms
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot
from fedsim.server import Average, Cohort, Server
from fedsim.server.base import RuleState
from fedsim.server.staleness import StalenessWeights
from fedsim.training.round import rebased

CTX = RoundContext(round=5, num_rounds=9, num_clients=4, lr=0.1, seed=0)


def layout(params=2, statistics=0):
    slots = [Slot(name="w", shape=(params,), start=0, stop=params)]
    if statistics:
        end = params + statistics
        slots.append(
            Slot(name="running_var", shape=(statistics,), start=params, stop=end, role="stat")
        )
    return Layout(tuple(slots))


def step(weights, deltas, staleness, samples, reduced=None, **sizes):
    updates = [
        ClientUpdate(client_id=i, num_samples=n, num_steps=1, delta=np.array(d), staleness=s)
        for i, (d, s, n) in enumerate(zip(deltas, staleness, samples, strict=True))
    ]
    server = replace(reduced or Server(Average()), receive=(weights,))
    return server.step(RuleState(), Cohort.of(updates, layout(**sizes)), CTX).step


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [  # staleness 0, 1, 3, 4, 5, 6
        (StalenessWeights(), [1, 2**-0.5, 1 / 2, 5**-0.5, 6**-0.5, 7**-0.5]),  # 1 / sqrt(1 + d)
        (StalenessWeights(exponent=1), [1, 1 / 2, 1 / 4, 1 / 5, 1 / 6, 1 / 7]),
        (StalenessWeights("hinge"), [1, 1, 1, 1, 1 / 11, 1 / 21]),
        (StalenessWeights("hinge", slope=0.5, threshold=1), [1, 1, 1 / 2, 0.4, 1 / 3, 2 / 7]),
        (StalenessWeights("constant"), [1] * 6),
    ],
)
def test_weights_by_hand(weights, wanted):
    found = weights.weights(np.array([0, 1, 3, 4, 5, 6], np.float64))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert found[0] == 1, "a fresh update counts whole: staleness is from 0"


def test_a_step_by_hand():
    """Samples 1 and 3, staleness 0 and 3: 1/4 * 1 * (2, 0) + 3/4 * 1/2 * (0, 1)."""
    deltas = [[2.0, 0.0], [0.0, 1.0]]
    assert step(StalenessWeights(), deltas, (0, 3), (1, 3)).tolist() == [0.5, 0.375]
    assert step(StalenessWeights(mixing=0.5), deltas, (0, 3), (1, 3)).tolist() == [0.25, 0.1875]
    assert step(StalenessWeights("constant"), deltas, (0, 3), (1, 3)).tolist() == [0.5, 0.75]


def test_it_is_not_normalised():
    """All updates three steps old: half of the step, where weights that sum to 1 would keep it."""
    fresh, stale = (step(StalenessWeights(), [[1.0, 2.0]] * 2, (d, d), (1, 1)) for d in (0, 3))
    assert (2 * stale).tolist() == fresh.tolist()


def test_running_statistics_keep_their_weights_but_in_mixed_models():
    deltas, sizes = [[2.0, 4.0], [0.0, 8.0]], {"params": 1, "statistics": 1}
    assert step(StalenessWeights(), deltas, (0, 3), (1, 1), **sizes).tolist() == [1.0, 6.0]
    mixing = StalenessWeights(mixing=0.5)
    assert step(mixing, deltas, (0, 3), (1, 1), **sizes).tolist() == [0.5, 2.0]


def test_statistics_of_stale_updates_stay_under_the_rule():
    """The median, although the client with 98 of 100 samples sends 1000 and another is stale."""
    deltas, sizes = [[2.0, 0.0], [4.0, 0.0], [6.0, 1000.0]], {"params": 1, "statistics": 1}
    median = algorithms.load("coordinate_median", {}).server
    found = step(StalenessWeights(), deltas, (0, 3, 0), (1, 1, 98), reduced=median, **sizes)
    assert found.tolist() == [2.0, 0.0]


def test_against_a_loop():
    rng = np.random.default_rng(0)
    m, d = 7, 5000
    deltas, staleness = rng.normal(size=(m, d)), rng.integers(0, 6, m)
    samples = rng.integers(1, 50, m)
    wanted = np.zeros(d)
    for i in range(m):
        s = 1.0 if staleness[i] <= 2 else 1 / (3 * (staleness[i] - 2) + 1)
        wanted += samples[i] / samples.sum() * 0.6 * s * deltas[i]
    weights = StalenessWeights("hinge", slope=3, threshold=2, mixing=0.6)
    found = step(weights, deltas, staleness, samples.tolist(), params=d)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-15)


def test_a_model_that_is_mixed_in_by_hand():
    """FedAsync: the model 1 + 1/2 that a client made of version 4, mixed into 3 with weight 1/2.

    (1 - 1/2) 3 + 1/2 (1 + 1/2) = 9/4; adding half of its update would give 13/4.
    """
    now, base = np.array([3.0, 3.0]), np.array([1.0, 1.0])
    update = ClientUpdate(
        client_id=0, num_samples=1, num_steps=1, delta=np.array([0.5, 0.5]), version=4
    )
    models = {4: (base, {}), 5: (now, {})}
    (mixed,) = rebased(layout(), [update], models, now, whole=True)
    weights = StalenessWeights("constant", mixing=0.5)
    assert (now + step(weights, [mixed.delta], [1], [1])).tolist() == [2.25, 2.25]
    (added,) = rebased(layout(), [update], models, now)
    assert added.delta.tolist() == [0.5, 0.5]
    assert update.delta.tolist() == [0.5, 0.5], "nothing is written to"
