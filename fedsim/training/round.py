"""One round: cohort, broadcast, local training, aggregation, evaluation, and the rows of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import combinations

import numpy as np

from fedsim.algorithms.base import Probe
from fedsim.config.resolve import RunConfig
from fedsim.core.errors import DivergedError
from fedsim.core.rng import generator
from fedsim.core.types import F64, ClientUpdate, RoundContext, Vector
from fedsim.engine.base import Executor
from fedsim.server.base import ServerStep
from fedsim.server.cohort import Cohort, gram, single_threaded_blas
from fedsim.server.gram import conflict_ratio, cosines, gradient_diversity, shares, spectrum
from fedsim.server.linalg import Columns, Local
from fedsim.storage.checkpoint import ServerState
from fedsim.systems.clock import Visit, wire_bytes
from fedsim.systems.costs import round_costs
from fedsim.training import evaluate
from fedsim.training.log import RoundLog
from fedsim.training.setup import Setup


def finite(
    setup: Setup, results: list[ClientUpdate], ctx: RoundContext, log: RoundLog
) -> list[ClientUpdate]:
    """The results without diverged clients, which end the run unless the policy is ``drop``."""
    good = []
    for result in results:
        if result.diverged is None:
            good.append(result)
            continue
        client = result.client_id
        message = f"round {ctx.round + 1}, client {client}: {result.diverged} is NaN or infinite"
        if setup.config.engine.on_client_failure == "raise":
            raise DivergedError(
                f"{message}; lower train.lr, or leave such clients out with "
                "--set engine.on_client_failure=drop"
            )
        log.add("errors", client_id=client, attempt=1, node="", error=message)
    return good


def aggregate(
    setup: Setup,
    state: ServerState,
    results: list[ClientUpdate],
    columns: Columns | None,
    ctx: RoundContext,
    visits: Mapping[int, Visit],
    log: RoundLog,
) -> ServerState:
    """The server step and the rows of rounds.csv and clients.csv.

    Args:
        setup: the run.
        state: before the round.
        results: those that count.
        columns: their updates where these are on the nodes.
        ctx: the round.
        visits: of the cohort, those that were left out or failed included.
        log: gets the rows.
    """
    row: dict[str, float | None] = {
        "lr": ctx.lr,
        "cohort_size": len(visits),
        "dropped": len(visits) - len(results),
    }
    if not results:
        cost = round_costs(setup.clock, visits, state.downlink, {}, {})
        _client_rows(setup, visits, {}, {}, cost.seconds, log)
        log.add("rounds", **row, **cost.row)
        return state
    cohort = Cohort.of(results, setup.layout, columns, state.params)
    params = slice(0, setup.layout.num_params)
    k = cohort.gram(params)
    step = setup.algorithm.server.step(state.server, cohort, ctx)
    norms = {u.client_id: math.sqrt(k[i, i]) for i, u in enumerate(cohort.updates)}
    uploads = {r.client_id: r.extras for r in results}
    cost = round_costs(setup.clock, visits, state.downlink, step.private, uploads)
    by_client = {r.client_id: r for r in results}
    _client_rows(setup, visits, by_client, norms, cost.seconds, log)
    with single_threaded_blas():
        axes = spectrum(k)
        diversity = gradient_diversity(k, shares(cohort.num_samples, "samples"))
    row |= {
        "train_loss": _train_loss(results),
        "conflict_ratio": conflict_ratio(k),
        "update_norm": math.sqrt(gram([step.step], params)[0, 0]),
        "gradient_diversity": diversity,
        "top_axis_share": axes[0],
    }
    log.add("rounds", **row, **cost.row)
    for name, value in step.metrics.items():
        log.add("server", name=name, value=value)
    if setup.config.evaluation.cosines:
        _geometry_rows([u.client_id for u in cohort.updates], k, axes, log)
    states = state.clients.updated({r.client_id: r.state for r in results})
    private = {c: {**states.get(c, {}), **own} for c, own in step.private.items()}
    return ServerState(
        params=_advanced(state.params, step, results),
        server=step.state,
        downlink=step.downlink,
        clients=states.updated(private),
    )


def _geometry_rows(clients: list[int], k: F64, axes: F64, log: RoundLog) -> None:
    """The rows of cosines.csv and spectrum.csv; ``axes`` is the spectrum of ``k``."""
    cosine = cosines(k)
    for a, b in combinations(range(len(clients)), 2):
        log.add("cosines", client_a=clients[a], client_b=clients[b], cosine=cosine[a, b])
    for axis, share in enumerate(axes, start=1):
        log.add("spectrum", axis=axis, share=share)


def _advanced(params: Vector, step: ServerStep, results: list[ClientUpdate]) -> Vector:
    """The global vector after the step, in the step's own memory unless something else needs it."""
    kept = [*step.state.flatten().values(), *step.downlink.values(), *(r.delta for r in results)]
    kept += [array for own in step.private.values() for array in own.values()]
    alone = step.step.flags.owndata and step.step.flags.writeable
    free = alone and not any(np.may_share_memory(step.step, array) for array in kept)
    return np.add(params, step.step, out=step.step if free else None)


