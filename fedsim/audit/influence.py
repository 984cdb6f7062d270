"""Who helped and who hurt: the influence of each client on the rounds of a run.

A round is done again up to the server; its rule then aggregates the same updates without one
client (leave-one-out), or for all coalitions of clients (Shapley values). Nothing is trained
without somebody: what the other clients would have done in his place, in this round or in later
ones, is no part of it. Summed over rounds the Shapley values are the federated ones of Wang et al.
(2020, arXiv:2009.06192).

The value of a coalition S is the way that its step makes along the round's step (metric ``step``),

    v(S) = <step(S), step> / ||step||,      v(nobody) = 0,

or how much better the model after its step scores than the one before the round, by a metric of
an evaluation: a fall of a loss and a rise of an accuracy are positive.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsim.audit.rerun import Rerun, opened
from fedsim.core.errors import ConfigError, FedsimError, nearest
from fedsim.core.imports import users_code
from fedsim.core.rng import generator
from fedsim.core.rows import SCORES
from fedsim.metrics.shapley import everybody, exact, members, prefixes, sampled
from fedsim.server.coalitions import Coalitions, Moved
from fedsim.storage.checkpoint import ServerState
from fedsim.training import evaluate
from fedsim.training.round import Gathered, conclude, context, gather, train
from fedsim.training.rows import RoundLog
from fedsim.training.setup import Setup

STEP = "step"
METRICS = (STEP, *(f"{part}_{name}" for part in ("val", "test") for name in SCORES))
"""What the value of a coalition is measured by."""
EXACT = 10
"""Cohorts of at most so many clients have exact Shapley values, from all of their coalitions."""

logger = logging.getLogger("fedsim")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What is measured of each round.

    Args:
        metric: one of :data:`METRICS`.
        shapley: whether Shapley values are computed beside leave-one-out.
        permutations: orders drawn for the Shapley values of a cohort of more than :data:`EXACT`.
        seed: of these orders.

    Raises:
        ConfigError: an unknown metric, or fewer than two orders.
    """

    metric: str = STEP
    shapley: bool = True
    permutations: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        """See the class."""
        if self.metric not in METRICS:
            raise ConfigError(
                f"metric: {self.metric!r} given; known are {', '.join(METRICS)}"
                f"{nearest(self.metric, METRICS)}"
            )
        if self.permutations < 2:
            raise ConfigError(
                f"permutations: {self.permutations} given; a standard error needs at least 2"
            )

    def check(self, setup: Setup) -> None:
        """Refuses a run of whose clients nothing can be said, by a ConfigError with the reason."""
        config = setup.config
        why = None
        if setup.algorithm.pools:
            why = f"algorithm {config.algorithm} pools the clients' data and has no updates of each"
        elif not setup.num_sent:
            why = f"with algorithm {config.algorithm} clients send no parameters to aggregate"
        elif config.train.secure_aggregation:
            why = "train.secure_aggregation hides the updates of single clients from the server"
        elif config.dp.level == "user":
            why = (
                "dp.level=user hides what a single client changes, which is what an influence says"
            )
        if why is not None:
            raise ConfigError(f"influence: {why}")
        if self.metric == STEP:
            return
        if setup.personalised:
            raise ConfigError(
                f"metric {self.metric}: with algorithm {config.algorithm} clients have models of "
                f"their own, so that there is no one model to evaluate; metric {STEP} is of the "
                "common step"
            )
        if self.metric.startswith("val_") and not len(setup.dataset.val):
            raise ConfigError(
                f"metric {self.metric}: {setup.dataset.name} has no validation part in this run "
                "(data.val_fraction); metrics of the test part begin with test_"
            )


@dataclass(frozen=True)
class Round:
    """A round of a run, done again up to the server."""

    number: int
    before: ServerState
    after: ServerState
    gathered: Gathered
    coalitions: Coalitions | None


