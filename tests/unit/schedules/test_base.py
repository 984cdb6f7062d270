"""Schedules: who works in a round, on which version of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import fedsim
from fedsim.algorithms.base import one_each
from fedsim.core.errors import ConfigError, ContractError
from fedsim.core.types import RoundContext
from fedsim.schedules.base import (
    Roster,
    RoundPlan,
    Synchronous,
    draw_cohort,
)
from fedsim.systems.clock import Clock
from fedsim.testing.rounds import config, results
from fedsim.training.assemble import prepare
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


def largest():
    return Largest()


def drawn_again():
    return Synchronous()


def not_one():
    return "a schedule"


def half():
    class Half:
        def plan(self, *_):
            return None

    return Half()


def with_schedule(name, **sections):
    train = {"schedule": f"{__name__}:{name}"} | sections.pop("train", {})
    return config("fedavg", "mlp", train=train, **sections)


@pytest.mark.integration
def test_a_schedule_of_the_users_that_draws_as_we_do_gives_the_same_bytes(tmp_path):
    ours = fedsim.run(config("fedavg", "mlp"), tmp_path / "ours")
    theirs = fedsim.run(with_schedule("drawn_again"), tmp_path / "theirs")
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
    store = fedsim.run(with_schedule("largest", clock=clock), tmp_path / "run")
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
        (f"{__name__}:half", "the function returned Half, needed is a schedule with plan"),
        (f"{__name__}:nothing_here", "^train.schedule "),
        (f"{__name__}:nothing", "^train.schedule "),
    ],
)
def test_what_is_no_schedule_is_refused(name, said):
    with pytest.raises(ConfigError, match=said):
        prepare(config("fedavg", "mlp", train={"schedule": name}))
