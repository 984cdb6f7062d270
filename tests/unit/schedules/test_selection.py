"""Selection of clients: by size, in turn, and by the losses of candidates with their costs."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fedsim
from fedsim.algorithms.base import one_each
from fedsim.core.errors import DataError
from fedsim.core.types import ClientUpdate, RoundContext
from fedsim.schedules.base import Roster
from fedsim.schedules.oort import Oort
from fedsim.schedules.selection import BySize, Fixed, PowerOfChoice, RoundRobin, fixed
from fedsim.systems.clock import Clock, LocalSchedule, Series
from fedsim.systems.distributions import constant
from fedsim.testing.rounds import config, results
from tests.stopping import Stop, Stopper


def context(round=0, clients=6):
    return RoundContext(round=round, num_rounds=99, num_clients=clients, lr=0.1, seed=4)


def roster(sizes=(10, 20, 30, 40, 50, 60), m=2, held_out=(), clock=None):
    return Roster(
        sizes=sizes,
        cohort_size=m,
        held_out=held_out,
        clock=clock or Clock(vector_bytes=1000),
        assign=one_each,
        lr=lambda round: 0.1,
    )


def answers(name, by_client):
    """A pass in which each client answers with a number."""

    def run(tasks):
        assert {task.work for task in tasks} == {"loss"}
        return [
            ClientUpdate(
                client_id=t.client,
                num_samples=10 * (t.client + 1),
                num_steps=0,
                extras={name: np.array([by_client[t.client]])},
            )
            for t in tasks
        ]

    return run


def clients(plan):
    return [task.client for task in plan.tasks]


def test_round_robin_by_hand():
    found = [clients(RoundRobin().plan(roster(m=4), {}, context(t), pytest.fail)) for t in range(3)]
    assert found == [[0, 1, 2, 3], [0, 1, 4, 5], [2, 3, 4, 5]]
    others = roster(m=2, held_out=(0, 3))
    found = [clients(RoundRobin().plan(others, {}, context(t, 4), pytest.fail)) for t in range(2)]
    assert found == [[1, 2], [4, 5]]


@pytest.mark.slow
def test_by_size_the_first_draw_has_the_shares_of_the_samples():
    """Samples 1, 2 and 5 of 8, cohorts of one: shares 1/8, 2/8 and 5/8 within 4 standard errors."""
    drawn, own = 4000, roster((1, 2, 5), m=1)
    found = [clients(BySize().plan(own, {}, context(t, 3), pytest.fail))[0] for t in range(drawn)]
    for client, share in enumerate((1 / 8, 2 / 8, 5 / 8)):
        deviation = abs(found.count(client) / drawn - share)
        assert deviation < 4 * np.sqrt(share * (1 - share) / drawn)


def test_the_highest_losses_of_all_candidates_by_hand():
    """Six candidates; 1 and 4 tie for the second place, which goes to the lower id."""
    run = answers("loss", {0: 1.0, 1: 3.0, 2: 5.0, 3: 2.0, 4: 3.0, 5: 0.0})
    plan = PowerOfChoice(6).plan(roster(), {}, context(), run)
    assert clients(plan) == [1, 2]
    assert {task.work for task in plan.tasks} == {"train"}
    assert (plan.downlink_bytes, plan.uplink_bytes) == (4 * 1000, 6 * 4)
    assert plan.pass_seconds == 0


def test_the_pass_takes_its_time_by_hand():
    """1 MB down at 2 MB/s, 60 samples at 30 a second, 4 bytes up at 1 MB/s: 2.500004 s.

    Those chosen do not download the model again: 40 samples and 1 MB up are 40/30 + 1 s; 1 MB that
    a method sends beside it takes them another half second.
    """
    speeds = {"samples_per_second": 30, "download_mb_s": 2, "upload_mb_s": 1}
    clock = Clock(
        distributions={name: constant(value) for name, value in speeds.items()},
        schedule=LocalSchedule(epochs=1, batch_size=10),
        vector_bytes=10**6,
    )
    run = answers("loss", {0: 1.0, 1: 0.0, 2: 0.0, 3: 2.0, 4: 0.0, 5: 0.0})
    plan = PowerOfChoice(6).plan(roster(clock=clock), {}, context(), run)
    assert plan.pass_seconds == pytest.approx(2.500004, rel=1e-12)
    assert clients(plan) == [0, 3]
    seconds = plan.participation[3].seconds
    assert seconds(10**6, 10**6) == pytest.approx(40 / 30 + 1, rel=1e-12)
    assert seconds(2 * 10**6, 10**6) == pytest.approx(40 / 30 + 1.5, rel=1e-12)


def test_where_no_candidate_answers_the_cohort_stays_away():
    clock = Clock(distributions={"availability": constant(0)}, vector_bytes=1000)
    plan = PowerOfChoice(4).plan(roster(clock=clock), {}, context(), pytest.fail)
    assert [own.absent is None for own in plan.participation.values()] == [False] * 2
    assert (plan.tasks, plan.downlink_bytes, plan.uplink_bytes) == ((), 0, 0)


@pytest.mark.integration
def test_the_last_round_is_evaluated_although_nobody_is_there(tmp_path):
    given = config(
        "fedbn",
        train={"selection": "power_of_choice"},
        clock={"availability": 1e-9},
        evaluation={"personal": "cohort_before"},
    )
    rounds = fedsim.run(given, tmp_path / "run", progress=False).read("rounds")
    assert rounds.test_accuracy.notna().tolist() == [False, False, True]


def test_a_list_of_clients_for_all_rounds_or_for_each(tmp_path):
    own = fixed("1,4", 9, range(6))
    assert [clients(own.plan(roster(), {}, context(t), pytest.fail)) for t in (0, 5)] == [
        [1, 4]
    ] * 2
    table = tmp_path / "cohorts.csv"
    table.write_text("round,client_id\n2,5\n1,3\n1,0\n3,2\n")
    each = fixed(str(table), 2, range(6))
    assert each == Fixed(((0, 3), (5,)))
    assert each.sizes == (1, 2)
    assert clients(each.plan(roster(), {}, context(1), pytest.fail)) == [5]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("1,0\n", "cohorts.csv: no clients for round 2 of train.rounds=2"),
        ("1,0\n2,6\n", "row 3: client_id 6 is no client that trains"),
        ("1,0\n2,1\n1,0\n", "row 4: client_id 0 is listed twice"),
        ("1,a\n", "row 2: client_id 'a' is not a whole number"),
    ],
)
def test_a_bad_list_names_file_and_row(tmp_path, rows, said):
    table = tmp_path / "cohorts.csv"
    table.write_text(f"round,client_id\n{rows}")
    with pytest.raises(DataError, match=said):
        fixed(str(table), 2, range(6))


@pytest.mark.integration
def test_the_lists_are_the_cohorts_of_a_run(tmp_path):
    table = tmp_path / "cohorts.csv"
    table.write_text("round,client_id\n1,0\n1,6\n2,3\n3,7\n3,1\n3,2\n")
    run = fedsim.run(with_selection("fixed", clients=str(table)), tmp_path / "run", progress=False)
    assert run.read("clients").client_id.tolist() == [0, 6, 3, 1, 2, 7]
    assert run.read("rounds").cohort_size.tolist() == [2, 1, 3]
    same = fedsim.run(with_selection("fixed", clients="4,2"), tmp_path / "same", progress=False)
    assert same.read("clients").client_id.tolist() == [2, 4] * 3
    assert same.summary["train.clients"] == "2,4"


def with_selection(name, **train):
    clock = {"samples_per_second": 100, "download_mb_s": 1}
    return config("fedavg", "mlp", train={"selection": name, **train}, clock=clock)


@pytest.mark.slow
@pytest.mark.integration
def test_as_many_candidates_as_clients_of_the_cohort_all_train(tmp_path):
    """The pass over all clients, at rate 1, changes bytes and seconds alone."""
    stores = {
        name: fedsim.run(with_selection(name, sample_rate=1.0), tmp_path / name, progress=False)
        for name in ("uniform", "power_of_choice", "round_robin", "size")
    }
    uniform, chosen = (results(stores[name]) for name in ("uniform", "power_of_choice"))
    assert uniform == results(stores["round_robin"]) == results(stores["size"])
    assert uniform["model.safetensors"] == chosen["model.safetensors"]
    ours, theirs = (stores[name].read("rounds") for name in ("power_of_choice", "uniform"))
    assert (ours.downlink_bytes == theirs.downlink_bytes).all()
    assert (ours.uplink_bytes - theirs.uplink_bytes == 8 * 4).all()
    assert (ours.simulated_seconds > theirs.simulated_seconds).all()
    assert "train.selection" in stores["size"].summary
    assert "train.selection" not in stores["uniform"].summary


K = 6


def roster_oort(m=2, speeds=None, held_out=()):
    """Clients with 10, 20, ... samples, one epoch; without speeds nothing takes time."""
    trace = {}
    if speeds:
        own = {client: Series((0,), (speed,)) for client, speed in enumerate(speeds)}
        trace = {"samples_per_second": own}
    clock = Clock(trace=trace, schedule=LocalSchedule(epochs=1, batch_size=10))
    return roster([10 * (client + 1) for client in range(K)], m, held_out, clock)


def state(utility, last, seconds=(0.0,) * K, quantile=0.3, history=()):
    return {
        "utility": np.array(utility, np.float64),
        "last": np.array(last),
        "count": np.array(last),
        "seconds": np.array(seconds, np.float64),
        "quantile": np.array([quantile]),
        "history": np.array(history, np.float64),
    }


def test_the_utility_by_hand():
    """20 samples, mean squared loss 2.25: 20 * 1.5; 4 bytes of each client are counted."""
    plan = Oort().plan(
        roster_oort(m=K), {}, context(2), answers("squared_loss", [4.0, 2.25, 0, 1, 1, 1])
    )
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
    assert best.choose(roster_oort(), own, context()) == [0, 2]
    close = state([100, 1, 100, 2, 99, 4], [1] * K)
    drawn = {tuple(best.choose(roster_oort(), close, context(t))) for t in range(40)}
    assert drawn == {(0, 2), (0, 4), (2, 4)}


@pytest.mark.slow
def test_new_clients_are_explored_by_their_speed():
    """Of one place: a client that takes ten times as long has a tenth of the others' chance."""
    speeds = [10, 20, 30, 40, 50, 6]  # clients 0 to 4 need a second, client 5 ten
    drawn = 2000
    own = Oort()._start(roster_oort(m=1, speeds=speeds))
    assert own["seconds"].tolist() == [1, 1, 1, 1, 1, 10]
    found = [
        Oort().choose(roster_oort(m=1, speeds=speeds), own, context(t))[0] for t in range(drawn)
    ]
    share = 0.1 / 5.1
    assert abs(found.count(5) / drawn - share) < 4 * math.sqrt(share * (1 - share) / drawn)


