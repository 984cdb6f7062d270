"""Schedules: which clients work in a round, on which version of the model, and when.

A schedule of the user's own is a function ``train.schedule: FILE.py:function`` without required
parameters that returns a :class:`Schedule`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Protocol

import numpy as np

from fedsim.algorithms.base import one_each
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, ContractError
from fedsim.core.imports import call, resolve
from fedsim.core.rng import generator
from fedsim.core.types import ClientTask, ClientUpdate, RoundContext, Vectors
from fedsim.systems.clock import Clock, Participation

NOTHING: Vectors = MappingProxyType({})
Pass = Callable[[Sequence[ClientTask]], list[ClientUpdate]]
"""Has tasks of one kind done now, on the newest model; gives an update for each client by id."""


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """What is to be done in a round."""

    tasks: tuple[ClientTask, ...]  # local training, each client once; the cohort
    participation: Mapping[int, Participation]
    """Of each client with a row in clients.csv, those who stay away included."""
    state: Vectors = field(default_factory=dict)
    """What the schedule keeps for the next round; goes into the checkpoint."""
    seconds: float | None = None  # simulated, of the round; None: until its slowest client
    pass_seconds: float = 0.0
    """Simulated, of passes that the schedule asked for, whose bytes follow."""
    downlink_bytes: int = 0
    uplink_bytes: int = 0
    needed: frozenset[int] = frozenset()
    """Versions of the model, this one included, from which tasks of later rounds start."""
    ahead: tuple[tuple[ClientTask, ...], ...] = ()
    """For each of the next rounds all of its tasks whose version of the model exists; workers
    without work may do them early. None is of a client that trains in this round."""


@dataclass(frozen=True, kw_only=True)
class Roster:
    """The clients of a run, as a schedule knows them."""

    sizes: Sequence[int]  # training samples of each client
    cohort_size: int
    held_out: Sequence[int]  # clients that never train, ascending
    clock: Clock
    assign: Callable[[Sequence[int]], Sequence[tuple[int, ...]]]
    """See :class:`~fedsim.algorithms.base.Algorithm`."""
    lr: Callable[[int], float]  # the learning rate of a round (from 0)
    update_bytes: int | None = None
    """Size of an update where it is known before training; None: the model's."""

    @property
    def participants(self) -> list[int]:
        """The clients that may train, ascending."""
        out = set(self.held_out)
        return [client for client in range(len(self.sizes)) if client not in out]

    def draw(self, ctx: RoundContext, size: int, purpose: str = "cohort") -> list[int]:
        """See :func:`draw_cohort`."""
        return draw_cohort(ctx, size, self.held_out, purpose)

    def participation(self, client: int, round: int, stream: int | None = None) -> Participation:
        """How a client takes part that starts in a round (from 0), see :class:`Clock`."""
        return self.clock.participation(round, client, self.sizes[client], stream)

    def task(self, client: int, ctx: RoundContext, stream: int | None = None) -> ClientTask:
        """Local training that starts in a round, with the steps that the client has time for."""
        most = self.participation(client, ctx.round, stream).max_steps
        return ClientTask(client=client, ctx=ctx, stream=stream, max_steps=most)

    def plan(
        self, clients: Sequence[int], ctx: RoundContext, state: Vectors = NOTHING
    ) -> RoundPlan:
        """A synchronous round of some clients: who answers trains from this round's model.

        ``state`` is what the schedule keeps.
        """
        participation = {c: self.participation(c, ctx.round) for c in sorted(clients)}
        present = [client for client, planned in participation.items() if planned.absent is None]
        tasks = tuple(
            ClientTask(
                client=owners[0],
                ctx=ctx,
                max_steps=participation[owners[0]].max_steps,
                owners=() if self.assign is one_each else tuple(owners),
            )
            for owners in (self.assign(present) if present else ())
        )
        return RoundPlan(tasks=tasks, participation=participation, state=state)


class Schedule(Protocol):
    """Plans the rounds of a run; a frozen dataclass, whose fields are its settings."""

    @property
    def asynchronous(self) -> bool:
        """Whether tasks may start from older versions of the model than the newest."""

    def plan(self, roster: Roster, state: Vectors, ctx: RoundContext, run: Pass, /) -> RoundPlan:
        """The plan of a round; a pure function of its arguments.

        Args:
            roster: the clients.
            state: what the plan of the round before kept; {} in the first round.
            ctx: of the round.
            run: has tasks done before training, such as ``work="loss"`` for a selection by loss.
        """


@dataclass(frozen=True)
class Synchronous:
    """A cohort drawn uniformly, all on the newest model (the default)."""

    asynchronous: ClassVar[bool] = False

    def plan(self, roster: Roster, _: Vectors, ctx: RoundContext, _run: Pass, /) -> RoundPlan:
        """The drawn cohort."""
        return roster.plan(roster.draw(ctx, roster.cohort_size), ctx)


def check_plan(schedule: Schedule, plan: RoundPlan, roster: Roster, ctx: RoundContext) -> None:
    """Refuses a plan on which no run can rely, by a ContractError."""
    clients = [client for task in plan.tasks for client in task.clients]
    ahead = {client for tasks in plan.ahead for task in tasks for client in task.clients}
    versions, out = {task.version for task in plan.tasks}, set(roster.held_out)
    problems = {
        "a client has two tasks": len(set(clients)) < len(clients),
        "tasks of clients that do not train": bool(out & set(clients))
        or not all(0 <= client < len(roster.sizes) for client in clients),
        "clients without a participation": not set(clients) <= plan.participation.keys(),
        "tasks start from older models, but asynchronous is False": not schedule.asynchronous
        and bool(versions - {ctx.round}),
        "clients train now and are told ahead": bool(ahead & set(clients)),
    }
    for problem, occurs in problems.items():
        if occurs:
            raise ContractError(f"round {ctx.round + 1} of the schedule: {problem}: {clients}")


def draw_cohort(
    ctx: RoundContext, size: int, held_out: Sequence[int] = (), purpose: str = "cohort"
) -> list[int]:
    """``size`` distinct clients, uniformly, sorted; the same for every method of one seed.

    Those ``held_out`` are never among them.
    """
    rng = generator(ctx.seed, purpose, ctx.round)
    drawn = rng.choice(ctx.num_clients, size, replace=False)
    if held_out:
        drawn = np.delete(np.arange(ctx.num_clients + len(held_out)), held_out)[drawn]
    return sorted(drawn.tolist())


def lr_at(config: RunConfig, round: int) -> float:
    """The learning rate of a round (from 0)."""
    t = config.train
    factor = {
        "constant": 1.0,
        "cosine": 0.5 * (1 + math.cos(math.pi * round / t.rounds)),
        "warmup_round": min(1.0, t.local_epochs * round / 5),
    }
    return t.lr * factor[t.lr_schedule]


def schedule_of(config: RunConfig) -> Schedule:
    """The schedule that ``train.schedule`` names; a ConfigError where there is none."""
    name = config.train.schedule
    if name == "synchronous":
        return Synchronous()
    origin = f"train.schedule {name!r}"
    if ":" not in name:
        raise ConfigError(f"{origin}: known are synchronous, or module:function")
    schedule: Schedule = call(resolve(name, origin), origin)
    if not hasattr(schedule, "plan") or not hasattr(schedule, "asynchronous"):
        raise ConfigError(
            f"{origin}: the function returned {type(schedule).__name__}, needed is a schedule with "
            "plan(roster, state, ctx, run) and asynchronous, see fedsim.schedules.base"
        )
    return schedule
