"""The driver: draws a cohort, lets an executor train it, takes one server step, writes it down."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedsim import aggregation, evaluation
from fedsim.config import RunConfig, to_yaml
from fedsim.contracts import RoundContext
from fedsim.data import partitions
from fedsim.engine import Executor
from fedsim.errors import DivergedError
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
    from fedsim.engine.session import Session


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
        known = _environment(setup)
        store.write("env.json", to_json(known | dict(executor.environment)))
        store.append("partition", partitions.table(setup.dataset, setup.partition))
        if observer is not None:
            observer.started(_info(setup, executor, path))
        state = _rounds(setup, executor, store, observer)
        # again, now that the devices are known
        store.write("env.json", to_json(known | dict(executor.environment)))
        store.save_model(state.params, setup.layout)
        summary = summarise(setup, store, time.perf_counter() - begun)
        store.write_summary(summary)
        if observer is not None:
            observer.finished(store, summary)
        return store
    finally:
        executor.close()


def _environment(setup: Setup) -> dict[str, object]:
    """What env.json says of the run beside the executor's part; hashes and asks git once."""
    known = environment() | {"classes": list(setup.dataset.class_names)}
    if setup.model.weights is not None:
        known["weights_sha256"] = file_sha256(Path(setup.model.weights))
    return known


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
        good = aggregation.finite(setup, results, ctx, log)
        after = aggregation.aggregate(setup, state, good, ctx, clients, log)
    if evaluation.is_due(setup.config, ctx):
        with log.timed("evaluate"), _naming(ctx):
            scores = scores or evaluation.after_round(setup, executor, state, after, clients, good)
            evaluation.write(scores, log)
    for incident in executor.incidents():
        log.add("errors", **asdict(incident))
    return after


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
