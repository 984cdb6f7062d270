"""The contract of schedules: pure plans, which go on from a checkpoint and keep their word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from fedsim.algorithms.base import one_each
from fedsim.core.errors import ContractError
from fedsim.core.imports import users_code
from fedsim.core.types import ClientTask, ClientUpdate, RoundContext, Vectors
from fedsim.schedules.base import Roster, RoundPlan, Schedule, check_plan
from fedsim.systems.clock import Clock, LocalSchedule
from fedsim.systems.distributions import parse
from fedsim.testing.methods import check_cases, require

ROUNDS = 8
CLIENTS, HELD_OUT = 12, (3, 7)
SPEEDS = {"samples_per_second": parse("lognormal(100, 0.8)"), "availability": parse("0.8")}
CLOCKS = {
    "every client always": Clock(),
    "slow and absent clients": Clock(
        distributions=SPEEDS, schedule=LocalSchedule(epochs=1, batch_size=10), vector_bytes=1000
    ),
}
"""The clocks that it is tried with; an asynchronous schedule with the second alone."""


def check_schedule(build: Callable[[], Schedule]) -> None:
    """Checks that a schedule keeps what every run counts on; takes milliseconds.

    Its plans are pure functions of their arguments, go on from a checkpoint, name clients that may
    train, once each, and models that were kept; what it tells of later rounds is what they plan.
    """
    with users_code("the schedule cannot be made", ContractError):
        schedule = build()
    for name, clock in CLOCKS.items():
        if schedule.asynchronous and not clock.timed:
            continue
        check_cases("the schedule", {name: partial(_check, schedule)}, [name], clock)


def _check(schedule: Schedule, clock: Clock) -> None:
    first, again = (list(_plans(schedule, clock)) for _ in range(2))
    announced: dict[int, list[tuple[int, tuple[ClientTask, ...]]]] = {}
    kept: frozenset[int] = frozenset()
    for t, ((roster, ctx, plan), (*_, another)) in enumerate(zip(first, again, strict=True)):
        at = f"round {t + 1}"
        require(_same(plan, another), f"{at}: two plans from equal arguments differ")
        check_plan(schedule, plan, roster, ctx)
        versions = {task.version for task in plan.tasks}
        unknown = (versions | plan.needed) - kept - {t}
        require(not unknown, f"{at}: models that were not kept (needed): {sorted(unknown)}")
        for since, tasks in announced.get(t, []):
            now = tuple(task for task in plan.tasks if task.version <= since)
            require(tasks == now, f"{at}: round {since + 1} told other tasks ahead")
        for later, tasks in enumerate(plan.ahead, start=t + 1):
            announced.setdefault(later, []).append((t, tasks))
        kept = plan.needed


def _plans(schedule: Schedule, clock: Clock) -> Iterator[tuple[Roster, RoundContext, RoundPlan]]:
    """The plans of all rounds; the state is stored and read between them."""
    roster = Roster(
        sizes=[20 + 5 * client for client in range(CLIENTS)],
        cohort_size=4,
        held_out=HELD_OUT,
        clock=replace(clock, seed=1),
        assign=one_each,
        lr=lambda round: 0.1 / (1 + round),
    )
    state: Vectors = {}
    for t in range(ROUNDS):
        ctx = RoundContext(
            round=t,
            num_rounds=ROUNDS,
            num_clients=CLIENTS - len(HELD_OUT),
            num_held_out=len(HELD_OUT),
            lr=roster.lr(t),
            seed=1,
        )
        plan = schedule.plan(roster, state, ctx, _losses)
        yield roster, ctx, plan
        state = {name: np.array(array) for name, array in plan.state.items()}


def _losses(tasks: Sequence[ClientTask]) -> list[ClientUpdate]:
    """The answers to a pass: losses that depend on client and round."""
    updates = []
    for task in sorted(tasks, key=lambda task: task.client):
        loss = np.array([np.sin(7.0 * task.client + task.ctx.round)])
        extras = {"loss": loss, "squared_loss": loss**2}
        updates.append(
            ClientUpdate(client_id=task.client, num_samples=1, num_steps=0, extras=extras)
        )
    return updates


def _same(one: RoundPlan, two: RoundPlan) -> bool:
    states = [{k: (a.dtype, a.shape, a.tobytes()) for k, a in p.state.items()} for p in (one, two)]
    return states[0] == states[1] and replace(one, state={}) == replace(two, state={})
