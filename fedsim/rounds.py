"""The driver: draws a cohort, lets an executor train it, takes one server step, writes it down."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from fedsim.cohort import Cohort, gram
from fedsim.config import RunConfig, to_yaml
from fedsim.contracts import RoundContext, Scores, Vector, Vectors
from fedsim.data import partitions
from fedsim.engine import Executor, Model, Result
from fedsim.errors import DivergedError
from fedsim.evaluate import mean_scores
from fedsim.gram import conflict_ratio
from fedsim.rng import generator
from fedsim.setup import Setup, make_executor, prepare
from fedsim.store import Row, RunStore, check_free, default_path, environment, to_json
from fedsim.summary import summarise


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


@dataclass(frozen=True)
class ServerState:
    """Everything that the next round depends on.

    Args:
        params: (D,) the global vector.
        server: the server rule's own state.
        downlink: what the server sends to everybody beside the model.
        clients: the state of each client that has one, by client id.
    """

    params: Vector
    server: Vectors = field(default_factory=dict)
    downlink: Vectors = field(default_factory=dict)
    clients: Mapping[int, Vectors] = field(default_factory=dict)


def run(config: RunConfig, out: Path | None = None, observer: Observer | None = None) -> RunStore:
    """Runs an experiment and returns its run directory.

    Args:
        config: what to run.
        out: the run directory, new or empty; default ``runs/<dataset>/<algorithm>/<time>-<id>``.
        observer: is told of the progress.

    Raises:
        ConfigError, DataError: the run cannot start.
        DivergedError, WorkerError, StoreError: it cannot go on.
    """
    path = out or default_path(config.data.name, config.algorithm)
    check_free(path)
    begun = time.perf_counter()
    setup = prepare(config)
    executor = make_executor(setup)
    try:
        store = RunStore.create(path)
        store.write("config.yaml", to_yaml(config))
        store.append("partition", partitions.table(setup.dataset, setup.partition))
        if observer is not None:
            observer.started(_info(setup, executor, path))
        state = _rounds(setup, executor, store, observer)
        store.write("env.json", to_json(environment() | dict(executor.environment)))
        store.save_model(state.params, setup.layout)
        summary = summarise(setup, store, time.perf_counter() - begun)
        store.write_summary(summary)
        if observer is not None:
            observer.finished(store, summary)
        return store
    finally:
        executor.close()


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


@dataclass
class RoundLog:
    """The rows that a round adds to the tables."""

    round: int
    tables: dict[str, list[Row]] = field(default_factory=dict)

    def add(self, table: str, **values: object) -> None:
        """Adds a row; the round is filled in."""
        self.tables.setdefault(table, []).append({"round": self.round, **values})

    @contextmanager
    def timed(self, phase: str) -> Iterator[dict[str, int]]:
        """Times a phase; the block may set ``bytes``."""
        begun, extra = time.perf_counter(), {"bytes": 0}
        yield extra
        self.add("timings", phase=phase, seconds=time.perf_counter() - begun, **extra)


def run_round(
    setup: Setup, executor: Executor, state: ServerState, ctx: RoundContext, log: RoundLog
) -> ServerState:
    """One round: the state after it; its rows go to ``log``.

    Raises:
        DivergedError: a client diverged and the policy is ``raise``.
        WorkerError: a client's work failed.
    """
    clients = draw_cohort(ctx, setup.cohort_size)
    before = _personal_before(setup, executor, state, clients, ctx)
    with log.timed("broadcast") as size:
        shared = executor.broadcast(state.params, state.downlink)
        size["bytes"] = state.params.nbytes
    with log.timed("train") as size:
        results = executor.train(clients, shared, state.clients, ctx)
        size["bytes"] = sum(r.update.delta.nbytes for r in results)
    with log.timed("aggregate"):
        good = _finite(setup, results, ctx, log)
        after = _aggregate(setup, state, good, ctx, clients, log)
    if _is_evaluated(setup.config, ctx):
        with log.timed("evaluate"):
            _evaluate(setup, executor, state, after, good, before, log)
    return after


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
    """The name of the first thing in a client's result that is not finite, or None."""
    update = result.update
    if update.num_steps and not math.isfinite(update.metrics["train_loss"]):
        return "the training loss"
    parts = {f"upload {name}": array for name, array in update.extras.items()}
    parts |= {f"own {name}": array for name, array in result.state.items()}
    if not np.isfinite(np.dot(update.delta, update.delta)):  # one fast read; exact only below
        parts |= {s.name: update.delta[s.where] for s in setup.layout.slots}
    return next((f"tensor {name}" for name, a in parts.items() if not np.isfinite(a).all()), None)


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


def _is_evaluated(config: RunConfig, ctx: RoundContext) -> bool:
    done = ctx.round + 1
    return done % config.evaluation.every == 0 or done == ctx.num_rounds


def _parts(setup: Setup) -> list[str]:
    return ["val", "test"] if len(setup.dataset.val) else ["test"]


def _personal_before(
    setup: Setup, executor: Executor, state: ServerState, clients: list[int], ctx: RoundContext
) -> Mapping[str, list[Scores]]:
    """The cohort's own models before training, where the released codes' numbers are wanted."""
    mode = setup.config.evaluation.personal
    if mode != "cohort_before" or not setup.algorithm.personalised:
        return {}
    if not _is_evaluated(setup.config, ctx):
        return {}
    own: list[Model] = [(state.params, state.clients.get(c, {})) for c in clients]
    return {part: executor.evaluate(own, part) for part in _parts(setup)}


def _evaluate(
    setup: Setup,
    executor: Executor,
    before: ServerState,
    after: ServerState,
    results: list[Result],
    cohort_before: Mapping[str, list[Scores]],
    log: RoundLog,
) -> None:
    """Fills the val and test columns of the round's row and adds the rows of classes.csv."""
    ids, own = _models(setup, before, after, results)
    row = dict(log.tables["rounds"][0])
    for part in _parts(setup):
        scores = cohort_before.get(part) or executor.evaluate(own, part)
        mean = mean_scores(scores)
        row |= {f"{part}_loss": mean.loss, f"{part}_accuracy": mean.accuracy}
        if setup.algorithm.personalised and not cohort_before:
            for client, s in zip(ids, scores, strict=True):
                log.add(
                    "evaluations",
                    client_id=client,
                    split=part,
                    num_samples=s.num_samples,
                    loss=s.loss,
                    accuracy=s.accuracy,
                )
        if part == "test":
            row |= {
                "test_balanced_accuracy": mean.balanced_accuracy,
                "test_macro_f1": mean.macro_f1,
                "test_auc": mean.auc,
            }
            for c in mean.classes:
                log.add(
                    "classes",
                    label=c.label,
                    support=c.support,
                    recall=c.recall,
                    precision=c.precision,
                )
    log.tables["rounds"] = [row]


def _models(
    setup: Setup, before: ServerState, after: ServerState, results: list[Result]
) -> tuple[list[int], list[Model]]:
    """The models that count: the global one, or those of clients (ids beside them)."""
    if not setup.algorithm.personalised:
        return [-1], [(after.params, {})]
    if setup.config.evaluation.personal == "cohort_after" and results:
        ids = [r.update.client_id for r in results]
        return ids, [(before.params + r.update.delta, r.state) for r in results]
    ids = list(range(setup.partition.num_clients))
    return ids, [(after.params, after.clients.get(c, {})) for c in ids]
