"""New kinds of work as their users would write them, a class each, with public names only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np

from fedsim.algorithms import Algorithm, load
from fedsim.client import Coded
from fedsim.config.sections import EngineConfig
from fedsim.core.rng import generator
from fedsim.core.types import ClientTask, ClientUpdate, Layout, RoundContext, Vector, Vectors
from fedsim.engine.base import Models
from fedsim.engine.serial import SerialExecutor
from fedsim.engine.spec import WorkerSpec
from fedsim.schedules.base import Pass, Roster, RoundPlan

Start = tuple[float, int, int, int]
"""Arrival in simulated seconds, client, version, number of the start."""
KEYS = ("arrival", "client", "version", "stream")
client_of = itemgetter(1)


@dataclass(frozen=True)
class Buffered:
    """``concurrency`` clients train at a time, each from the model that is newest at its start."""

    size: int = 3
    concurrency: int = 6
    lookahead: int = 2
    asynchronous: ClassVar[bool] = True

    def plan(self, roster: Roster, state: Vectors, ctx: RoundContext, _run: Pass, /) -> RoundPlan:
        """The next arrivals; rounds after it are simulated to know what may be done early."""
        queue = list(zip(*(state[k].tolist() for k in KEYS), strict=True)) if state else []
        now, number = (state["now"].item(), state["number"].item()) if state else (0.0, 0)
        done, number = self._arrivals(roster, queue, now, number, ctx)
        kept = dict(zip(KEYS, map(np.array, zip(*queue, strict=True)), strict=True))
        then = {"now": np.array(done[-1][0]), "number": np.array(number)}
        tasks, needed = self._tasks(roster, done, ctx), frozenset(start[2] for start in queue)
        later, ahead = done, []
        for round in range(ctx.round + 1, min(ctx.round + 1 + self.lookahead, ctx.num_rounds)):
            at = replace(ctx, round=round)
            later, number = self._arrivals(roster, queue, later[-1][0], number, at)
            ahead.append(self._tasks(roster, [s for s in later if s[2] <= ctx.round], ctx))
        own = {t.client: roster.participation(t.client, t.version, t.key) for t in tasks}
        plan = RoundPlan(tasks=tasks, participation=own, state=kept | then, needed=needed)
        return replace(plan, seconds=done[-1][0] - now, ahead=tuple(ahead))

    def _arrivals(
        self, roster: Roster, queue: list[Start], now: float, number: int, ctx: RoundContext
    ) -> tuple[list[Start], int]:
        """The next arrivals, taken from the queue, and the number of starts so far."""
        done: list[Start] = []
        while len(done) < self.size:
            while len(queue) < min(self.concurrency, len(roster.participants) - len(done)):
                client = int(generator(ctx.seed, "start", number).choice(roster.participants))
                own = roster.participation(client, ctx.round, number)
                if own.absent is None and client not in map(client_of, (*queue, *done)):
                    size = roster.clock.vector_bytes
                    heappush(queue, (now + own.seconds(size, size), client, ctx.round, number))
                number += 1
            done.append(heappop(queue))
            now = done[-1][0]
        return done, number

    def _tasks(
        self, roster: Roster, starts: list[Start], ctx: RoundContext
    ) -> tuple[ClientTask, ...]:
        """Round, learning rate and random numbers of a task are those of its start."""
        return tuple(
            roster.task(client, replace(ctx, round=version, lr=roster.lr(version)), stream)
            for _, client, version, stream in sorted(starts, key=client_of)
        )


def buffered(size: int = 3, concurrency: int = 6) -> Buffered:
    """The schedule."""
    return Buffered(size, concurrency)


@dataclass(frozen=True)
class PowerOfChoice:
    """Asks ``factor`` m candidates for their losses, and trains the m with the highest ones."""

    factor: int = 2
    asynchronous: ClassVar[bool] = False

    def plan(self, roster: Roster, _: Vectors, ctx: RoundContext, run: Pass, /) -> RoundPlan:
        """A synchronous round of those chosen; the candidates download the model once."""
        size = min(self.factor * roster.cohort_size, ctx.num_clients)
        candidates = roster.plan(roster.draw(ctx, size, "candidates"), ctx)
        asked = [replace(task, work="loss", max_steps=None) for task in candidates.tasks]
        losses = {update.client_id: update.extras["loss"][0] for update in run(asked)}
        chosen = sorted(losses, key=lambda c: (-losses[c], c))[: roster.cohort_size]
        others = len(losses) - len(chosen)
        return replace(
            roster.plan(chosen, ctx),
            downlink_bytes=others * roster.clock.vector_bytes,
            uplink_bytes=4 * len(losses),
        )


def power_of_choice(factor: int = 2) -> PowerOfChoice:
    """The schedule."""
    return PowerOfChoice(factor)


@cache
def attackers(seed: int, clients: int, share: float) -> frozenset[int]:
    """The malicious ones among the clients; the same in every round."""
    drawn = generator(seed, "attackers").choice(clients, int(share * clients), replace=False)
    return frozenset(drawn.tolist())


@dataclass(frozen=True)
class SignFlip:
    """Sends -scale times the change of the parameters."""

    share: float
    scale: float = 1.0
    name: ClassVar[str] = "sign_flip"

    def __call__(self, delta: Vector, state: Vectors, task: ClientTask, layout: Layout) -> Coded:
        """Changes the parameters of attackers alone."""
        ctx = task.ctx
        if task.client not in attackers(ctx.seed, ctx.num_clients + ctx.num_held_out, self.share):
            return Coded(delta)
        sent = delta.copy()
        sent[: layout.num_params] *= np.float32(-self.scale)
        return Coded(sent)


def sign_flip(share: float = 0.3, scale: float = 1.0, method: str = "fedavg") -> Algorithm:
    """A method of which some clients are malicious."""
    return replace(load(method), transforms=(SignFlip(share, scale),))


class ReverseExecutor(SerialExecutor):
    """Shows that no result depends on the order in which clients are trained."""

    def __init__(self, spec: WorkerSpec, engine: EngineConfig) -> None:
        super().__init__(spec, engine)
        self._spec = spec

    def run(
        self, tasks: Sequence[ClientTask], models: Models, states: Mapping[int, Vectors]
    ) -> list[ClientUpdate]:
        """See :class:`~fedsim.engine.base.Executor`."""
        updates = []
        for block in reversed(self._spec.blocks(tasks)):
            updates += super().run(block, models, states)
        return sorted(updates, key=lambda update: update.client_id)


def make_executor(spec: WorkerSpec, engine: EngineConfig, **_: Any) -> ReverseExecutor:
    """See :class:`fedsim.engine.registry.MakeExecutor`."""
    return ReverseExecutor(spec, engine)
