"""Asynchronous rounds: who arrives when, from which version; FedAvg as a limit; resuming."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

import fedsim
from fedsim.algorithms.base import Algorithm, one_each
from fedsim.client.rule import LocalRule, Uplink
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.rng import generator
from fedsim.core.types import RoundContext
from fedsim.schedules.asynchronous import Buffered
from fedsim.schedules.base import Roster
from fedsim.server import Average, Server
from fedsim.server.staleness import StalenessWeights
from fedsim.systems.clock import Clock, LocalSchedule, Series
from fedsim.testing.rounds import config, results
from tests.schedules import check_schedule
from tests.stopping import Stop, Stopper

SPEEDS = {"mode": "async", "samples_per_second": "lognormal(100, 0.8)", "upload_mb_s": 1}


def roster(speeds, held_out=(), sizes=None, **trace):
    """Clients with a hundred samples or ``sizes``, one epoch, and a model without weight."""
    traits = {"samples_per_second": speeds, **trace}
    clock = Clock(
        trace={
            name: {c: Series((0,), (v,)) for c, v in enumerate(values)}
            for name, values in traits.items()
        },
        schedule=LocalSchedule(epochs=1, batch_size=100),
    )
    return Roster(
        sizes=sizes or [100] * len(speeds),
        cohort_size=2,
        held_out=held_out,
        clock=clock,
        assign=one_each,
        lr=lambda round: 1 / (1 + round),
    )


def plans(schedule, clients, rounds):
    state = {}
    count = len(clients.participants)
    for t in range(rounds):
        ctx = RoundContext(round=t, num_rounds=rounds, num_clients=count, lr=1 / (1 + t), seed=2)
        plan = schedule.plan(clients, state, ctx, pytest.fail)
        state = plan.state
        yield ctx, plan


def arrivals(schedule, clients, rounds):
    """(seconds of the round, [(client, version)]) of each round."""
    return [
        (plan.seconds, [(task.client, task.version) for task in plan.tasks])
        for _, plan in plans(schedule, clients, rounds)
    ]


def test_the_order_of_three_clients_by_hand():
    """Clients 0, 1 and 2 need 1, 2.5 and 4 s; all of them train at all times.

    Of two that arrive at once the lower id comes first, both before anybody starts: at 4 s client 0
    (started at 3 s from version 4), then client 2 (from version 0); at 5 s 0, then 1.
    """
    found = arrivals(Buffered(1, 3), roster([100, 40, 25]), 8)
    assert found == [
        (1.0, [(0, 0)]),  # at 1 s
        (1.0, [(0, 1)]),  # at 2 s
        (0.5, [(1, 0)]),  # at 2.5 s, two steps old
        (0.5, [(0, 2)]),  # at 3 s, one step old
        (1.0, [(0, 4)]),  # at 4 s
        (0.0, [(2, 0)]),  # at 4 s, five steps old
        (1.0, [(0, 6)]),  # at 5 s
        (0.0, [(1, 3)]),  # at 5 s, started at 2.5 s
    ]


def test_a_buffer_of_two_by_hand():
    """At 1 s client 0 fills half of the buffer and may not train again before the step at 2.5 s."""
    found = arrivals(Buffered(2, 3), roster([100, 40, 25]), 3)
    assert found == [
        (2.5, [(0, 0), (1, 0)]),
        (1.5, [(0, 1), (2, 0)]),  # at 3.5 s and at 4 s
        (1.0, [(0, 2), (1, 1)]),  # both at 5 s
    ]


def by_fractions(durations, size, concurrency, rounds):
    """The (client, version) of each step in exact arithmetic, every client available."""
    queue, found, now = [], [], Fraction(0)
    for t in range(rounds):
        rng, done, asked = generator(2, "cohort", t), [], {client for _, client, _ in queue}
        while len(done) < size:
            if not queue or min(queue)[0] > now:  # before starts come the arrivals of the moment
                while (free := concurrency - len(queue)) > 0 and len(asked) < len(durations):
                    drawn = rng.choice(len(durations), min(free, len(durations)), replace=False)
                    started = set(drawn.tolist()) - asked
                    queue += [(now + durations[c], c, t) for c in started]
                    asked |= started
            done.append(min(queue))
            queue.remove(done[-1])
            now = done[-1][0]
        found.append(sorted((client, version) for _, client, version in done))
    return found


def drawn(speeds, count, seed):
    return np.random.default_rng(seed).choice(speeds, count).tolist()


@pytest.mark.parametrize(
    ("speeds", "sizes"),
    [
        ([600, 200, 200, 200], [360, 360, 359, 359]),  # thrice 0.6 s and once 1.8 s
        *((drawn([10, 30, 70], 12, seed), [100] * 12) for seed in range(12)),
        *((drawn([7, 9, 11], 9, seed), [60, 90, 30] * 3) for seed in range(6)),
    ],
)
@pytest.mark.parametrize("of", [(1, 4), (3, 4)])
def test_arrivals_at_one_moment_are_ordered_by_client_whatever_rounding_says(speeds, sizes, of):
    durations = [Fraction(n) / v for n, v in zip(sizes, speeds, strict=True)]
    (size, concurrency), rounds = of, 60
    found = arrivals(Buffered(size, concurrency), roster(speeds, sizes=sizes), rounds)
    assert [tasks for _, tasks in found] == by_fractions(durations, size, concurrency, rounds)


def test_a_task_has_round_and_learning_rate_of_its_start():
    for ctx, plan in plans(Buffered(1, 3), roster([100, 40, 25]), 8):
        for task in plan.tasks:
            assert task.ctx == RoundContext(
                round=task.version,
                num_rounds=8,
                num_clients=3,
                lr=1 / (1 + task.version),
                seed=2,
            )
            assert task.version <= ctx.round
        assert set(plan.state) == {"arrival", "client", "version"}
        assert plan.needed == set(plan.state["version"].tolist())


def test_a_compressed_update_arrives_earlier_by_hand():
    """1000 bytes down at 1 kB/s, 1 s of steps, and 100 bytes up at 1 kB/s."""
    slow = {"download_mb_s": [1e-3] * 2, "upload_mb_s": [1e-3] * 2}
    clients = roster([100, 100], **slow)
    clients = replace(clients, clock=replace(clients.clock, vector_bytes=1000))
    times = [
        next(plans(Buffered(2, 2), replace(clients, update_bytes=sent), 1))[1].seconds
        for sent in (None, 100)
    ]
    assert times == pytest.approx([3.0, 2.1], rel=1e-12)


@pytest.mark.parametrize("sizes", [(3, 6), (1, 5), (4, 4), (6, 2), (None, None), (10, 10)])
def test_it_keeps_the_contract_of_schedules(sizes):
    check_schedule(lambda: Buffered(*sizes))


def given(method="fedavg", model="mlp", *, clock=SPEEDS, rounds=6, engine=None, **asynchrony):
    train = {"rounds": rounds, "lr_schedule": "cosine", "momentum": 0.0, "sample_rate": 0.5}
    sections = {"train": train, "clock": clock, "engine": engine or {}, "async": asynchrony}
    return config(method, model, **sections)


def without(table, columns):
    frame = pd.read_csv(io.BytesIO(table), dtype=str, keep_default_na=False)
    return frame.drop(columns=columns).to_csv(index=False)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("method", "model"), [("fedavg", "cnn"), ("scaffold", "mlp"), ("fednova", "mlp")]
)
def test_buffer_and_concurrency_of_the_cohort_at_equal_speeds_are_the_synchronous_run(
    tmp_path, method, model
):
    wanted, found = (
        results(
            fedsim.run(
                given(method, model, clock={"mode": mode, "upload_mb_s": 1}, rounds=3),
                tmp_path / mode,
                progress=False,
            )
        )
        for mode in ("sync", "async")
    )
    clients = found.pop("clients.csv").decode(), wanted.pop("clients.csv").decode()
    if method != "fedavg":  # what is sent beside the model does not delay an arrival
        late = ["simulated_seconds"]
        assert without(found.pop("rounds.csv"), late) == without(wanted.pop("rounds.csv"), late)
    assert found == wanted
    header = clients[1].splitlines()[0]
    assert clients[0].splitlines()[0] == f"{header},staleness,version"
    assert without(clients[0].encode(), ["staleness", "version"]) == clients[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with two arrivals a step and five clients in flight."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return fedsim.run(given(buffer=2, concurrency=5), out, progress=False)


@pytest.mark.integration
def test_staleness_and_version_are_in_the_table(whole):
    clients, rounds = whole.read("clients"), whole.read("rounds")
    assert (clients.staleness == clients["round"] - 1 - clients.version).all()
    assert clients.staleness.max() > 0 == clients.staleness.min()
    assert (rounds.cohort_size == 2).all()
    assert (rounds.simulated_seconds >= 0).all()
    assert "async.buffer" in whole.summary


@pytest.mark.integration
@pytest.mark.parametrize("after", [1, 3])
def test_a_run_that_stops_while_clients_train_resumes_to_the_same_bytes(tmp_path, whole, after):
    every = {"checkpoint_every": 1}
    cut = given(buffer=2, concurrency=5, engine=every)
    with pytest.raises(Stop):
        fedsim.run(cut, tmp_path / "cut", [Stopper(after)], progress=False)
    assert results(fedsim.resume(tmp_path / "cut", progress=False)) == results(whole)


@pytest.mark.integration
def test_an_error_in_the_middle_of_a_buffer_resumes_to_the_same_bytes(tmp_path, whole, monkeypatch):
    begun = []
    once = StalenessWeights.__call__

    def failing(own, cohort, state, ctx):
        begun.append(ctx.round)
        if begun == [0, 1, 2]:
            raise KeyboardInterrupt
        return once(own, cohort, state, ctx)

    monkeypatch.setattr(StalenessWeights, "__call__", failing)
    with pytest.raises(KeyboardInterrupt):
        fedsim.run(given(buffer=2, concurrency=5), tmp_path / "cut", progress=False)
    assert results(fedsim.resume(tmp_path / "cut", progress=False)) == results(whole)


@pytest.mark.slow
@pytest.mark.integration
def test_a_round_without_updates_is_no_step(tmp_path):
    """Every second update is dropped: the staleness counts models, and goes on over a checkpoint.

    ``version`` is the round of the start; between it and the step only rounds with an update count.
    """
    engine = {"on_client_failure": "drop", "checkpoint_every": 1}
    wanted = dropping(tmp_path / "whole", engine)
    clients, rounds = wanted.read("clients"), wanted.read("rounds")
    empty = set(rounds["round"][rounds.dropped == rounds.cohort_size] - 1)
    assert empty
    for row in clients.itertuples():
        counted = [r for r in range(row.version, row.round - 1) if r not in empty]
        assert row.staleness == len(counted)
    assert (clients.staleness < clients["round"] - 1 - clients.version).any()
    with pytest.raises(Stop):
        dropping(tmp_path / "cut", engine, [Stopper(4)])
    assert results(fedsim.resume(tmp_path / "cut", progress=False)) == results(wanted)


def dropping(out, engine, callbacks=()):
    """FedAsync, one update a step; that of a client with an odd id diverges."""
    own = given(f"{__name__}:odd_clients_diverge", rounds=8, engine=engine, buffer=1, concurrency=5)
    return fedsim.run(own, out, callbacks, progress=False)


@dataclass(frozen=True)
class OddClientsDiverge(LocalRule):
    """Clients with odd ids send NaN."""

    def finish(self, env, s):
        return Uplink({"nothing": np.array([np.nan if env.client_id % 2 else 0.0])})


def odd_clients_diverge():
    return Algorithm(local=OddClientsDiverge(), server=Server(Average()))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"clock": {"mode": "async"}}, "clock.mode: async given, but nothing takes time"),
        (
            {"clock": SPEEDS | {"deadline": 3}},
            "clock.deadline: 3.0 given; it has no effect without clock.mode=sync",
        ),
        (
            {"async": {"buffer": 3}},
            "async.buffer: 3 given; it has no effect without clock.mode=async",
        ),
        ({"async": {"bufer": 3}}, "async.bufer: unknown key"),
        ({"clock": SPEEDS, "async": {"buffer": 0}}, "async.buffer: 0 given"),
        ({"clock": SPEEDS, "async": {"mixing": 1.5}}, "async.mixing: 1.5 given"),
        (
            {"clock": SPEEDS, "async": {"slope": 2}},
            "async.slope: 2.0 given; it has no effect without async.stal",
        ),
        (
            {"clock": SPEEDS, "train": {"schedule": f"{__name__}:Buffered"}},
            "train.schedule: .* given; it has no effect without clock.mode=sync",
        ),
    ],
)
def test_a_bad_setting_names_its_key(sections, said):
    with pytest.raises(ConfigError, match=said):
        RunConfig(**sections)