def _client_rows(
    setup: Setup,
    clients: Iterable[int],
    results: Mapping[int, ClientUpdate],
    norms: Mapping[int, float],
    seconds: Mapping[int, float],
    log: RoundLog,
) -> None:
    for client in clients:
        row: dict[str, object] = {"status": "dropped", "num_steps": 0}
        if client in results:
            update = results[client]
            row = {"status": "ok", "num_steps": update.num_steps, "train_loss": update.train_loss}
            row |= {"update_norm": norms[client], "simulated_seconds": seconds.get(client)}
        samples = len(setup.partition.train[client])
        log.add("clients", client_id=client, num_samples=samples, **row)


def _train_loss(results: list[ClientUpdate]) -> float | None:
    """Mean over the clients that trained, weighted by samples."""
    trained = [r for r in results if r.num_steps]
    total = sum(u.num_samples for u in trained)
    weighted = sum(u.num_samples * u.train_loss for u in trained)
    return weighted / total if total else None


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
        scores = evaluate.before_training(setup, executor, state, clients, ctx)
    visits = visits_of(setup, clients, ctx, log)
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
        good = finite(setup, results, ctx, log)
        columns = executor.columns(good, shared, state.clients, ctx)
        after = aggregate(setup, state, good, columns, ctx, visits, log)
    e = setup.config.evaluation
    due, clients_due = (evaluate.is_due(every, ctx) for every in (e.every, e.clients_every))
    if due or clients_due:
        with log.timed("evaluate"), _naming(ctx):
            if due:
                whose = state, after, clients, good
                evaluate.write_scores(scores or evaluate.after_round(setup, executor, *whose), log)
            if clients_due:
                evaluate.write_client_scores(setup, executor, after, log)
    if good and evaluate.is_due(e.decompose_every, ctx):
        with log.timed("decompose") as size, _naming(ctx):
            size["bytes"] = evaluate.decompose(setup, executor, state, after, good, log)
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
    updates = tuple(finite(setup, results, ctx, log))
    if not updates:
        return state, visits
    sent = {u.client_id: wire_bytes(u.extras.values()) for u in updates}
    cohort = Cohort(updates, setup.layout, Local(()), state.params)
    answer = probe.digest(cohort, state.server.probe, asked)
    after = replace(
        state,
        server=replace(state.server, probe=answer.state),
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


def visits_of(
    setup: Setup, clients: Sequence[int], ctx: RoundContext, log: RoundLog
) -> dict[int, Visit]:
    """What each client of the cohort does; those that are left out become rows of errors.csv."""
    samples = setup.partition.train
    found = {c: setup.clock.visit(ctx.round, c, len(samples[c])) for c in clients}
    for client, visit in found.items():
        if visit.absent is not None:
            log.add("errors", client_id=client, attempt=0, node="", error=visit.absent)
    return found
