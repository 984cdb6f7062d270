"""Asynchronous rounds on the simulated clock: a server step for every ``buffer`` arrivals.

FedBuff (Nguyen et al., AISTATS 2022): ``concurrency`` clients train at a time, each from the model
that is the newest at its start; the server takes a step when ``buffer`` updates have arrived, and a
client that is done is followed by another one. With a buffer of 1 and ``async.mixing`` it is
FedAsync (Xie et al., OPT 2020). A round of the tables is a server step.

Arrivals are ordered by (simulated time, client id), those of one moment come before the starts of
that moment. Times that differ by less than :data:`MOMENT` of their size, as rounding makes sums
that are equal, are one moment. When an update arrives is known before its client trains, so that
the order depends on configuration, clock and seed alone. A client that trains, or whose update
waits in the buffer, is not drawn; so it starts at most once from a version, which is the key of its
random numbers. Where nobody trains any more, as after the first ``buffer = concurrency = m``
arrivals, the clients drawn are those of the synchronous cohort.
"""

import math
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from operator import itemgetter
from typing import ClassVar

import numpy as np

from fedsim.core.errors import ConfigError
from fedsim.core.rng import generator
from fedsim.core.types import ClientTask, RoundContext, Vectors
from fedsim.schedules.base import Pass, Roster, RoundPlan
from fedsim.systems.clock import TIMED

Start = tuple[float, int, int]
"""Arrival in simulated seconds from the last step of the server, client, version of the model."""
KEYS = ("arrival", "client", "version")
TYPES = (np.float64, np.int64, np.int64)
MOMENT = 1e-9
"""Relative difference below which two arrivals are at one moment."""
MOST_AHEAD = 16
"""Rounds that a plan looks ahead at most, for workers without work."""
client_of, version_of = itemgetter(1), itemgetter(2)


@dataclass(frozen=True)
class Buffered:
    """``concurrency`` clients train at a time, ``buffer`` arrivals make a step.

    None stands for m, the cohort's size. The state is which clients train, when they arrive, and
    from which version; it has no results.
    """

    buffer: int | None = None
    concurrency: int | None = None
    asynchronous: ClassVar[bool] = True

    def sizes(self, roster: Roster) -> tuple[int, int]:
        """Buffer and concurrency; a ConfigError where one of them is more than there are clients,
        or nothing takes time."""
        if not roster.clock.timed:
            raise ConfigError(
                "clock.trace: has no column that takes time, by which clock.mode=async orders "
                f"arrivals; known are {', '.join(TIMED)}"
            )
        most, m = len(roster.participants), roster.cohort_size
        for key, size in (("buffer", self.buffer), ("concurrency", self.concurrency)):
            if size is not None and size > most:
                raise ConfigError(
                    f"async.{key}: {size} given; a client trains once at a time, and there are "
                    f"{most} that may train"
                )
        return self.buffer or m, self.concurrency or m

    def plan(self, roster: Roster, state: Vectors, ctx: RoundContext, _run: Pass, /) -> RoundPlan:
        """The next arrivals; rounds after it are simulated to know what may be done early."""
        size, concurrency = self.sizes(roster)
        queue = list(zip(*(state[k].tolist() for k in KEYS), strict=True)) if state else []
        done = self._arrivals(roster, queue, ctx)
        arrays = zip(*queue, strict=True) if queue else ((), (), ())
        kept = {k: np.array(a, t) for k, a, t in zip(KEYS, arrays, TYPES, strict=True)}
        tasks, needed = _tasks(roster, done, ctx), frozenset(map(version_of, queue))
        ahead = []
        rounds = min(MOST_AHEAD, -(-concurrency // size))
        for round in range(ctx.round + 1, min(ctx.round + 1 + rounds, ctx.num_rounds)):
            later = self._arrivals(roster, queue, replace(ctx, round=round))
            ahead.append(_tasks(roster, [s for s in later if version_of(s) <= ctx.round], ctx))
        return RoundPlan(
            tasks=tasks,
            participation={t.client: roster.participation(t.client, t.version) for t in tasks},
            state=kept,
            seconds=done[-1][0] if done else 0.0,
            needed=needed,
            ahead=tuple(ahead),
        )

    def _arrivals(self, roster: Roster, queue: list[Start], ctx: RoundContext) -> list[Start]:
        """The arrivals of a round, taken from the queue, to which its starts are added.

        The times that stay in the queue count from the last of them, the server's step.
        """
        size, concurrency = self.sizes(roster)
        rng = generator(ctx.seed, "cohort", ctx.round)
        clients = roster.participants if roster.held_out else range(ctx.num_clients)
        down = roster.clock.vector_bytes
        up = down if roster.update_bytes is None else roster.update_bytes
        now = 0.0
        done: list[Start] = []
        busy = set(map(client_of, queue))  # who trains, has arrived, or is not available
        while len(done) < size:
            if not queue or queue[0][0] > now:
                while (free := concurrency - len(queue)) > 0 and len(busy) < len(clients):
                    drawn = rng.choice(len(clients), min(free, len(clients)), replace=False)
                    for client in sorted({clients[i] for i in drawn.tolist()} - busy):
                        participation = roster.participation(client, ctx.round)
                        if participation.absent is None:
                            at = _moment(now + participation.seconds(down, up), queue)
                            heappush(queue, (at, client, ctx.round))
                        busy.add(client)
            if not queue:
                break
            done.append(heappop(queue))
            now = done[-1][0]
        queue[:] = sorted((arrival - now, client, version) for arrival, client, version in queue)
        return done


def _moment(arrival: float, queue: list[Start]) -> float:
    """The time of another arrival at the same moment; ``arrival`` where there is none.

    Equal times stay equal, since the same numbers are subtracted from them.
    """
    return next((t for t, _, _ in queue if math.isclose(t, arrival, rel_tol=MOMENT)), arrival)


def _tasks(roster: Roster, starts: list[Start], ctx: RoundContext) -> tuple[ClientTask, ...]:
    """Round and learning rate of a task are those of its start."""
    return tuple(
        roster.task(client, replace(ctx, round=version, lr=roster.lr(version)))
        for _, client, version in sorted(starts, key=client_of)
    )
