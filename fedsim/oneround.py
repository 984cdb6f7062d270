"""One round: a cohort is drawn and trained, the server takes one step, the model is evaluated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace

from fedsim import accounts, aggregation, clientscores, evaluation, lossmatrix
from fedsim.clock import Visit, wire_bytes
from fedsim.cohort import Cohort
from fedsim.columns import Local
from fedsim.config import RunConfig
from fedsim.contracts import RoundContext
from fedsim.engine import Executor
from fedsim.errors import DivergedError
from fedsim.plugin import Probe
from fedsim.rng import generator
from fedsim.roundlog import RoundLog
from fedsim.server import named, part
from fedsim.setup import Setup
from fedsim.state import ServerState


def run_round(
    setup: Setup, executor: Executor, state: ServerState, ctx: RoundContext, log: RoundLog
) -> ServerState:
    """One round: the state after it; its rows go to ``log``.

    Raises:
        DivergedError: a client diverged and the policy is ``raise``.
        WorkerError: a client's work failed.
    """
    clients = draw_cohort(ctx, setup.cohort_size)
    with _naming(ctx):
        scores = evaluation.before_training(setup, executor, state, clients, ctx)
    visits = accounts.visits(setup, clients, ctx, log)
    if setup.algorithm.probe is not None:
        with log.timed("probe"):
            probe = setup.algorithm.probe
            state, visits = _probed(probe, setup, executor, state, ctx, visits, log)
    with log.timed("broadcast") as size:
        shared = executor.broadcast(state.params, state.downlink)
        size["bytes"] = state.params.nbytes
    with log.timed("train") as size:
        results = executor.train(_present(visits), shared, state.clients, ctx)
        size["bytes"] = len(results) * state.params.nbytes
    with log.timed("aggregate"):
        good = aggregation.finite(setup, results, ctx, log)
        columns = executor.columns(good, shared, state.clients, ctx)
        after = aggregation.aggregate(setup, state, good, columns, ctx, visits, log)
    e = setup.config.evaluation
    due, clients_due = (evaluation.is_due(every, ctx) for every in (e.every, e.clients_every))
    if due or clients_due:
        with log.timed("evaluate"), _naming(ctx):
            if due:
                whose = state, after, clients, good
                evaluation.write(scores or evaluation.after_round(setup, executor, *whose), log)
            if clients_due:
                clientscores.write(setup, executor, after, log)
    if good and evaluation.is_due(e.decompose_every, ctx):
        with log.timed("decompose") as size, _naming(ctx):
            size["bytes"] = lossmatrix.decompose(setup, executor, state, after, good, log)
    for incident in executor.incidents():
        log.add("errors", **asdict(incident))
    return after


def _probed(
    probe: Probe,
    setup: Setup,
    executor: Executor,
    state: ServerState,
    ctx: RoundContext,
    visits: dict[int, Visit],
    log: RoundLog,
) -> tuple[ServerState, dict[int, Visit]]:
    """The state with the server's answer to a pass over the cohort, and the visits with what it
    sent; the model is as before."""
    asked = replace(ctx, probe=True)
    shared = executor.broadcast(state.params, state.downlink)
    results = executor.train(_present(visits), shared, state.clients, asked)
    updates = tuple(r.update for r in aggregation.finite(setup, results, ctx, log))
    if not updates:
        return state, visits
    sent = {u.client_id: wire_bytes(u.extras.values()) for u in updates}
    cohort = Cohort(updates, setup.layout, Local(()), state.params)
    answer = probe.digest(cohort, part(state.server, "probe"), asked)
    after = replace(
        state,
        server={**state.server, **named("probe", answer.state)},
        downlink={**state.downlink, **answer.downlink},
    )
    return after, {c: replace(visit, probed=sent.get(c, 0)) for c, visit in visits.items()}


def _present(visits: Mapping[int, Visit]) -> list[int]:
    """The clients that take part."""
    return [client for client, visit in visits.items() if visit.absent is None]


@contextmanager
def _naming(ctx: RoundContext) -> Iterator[None]:
    """Adds the round to the message of a model whose outputs are not finite."""
    try:
        yield
    except DivergedError as error:
        raise DivergedError(
            f"round {ctx.round + 1}, evaluation: {error}; the model has diverged, lower train.lr"
        ) from error


def draw_cohort(ctx: RoundContext, size: int) -> list[int]:
    """``size`` distinct clients, uniformly, sorted; the same for every method of one seed."""
    rng = generator(ctx.seed, "cohort", ctx.round)
    return sorted(rng.choice(ctx.num_clients, size, replace=False).tolist())


def lr_at(config: RunConfig, round: int) -> float:
    """The learning rate of a round (from 0)."""
    t = config.train
    factor = {
        "constant": 1.0,
        "cosine": 0.5 * (1 + math.cos(math.pi * round / t.rounds)),
        "warmup_round": min(1.0, t.local_epochs * round / 5),
    }
    return t.lr * factor[t.lr_schedule]
