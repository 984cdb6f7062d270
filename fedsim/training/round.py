"""One round: :func:`run_round` names its steps in their order; what a step does stands below it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from fedsim.core.errors import ContractError, DivergedError, WorkerError
from fedsim.core.types import ClientTask, ClientUpdate, Layout, RoundContext, Sent, Vector
from fedsim.engine.base import Executor, Models
from fedsim.engine.spec import array_sha256
from fedsim.schedules.base import RoundPlan, check_plan, lr_at
from fedsim.server.base import ServerStep
from fedsim.server.cohort import Cohort, gram
from fedsim.server.columns import Columns
from fedsim.server.device_columns import DeviceColumns
from fedsim.server.gram import gradient_diversity, shares, spectrum
from fedsim.server.linalg import single_threaded_blas
from fedsim.storage.checkpoint import ServerState
from fedsim.systems.clock import Participation, wire_bytes
from fedsim.systems.costs import Costs, round_costs
from fedsim.training import evaluate
from fedsim.training.decompose import decompose
from fedsim.training.personal import with_own_models
from fedsim.training.privacy import remedy
from fedsim.training.rows import Aggregated, RoundLog, add_rows, round_row
from fedsim.training.setup import Setup


class Trained(NamedTuple):
    """A round whose clients have trained."""

    state: ServerState  # before the round, with what the pass before training answered
    plan: RoundPlan
    participation: Mapping[int, Participation]  # of the plan, with what that pass sent
    models: Mapping[int, Sent]  # by version, those that the tasks started from
    updates: Sequence[ClientUpdate]  # as the executor gave them
    reference: Vector | None  # (D,) the server's own update, where it trains itself
    scores: dict[str, evaluate.Evaluated] | None  # before training, where that counts


class Gathered(NamedTuple):
    """The updates of clients that did not diverge, as the executor gave them, and their cohort;
    None where there is nothing to aggregate."""

    updates: list[ClientUpdate]
    cohort: Cohort | None


def run_round(
    setup: Setup, executor: Executor, state: ServerState, ctx: RoundContext, log: RoundLog
) -> ServerState:
    """One round: the state after it; its rows go to ``log``."""
    trained = train(setup, executor, state, ctx, log)
    with log.timed("aggregate"):
        gathered = gather(setup, executor, trained, ctx, log)
        aggregated = conclude(setup, trained, gathered, ctx)
    record(setup, executor, trained, gathered.updates, aggregated, ctx, log)
    return aggregated.state


def train(
    setup: Setup, executor: Executor, state: ServerState, ctx: RoundContext, log: RoundLog
) -> Trained:
    """The plan of the round, the pass before training, and the clients' training."""
    plan = planned(setup, executor, state, ctx, log)
    with naming_the_round(setup, ctx):
        scored = with_own_models(setup, executor, state, ctx)
        scores = evaluate.before_training(setup, executor, scored, list(plan.participation), ctx)
    participation = plan.participation
    if setup.algorithm.probe is not None:
        with log.timed("probe"):
            state, participation = run_probe(setup, executor, state, plan, ctx, log)
    models, reference = models_of(plan, state, ctx), None
    if setup.algorithm.server.root_samples and plan.tasks:
        with log.timed("root"):
            reference = root_update(setup, executor, models, ctx)
    with log.timed("broadcast") as size:
        executor.broadcast(models)
        size["bytes"] = state.params.nbytes
    with log.timed("train") as size:
        executor.prefetch(plan.ahead, models, state.clients)
        updates = executor.run(plan.tasks, models, state.clients)
        size["bytes"] = len(updates) * state.params.nbytes
    return Trained(state, plan, participation, models, updates, reference, scores)


def gather(
    setup: Setup, executor: Executor, trained: Trained, ctx: RoundContext, log: RoundLog
) -> Gathered:
    """The updates as they reach the server."""
    state, models = trained.state, trained.models
    updates = without_diverged(setup, trained.updates, f"round {log.round}", log)
    mixed = setup.config.asynchrony.mixing is not None
    updates = rebased(setup.layout, updates, models, state.params, whole=mixed)
    updates = [
        u if u.version == ctx.round else replace(u, staleness=steps_since(u.version, state, ctx))
        for u in updates
    ]
    columns: Columns | None = executor.columns(updates, models, state.clients)
    if columns is None and updates and setup.server_device is not None:
        ordered = sorted(updates, key=lambda update: update.client_id)
        columns = DeviceColumns.on(setup.server_device, [update.delta for update in ordered])
    if not updates and setup.budget is None:  # the noise is released in any case
        return Gathered(updates, None)
    cohort = Cohort.empty(setup.layout, state.params)
    if updates:
        cohort = Cohort.of(updates, setup.layout, columns, state.params)
    return Gathered(updates, replace(cohort, reference=trained.reference))