def influence(
    run: Path | str,
    *,
    rounds: Iterable[int] | None = None,
    metric: str = STEP,
    shapley: bool = True,
    permutations: int = 64,
    seed: int = 0,
    overrides: Mapping[str, object] | None = None,
    accept_changed_code: bool = False,
) -> pd.DataFrame:
    """The influence of each client in each round of a run, whose directory stays as it is.

    Args:
        run: its directory; the run may be unfinished.
        rounds: which, from 1; None: all that are complete.
        metric: one of :data:`METRICS`.
        shapley: whether Shapley values are computed beside leave-one-out.
        permutations: orders drawn for the Shapley values of a cohort of more than ten clients.
        seed: of these orders.
        overrides: settings of where the work is done, such as ``{"engine.kind": "ray"}``.
        accept_changed_code: go on although the user's own functions have changed.

    Returns:
        A row per round and client whose update counted: ``round``, ``client_id``, ``name``,
        ``num_samples``; of the step without the client ``distance`` from the round's step, whose
        length is ``step_norm``, and ``cosine`` to it; ``share``, of the round's step that is
        missing along itself; ``metric``, ``total`` (the value of all clients together),
        ``leave_one_out``, ``shapley`` and ``shapley_error`` (0 where it is exact). With an attack
        ``attacker`` is 1 or 0.

    Raises:
        ConfigError, DataError: the run cannot be done again, has no such round, or its method has
            no such influence.
        FedsimError: a round failed.
    """
    wanted = Measurement(metric=metric, shapley=shapley, permutations=permutations, seed=seed)
    rows: list[dict[str, Any]] = []
    with opened(Path(run), overrides, accept_changed_code=accept_changed_code) as rerun:
        wanted.check(rerun.setup)
        state, at = rerun.start, 0
        for number in checked(rounds, rerun.rounds):
            if at != number - 1:
                state = rerun.state(number - 1)
            made = again(rerun, state, number)
            rows += rows_of(rerun, made, wanted)
            state, at = made.after, number
    columns = [*COLUMNS, *(["attacker"] if rerun.setup.config.attack.name is not None else [])]
    return pd.DataFrame(rows, columns=columns)


COLUMNS = (
    *("round", "client_id", "name", "num_samples", "step_norm", "distance", "cosine", "share"),
    *("metric", "total", "leave_one_out", "shapley", "shapley_error"),
)


def checked(rounds: Iterable[int] | None, done: int) -> list[int]:
    """The rounds, ascending.

    Raises:
        ConfigError: a run without a complete round, or one that it has not.
    """
    if not done:
        raise ConfigError("rounds: the run has no complete round")
    wanted = sorted(set(range(1, done + 1) if rounds is None else rounds))
    if bad := [number for number in wanted if not 1 <= number <= done]:
        raise ConfigError(f"rounds: {bad[0]} given; the run has rounds 1 to {done}")
    if not wanted:
        raise ConfigError("rounds: none given")
    return wanted


def again(rerun: Rerun, state: ServerState, number: int) -> Round:
    """Round ``number``, from 1, from the state before it; nothing is evaluated."""
    setup, log, ctx = rerun.setup, RoundLog(number), context(rerun.setup, number - 1)
    with users_code(f"round {number}", FedsimError):
        trained = train(setup, rerun.executor, state, ctx, log)
        gathered = gather(setup, rerun.executor, trained, ctx, log)
        after = conclude(setup, trained, gathered, ctx).state
    coalitions = None
    if gathered.updates and gathered.cohort is not None:
        server, before = setup.algorithm.server, trained.state.server
        sent, _ = server.sent(before, gathered.cohort, ctx)
        coalitions = Coalitions(server, before, sent, ctx)
    return Round(number, state, after, gathered, coalitions)


def rows_of(rerun: Rerun, made: Round, wanted: Measurement) -> list[dict[str, Any]]:
    """The rows of a round, one for each client whose update counted."""
    if made.coalitions is None:
        return []
    sets, m = made.coalitions, made.coalitions.m
    check_sizes(sets, wanted, made.number)
    whole = everybody(m)
    without = [whole & ~(1 << i) for i in range(m)]
    needed = {0, whole, *without}
    orders: list[list[int]] = []
    if wanted.shapley and m <= EXACT:
        needed |= set(range(whole + 1))
    elif wanted.shapley:
        rng = generator(wanted.seed, "shapley", made.number)
        orders = [rng.permutation(m).tolist() for _ in range(wanted.permutations)]
        needed |= {coalition for order in orders for coalition in prefixes(order)}
    moved = {c: sets.moved(members(c)) for c in (0, whole, *without)}
    values = values_of(rerun, made, wanted.metric, sorted(needed), moved)
    shares, errors = np.full(m, np.nan), np.full(m, np.nan)
    if orders:
        shares, errors = sampled(orders, values.__getitem__)
    elif wanted.shapley:
        shares, errors = exact([values[c] for c in range(whole + 1)]), np.zeros(m)
    norm, setup = moved[0].distance, rerun.setup
    names = setup.partition.names
    rows = []
    for i, update in enumerate(sets.cohort.updates):
        own, client = moved[without[i]], update.client_id
        rows.append(
            {
                "round": made.number,
                "client_id": client,
                "name": names[client] if names else "",
                "num_samples": len(setup.partition.train[client]),
                "step_norm": norm,
                "distance": own.distance,
                "cosine": own.cosine,
                "share": 1 - own.along / norm if norm > 0 else math.nan,
                "metric": wanted.metric,
                "total": values[whole] - values[0],
                "leave_one_out": values[whole] - values[without[i]],
                "shapley": shares[i],
                "shapley_error": errors[i],
                "attacker": int(client in setup.malicious),
            }
        )
    return rows


