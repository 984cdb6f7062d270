"""Asynchrony: a step for every ``size`` updates that arrive (FedBuff, Nguyen et al., 2022)."""

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from operator import itemgetter
from typing import ClassVar

import numpy as np

from fedsim.core.rng import generator
from fedsim.core.types import ClientTask, RoundContext, Vectors
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


def build(size: int = 3, concurrency: int = 6) -> Buffered:
    """The schedule."""
    return Buffered(size, concurrency)