def conclude(setup: Setup, trained: Trained, gathered: Gathered, ctx: RoundContext) -> Aggregated:
    """The server's step, and the state after the round."""
    state, plan, (updates, cohort) = trained.state, trained.plan, gathered
    aggregated = Aggregated(state=state)
    if cohort is not None:
        aggregated = aggregate(setup, state, cohort, updates, ctx)
    versions = {v: trained.models[v] for v in sorted(plan.needed)}
    unchanged = state.unchanged if updates else (*state.unchanged, ctx.round)
    after = replace(
        aggregated.state,
        schedule=plan.state,
        versions=versions,
        unchanged=tuple(r for r in unchanged if versions and r >= min(versions)),
    )
    return replace(aggregated, state=after)


def record(
    setup: Setup,
    executor: Executor,
    trained: Trained,
    updates: list[ClientUpdate],
    aggregated: Aggregated,
    ctx: RoundContext,
    log: RoundLog,
) -> None:
    """Evaluates the round's model where that is due, and has the rows of the round but that of
    models.csv, whose hash no next round waits for."""
    state, after, e = trained.state, aggregated.state, setup.config.evaluation
    due, clients_due = (evaluate.is_due(every, ctx) for every in (e.every, e.clients_every))
    after = with_own_models(setup, executor, after, replace(ctx, round=ctx.round + 1))
    scores, clients = trained.scores or {}, evaluate.ClientScores()
    success = math.nan
    if due or clients_due:
        with log.timed("evaluate"), naming_the_round(setup, ctx):
            if due and trained.scores is None:
                cohort = list(trained.plan.participation)
                scores = evaluate.after_round(setup, executor, state, after, cohort, updates)
            if due:
                success = evaluate.attack_success(setup, executor, after)
            if clients_due:
                clients = evaluate.client_scores(setup, executor, after)
    if updates and evaluate.is_due(e.decompose_every, ctx):
        with log.timed("decompose") as size, naming_the_round(setup, ctx):
            size["bytes"] = decompose(setup, executor, state, after, updates, log)
    evaluate.add_rows(scores, clients, log)
    stale = {
        c: {"staleness": steps_since(task.version, state, ctx), "version": task.version}
        for task in (trained.plan.tasks if setup.schedule.asynchronous else ())
        for c in task.clients
    }
    costs = costs_of(setup, trained, updates, aggregated)
    add_rows(setup, trained.participation, updates, aggregated, costs, log, stale)
    measured = evaluate.columns(scores, clients)
    if setup.config.attack.name is not None:
        measured["benign_test_accuracy"] = evaluate.benign_accuracy(setup, scores, clients)
    if setup.attack.triggered is not None:
        measured["attack_success_rate"] = success
    if setup.budget is not None:
        measured |= setup.budget.columns(log.round)
    further = setup.measure_columns
    log.add(round_row(ctx, trained.participation, updates, aggregated, costs, measured, further))
    log.incidents(executor.incidents())


def model_sha256(params: Vector) -> str:
    """The SHA-256 of a vector (D,) in little-endian float32, as models.csv has it."""
    return array_sha256(params.astype("<f4", copy=False))


def context(setup: Setup, rounds: int) -> RoundContext:
    """The context of the round that follows so many complete ones."""
    config, partition = setup.config, setup.partition
    return RoundContext(
        round=rounds,
        num_rounds=config.train.rounds,
        num_clients=len(partition.participants),
        num_held_out=len(partition.held_out),
        lr=lr_at(config, rounds),
        seed=config.seed,
    )


def planned(
    setup: Setup, executor: Executor, state: ServerState, ctx: RoundContext, log: RoundLog
) -> RoundPlan:
    """The schedule's plan of the round; who is left out becomes a row of errors.csv."""
    run = partial(run_pass, setup, executor, state, ctx, log)
    plan = setup.schedule.plan(setup.roster, state.schedule, ctx, run)
    check_plan(setup.schedule, plan, setup.roster, ctx)
    for client, participation in plan.participation.items():
        if participation.absent is not None:
            log.error(client, participation.absent, attempt=0)
    return plan


