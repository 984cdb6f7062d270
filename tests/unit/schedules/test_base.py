"""Schedules: who works in a round, on which version of the model."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

import fedsim
from fedsim.algorithms.base import Algorithm, one_each
from fedsim.client.rule import LocalRule, Uplink
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, ContractError
from fedsim.core.rng import generator
from fedsim.core.types import RoundContext
from fedsim.schedules.asynchronous import Buffered
from fedsim.schedules.base import Roster, RoundPlan, Synchronous, draw_cohort
from fedsim.schedules.oort import Oort
from fedsim.schedules.selection import BySize, PowerOfChoice, RoundRobin
from fedsim.server import Average, Server
from fedsim.server.transforms import StalenessWeights
from fedsim.systems.clock import Clock, LocalSchedule, Series
from fedsim.testing.rounds import config, results
from fedsim.training.assemble import prepare
from tests.schedules import check_schedule
from tests.stopping import Stop, Stopper
from tests.tasks import tasks


def context(round=0, clients=10, seed=0):
    return RoundContext(round=round, num_rounds=5, num_clients=clients, lr=0.1, seed=seed)


def nothing(_):
    pytest.fail("the schedule asked for a pass")


def plan(roster, ctx, schedule=None):
    return (schedule or Synchronous()).plan(roster, {}, ctx, nothing)


def roster(**changes):
    given = {"sizes": [10] * 10, "cohort_size": 4, "held_out": (), "clock": Clock()}
    return Roster(**(given | {"assign": one_each, "lr": lambda round: 0.1} | changes))


def test_a_synchronous_round_is_the_drawn_cohort_on_the_newest_model():
    for t in range(5):
        ctx = context(t, seed=3)
        found = plan(roster(), ctx)
        drawn = draw_cohort(ctx, 4)
        assert found.tasks == tuple(tasks(drawn, ctx))
        assert {task.version for task in found.tasks} == {t}
        assert list(found.participation) == drawn
        assert found == RoundPlan(tasks=found.tasks, participation=found.participation)


def test_clients_that_are_held_out_are_never_drawn():
    seen = set()
    for t in range(40):
        found = plan(roster(sizes=[10] * 13, held_out=(0, 5, 12)), context(t))
        assert [task.client for task in found.tasks] == sorted(found.participation)
        seen |= set(found.participation)
    assert seen == set(range(13)) - {0, 5, 12}


def test_with_a_clock_who_stays_away_has_no_task_and_others_their_steps():
    given = {"availability": "uniform(0.2, 0.9)", "work": "uniform(0.1, 1)"}
    setup = prepare(config("fedavg", "mlp", clock=given, train={"sample_rate": 1.0}))
    away, shortened = 0, 0
    for t in range(5):
        ctx = context(t, clients=8)
        found = plan(setup.roster, ctx, setup.schedule)
        assert list(found.participation) == list(range(8))
        for client, own in found.participation.items():
            n = len(setup.partition.train[client])
            assert own == setup.clock.participation(t, client, n)
        answered = [c for c, own in found.participation.items() if own.absent is None]
        assert [task.client for task in found.tasks] == answered
        for task in found.tasks:
            assert task.max_steps == found.participation[task.client].max_steps
            shortened += task.max_steps is not None
        away += 8 - len(answered)
    assert away > 0 < shortened


def test_samples_that_are_pooled_are_one_task_of_all_clients_of_the_round():
    setup = prepare(config("centralized", "mlp"))
    ctx = context(clients=8)
    found = plan(setup.roster, ctx)
    drawn = draw_cohort(ctx, 2)
    (task,) = found.tasks
    assert (task.client, task.owners, task.clients) == (drawn[0], tuple(drawn), tuple(drawn))
    assert list(found.participation) == drawn
    (one,) = setup.roster.plan(drawn[:1], ctx).tasks
    assert one.owners == (drawn[0],), "one client's samples are pooled too: it has no state"
    assert setup.roster.plan([], ctx).tasks == ()


# schedules of the user's own


@dataclass(frozen=True)
class Everybody:
    """All clients, the first of them again on the model of the round before."""

    asynchronous: ClassVar[bool] = True
    kept: bool = True

    def plan(self, roster, state, ctx, run):
        plan = roster.plan(range(len(roster.sizes)), ctx)
        first, *others = plan.tasks
        if ctx.round > 0:
            before = replace(ctx, round=ctx.round - 1, lr=roster.lr(ctx.round - 1))
            first = replace(first, ctx=before, stream=100 + ctx.round)
        return replace(
            plan,
            tasks=(first, *others),
            state={"rounds": np.array([ctx.round + 1])},
            needed=frozenset({ctx.round}) if self.kept else frozenset(),
        )


@dataclass(frozen=True)
class Largest:
    """The clients with the largest loss of all, asked in a pass."""

    asynchronous: ClassVar[bool] = False

    def plan(self, roster, state, ctx, run):
        everybody = roster.plan(range(len(roster.sizes)), ctx).tasks
        answers = run([replace(task, work="loss", max_steps=None) for task in everybody])
        losses = {u.client_id: float(u.extras["loss"][0]) for u in answers}
        worst = sorted(losses, key=lambda client: (-losses[client], client))
        asked = len(losses)
        plan = roster.plan(worst[: roster.cohort_size], ctx)
        return replace(plan, downlink_bytes=1000 * asked, uplink_bytes=8 * asked, seconds=5.0)


def everybody():
    return Everybody()


def forgetful():
    return Everybody(kept=False)


def not_one():
    return "a schedule"


def with_schedule(name, **sections):
    train = {"schedule": f"{__name__}:{name}"} | sections.pop("train", {})
    return config("fedavg", "mlp", train=train, **sections)


@pytest.mark.integration
def test_a_schedule_of_the_users_that_draws_as_we_do_gives_the_same_bytes(tmp_path):
    ours = fedsim.run(config("fedavg", "mlp"), tmp_path / "ours")
    theirs = fedsim.run(with_schedule("Synchronous"), tmp_path / "theirs")
    assert results(theirs) == results(ours)


@pytest.mark.slow
@pytest.mark.integration
def test_a_schedule_may_use_the_model_of_a_round_before(tmp_path):
    store = fedsim.run(with_schedule("everybody"), tmp_path / "run")
    clients = store.read("clients")
    assert clients["client_id"].tolist() == list(range(8)) * 3
    plain = fedsim.run(config("fedavg", "mlp", train={"sample_rate": 1.0}), tmp_path / "plain")
    first, same = clients, plain.read("clients")
    loss = lambda table: table["train_loss"].tolist()  # noqa: E731
    assert loss(first[:8]) == loss(same[:8])
    assert first["train_loss"][8] != same["train_loss"][8]
    assert loss(first[9:16]) == loss(same[9:16]), "the others train on the newest, as before"


@pytest.mark.integration
def test_a_version_that_nobody_kept_is_refused(tmp_path):
    wanted = r"^round 2: the schedule plans tasks on version 0; the rounds before kept \[1\]"
    with pytest.raises(ContractError, match=wanted):
        fedsim.run(with_schedule("forgetful"), tmp_path / "run")


@pytest.mark.integration
def test_a_schedule_may_ask_for_losses_and_its_bytes_and_seconds_count(tmp_path):
    clock = {"samples_per_second": 100.0}
    store = fedsim.run(with_schedule("Largest", clock=clock), tmp_path / "run")
    plain = fedsim.run(config("fedavg", "mlp", clock=clock), tmp_path / "plain")
    ours, theirs = (store.read("rounds") for store in (store, plain))
    assert (ours["downlink_bytes"] - theirs["downlink_bytes"]).tolist() == [8000] * 3
    assert (ours["uplink_bytes"] - theirs["uplink_bytes"]).tolist() == [64] * 3
    assert ours["simulated_seconds"].tolist() == [5.0] * 3
    assert store.read("clients").groupby("round").size().tolist() == [2] * 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("later", r"^train.schedule: unknown schedule 'later'"),
        (f"{__name__}:not_one", "the function returned str, needed is a schedule with plan"),
        (f"{__name__}:nothing_here", "^train.schedule "),
        (f"{__name__}:nothing", "^train.schedule "),
    ],
)
def test_what_is_no_schedule_is_refused(name, said):
    with pytest.raises(ConfigError, match=said):
        prepare(config("fedavg", "mlp", train={"schedule": name}))


SPEEDS = {"mode": "async", "samples_per_second": "lognormal(100, 0.8)", "upload_mb_s": 1}


def roster_buffered(speeds, held_out=(), sizes=None, **trace):
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
    found = arrivals(Buffered(1, 3), roster_buffered([100, 40, 25]), 8)
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
    found = arrivals(Buffered(2, 3), roster_buffered([100, 40, 25]), 3)
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
    found = arrivals(Buffered(size, concurrency), roster_buffered(speeds, sizes=sizes), rounds)
    assert [tasks for _, tasks in found] == by_fractions(durations, size, concurrency, rounds)


def test_a_task_has_round_and_learning_rate_of_its_start():
    for ctx, plan in plans(Buffered(1, 3), roster_buffered([100, 40, 25]), 8):
        for task in plan.tasks:
            assert task.ctx == RoundContext(
                round=task.version, num_rounds=8, num_clients=3, lr=1 / (1 + task.version), seed=2
            )
            assert task.version <= ctx.round
        assert set(plan.state) == {"arrival", "client", "version"}
        assert plan.needed == set(plan.state["version"].tolist())


def test_a_compressed_update_arrives_earlier_by_hand():
    """1000 bytes down at 1 kB/s, 1 s of steps, and 100 bytes up at 1 kB/s."""
    slow = {"download_mb_s": [1e-3] * 2, "upload_mb_s": [1e-3] * 2}
    clients = roster_buffered([100, 100], **slow)
    clients = replace(clients, clock=replace(clients.clock, vector_bytes=1000))
    times = [
        next(plans(Buffered(2, 2), replace(clients, update_bytes=sent), 1))[1].seconds
        for sent in (None, 100)
    ]
    assert times == pytest.approx([3.0, 2.1], rel=1e-12)


BUFFERS = [(3, 6), (1, 5), (4, 4), (6, 2), (None, None), (10, 10)]


@pytest.mark.parametrize(
    "build",
    [*(partial(Buffered, *sizes) for sizes in BUFFERS), BySize, RoundRobin, PowerOfChoice, Oort],
)
def test_a_schedule_keeps_the_contract(build):
    check_schedule(build)


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
    def run(mode):
        settings = given(method, model, clock={"mode": mode, "upload_mb_s": 1}, rounds=3)
        return results(fedsim.run(settings, tmp_path / mode, progress=False))

    wanted, found = run("sync"), run("async")
    if method != "fedavg":  # what is sent beside the model does not delay an arrival
        late = ["simulated_seconds"]
        assert without(found.pop("rounds.csv"), late) == without(wanted.pop("rounds.csv"), late)
    clients = without(found.pop("clients.csv"), ["staleness", "version"])
    assert clients == wanted.pop("clients.csv").decode()
    assert found == wanted


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
        ({"clock": SPEEDS | {"deadline": 3}}, "clock.deadline: 3.0 given; it has no effect with"),
        ({"async": {"bufer": 3}}, "async.bufer: unknown key"),
        ({"clock": SPEEDS, "async": {"mixing": 1.5}}, "async.mixing: 1.5 given"),
        ({"train": {"selection": "fixed"}}, "train.selection: fixed given; give train.clients"),
        ({"train": {"clients": "0,a"}}, "train.clients: '0,a' given; must be ids of clients"),
        ({"train": {"selection": "size", "schedule": "a:b"}}, "no effect without train.schedule="),
        ({"train": {"selection": "size"}, "clock": SPEEDS}, "no effect without clock.mode=sync"),
        ({"train": {"selection": "a:b", "schedule": "a:c"}}, "a:b given beside train.schedule=a:c"),
        ({"train": {"selection": "sise"}}, "'sise' given; must be 'uniform', 'size'"),
    ],
)
def test_a_bad_setting_names_its_key(sections, said):
    with pytest.raises(ConfigError, match=said):
        RunConfig(**sections)
