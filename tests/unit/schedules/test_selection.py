"""Selection of clients: by size, in turn, and by the losses of candidates with their costs."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from fedsim.algorithms.base import one_each
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import ClientUpdate, RoundContext
from fedsim.schedules.base import Roster
from fedsim.schedules.selection import BySize, Fixed, PowerOfChoice, RoundRobin, fixed
from fedsim.systems.clock import Clock, LocalSchedule
from fedsim.systems.distributions import constant
from fedsim.testing.rounds import config, results
from tests.schedules import check_schedule


def context(round=0, clients=6):
    return RoundContext(round=round, num_rounds=9, num_clients=clients, lr=0.1, seed=4)


def roster(sizes=(10, 20, 30, 40, 50, 60), m=2, held_out=(), clock=None):
    return Roster(
        sizes=sizes,
        cohort_size=m,
        held_out=held_out,
        clock=clock or Clock(vector_bytes=1000),
        assign=one_each,
        lr=lambda round: 0.1,
    )


def losses(by_client):
    def run(tasks):
        assert {task.work for task in tasks} == {"loss"}
        return [
            ClientUpdate(
                client_id=t.client,
                num_samples=1,
                num_steps=0,
                extras={"loss": np.array([by_client[t.client]])},
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
    run = losses({0: 1.0, 1: 3.0, 2: 5.0, 3: 2.0, 4: 3.0, 5: 0.0})
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
    run = losses({0: 1.0, 1: 0.0, 2: 0.0, 3: 2.0, 4: 0.0, 5: 0.0})
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


@pytest.mark.parametrize("build", [BySize, RoundRobin, PowerOfChoice])
def test_it_keeps_the_contract_of_schedules(build):
    check_schedule(build)


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


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"train": {"selection": "best"}}, "train.selection: 'best' given"),
        ({"train": {"selection": "fixed"}}, "train.selection: fixed given; give train.clients"),
        (
            {"train": {"clients": "0,3"}},
            "train.clients: 0,3 given; it has no effect without train.selection=fixed",
        ),
        ({"train": {"clients": []}}, "train.clients: must be ids of clients"),
        ({"train": {"clients": "0,a"}}, "train.clients: '0,a' given; must be ids of clients"),
        (
            {"train": {"candidates": 4}},
            "train.candidates: 4 given; it has no effect without train.selection=power",
        ),
        (
            {"train": {"selection": "size"}, "clock": {"mode": "async", "upload_mb_s": 1}},
            "train.selection: size given; it has no effect without clock.mode=sync",
        ),
        (
            {"train": {"selection": "size", "schedule": "a:b"}},
            "train.selection: size given; it has no effect without train.schedule=synchronous",
        ),
    ],
)
def test_a_bad_setting_names_its_key(sections, said):
    with pytest.raises(ConfigError, match=said):
        RunConfig(**sections)