def run_pass(
    setup: Setup,
    executor: Executor,
    state: ServerState,
    ctx: RoundContext,
    log: RoundLog,
    tasks: Sequence[ClientTask],
) -> list[ClientUpdate]:
    """The answers to tasks that are done before training, of clients that did not diverge."""
    models = known_models(state, ctx)
    executor.broadcast(models)
    updates = executor.run(tasks, models, state.clients)
    return without_diverged(setup, updates, f"round {log.round}", log)


def known_models(state: ServerState, ctx: RoundContext) -> dict[int, Sent]:
    """By version the newest model, and those that earlier rounds kept."""
    return {**state.versions, ctx.round: (state.params, state.downlink)}


def models_of(plan: RoundPlan, state: ServerState, ctx: RoundContext) -> dict[int, Sent]:
    """By version the models that tasks of this round, or of later ones, start from."""
    kept = known_models(state, ctx)
    tasks = [*plan.tasks, *(task for round in plan.ahead for task in round)]
    used = {task.version for task in tasks} | plan.needed
    if missing := sorted(used - kept.keys()):
        raise ContractError(
            f"round {ctx.round + 1}: the schedule plans tasks on version {missing[0]}; "
            f"the rounds before kept {sorted(kept)} (RoundPlan.needed)"
        )
    return {version: kept[version] for version in sorted(used)}


def root_update(setup: Setup, executor: Executor, models: Models, ctx: RoundContext) -> Vector:
    """(D,) the update of the server's own training on its root set (FLTrust).

    From the model that the round's clients get, by section ``train`` on plain cross-entropy, with
    random numbers of its own and without transforms, state, clipping and noise. It takes neither
    simulated time nor bytes.
    """
    client = setup.partition.participants[0]  # places the work; the key is no round's
    task = ClientTask(client=client, ctx=ctx, work="root", stream=-1 - ctx.round)
    executor.broadcast(models)
    updates = executor.run([task], models, {})
    if not updates:
        raise WorkerError(f"{task.title} failed; errors.csv says why")
    if updates[0].diverged is not None:
        raise DivergedError(f"{task.title}: {updates[0].diverged} is NaN or infinite")
    return updates[0].delta


def steps_since(version: int, state: ServerState, ctx: RoundContext) -> int:
    """Steps of the server since a version of the model; a round without updates makes none."""
    return ctx.round - version - sum(version <= round for round in state.unchanged)


def rebased(
    layout: Layout,
    updates: Sequence[ClientUpdate],
    models: Models,
    params: Vector,
    *,
    whole: bool = False,
) -> list[ClientUpdate]:
    """The updates relative to the newest model where running statistics are concerned, whose
    values are averaged: the change of an old variance could make the newest one negative.

    ``whole``: all coordinates, as where clients' models are mixed in (FedAsync).
    """
    stale = slice(0 if whole else layout.num_params, layout.size)
    each = []
    for update in updates:
        base = models[update.version][0]
        if base is not params and stale.start < stale.stop:
            delta = update.delta.copy()
            delta[stale] += base[stale] - params[stale]
            update = replace(update, delta=delta)
        each.append(update)
    return each


def run_probe(
    setup: Setup,
    executor: Executor,
    state: ServerState,
    plan: RoundPlan,
    ctx: RoundContext,
    log: RoundLog,
) -> tuple[ServerState, dict[int, Participation]]:
    """A pass over the cohort before training: the state with the server's answer, and the
    participation with the bytes sent."""
    probe = setup.algorithm.probe
    assert probe is not None  # noqa: S101
    tasks = [replace(task, work="probe", max_steps=None) for task in plan.tasks]
    updates = tuple(run_pass(setup, executor, state, ctx, log, tasks))
    if not updates:
        return state, dict(plan.participation)
    sent = {u.client_id: wire_bytes(u.extras.values()) for u in updates}
    cohort = replace(Cohort.empty(setup.layout, state.params), updates=updates)
    answer = probe.digest(cohort, state.server.probe, ctx)
    server = replace(state.server, probe=answer.state)
    downlink = {**state.downlink, **answer.downlink}
    probed = {c: replace(p, probed=sent.get(c, 0)) for c, p in plan.participation.items()}
    return replace(state, server=server, downlink=downlink), probed


