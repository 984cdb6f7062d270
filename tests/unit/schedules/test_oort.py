"""Oort: its utility by hand and against a loop, who is chosen, the pacer, and runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fedsim
from fedsim.algorithms.base import one_each
from fedsim.core.types import ClientUpdate, RoundContext
from fedsim.schedules.base import Roster
from fedsim.schedules.oort import Oort
from fedsim.systems.clock import Clock, LocalSchedule, Series
from fedsim.testing.rounds import config, results
from tests.schedules import check_schedule
from tests.stopping import Stop, Stopper

K = 6


def context(round=0):
    return RoundContext(round=round, num_rounds=99, num_clients=K, lr=0.1, seed=4)


def roster(m=2, speeds=None, held_out=()):
    """Clients with 10, 20, ... samples, one epoch; without speeds nothing takes time."""
    trace = {}
    if speeds:
        own = {client: Series((0,), (speed,)) for client, speed in enumerate(speeds)}
        trace = {"samples_per_second": own}
    return Roster(
        sizes=[10 * (client + 1) for client in range(K)],
        cohort_size=m,
        held_out=held_out,
        clock=Clock(trace=trace, schedule=LocalSchedule(epochs=1, batch_size=10)),
        assign=one_each,
        lr=lambda round: 0.1,
    )


def state(utility, last, seconds=(0.0,) * K, quantile=0.3, history=()):
    return {
        "utility": np.array(utility, np.float64),
        "last": np.array(last),
        "count": np.array(last),
        "seconds": np.array(seconds, np.float64),
        "quantile": np.array([quantile]),
        "history": np.array(history, np.float64),
    }


def answers(squares):
    def run(tasks):
        assert {task.work for task in tasks} == {"loss"}
        return [
            ClientUpdate(
                client_id=t.client,
                num_samples=10 * (t.client + 1),
                num_steps=0,
                extras={"squared_loss": np.array([squares[t.client]])},
            )
            for t in tasks
        ]

    return run


def clients(plan):
    return [task.client for task in plan.tasks]


def test_the_utility_by_hand():
    """20 samples, mean squared loss 2.25: 20 * 1.5; 4 bytes of each client are counted."""
    plan = Oort().plan(roster(m=K), {}, context(2), answers([4.0, 2.25, 0, 1, 1, 1]))
    assert plan.state["utility"].tolist() == [20, 30, 0, 40, 50, 60]
    assert plan.state["last"].tolist() == [3] * K
    assert plan.state["history"].tolist() == [200 / 6]
    assert (plan.uplink_bytes, plan.downlink_bytes, plan.pass_seconds) == (4 * K, 0, 0)


def test_the_system_term_by_hand():
    """T is 2 s, the 30 % quantile of 1 2 4 8 8 8; twice as slow a client has a quarter of it.

    In round 1 the temporal term is 0, and equal utilities are 0.001 u / max(0.001 u, 1e-4) = 1.
    """
    own, known = state([5] * K, [1] * K, [1, 2, 4, 8, 8, 8]), np.arange(K)
    score = Oort().scores(own, known, known, context())
    np.testing.assert_allclose(score, [1, 1, 1 / 4, 1 / 16, 1 / 16, 1 / 16], rtol=1e-9)


def oracle(utility, last, seconds, participants, r, clip, quantile, alpha):
    """Util of each client, by the equations, a client at a time."""
    known = [i for i in participants if last[i] > 0]
    ordered = sorted(utility[i] for i in known)
    top = ordered[min(int(clip * len(known)), len(known) - 1)]
    low = ordered[0] * 0.999
    times = sorted(seconds[i] for i in participants)
    place = int(quantile * len(participants))
    preferred = times[place] if place < len(participants) else math.inf
    found = []
    for i in known:
        util = (min(utility[i], top) - low) / max(ordered[-1] - low, 1e-4)
        util += math.sqrt(0.1 * math.log(r) / last[i])
        if seconds[i] > preferred:
            util *= (preferred / seconds[i]) ** alpha
        found.append(util)
    return known, found


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.8, 1.1])
def test_the_scores_against_a_loop(quantile):
    rng = np.random.default_rng(0)
    for i in range(20):
        own = state(rng.lognormal(3, 2, K), rng.integers(0, 5, K), rng.lognormal(0, 1, K), quantile)
        if not (own["last"] > 0).any():
            continue
        known, wanted = oracle(
            own["utility"], own["last"], own["seconds"], range(K), 7 + i, 0.9, quantile, 2.0
        )
        found = Oort().scores(own, np.array(known), np.arange(K), context(6 + i))
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_the_best_are_exploited_and_the_cut_off_admits_those_that_are_near():
    """Nothing to explore: of scores 1 .. 0 the best two; those within 95 % are drawn from, too."""
    best = Oort(exploration=0.0, least_exploration=0.0, clip=1.0)
    own = state([100, 1, 50, 2, 3, 4], [1] * K)
    assert best.choose(roster(), own, context()) == [0, 2]
    close = state([100, 1, 100, 2, 99, 4], [1] * K)
    drawn = {tuple(best.choose(roster(), close, context(t))) for t in range(40)}
    assert drawn == {(0, 2), (0, 4), (2, 4)}


@pytest.mark.slow
def test_new_clients_are_explored_by_their_speed():
    """Of one place: a client that takes ten times as long has a tenth of the others' chance."""
    speeds = [10, 20, 30, 40, 50, 6]  # clients 0 to 4 need a second, client 5 ten
    drawn = 2000
    own = Oort()._start(roster(m=1, speeds=speeds))
    assert own["seconds"].tolist() == [1, 1, 1, 1, 1, 10]
    found = [Oort().choose(roster(m=1, speeds=speeds), own, context(t))[0] for t in range(drawn)]
    share = 0.1 / 5.1
    assert abs(found.count(5) / drawn - share) < 4 * math.sqrt(share * (1 - share) / drawn)


