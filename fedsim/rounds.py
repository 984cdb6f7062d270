"""The driver: draws a cohort, lets an executor train it, takes one server step, writes it down."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedsim import evaluation
from fedsim.cohort import Cohort, gram
from fedsim.config import RunConfig, to_yaml
from fedsim.contracts import RoundContext
from fedsim.data import partitions
from fedsim.engine import Executor, Result
from fedsim.errors import DivergedError
from fedsim.gram import conflict_ratio
from fedsim.rng import generator
from fedsim.roundlog import RoundLog
from fedsim.setup import Setup, make_executor, prepare
from fedsim.state import ServerState
from fedsim.store import (
    RunStore,
    check_free,
    default_path,
    environment,
    file_sha256,
    to_json,
)
from fedsim.summary import summarise

if TYPE_CHECKING:
    from fedsim.engine.ray_engine import Session


@dataclass(frozen=True)
class RunInfo:
    """What a run is, for whoever shows it."""

    out: Path
    algorithm: str
    dataset: str
    model: str
    num_parameters: int
    num_clients: int
    cohort_size: int
    rounds: int
    engine: str
    seed: int


class Observer(Protocol):
    """Is told of a run's progress."""

    def started(self, info: RunInfo) -> None:
        """Before the first round."""

    def round_done(self, row: Mapping[str, object], seconds: float) -> None:
        """After each round, with its row of rounds.csv."""

    def finished(self, store: RunStore, summary: Mapping[str, object]) -> None:
        """After the last round, with the row of summary.csv."""


def run(
    config: RunConfig,
    out: Path | str | None = None,
    observer: Observer | None = None,
    session: Session | None = None,
) -> RunStore:
    """Runs an experiment and returns its run directory.

    Args:
        config: what to run.
        out: the run directory, new or empty; default ``runs/<dataset>/<algorithm>/<time>-<id>``.
        observer: is told of the progress.
        session: Ray and its warm actors, shared with the runs before and after.

    Raises:
        ConfigError, DataError: the run cannot start.
        DivergedError, WorkerError, StoreError: it cannot go on.
    """
    path = Path(out) if out else default_path(config.data.name, config.algorithm)
    check_free(path)
    begun = time.perf_counter()
    setup = prepare(config)
    executor = make_executor(setup, session)
    try:
        store = RunStore.create(path)
        store.write("config.yaml", to_yaml(setup.config))
        _write_environment(store, setup, executor)
        store.append("partition", partitions.table(setup.dataset, setup.partition))
        if observer is not None:
            observer.started(_info(setup, executor, path))
        state = _rounds(setup, executor, store, observer)
        _write_environment(store, setup, executor)  # now the devices are known
        store.save_model(state.params, setup.layout)
        summary = summarise(setup, store, time.perf_counter() - begun)
        store.write_summary(summary)
        if observer is not None:
            observer.finished(store, summary)
        return store
    finally:
        executor.close()


def _write_environment(store: RunStore, setup: Setup, executor: Executor) -> None:
    known = environment() | dict(executor.environment)
    if setup.model.weights is not None:
        known["weights_sha256"] = file_sha256(Path(setup.model.weights))
    store.write("env.json", to_json(known))


def _info(setup: Setup, executor: Executor, out: Path) -> RunInfo:
    config = setup.config
    return RunInfo(
        out,
        config.algorithm,
        setup.dataset.name,
        setup.model.name,
        setup.layout.num_params,
        setup.partition.num_clients,
        setup.cohort_size,
        config.train.rounds,
        executor.description,
        config.seed,
    )


def _rounds(
    setup: Setup, executor: Executor, store: RunStore, observer: Observer | None
) -> ServerState:
    config = setup.config
    state = ServerState(setup.initial)
    for t in range(config.train.rounds):
        begun = time.perf_counter()
        ctx = RoundContext(
            t, config.train.rounds, setup.partition.num_clients, lr_at(config, t), config.seed
        )
        log = RoundLog(ctx.round + 1)
        state = run_round(setup, executor, state, ctx, log)
        log.add("timings", phase="total", seconds=time.perf_counter() - begun, bytes=0)
        for table, rows in log.tables.items():
            store.append(table, rows)
        if observer is not None:
            observer.round_done(log.tables["rounds"][0], time.perf_counter() - begun)
    return state


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
    with log.timed("broadcast") as size:
        shared = executor.broadcast(state.params, state.downlink)
        size["bytes"] = state.params.nbytes
    with log.timed("train") as size:
        results = executor.train(clients, shared, state.clients, ctx)
        size["bytes"] = sum(r.update.delta.nbytes for r in results)
    with log.timed("aggregate"):
        good = _finite(setup, results, ctx, log)
        after = _aggregate(setup, state, good, ctx, clients, log)
    if evaluation.is_due(setup.config, ctx):
        with log.timed("evaluate"), _naming(ctx):
            scores = scores or evaluation.after_round(setup, executor, state, after, clients, good)
            evaluation.write(scores, log)
    return after