def test_everybody_is_explored_before_anybody_is_only_exploited():
    own, seen = {}, set()
    for t in range(6):
        plan = Oort().plan(roster_oort(), own, context(t), answers("squared_loss", [1.0] * K))
        own, seen = plan.state, seen | set(clients(plan))
        assert len(clients(plan)) == 2
    assert seen == set(range(K))


def test_an_exhausted_client_takes_part_only_where_others_are_too_few():
    own = state([100, 1, 1, 1, 1, 1], [2] * K)
    own["count"] = np.array([9, 1, 1, 1, 1, 1])
    tired = Oort(exploration=0.0, least_exploration=0.0, most=9)
    assert all(0 not in tired.choose(roster_oort(), own, context(t)) for t in range(20))
    assert tired.choose(roster_oort(m=K), own, context()) == list(range(K))


def test_the_pacer_raises_the_quantile_where_utilities_fall():
    def after(history, round):
        own = state([1] * K, [1] * K, history=history)
        plan = Oort(window=2).plan(
            roster_oort(), own, context(round), answers("squared_loss", [1.0] * K)
        )
        return plan.state["quantile"].tolist()

    assert after([5, 5, 4, 4], 4) == [0.35]
    assert after([4, 4, 5, 5], 4) == [0.3]
    assert after([5, 5, 4, 4], 5) == [0.3], "every two rounds"
    assert after([5, 5], 2) == [0.3], "from the fourth"


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
