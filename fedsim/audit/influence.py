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

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsim.audit.rerun import Rerun, opened
from fedsim.core.errors import ConfigError, FedsimError, nearest
from fedsim.core.imports import users_code
from fedsim.core.rng import generator
from fedsim.core.rows import metric_column
from fedsim.metrics.shapley import everybody, exact, members, prefixes, sampled
from fedsim.server.coalitions import Coalitions
from fedsim.storage.checkpoint import ServerState
from fedsim.training import evaluate
from fedsim.training.round import conclude, context, gather, train
from fedsim.training.rows import RoundLog
from fedsim.training.setup import Setup

STEP = "step"
EXACT = 10
"""Cohorts of at most so many clients have exact Shapley values, from all of their coalitions."""
COLUMNS = (
    *("round", "client_id", "name", "num_samples", "step_norm", "distance", "cosine", "share"),
    *("metric", "total", "leave_one_out", "shapley", "shapley_error"),
)


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
        metric: what the value of a coalition is: ``step``, or a score of the model after the round,
            such as ``val_loss`` or ``test_rmse``.
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
    if permutations < 2:
        raise ConfigError(f"permutations: {permutations} given; a standard error needs at least 2")
    rows: list[dict[str, Any]] = []
    overrides = {**(overrides or {}), "engine.aggregation_shards": 1}  # updates in this process
    with opened(Path(run), overrides, accept_changed_code=accept_changed_code) as rerun:
        check(rerun.setup, metric)
        numbers = sorted(set(range(1, rerun.rounds + 1) if rounds is None else rounds)) or [0]
        for number in numbers:
            rerun.check(number, "round")
        state, before = rerun.start, 0
        for number in numbers:
            if before != number - 1:
                state = rerun.state(number - 1)
            after, sets = again(rerun, state, number)
            if sets is not None:
                check_sizes(sets, number, shapley=shapley)
                drawn = permutations if shapley and sets.m > EXACT else 0
                rng = generator(seed, "shapley", number)
                orders = [rng.permutation(sets.m).tolist() for _ in range(drawn)]
                rows += rows_of(rerun, state, sets, orders, number, metric, shapley=shapley)
            state, before = after, number
    columns = [*COLUMNS, *(["attacker"] if rerun.setup.config.attack.name is not None else [])]
    return pd.DataFrame(rows, columns=columns)


def check(setup: Setup, metric: str) -> None:
    """Refuses a run of whose clients nothing can be said."""
    config, reason = setup.config, ""
    scores = (
        metric_column(part, name) for part in ("val", "test") for name in setup.measures.scores
    )
    if metric not in (known := (STEP, *scores)):
        hint = nearest(metric, known)
        raise ConfigError(f"metric: {metric!r} given; known are {', '.join(known)}{hint}")
    if setup.algorithm.pools or not setup.num_sent:
        reason = f"with algorithm {config.algorithm} clients send no parameters to aggregate"
    elif config.train.secure_aggregation:
        reason = "train.secure_aggregation hides the updates of single clients from the server"
    elif config.dp.level == "user":
        reason = "dp.level=user hides what a single client changes, which is what it says"
    elif metric != STEP and setup.personalised:
        reason = f"metric {metric}: with algorithm {config.algorithm} there is no one model to "
        reason += f"evaluate; metric {STEP} is of the common step"
    elif metric.startswith("val_") and not len(setup.dataset.val):
        reason = f"metric {metric}: {setup.dataset.name} has no validation part in this run"
    if reason:
        raise ConfigError(f"influence: {reason}")


def again(rerun: Rerun, state: ServerState, number: int) -> tuple[ServerState, Coalitions | None]:
    """The state after round ``number``, from 1, and the coalitions of the clients that sent."""
    setup, log, ctx = rerun.setup, RoundLog(number), context(rerun.setup, number - 1)
    with users_code(f"round {number}", FedsimError):
        trained = train(setup, rerun.executor, state, ctx, log)
        gathered = gather(setup, rerun.executor, trained, ctx, log)
        after = conclude(setup, trained, gathered, ctx).state
    if not gathered.updates or gathered.cohort is None:
        return after, None
    server, before = setup.algorithm.server, trained.state.server
    sent = server.sent(before, gathered.cohort, ctx).cohort
    return after, Coalitions(server, before, sent, ctx)