def test_everybody_is_explored_before_anybody_is_only_exploited():
    own, seen = {}, set()
    for t in range(6):
        plan = Oort().plan(roster(), own, context(t), answers([1.0] * K))
        own, seen = plan.state, seen | set(clients(plan))
        assert len(clients(plan)) == 2
    assert seen == set(range(K))


def test_an_exhausted_client_takes_part_only_where_others_are_too_few():
    own = state([100, 1, 1, 1, 1, 1], [2] * K)
    own["count"] = np.array([9, 1, 1, 1, 1, 1])
    tired = Oort(exploration=0.0, least_exploration=0.0, most=9)
    assert all(0 not in tired.choose(roster(), own, context(t)) for t in range(20))
    assert tired.choose(roster(m=K), own, context()) == list(range(K))


def test_the_pacer_raises_the_quantile_where_utilities_fall():
    def after(history, round):
        own = state([1] * K, [1] * K, history=history)
        plan = Oort(window=2).plan(roster(), own, context(round), answers([1.0] * K))
        return plan.state["quantile"].tolist()

    assert after([5, 5, 4, 4], 4) == [0.35]
    assert after([4, 4, 5, 5], 4) == [0.3]
    assert after([5, 5, 4, 4], 5) == [0.3], "every two rounds"
    assert after([5, 5], 2) == [0.3], "from the fourth"


def test_it_keeps_the_contract_of_schedules():
    check_schedule(Oort)


def given(**engine):
    return config(
        "fedavg",
        "mlp",
        train={"selection": "oort", "rounds": 5},
        clock={"samples_per_second": "lognormal(100, 1)", "availability": 0.8},
        engine=engine,
    )


@pytest.mark.slow
@pytest.mark.integration
def test_a_run_resumes_to_the_same_bytes(tmp_path):
    whole = fedsim.run(given(), tmp_path / "whole", progress=False)
    with pytest.raises(Stop):
        fedsim.run(given(checkpoint_every=1), tmp_path / "cut", [Stopper(3)], progress=False)
    assert results(fedsim.resume(tmp_path / "cut", progress=False)) == results(whole)
    assert whole.summary["train.selection"] == "oort"


@pytest.mark.slow
@pytest.mark.integration
def test_all_clients_at_rate_1_are_the_uniform_run_but_for_bytes(tmp_path):
    stores = [
        fedsim.run(
            config("fedavg", "mlp", train={"selection": name, "sample_rate": 1.0}),
            tmp_path / name,
            progress=False,
        )
        for name in ("uniform", "oort")
    ]
    one, two = map(results, stores)
    assert one["model.safetensors"] == two["model.safetensors"]
    uniform, oort = (store.read("rounds") for store in stores)
    assert (oort.uplink_bytes - uniform.uplink_bytes == 8 * 4).all()
