"""Steps of some of a round's clients: those of the rule on fewer updates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsim import algorithms
from fedsim.core.errors import ConfigError
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot
from fedsim.server.base import RuleState
from fedsim.server.coalitions import Coalitions
from fedsim.server.cohort import Cohort
from fedsim.server.columns import MixedColumns
from tests.algorithms.serving import cohort


def slots(*sizes):
    start, made = 0, []
    for name, shape, options in sizes:
        stop = start + int(np.prod(shape))
        made.append(Slot(name=name, shape=shape, start=start, stop=stop, **options))
        start = stop
    return Layout(tuple(made))


NORM = {"batchnorm": True}
LAYOUT = slots(
    ("l.weight", (3, 2), {}),
    ("n.weight", (3,), NORM),
    ("n.bias", (3,), NORM),
    ("h.weight", (2, 3), {"head": True}),
    ("h.bias", (2,), {"head": True}),
    ("n.running_mean", (3,), {"role": "stat", **NORM}),
)
"""A chain of two layers with BatchNorm, as every method can have it."""
M = 7
SAMPLES = (3, 1, 2, 5, 4, 2, 6)


def context(round=0):
    return RoundContext(round=round, num_rounds=3, num_clients=10, lr=0.1, seed=4)


def updates_of(seed=0, m=M):
    """(m, D) float64 updates with a common direction, so that some agree and some do not."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(LAYOUT.size) + 2 * rng.standard_normal((m, LAYOUT.size))


def sent(index=range(M), seed=0):
    """The cohort of some clients, with what the methods of the catalogue need beside updates."""
    rng = np.random.default_rng([seed, 1])
    params, reference = rng.standard_normal((2, LAYOUT.size))
    steps = rng.integers(1, 9, M)
    rows = updates_of(seed)
    updates = [
        ClientUpdate(
            client_id=10 + i,
            num_samples=SAMPLES[i],
            num_steps=int(steps[i]),
            delta=rows[i],
            staleness=i % 3,
        )
        for i in index
    ]
    return replace(Cohort.of(updates, LAYOUT, params=params), reference=reference)


def server_of(name, **hyperparameters):
    return replace(algorithms.load(name, hyperparameters).server, exchange=None)


def after_a_round(server):
    """The state that the second round starts from."""
    return server.step(RuleState(), sent(seed=9), context()).state


def sizes_of(server):
    """The sizes of coalitions that a rule can aggregate."""
    found = []
    for k in range(1, M + 1):
        try:
            server.check(k)
        except ConfigError:
            continue
        found.append(k)
    return found


def brute(server, state, coalition, ctx):
    return server.step(state, sent(coalition), ctx).step


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("first", [True, False], ids=["first round", "second round"])
@pytest.mark.parametrize("name", algorithms.names())
def test_every_method_on_fewer_updates(name, first):
    server = server_of(name)
    state, ctx = (RuleState(), context()) if first else (after_a_round(server), context(1))
    made = Coalitions(server, state, sent(), ctx)
    params = slice(0, LAYOUT.num_params)
    whole = brute(server, state, range(M), ctx)[params]
    for size in {M, M - 1, 1} & set(sizes_of(server)):
        coalition = tuple(range(size))
        expected = brute(server, state, coalition, ctx)
        close(made.step(coalition), expected)
        step = expected[params]
        close(made.moved(coalition)[0], np.linalg.norm(step - whole))
        close(made.along(coalition), step @ whole / np.linalg.norm(whole))


def test_two_clients_by_hand():
    # FedAvg of (3, 0) and (0, 4) with 1 and 3 samples: (0.75, 3). Without the second the step is
    # (3, 0): it moves by (2.25, -3), which is 3.75, and makes 2.25 / |(0.75, 3)| along the step
    made = Coalitions(
        server_of("fedavg"), RuleState(), cohort([[3.0, 0.0], [0.0, 4.0]], [1, 3]), context()
    )
    distance, cosine = made.moved((0,))
    assert distance == pytest.approx(3.75, abs=1e-12)
    assert made.along((0,)) == pytest.approx(2.25 / np.hypot(0.75, 3), abs=1e-12)
    assert cosine == pytest.approx(0.75 / np.hypot(0.75, 3), abs=1e-12)
    distance, cosine = made.moved(())
    assert distance == pytest.approx(np.hypot(0.75, 3), abs=1e-12)
    assert made.along(()) == 0
    assert np.isnan(cosine)
    assert not made.step(()).any()


def test_updates_that_an_attack_has_mixed():
    # client 0 sends the mean of clients 1 and 2 in place of its own update
    mix = np.eye(M)
    mix[0] = [0, 0.5, 0.5, 0, 0, 0, 0]
    honest = sent()
    attacked = replace(
        honest, columns=MixedColumns(honest.columns, mix, LAYOUT.num_params), _grams={}
    )
    rows = updates_of()
    rows[0, : LAYOUT.num_params] = (rows[1] + rows[2])[: LAYOUT.num_params] / 2
    for name in ("fedgh", "trimmed_mean"):
        server = server_of(name)
        made = Coalitions(server, RuleState(), attacked, context())
        kept = (0, 2, 3, 4, 6)
        some = cohort(rows[list(kept)], [SAMPLES[i] for i in kept], LAYOUT)
        close(made.step(kept), server.step(RuleState(), some, context()).step)
