"""Clipping of updates by their norm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsim import algorithms
from fedsim.core.errors import ConfigError
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot
from fedsim.server import Average, ClipNorms, Received, Server
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from fedsim.server.columns import LocalColumns

CTX = RoundContext(round=0, num_rounds=5, num_clients=10, lr=0.1, seed=0)
LAYOUT = Layout(
    (
        Slot(name="a", shape=(2,), start=0, stop=2),
        Slot(name="b", shape=(1, 2), start=2, stop=4),
        Slot(name="mean", shape=(2,), start=4, stop=6, role="stat"),
    )
)
PARAMS, STATISTICS = slice(0, 4), slice(4, 6)


def cohort(rows, samples=None):
    samples = [1] * len(rows) if samples is None else samples
    sent = [
        ClientUpdate(client_id=i, num_samples=n, num_steps=1, delta=np.asarray(row))
        for i, (row, n) in enumerate(zip(rows, samples, strict=True))
    ]
    return Cohort.of(sent, LAYOUT)


def draw(m=7, dtype=np.float32, seed=0):
    """Updates whose norms go from 0.02 to 20 or so."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(m, 6)) * 10.0 ** rng.uniform(-2, 1, size=(m, 1))).astype(dtype)


def clipped_mean(rows, samples, norm):
    """(D,) the step by a loop over clients in float64; statistics are averaged unclipped."""
    rows, p = rows.astype(np.float64), np.asarray(samples, np.float64) / np.sum(samples)
    step = np.zeros(6)
    for share, row in zip(p, rows, strict=True):
        size = np.sqrt(sum(value**2 for value in row[PARAMS]))
        step[PARAMS] += share * row[PARAMS] * min(1.0, norm / size if size else 1.0)
        step[STATISTICS] += share * row[STATISTICS]
    return step


def clipped_step(cohort, norm):
    return Server(Average(), receive=(ClipNorms(norm),)).step(RuleState(), cohort, CTX)


def test_by_hand():
    # norms 5 and 1 of the parameters: factors 2 / 5 and 1; the statistics stay as they are
    c = cohort([[3.0, 4.0, 0.0, 0.0, 100.0, -8.0], [0.0, 0.0, 1.0, 0.0, 20.0, 0.0]], [1, 3])
    answer = clipped_step(c, 2.0)
    np.testing.assert_allclose(answer.step, [0.3, 0.4, 0.75, 0.0, 40.0, -2.0], rtol=1e-15)
    assert answer.metrics == {"clipped": 0.5}
    assert answer.state.flatten() == {}


def test_every_part_of_a_chain_tells_how_many_it_clipped():
    # norms 5, 1 and 0.1: the first is clipped to 2; from there 2 and 1 are farther than 0.5 from 0
    c = cohort([[3.0, 4, 0, 0, 0, 0], [0.0, 0, 1, 0, 0, 0], [0.1, 0, 0, 0, 0, 0]])
    last = algorithms.load("centered_clipping", {"tau": 0.5}).server.reduction
    for receive, shares in (
        ((ClipNorms(2.0),), (1 / 3, 2 / 3)),
        ((ClipNorms(2.0), ClipNorms(0.05)), (1 / 3, 1.0, 0.0)),
    ):
        answer = Server(last, receive=receive).step(RuleState(), c, CTX)
        names = ("clipped", "clipped2", "clipped3")
        assert answer.metrics == dict(zip(names, shares, strict=False))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("norm", [1e-3, 0.1, 1.0, 30.0])
def test_against_a_loop_in_float64(norm, dtype):
    for seed in range(5):
        rows, samples = draw(dtype=dtype, seed=seed), np.arange(1, 8)
        step = clipped_step(cohort(rows, samples), norm).step
        assert step.dtype == dtype
        expected, size = clipped_mean(rows, samples, norm), np.abs(rows).max(axis=0)
        # each of 7 summands is rounded once, and so is the sum
        error = 8 * np.finfo(dtype).eps * size
        assert (np.abs(step - expected) <= error).all()


def test_a_huge_norm_is_fedavg_bit_for_bit():
    for seed in range(5):
        c = cohort(draw(seed=seed), range(1, 8))
        plain = Server(Average()).step(RuleState(), c, CTX)
        assert clipped_step(c, 1e30).step.tobytes() == plain.step.tobytes()


def test_no_norm_is_above_the_bound_and_directions_stay():
    rows = draw(20, np.float64)
    received = ClipNorms(0.5)(cohort(rows), {}, CTX)
    norms = received.cohort.norms(PARAMS)
    assert norms.max() <= 0.5 * (1 + 1e-14)
    assert (np.linalg.norm(rows[:, PARAMS], axis=1) > 0.5).sum() == (norms > 0.499999).sum() > 3
    k = received.cohort.gram(PARAMS)
    cosine = k / np.outer(norms, norms)
    g = rows[:, PARAMS] / np.linalg.norm(rows[:, PARAMS], axis=1)[:, None]
    np.testing.assert_allclose(cosine, g @ g.T, atol=1e-14)


def test_updates_of_zeros_stay_zeros():
    answer = clipped_step(cohort(np.zeros((3, 6))), 1.0)
    np.testing.assert_array_equal(answer.step, np.zeros(6))
    assert answer.metrics == {"clipped": 0.0}


class Spread:
    """Updates that nobody may see as a whole, as those that stay on their nodes."""

    def __init__(self, rows):
        self.local = LocalColumns(rows)

    def __getattr__(self, name):
        assert name != "rows", "the updates were asked for"
        return getattr(self.local, name)


def test_updates_that_stay_on_their_nodes_are_clipped_there():
    c = cohort(draw(), range(1, 8))
    there = replace(c, columns=Spread(c.rows))
    assert clipped_step(there, 0.3).step.tobytes() == clipped_step(c, 0.3).step.tobytes()


class Doubling:
    """Doubles the updates and its step; counts its rounds."""

    name = "double"
    needs_own_clients = False

    def __call__(self, cohort, state, ctx):
        rounds = state.get("rounds", np.zeros(1)) + 1
        return Received(cohort=cohort.scaled(np.full(len(cohort.updates), 2.0)), scale=3.0,
                        state={"rounds": rounds}, metrics={"rounds": float(rounds[0])})  # fmt: skip


def test_transforms_follow_one_another_and_keep_their_states_by_name():
    rows = [[3.0, 4.0, 0.0, 0.0, 1.0, 1.0]]
    for receive, size in (
        ((ClipNorms(2.0), Doubling()), 12.0),
        ((Doubling(), ClipNorms(2.0)), 6.0),
    ):
        server, state = Server(Average(), receive=receive), RuleState()
        assert not server.needs_own_clients
        for round in (1, 2):
            answer = server.step(state, cohort(rows), CTX)
            state = RuleState.unflatten(answer.state.flatten())
            assert answer.metrics["rounds"] == round
            assert list(answer.state.flatten()) == ["receive.double.rounds"]
            np.testing.assert_allclose(np.linalg.norm(answer.step[PARAMS]), size, rtol=1e-15)


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan")])
def test_a_norm_that_is_not_above_zero_is_refused(norm):
    with pytest.raises(ConfigError, match=r"^clipping: norm .* given, must be above 0$"):
        ClipNorms(norm)