@contextmanager
def _naming(ctx: RoundContext) -> Iterator[None]:
    """Adds the round to the message of a model whose outputs are not finite."""
    try:
        yield
    except DivergedError as error:
        raise DivergedError(f"round {ctx.round + 1}, evaluation: {error}") from error


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


def _finite(setup: Setup, results: list[Result], ctx: RoundContext, log: RoundLog) -> list[Result]:
    """The results without diverged clients, which end the run unless the policy is ``drop``."""
    good = []
    for result in results:
        tensor = diverged_tensor(result, setup)
        if tensor is None:
            good.append(result)
            continue
        client = result.update.client_id
        message = f"round {ctx.round + 1}, client {client}: {tensor} is NaN or infinite"
        if setup.config.engine.on_client_failure == "raise":
            raise DivergedError(
                f"{message}; lower train.lr, or leave such clients out with "
                "--set engine.on_client_failure=drop"
            )
        log.add("errors", client_id=client, attempt=1, node="", error=message)
    return good


def diverged_tensor(result: Result, setup: Setup) -> str | None:
    """What in a client's result is not finite: the first tensor, the training loss; or None."""
    update = result.update
    parts = {f"upload {name}": array for name, array in update.extras.items()}
    parts |= {f"own {name}": array for name, array in result.state.items()}
    with np.errstate(over="ignore", invalid="ignore"):
        square = np.dot(update.delta, update.delta)  # one fast read; may overflow
    if not np.isfinite(square):
        parts |= {s.name: update.delta[s.where] for s in setup.layout.slots}
    bad = [f"tensor {name}" for name, a in parts.items() if not np.isfinite(a).all()][:1]
    if update.num_steps and not math.isfinite(update.metrics["train_loss"]):
        bad.append("the training loss")
    return " and ".join(bad) or None


def _aggregate(
    setup: Setup,
    state: ServerState,
    results: list[Result],
    ctx: RoundContext,
    clients: list[int],
    log: RoundLog,
) -> ServerState:
    """The server step and the rows of rounds.csv and clients.csv."""
    row: dict[str, float | None] = {
        "lr": ctx.lr,
        "cohort_size": len(clients),
        "dropped": len(clients) - len(results),
    }
    if not results:
        _client_rows(setup, clients, {}, {}, log)
        log.add("rounds", **row)
        return state
    cohort = Cohort.of([r.update for r in results], setup.layout)
    params = slice(0, setup.layout.num_params)
    k = cohort.gram(params)
    step = setup.algorithm.server.step(state.server, cohort, ctx)
    norms = {u.client_id: math.sqrt(k[i, i]) for i, u in enumerate(cohort.updates)}
    _client_rows(setup, clients, {r.update.client_id: r for r in results}, norms, log)
    row |= {
        "train_loss": _train_loss(results),
        "conflict_ratio": conflict_ratio(k),
        "update_norm": math.sqrt(gram([step.step], params)[0, 0]),
    }
    log.add("rounds", **row)
    states = dict(state.clients) | {r.update.client_id: r.state for r in results if r.state}
    states |= {c: dict(states.get(c, {})) | dict(own) for c, own in step.private.items()}
    return ServerState(state.params + step.step, step.state, step.downlink, states)


def _client_rows(
    setup: Setup,
    clients: list[int],
    results: Mapping[int, Result],
    norms: Mapping[int, float],
    log: RoundLog,
) -> None:
    for client in clients:
        row: dict[str, object] = {"status": "dropped", "num_steps": 0}
        if client in results:
            update = results[client].update
            loss = update.metrics["train_loss"]
            row = {"status": "ok", "num_steps": update.num_steps, "train_loss": loss}
            row["update_norm"] = norms[client]
        samples = len(setup.partition.train[client])
        log.add("clients", client_id=client, num_samples=samples, **row)


def _train_loss(results: list[Result]) -> float | None:
    """Mean over the clients that trained, weighted by samples."""
    trained = [r.update for r in results if r.update.num_steps]
    total = sum(u.num_samples for u in trained)
    weighted = sum(u.num_samples * u.metrics["train_loss"] for u in trained)
    return weighted / total if total else None