def without_diverged(
    setup: Setup, updates: Sequence[ClientUpdate], title: str, log: RoundLog
) -> list[ClientUpdate]:
    """The updates of clients that did not diverge; the others are dropped, or end the run."""
    good = []
    for update in updates:
        if update.diverged is None:
            good.append(update)
            continue
        client = update.client_id
        message = f"{title}, client {client}: {update.diverged} is NaN or infinite"
        if setup.config.engine.on_client_failure == "raise":
            raise DivergedError(
                f"{message}; {remedy(setup.config)}, or leave such clients out with "
                "--set engine.on_client_failure=drop"
            )
        log.error(client, message, attempt=1)
    return good


def aggregate(
    setup: Setup,
    state: ServerState,
    cohort: Cohort,
    updates: Sequence[ClientUpdate],
    ctx: RoundContext,
) -> Aggregated:
    """Norms and Gram matrix of the updates, the server's step, and the state after it.

    ``cohort`` has the updates as they reach the server, ``updates`` as the executor gave them.
    """
    params = slice(0, setup.layout.num_params)
    conflicts = updates and evaluate.is_due(setup.config.evaluation.conflicts_every, ctx)
    step = setup.algorithm.server.step(state.server, cohort, ctx)
    sent = step.sent or cohort
    k, axes, diversity = sent.gram(params) if conflicts else None, None, None
    if k is not None:
        with single_threaded_blas():
            axes = spectrum(k)
            diversity = gradient_diversity(k, shares(sent.num_samples, "samples"))
    return Aggregated(
        clients=tuple(u.client_id for u in sent.updates),
        norms=sent.norms(params),
        gram=k,
        axes=axes,
        gradient_diversity=diversity,
        update_norm=math.sqrt(gram([step.step], params)[0, 0]),
        metrics=step.metrics,
        private=step.private,
        state=advance(state, step, updates),  # last: the step's memory may become the new model's
    )


def costs_of(
    setup: Setup, trained: Trained, updates: Sequence[ClientUpdate], aggregated: Aggregated
) -> Costs:
    """Bytes and simulated seconds of the round, of what goes to single clients at its end, too."""
    plan, participation, model = trained.plan, trained.participation, setup.clock.vector_bytes
    common = {v: wire_bytes(downlink.values()) for v, (_, downlink) in trained.models.items()}
    stale = {c: common[task.version] for task in plan.tasks for c in task.clients}
    newest = wire_bytes(trained.state.downlink.values())
    return round_costs(
        setup.clock,
        participation,
        {client: stale.get(client, newest) for client in participation},
        aggregated.private,
        {
            u.client_id: wire_bytes(u.extras.values())
            + (model if u.wire_bytes is None else u.wire_bytes)
            for u in updates
        },
        (plan.downlink_bytes, plan.uplink_bytes),
        plan.seconds,
        plan.pass_seconds,
    )


def advance(state: ServerState, step: ServerStep, updates: Sequence[ClientUpdate]) -> ServerState:
    """The state after the server's step and the clients' training."""
    clients = state.clients.updated({u.client_id: u.state for u in updates})
    private = {c: {**clients.get(c, {}), **change} for c, change in step.private.items()}
    params = _moved(state.params, step, updates)
    return ServerState(
        params=params, server=step.state, downlink=step.downlink, clients=clients.updated(private)
    )


def _moved(params: Vector, step: ServerStep, updates: Sequence[ClientUpdate]) -> Vector:
    """The global vector after the step, in the step's own memory unless something else needs it."""
    kept = [*step.state.flatten().values(), *step.downlink.values(), *(u.delta for u in updates)]
    kept += [array for state in step.private.values() for array in state.values()]
    alone = step.step.flags.owndata and step.step.flags.writeable
    free = alone and not any(np.may_share_memory(step.step, array) for array in kept)
    return np.add(params, step.step, out=step.step if free else None)


@contextmanager
def naming_the_round(setup: Setup, ctx: RoundContext) -> Iterator[None]:
    """Adds the round to the message of a model whose outputs are not finite."""
    try:
        yield
    except DivergedError as error:
        raise DivergedError(
            f"round {ctx.round + 1}, evaluation: {error}; the model has diverged, "
            f"{remedy(setup.config)}"
        ) from error