def check_sizes(sets: Coalitions, number: int, *, shapley: bool) -> None:
    """Refuses a rule that cannot aggregate fewer clients, by a ConfigError."""
    for size in range(sets.m - 1, 0 if shapley else sets.m - 2, -1):
        try:
            sets.server.check(size)
        except ConfigError as error:
            advice = "" if size == sets.m - 1 else "; leave-one-out alone works (--no-shapley)"
            place = f"round {number}, {size} of the {sets.m} clients"
            raise ConfigError(f"{place}: {error}{advice}") from error


def _without_each(m: int) -> list[int]:
    return [everybody(m) & ~(1 << i) for i in range(m)]


def values_of(
    rerun: Rerun, state: ServerState, sets: Coalitions, metric: str, coalitions: Sequence[int]
) -> dict[int, float]:
    """The value of each coalition, by the metric; ``state`` is that before the round."""
    if metric == STEP:
        return {c: sets.along(members(c)) for c in coalitions}

    def model(coalition: int) -> Any:
        step = partial(sets.step, members(coalition))
        return lambda: (state.params + step() if coalition else state.params, {})

    part, _, name = metric.partition("_")
    models = {c: evaluate.Candidate(None, model(c)) for c in coalitions}
    scores = evaluate.each_scores(rerun.setup, rerun.executor, models, part)
    cells = {c: each.columns(part)[metric] for c, each in scores.items()}
    values = {c: value for c, value in cells.items() if value is not None}
    if len(values) < len(cells):
        raise ConfigError(f"metric {metric}: the {part} part of this run has no {name}")
    sign = -1.0 if rerun.setup.measures.scores[name].lowest else 1.0
    return {c: sign * (value - values[0]) for c, value in values.items()}


def rows_of(
    rerun: Rerun,
    state: ServerState,
    sets: Coalitions,
    orders: Sequence[Sequence[int]],
    number: int,
    metric: str,
    *,
    shapley: bool,
) -> list[dict[str, Any]]:
    """The rows of a round, one for each client whose update counted."""
    whole, m, setup = everybody(sets.m), sets.m, rerun.setup
    coalitions = {0, whole, *_without_each(m), *(c for order in orders for c in prefixes(order))}
    if shapley and not orders:
        coalitions = set(range(whole + 1))
    values = values_of(rerun, state, sets, metric, sorted(coalitions))
    estimates, errors = np.full((2, m), np.nan)
    if orders:
        estimates, errors = sampled(orders, values.__getitem__)
    elif shapley:
        estimates, errors = exact([values[c] for c in range(whole + 1)]), np.zeros(m)
    norm, names, rows = sets.norm, setup.partition.names, []
    for i, (update, without) in enumerate(zip(sets.cohort.updates, _without_each(m), strict=True)):
        others, client = members(without), update.client_id
        distance, cosine = sets.moved(others)
        rows.append(
            {
                "round": number,
                "client_id": client,
                "name": names[client] if names else "",
                "num_samples": len(setup.partition.train[client]),
                "step_norm": norm,
                "distance": distance,
                "cosine": cosine,
                "share": 1 - sets.along(others) / norm if norm > 0 else math.nan,
                "metric": metric,
                "total": values[whole] - values[0],
                "leave_one_out": values[whole] - values[without],
                "shapley": estimates[i],
                "shapley_error": errors[i],
                "attacker": int(client in setup.malicious),
            }
        )
    return rows


def parse_rounds(text: str) -> Collection[int] | None:
    """``all``, or numbers and ranges such as ``1,4,8-10``."""
    if text == "all":
        return None
    numbers: set[int] = set()
    for piece in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,8})(?:-(\d{1,8}))?\s*", piece, re.ASCII)
        span = range(int(ends[1]), int(ends[2] or ends[1]) + 1) if ends else ()
        if not span:
            raise ConfigError(f"--rounds {text}: give all, or rounds such as 1,4,8-10")
        numbers |= set(span)
    return numbers