def check_sizes(sets: Coalitions, wanted: Measurement, number: int) -> None:
    """Refuses a rule that cannot aggregate fewer clients, by a ConfigError."""
    least = 1 if wanted.shapley else sets.m - 1
    for size in range(sets.m - 1, max(least, 1) - 1, -1):
        try:
            sets.server.check(size)
        except ConfigError as error:
            advice = "" if size == sets.m - 1 else "; leave-one-out alone works (--no-shapley)"
            raise ConfigError(
                f"round {number}, {size} of the {sets.m} clients: {error}{advice}"
            ) from error


def values_of(
    rerun: Rerun,
    made: Round,
    metric: str,
    coalitions: Sequence[int],
    moved: Mapping[int, Moved],
) -> dict[int, float]:
    """The value of each coalition, by the metric.

    Raises:
        DivergedError: a model's outputs are not finite.
        ConfigError: the part has no such score.
    """
    sets = made.coalitions
    assert sets is not None  # noqa: S101
    if metric == STEP:
        every = {c: moved.get(c) or sets.moved(members(c)) for c in coalitions}
        return {c: own.along for c, own in every.items()}
    part, _, name = metric.partition("_")
    models = {c: evaluate.Candidate(None, _model(made, sets, c)) for c in coalitions}
    scores = evaluate.each_scores(rerun.setup, rerun.executor, models, part)
    found = {c: getattr(own, name) for c, own in scores.items()}
    if any(value is None for value in found.values()):
        raise ConfigError(f"metric {metric}: the {part} part of this run has no {name}")
    sign = -1.0 if SCORES[name].lowest else 1.0
    return {c: sign * (value - found[0]) for c, value in found.items()}


def _model(made: Round, sets: Coalitions, coalition: int) -> Any:
    """Makes the model after the step of a coalition."""

    def load() -> tuple[Any, dict[str, Any]]:
        params = made.before.params
        return (params + sets.step(members(coalition)) if coalition else params), {}

    return load


def summed(frame: pd.DataFrame) -> pd.DataFrame:
    """Over the rounds of :func:`influence`, a row per client, who helped most first.

    Columns ``client_id``, ``name``, ``rounds`` (in which its update counted), ``leave_one_out`` and
    ``shapley``, the sums, and ``shapley_error``, the root of the sum of squares.
    """
    grouped = frame.groupby(["client_id", "name"], sort=True)
    sums = grouped[["leave_one_out", "shapley"]].sum(min_count=1)
    sums.insert(0, "rounds", grouped.size())
    errors = frame["shapley_error"].pow(2).groupby([frame["client_id"], frame["name"]])
    sums["shapley_error"] = errors.sum(min_count=1).pow(0.5)
    by = "shapley" if sums["shapley"].notna().any() else "leave_one_out"
    return sums.reset_index().sort_values(by, ascending=False, kind="stable", ignore_index=True)


def parse_rounds(text: str) -> Collection[int] | None:
    """``all``, or numbers and ranges such as ``1,4,8-10``.

    Raises:
        ConfigError: it is neither.
    """
    if text == "all":
        return None
    found: set[int] = set()
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        ends = [first, last] if dash else [first]
        if not all(e.isascii() and e.isdecimal() and len(e) < 9 for e in ends):
            raise ConfigError(f"--rounds {text}: give all, or rounds such as 1,4,8-10")
        if int(ends[0]) > int(ends[-1]):
            raise ConfigError(f"--rounds {text}: {piece.strip()} ends before it begins")
        found |= set(range(int(ends[0]), int(ends[-1]) + 1))
    return found
