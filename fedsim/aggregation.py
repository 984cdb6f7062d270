"""The server's half of a round: diverged clients, the step, and the rows of both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import combinations

import numpy as np

from fedsim.accounts import costs
from fedsim.clock import Visit
from fedsim.cohort import Cohort, gram, single_threaded_blas
from fedsim.columns import Columns
from fedsim.contracts import F64, RoundContext, ServerStep, Vector
from fedsim.engine import Result
from fedsim.errors import DivergedError
from fedsim.gram import conflict_ratio, cosines, gradient_diversity, shares, spectrum
from fedsim.roundlog import RoundLog
from fedsim.server import named, part
from fedsim.setup import Setup
from fedsim.state import ServerState


def finite(setup: Setup, results: list[Result], ctx: RoundContext, log: RoundLog) -> list[Result]:
    """The results without diverged clients, which end the run unless the policy is ``drop``."""
    good = []
    for result in results:
        if result.diverged is None:
            good.append(result)
            continue
        client = result.update.client_id
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
    results: list[Result],
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
        cost = costs(setup, state, visits, [], {})
        _client_rows(setup, visits, {}, {}, cost.seconds, log)
        log.add("rounds", **row, **cost.row)
        return state
    cohort = Cohort.of([r.update for r in results], setup.layout, columns, state.params)
    params = slice(0, setup.layout.num_params)
    k = cohort.gram(params)
    step = setup.algorithm.server.step(state.server, cohort, ctx)
    norms = {u.client_id: math.sqrt(k[i, i]) for i, u in enumerate(cohort.updates)}
    cost = costs(setup, state, visits, results, step.private)
    by_client = {r.update.client_id: r for r in results}
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
    states = state.clients.updated({r.update.client_id: r.state for r in results})
    private = {c: {**states.get(c, {}), **own} for c, own in step.private.items()}
    server = {**named("probe", part(state.server, "probe")), **step.state}
    return ServerState(
        _advanced(state.params, step, results), server, step.downlink, states.updated(private)
    )


def _geometry_rows(clients: list[int], k: F64, axes: F64, log: RoundLog) -> None:
    """The rows of cosines.csv and spectrum.csv; ``axes`` is the spectrum of ``k``."""
    cosine = cosines(k)
    for a, b in combinations(range(len(clients)), 2):
        log.add("cosines", client_a=clients[a], client_b=clients[b], cosine=cosine[a, b])
    for axis, share in enumerate(axes, start=1):
        log.add("spectrum", axis=axis, share=share)


def _advanced(params: Vector, step: ServerStep, results: list[Result]) -> Vector:
    """The global vector after the step, in the step's own memory unless something else needs it."""
    kept = [*step.state.values(), *step.downlink.values(), *(r.update.delta for r in results)]
    kept += [array for own in step.private.values() for array in own.values()]
    alone = step.step.flags.owndata and step.step.flags.writeable
    free = alone and not any(np.may_share_memory(step.step, array) for array in kept)
    return np.add(params, step.step, out=step.step if free else None)


def _client_rows(
    setup: Setup,
    clients: Iterable[int],
    results: Mapping[int, Result],
    norms: Mapping[int, float],
    seconds: Mapping[int, float],
    log: RoundLog,
) -> None:
    for client in clients:
        row: dict[str, object] = {"status": "dropped", "num_steps": 0}
        if client in results:
            update = results[client].update
            loss = update.metrics["train_loss"]
            row = {"status": "ok", "num_steps": update.num_steps, "train_loss": loss}
            row |= {"update_norm": norms[client], "simulated_seconds": seconds.get(client)}
        samples = len(setup.partition.train[client])
        log.add("clients", client_id=client, num_samples=samples, **row)


def _train_loss(results: list[Result]) -> float | None:
    """Mean over the clients that trained, weighted by samples."""
    trained = [r.update for r in results if r.update.num_steps]
    total = sum(u.num_samples for u in trained)
    weighted = sum(u.num_samples * u.metrics["train_loss"] for u in trained)
    return weighted / total if total else None
