"""Selection: which clients take part in a synchronous round (``train.selection``).

uniform is :class:`~fedsim.schedules.base.Synchronous`, oort is in :mod:`fedsim.schedules.oort`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedsim.core.errors import ConfigError, DataError
from fedsim.core.rng import generator
from fedsim.core.tables import read_table, whole_number
from fedsim.core.types import RoundContext, Vectors
from fedsim.schedules.base import Pass, Roster, RoundPlan
from fedsim.systems.clock import FLOAT_BYTES


def draw_by_size(roster: Roster, ctx: RoundContext, size: int, purpose: str) -> list[int]:
    """``size`` distinct clients, one after the other with probability n_k / sum_j n_j, sorted."""
    clients = roster.participants
    n = np.array([roster.sizes[client] for client in clients], np.float64)
    rng = generator(ctx.seed, purpose, ctx.round)
    drawn = rng.choice(len(clients), size, replace=False, p=n / n.sum())
    return sorted(clients[i] for i in drawn.tolist())


@dataclass(frozen=True)
class Poisson:
    """Each client by itself with probability m / N of N clients (Poisson sampling)."""

    asynchronous: ClassVar[bool] = False

    def plan(self, roster: Roster, _: Vectors, ctx: RoundContext, _run: Pass, /) -> RoundPlan:
        """Those drawn, perhaps nobody."""
        clients = roster.participants
        drawn = generator(ctx.seed, "cohort", ctx.round).random(len(clients))
        rate = roster.cohort_size / len(clients)
        return roster.plan([c for c, u in zip(clients, drawn, strict=True) if u < rate], ctx)


@dataclass(frozen=True)
class BySize:
    """A cohort drawn with probability by training samples."""

    asynchronous: ClassVar[bool] = False

    def plan(self, roster: Roster, _: Vectors, ctx: RoundContext, _run: Pass, /) -> RoundPlan:
        """The drawn cohort."""
        return roster.plan(draw_by_size(roster, ctx, roster.cohort_size, "cohort"), ctx)


@dataclass(frozen=True)
class RoundRobin:
    """The clients in turn, by id: nobody takes part twice before everybody has been asked."""

    asynchronous: ClassVar[bool] = False

    def plan(self, roster: Roster, _: Vectors, ctx: RoundContext, _run: Pass, /) -> RoundPlan:
        """The next m clients."""
        clients, m = roster.participants, roster.cohort_size
        chosen = [clients[(ctx.round * m + i) % len(clients)] for i in range(m)]
        return roster.plan(chosen, ctx)


@dataclass(frozen=True)
class Fixed:
    """A list of clients for each round, or one for all of them."""

    rounds: tuple[tuple[int, ...], ...]
    asynchronous: ClassVar[bool] = False

    def plan(self, roster: Roster, _: Vectors, ctx: RoundContext, _run: Pass, /) -> RoundPlan:
        """The listed clients."""
        return roster.plan(self.rounds[ctx.round if len(self.rounds) > 1 else 0], ctx)

    @property
    def sizes(self) -> tuple[int, int]:
        """The least and the most clients of a round."""
        counts = [len(clients) for clients in self.rounds]
        return min(counts), max(counts)


def fixed(clients: str, rounds: int, participants: Sequence[int]) -> Fixed:
    """The lists that ``train.clients`` names: ids, or a CSV file with rounds (from 1)."""
    if not clients.endswith(".csv"):
        ids = tuple(map(int, clients.split(",")))
        if unknown := sorted(set(ids) - set(participants)):
            raise ConfigError(
                f"train.clients: {unknown[0]} given; it is no client that trains: there are "
                f"{len(participants)}, the last is {participants[-1]}"
            )
        return Fixed((ids,))
    path = Path(clients)
    listed: dict[int, set[int]] = {}
    for row in read_table(path, ("round", "client_id")):
        round, client = (
            whole_number(row.values[key], f"{row.where}: {key}") for key in ("round", "client_id")
        )
        cohort = listed.setdefault(round, set())
        if client not in participants or client in cohort:
            why = "listed twice for its round" if client in cohort else "no client that trains"
            raise DataError(f"{row.where}: client_id {client} is {why}")
        cohort.add(client)
    if missing := sorted(set(range(1, rounds + 1)) - listed.keys()):
        raise DataError(
            f"train.clients {path}: no clients for round {missing[0]} of train.rounds={rounds}"
        )
    return Fixed(tuple(tuple(sorted(listed[round])) for round in range(1, rounds + 1)))


@dataclass(frozen=True)
class PowerOfChoice:
    """Of d candidates the m with the highest loss (Cho et al., AISTATS 2022, pi_pow-d).

    The candidates are drawn by training samples; each downloads the model and sends its mean loss
    on its training samples. Ties go to the lower id. That pass lasts until its slowest candidate,
    which sees its samples at the speed of training; those chosen have the model already. Where no
    candidate answers, the first m of them are the cohort.
    """

    candidates: int | None = None  # d; None: 2 m, or all clients if they are fewer
    asynchronous: ClassVar[bool] = False

    def size(self, roster: Roster) -> int:
        """The number of candidates d; a ConfigError where it is not from m to all clients."""
        m, most = roster.cohort_size, len(roster.participants)
        if self.candidates is None:
            return min(2 * m, most)
        if not m <= self.candidates <= most:
            raise ConfigError(
                f"train.candidates: {self.candidates} given; must be from the cohort's size {m} to "
                f"the number of clients {most}"
            )
        return self.candidates

    def plan(self, roster: Roster, _: Vectors, ctx: RoundContext, run: Pass, /) -> RoundPlan:
        """A synchronous round of those chosen."""
        drawn = draw_by_size(roster, ctx, self.size(roster), "candidates")
        tasks = roster.plan(drawn, ctx).tasks
        questions = [replace(task, work="loss", max_steps=None) for task in tasks]
        updates = run(questions) if questions else []
        losses = {u.client_id: float(u.extras["loss"][0]) for u in updates}
        chosen = sorted(losses, key=lambda c: (-losses[c], c)) or drawn
        plan = roster.plan(chosen[: roster.cohort_size], ctx)
        have = {task.client for task in questions}
        model = roster.clock.vector_bytes
        return replace(
            plan,
            participation={
                c: replace(planned, received=model if c in have else 0)
                for c, planned in plan.participation.items()
            },
            pass_seconds=_seconds(roster, sorted(have), ctx),
            downlink_bytes=len(have - plan.participation.keys()) * model,
            uplink_bytes=FLOAT_BYTES * len(losses),
        )


def _seconds(roster: Roster, clients: Sequence[int], ctx: RoundContext) -> float:
    """Simulated seconds until all of them have sent their loss."""
    clock = roster.clock
    return max(
        (
            replace(
                roster.participation(c, ctx.round),
                compute=roster.sizes[c] / clock.trait("samples_per_second", ctx.round, c),
            ).seconds(clock.vector_bytes, FLOAT_BYTES)
            for c in clients
        ),
        default=0.0,
    )
