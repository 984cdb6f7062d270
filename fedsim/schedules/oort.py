"""Oort: clients by utility, Lai et al., OSDI 2021, Section 4 and Algorithm 1.

    Util(i) = U(i) (T / t_i)^alpha if t_i > T, else U(i)                            Eq. (2)
    U(i) = |B_i| sqrt(1/|B_i| sum_{k in B_i} Loss(k)^2)

B_i are all training samples of client i, t_i its simulated seconds, T the round that is preferred.
Where the paper leaves a choice, it is that of the authors' code (SymbioticLab/FedScale at 0f1a07e,
thirdparty/oort), as are the defaults but for the cut-off, the c = 95 % of Algorithm 1:

- U is clipped at its 90 % quantile and scaled to 0..1 over the clients that have one, before
  ``sqrt(0.1 log R / L(i))`` is added, for round R and the last round L(i) of the client (from 1).
- T is a quantile of all clients' seconds, at first 30 %. The pacer compares the utilities of the
  last W rounds with those of the W before every W rounds, and adds 5 points where they are lower.

Losses are those of the received model, from a pass of their own over all samples. The paper's
clients note them while they train, so that the pass takes no simulated time; its result, a number
of each client, counts in the uploaded bytes.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedsim.core.rng import generator
from fedsim.core.types import F64, I64, Array, RoundContext, Vectors
from fedsim.schedules.base import Pass, Roster, RoundPlan
from fedsim.systems.clock import FLOAT_BYTES, TIMED, Participation


@dataclass(frozen=True)
class Oort:
    """Exploits clients of high utility, and explores those that never took part by their speed.

    The state is by client: ``utility`` U, ``last`` L (0: never took part), ``count`` of its
    participations, ``seconds`` t; and ``quantile``, which is T's, with the ``history`` of U.
    """

    exploration: float = 0.9  # share of the cohort, epsilon, that explores in the first round
    decay: float = 0.98  # of epsilon in each round, until it is ``least_exploration``
    least_exploration: float = 0.3
    penalty: float = 2.0  # alpha
    quantile: float = 0.3  # of the clients' seconds, at first
    pace: float = 0.05  # by which the pacer raises it
    window: int = 20  # W, in rounds
    clip: float = 0.9  # quantile at which U is clipped
    cut_off: float = 0.95
    """c; clients with c times the utility of the last one in the top are drawn from, too."""
    most: int | None = None
    """A client that took part so often is not exploited any more; None: it always may be."""
    asynchronous: ClassVar[bool] = False

    def plan(self, roster: Roster, state: Vectors, ctx: RoundContext, run: Pass, /) -> RoundPlan:
        """A synchronous round of those chosen, who send their utilities."""
        kept = {name: np.array(array) for name, array in (state or self._start(roster)).items()}
        self._pace(kept, ctx)
        plan = roster.plan(self.choose(roster, kept, ctx), ctx)
        tasks = [replace(task, work="loss", max_steps=None) for task in plan.tasks]
        updates = run(tasks) if tasks else []
        for update in updates:
            i = update.client_id
            squares = float(update.extras["squared_loss"][0])
            kept["utility"][i] = update.num_samples * np.sqrt(squares)
            kept["last"][i] = ctx.round + 1
            kept["count"][i] += 1
            kept["seconds"][i] = _seconds(roster, i, ctx.round)
        mean = np.mean([kept["utility"][u.client_id] for u in updates]) if updates else 0.0
        kept["history"] = np.append(kept["history"], mean)[-2 * self.window :]
        return replace(plan, state=kept, uplink_bytes=FLOAT_BYTES * len(updates))

    def choose(self, roster: Roster, state: Vectors, ctx: RoundContext) -> list[int]:
        """The m clients of the round, sorted."""
        m, rng = roster.cohort_size, generator(ctx.seed, "cohort", ctx.round)
        clients = np.array(roster.participants)
        seen = state["last"][clients] > 0
        tried = clients[seen & (state["count"][clients] < (self.most or np.inf))]
        new = clients[~seen]
        share = max(self.exploration * self.decay**ctx.round, self.least_exploration)
        size = min(m - int(share * m), len(tried))
        scores = self.scores(state, tried, clients, ctx)
        admitted = np.empty(0, bool)
        if size:
            admitted = scores >= self.cut_off * np.sort(scores)[-size]
        chosen = _draw(rng, tried[admitted], scores[admitted], size) if size else []
        speed = 1 / np.maximum(state["seconds"][new], 1e-9)
        chosen += _draw(rng, new, speed, min(m - len(chosen), len(new)))
        rest = np.setdiff1d(clients, chosen)  # where few are new
        rank = dict(zip(tried.tolist(), scores.tolist(), strict=True))
        by_score = sorted(rest.tolist(), key=lambda client: (-rank.get(client, -1.0), client))
        return sorted([*chosen, *by_score[: m - len(chosen)]])

    def scores(self, state: Vectors, tried: I64, clients: I64, ctx: RoundContext) -> F64:
        """Util (k,) of the ``tried`` clients, of all ``clients`` (K,) that may train."""
        if not len(tried):
            return np.empty(0)
        ordered = np.sort(state["utility"][tried])
        clipped = np.minimum(
            state["utility"][tried], ordered[min(int(self.clip * len(tried)), len(tried) - 1)]
        )
        least = 0.999 * ordered[0]
        score = (clipped - least) / max(ordered[-1] - least, 1e-4)
        score += np.sqrt(0.1 * np.log(ctx.round + 1) / state["last"][tried])
        seconds = state["seconds"]
        all_seconds, at = np.sort(seconds[clients]), int(state["quantile"][0] * len(clients))
        preferred = all_seconds[at] if at < len(clients) else np.inf
        late = seconds[tried] > preferred
        score[late] *= (preferred / seconds[tried][late]) ** self.penalty
        return score

    def _start(self, roster: Roster) -> dict[str, Array]:
        """The state before the first round."""
        count = len(roster.sizes)
        return {
            "utility": np.zeros(count),
            "last": np.zeros(count, np.int64),
            "count": np.zeros(count, np.int64),
            "seconds": np.array([_seconds(roster, client, 0) for client in range(count)]),
            "quantile": np.array([self.quantile]),
            "history": np.zeros(0),
        }

    def _pace(self, state: dict[str, Array], ctx: RoundContext) -> None:
        """Raises T where utilities fall."""
        w, history = self.window, state["history"]
        if ctx.round % w == 0 and len(history) == 2 * w and history[:w].sum() > history[w:].sum():
            state["quantile"] = state["quantile"] + self.pace


def _draw(rng: np.random.Generator, clients: I64, weights: F64, size: int) -> list[int]:
    """``size`` distinct clients, one after the other with probability by weight."""
    if not size:
        return []
    p = np.maximum(weights / weights.max() if weights.max() > 0 else weights, 1e-9)
    drawn: list[int] = rng.choice(clients, size, replace=False, p=p / p.sum()).tolist()
    return drawn


def _seconds(roster: Roster, client: int, round: int) -> float:
    """Simulated seconds of a round of all steps; 0 where nothing takes time."""
    clock, n = roster.clock, roster.sizes[client]
    if not clock.timed:
        return 0.0
    samples = clock.schedule.samples(n, clock.schedule.steps(n)) if n else 0
    speed, down, up = (clock.trait(name, round, client) for name in TIMED)
    whole = Participation(compute=samples / speed, download=down, upload=up)
    return whole.seconds(clock.vector_bytes, clock.vector_bytes)
