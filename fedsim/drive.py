"""A run on its way: round after round, each written down, and what an end in between leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from fedsim.checkpoint import Checkpoints, Position
from fedsim.contracts import RoundContext
from fedsim.data import partitions
from fedsim.engine import Executor
from fedsim.errors import ConfigError, StoreError
from fedsim.interrupts import Interrupted, Interrupts, handled
from fedsim.oneround import lr_at, run_round
from fedsim.roundlog import RoundLog
from fedsim.setup import Setup
from fedsim.state import ServerState
from fedsim.store import RunStore, to_json
from fedsim.summary import summarise


@dataclass(frozen=True)
class RunInfo:
    """What a run is, for whoever shows it; ``done`` rounds were complete when it went on."""

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
    done: int = 0


class Observer(Protocol):
    """Is told of a run's progress."""

    def started(self, info: RunInfo) -> None:
        """Before the first round."""

    def round_done(self, row: Mapping[str, object], seconds: float) -> None:
        """After each round, with its row of rounds.csv."""

    def finished(self, store: RunStore, summary: Mapping[str, object]) -> None:
        """After the last round, with the row of summary.csv."""


@dataclass
class Drive:
    """What takes a run from a position to its end; only ``position`` changes.

    Args:
        setup: what is run.
        executor: does the clients' work.
        store: the run directory.
        checkpoints: of the run.
        environment: from what the executor says of itself to the content of env.json.
        observer: is told of the progress.
        begun: when the run began, on the clock of ``time.perf_counter``; later by the time in which
            it lay still.
        position: where the run stands. Nothing else should hold its state: models may be large.
    """

    setup: Setup
    executor: Executor
    store: RunStore
    checkpoints: Checkpoints
    environment: Callable[[Mapping[str, object]], Mapping[str, object]]
    observer: Observer | None
    begun: float
    position: Position

    def to_the_end(self) -> RunStore:
        """Does the rounds that are left and writes what follows the last one.

        Raises:
            ConfigError: the device is another one than that of the rounds before.
            DataError: the data have changed since the run began.
            DivergedError, WorkerError, StoreError: the run cannot go on.
            Interrupted: the process was told to end.
        """
        store, setup = self.store, self.setup
        self._write_environment()
        store.write_partition(partitions.table(setup.dataset, setup.partition))
        if self.observer is not None:
            self.observer.started(self._info(self.position.rounds))
        with handled() as interrupts:
            self._rounds(interrupts)
            self._write_environment()  # again, now that the devices are known
            store.save_model(self.position.state.params, setup.layout)
            if "loss_matrix.csv" in store.lengths():
                store.save_loss_matrix()
            summary = summarise(setup, store, self._seconds())
            store.write_summary(summary)
        if self.observer is not None:
            self.observer.finished(store, summary)
        return store

    def _rounds(self, interrupts: Interrupts) -> None:
        """Does what is left; every way out leaves a checkpoint of what is complete."""
        first = self.position.rounds
        try:
            while self.position.rounds < self.setup.config.train.rounds:
                begun, log = time.perf_counter(), RoundLog(self.position.rounds + 1)
                after = self._round(self.position, log)
                known = self.position.device
                device = self._device(known) if self.position.rounds == first else known
                due = self._is_due(log.round)
                with interrupts.later():
                    self._write_down(after, log, begun, due)
                    seconds, lengths = self._seconds(), self.store.lengths()
                    # from here on there is no way back to the position before
                    state = self.checkpoints.take(after)
                    self.position = Position(log.round, state, seconds, lengths, device)
                    self.checkpoints.spill(log.round)
                    if due:
                        self.checkpoints.save(self.position)
                    if self.observer is not None:
                        row = log.tables["rounds"][0]
                        self.observer.round_done(row, time.perf_counter() - begun)
            self.checkpoints.wait()
        except BaseException as error:
            self._leave_checkpoint(self.position, error)
            raise

    def _round(self, position: Position, log: RoundLog) -> ServerState:
        """The state after the next round; what was lost on the way to an error is written down."""
        config, partition = self.setup.config, self.setup.partition
        t = position.rounds
        lr = lr_at(config, t)
        ctx = RoundContext(t, config.train.rounds, partition.num_clients, lr, config.seed)
        try:
            return run_round(self.setup, self.executor, position.state, ctx, log)
        except Exception as error:
            for incident in self.executor.incidents():
                log.add("errors", **asdict(incident))
            try:
                self.store.append("errors", log.tables.get("errors", []))
            except StoreError as another:
                error.add_note(f"what was lost on the way is not written down: {another}")
            raise

    def _write_down(self, after: ServerState, log: RoundLog, begun: float, due: bool) -> None:
        if due:
            with log.timed("checkpoint") as size:  # what it holds the round up
                self.checkpoints.wait()
                size["bytes"] = self.checkpoints.size(after)
        log.add("timings", phase="total", seconds=time.perf_counter() - begun, bytes=0)
        for table, rows in log.tables.items():
            self.store.append(table, rows)

    def _leave_checkpoint(self, position: Position, error: BaseException) -> None:
        """Writes a checkpoint of the newest complete round, unless there is one or no time left.

        After a second Ctrl-C none is begun; one that is being written is still waited for.
        """
        if isinstance(error, Interrupted) and error.again:
            return
        try:
            self.checkpoints.finish(position)
        except StoreError as another:
            if another is not error:
                error.add_note(f"no checkpoint of round {position.rounds}: {another}")

    def _is_due(self, rounds: int) -> bool:
        """Whether a checkpoint follows the round: not before the one before is written."""
        every = self.setup.config.engine.checkpoint_every
        waited = rounds - self.checkpoints.newest >= every and not self.checkpoints.busy
        return every > 0 and (waited or rounds == self.setup.config.train.rounds)

    def _device(self, before: str) -> str:
        """The device of the clients, known after the first round that this process does.

        Args:
            before: that of the rounds before, empty where there were none.

        Raises:
            ConfigError: it is another one than that.
        """
        device = str(self.executor.environment.get("device", ""))
        mixed = self.setup.config.engine.allow_mixed_devices
        if before and device != before and not mixed:
            raise ConfigError(
                f"{self.store.path}: the clients now train on {device}, in the rounds before on "
                f"{before}; the results would be those of neither"
            )
        return device

    def _write_environment(self) -> None:
        self.store.write("env.json", to_json(self.environment(self.executor.environment)))

    def _seconds(self) -> float:
        return time.perf_counter() - self.begun

    def _info(self, done: int) -> RunInfo:
        config, setup = self.setup.config, self.setup
        return RunInfo(
            self.store.path,
            config.algorithm,
            setup.dataset.name,
            setup.model.name,
            setup.layout.num_params,
            setup.partition.num_clients,
            setup.cohort_size,
            config.train.rounds,
            self.executor.description,
            config.seed,
            done,
        )
