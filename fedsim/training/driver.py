"""The driver: starts or resumes a run and takes it round by round to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.config.resolve import to_yaml
from fedsim.config.run import RunConfig
from fedsim.core import files
from fedsim.core.background import Background
from fedsim.core.errors import ConfigError, FedsimError, Interrupted, StoreError
from fedsim.core.imports import users_code
from fedsim.core.machine import kind_of, other_kind
from fedsim.core.normalization import OF_DATASET
from fedsim.core.rows import ModelRow, TimingRow
from fedsim.core.types import Preparation
from fedsim.data import partitions, patients, splits
from fedsim.data.holdout import held_out_line
from fedsim.engine.base import Executor
from fedsim.identity.environment import check_begun, other_versions
from fedsim.identity.resume import configuration, decisive
from fedsim.storage import status
from fedsim.storage.checkpoint import Checkpoints, Fingerprint, Position, ServerState, layout_hash
from fedsim.storage.restore import restore
from fedsim.storage.run_dir import RunStore, RunWriter, check_free, default_path, to_json
from fedsim.training.assemble import make_executor, prepare, start_of
from fedsim.training.callbacks import Callback, Callbacks, RunInfo
from fedsim.training.early_stopping import EarlyStopping
from fedsim.training.examples import examples
from fedsim.training.final_models import export_models
from fedsim.training.finetune import final_scores
from fedsim.training.malicious import check_effects, warn_of_weak_rounds
from fedsim.training.personal import with_own_models
from fedsim.training.privacy import line_of_samples, warn_of_delta
from fedsim.training.round import context, model_sha256, run_round
from fedsim.training.rows import RoundLog
from fedsim.training.setup import Setup, describe
from fedsim.training.signals import Interrupts, handled
from fedsim.training.summary import summarise

if TYPE_CHECKING:
    from fedsim.engine.ray.pool import Session

logger = logging.getLogger("fedsim")


@dataclass
class TrainingLoop:
    """The training loop, with checkpointing: from a position to the end; only that changes.

    A thread writes each round while the next one is done, so that the position is at most one
    round behind; what it raises ends the run before that next round is written. Nothing else
    should hold the position's state: models may be large.
    """

    setup: Setup
    executor: Executor
    store: RunWriter
    checkpoints: Checkpoints
    environment: Mapping[str, object]  # what env.json says beside the executor's part
    callbacks: Callbacks
    begun: float  # by time.perf_counter; later by the time in which the run lay still
    position: Position
    before: Mapping[str, Any] | None = None  # env.json of a run that is resumed
    named: list[str] = field(default_factory=list, init=False)  # nondeterministic, user told
    writing: Background = field(default_factory=lambda: Background("round"), init=False)

    def run(self) -> RunStore:
        """To the end; only the ``callbacks`` show anything."""
        store, setup = self.store, self.setup
        write_split(setup, store)  # first, since it refuses a run whose data have changed
        with status.failure_written(store.path):
            self._write_environment()
            self.callbacks.call("on_run_start", self._info())
            with handled() as interrupts, self.writing:
                self._rounds(interrupts)
                self._score_clients()
                self._write_environment()  # again, with all that showed
                if setup.config.engine.save_model:
                    state, done = self.position.state, self.position.rounds
                    ctx = context(setup, done)
                    own = with_own_models(setup, self.executor, state, ctx)
                    export_models(setup, store, own, done)
                if "loss_matrix.csv" in store.table_sizes():
                    store.save_loss_matrix()
                if (shown := examples(setup, self.executor, self.position.state)) is not None:
                    files.write(store.path / files.EXAMPLES, shown)
                summary = summarise(setup, store, time.perf_counter() - self.begun)
                store.write_summary(summary)
        rounds = store.read("rounds")
        if (rounds["cohort_size"] <= rounds["dropped"]).all():
            logger.warning("no client took part in any round; see errors.csv and section clock")
        self.callbacks.call("on_run_end", summary)
        return RunStore(store.path)

    def _score_clients(self) -> None:
        """Writes the final model's scores by client, where some are held out or fine-tuned."""
        position, log = self.position, RoundLog(self.position.rounds)
        try:
            with users_code("the final scores of the clients", FedsimError):
                rows = final_scores(self.setup, self.executor, position.state, log)
            log.incidents(self.executor.incidents())
            if "errors" in log.tables:
                self.store.append("errors", log.tables["errors"])
        except BaseException as error:
            self._leave_checkpoint(error)
            raise
        if rows:
            self.store.write_final_clients(rows)

    def _rounds(self, interrupts: Interrupts) -> None:
        """Does what is left; every way out leaves a checkpoint of what is complete."""
        rounds = first = self.position.rounds
        state, device = self.position.state, self.position.device
        task = self.setup.task
        stopping = EarlyStopping(self.setup.config.train.patience, task.primary, task.lowest)
        if stopping.patience is not None and rounds:
            stopping.read(self.store.path / "rounds.csv")
        try:
            while rounds < self.setup.config.train.rounds and not stopping.due:
                begun, log = time.perf_counter(), RoundLog(rounds + 1)
                after = self._round(state, log)
                device = self._device(device) if rounds == first else device
                with interrupts.later():
                    self.writing.wait()
                    due = self._is_due(log.round)
                    self._time(after, log, begun, due)
                    rounds, rows = log.round, dict(log.tables)
                    self.writing.begin(partial(self._write, after, log, due, device))
                    # from here on there is no way back to the state before
                    state = self.checkpoints.storing(after)
                    stopping.add(rounds, rows["rounds"][0][stopping.column])
                    if self.callbacks.read_files:
                        self.writing.wait()
                        rows = log.tables
                    added = {table: tuple(several) for table, several in rows.items()}
                    if "stop" in self.callbacks.call("on_round_end", rounds, added):
                        break
            if stopping.due and rounds < self.setup.config.train.rounds:
                logger.info(stopping.reason)
            self.writing.wait()
            if self.setup.config.engine.checkpoint_every:
                self.checkpoints.finish(self.position)  # where a callback stopped before its turn
            self.checkpoints.wait()
        except BaseException as error:
            self._leave_checkpoint(error)
            raise

    def _round(self, state: ServerState, log: RoundLog) -> ServerState:
        """The state after the next round; what was lost on the way to an error is written down."""
        ctx = context(self.setup, log.round - 1)
        try:
            with users_code(f"round {log.round}", FedsimError):
                return run_round(self.setup, self.executor, state, ctx, log)
        except FedsimError as error:
            self.writing.wait()
            log.incidents(self.executor.incidents())
            try:
                self.store.append("errors", log.tables.get("errors", []))
            except StoreError as another:
                error.add_note(f"what was lost on the way is not written down: {another}")
            raise

    def _time(self, after: ServerState, log: RoundLog, begun: float, due: bool) -> None:
        """The last rows of timings.csv: what the round was held up by, and its seconds."""
        if due:
            with log.timed("checkpoint") as size:
                self.checkpoints.wait()
                size["bytes"] = self.checkpoints.size(after)
        seconds = time.perf_counter() - begun
        log.add(TimingRow(round=log.round, phase="total", seconds=seconds, bytes=0))

    def _write(
        self, after: ServerState, log: RoundLog, due: bool, device: Mapping[str, Any]
    ) -> None:
        """Writes a complete round, and is then at its position; in the thread."""
        log.add(ModelRow(round=log.round, sha256=model_sha256(after.params)))
        for table, rows in log.tables.items():
            self.store.append(table, rows)
        sizes, digests = self.store.table_sizes(), self.store.table_digests()
        seconds = time.perf_counter() - self.begun
        # from here on there is no way back to the position before
        state = self.checkpoints.store_client_states(after)
        self.position = Position(
            rounds=log.round,
            state=state,
            seconds=seconds,
            tables=sizes,
            digests=digests,
            device=device,
        )
        self.checkpoints.spill(log.round)
        if due:
            self.checkpoints.save(self.position)

    def _leave_checkpoint(self, error: BaseException) -> None:
        """Writes a checkpoint of the newest complete round, unless there is one or no time left.

        After a second Ctrl-C none is begun; one that is being written is still waited for.
        """
        if isinstance(error, Interrupted) and error.again:
            return
        try:
            self.writing.wait()
        except Exception as first:
            self._leave_checkpoint(first)
            raise
        try:
            self.checkpoints.finish(self.position)
        except StoreError as another:
            if another is not error:
                error.add_note(f"no checkpoint of round {self.position.rounds}: {another}")

    def _is_due(self, rounds: int) -> bool:
        """Whether a checkpoint follows the round: not before the one before is written, unless it
        is one that stays."""
        e, written = self.setup.config.engine, self.checkpoints
        if e.keep_every and rounds % e.keep_every == 0:
            return True
        waited = rounds - written.newest >= e.checkpoint_every and not written.busy
        return e.checkpoint_every > 0 and (waited or rounds == self.setup.config.train.rounds)

    def _device(self, before: Mapping[str, Any]) -> Mapping[str, Any]:
        """The kind of device, known after the first round that this process does; refuses another
        one than that of the rounds before, if there were any."""
        now = kind_of(self._write_environment())
        other = other_kind(before, now)
        if other and not self.setup.config.engine.allow_mixed_devices:
            raise ConfigError(
                f"{self.store.path}: {other} as in the rounds before; the results would be those "
                "of neither"
            )
        return now

    def _write_environment(self) -> Mapping[str, Any]:
        """Writes env.json, as far as devices are known; what it says of this process's part."""
        part = {**self.environment, **self.executor.environment}
        content = part
        if self.before is not None:
            content = {**self.before, "resumed": [*self.before.get("resumed", []), part]}
        self.store.write("env.json", to_json(content))
        device = part.get("device")  # a name, of an executor of the user's
        names = device.get("nondeterministic", ()) if isinstance(device, Mapping) else ()
        if fresh := [name for name in names if name not in self.named]:
            logger.warning(
                "these operations have no deterministic kernel on this device, their bits may "
                "differ from run to run: %s",
                ", ".join(fresh),
            )
            self.named += fresh
        return part

    def _info(self) -> RunInfo:
        config, setup = self.setup.config, self.setup
        return RunInfo(
            out=self.store.path,
            algorithm=config.algorithm,
            dataset=setup.dataset.name,
            model=setup.model.name,
            num_parameters=setup.layout.num_params,
            num_clients=len(setup.partition.participants),
            cohort_size=setup.cohort_size,
            rounds=config.train.rounds,
            engine=self.executor.description,
            seed=config.seed,
            config=config,
            notes=_notes(setup),
            done=self.position.rounds,
            measures=setup.measures,
        )


def run(
    config: RunConfig,
    out: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    session: Session | None = None,
) -> RunStore:
    """Runs an experiment; see :func:`fedsim.run`."""
    path = Path(out) if out else default_path(config.data.name, config.algorithm)
    check_free(path)
    begun = time.perf_counter()
    setup, start = start_of(checked_setup(config))
    followers = Callbacks(callbacks)
    with closing(followers), closing(make_executor(setup, session)) as executor:
        store = RunWriter.create(path)
        with files.lock(path):
            store.write("config.yaml", to_yaml(setup.config))
            checkpoints, _ = _restore(setup, store)
            with checkpoints:
                position, environment = Position(rounds=0, state=start), describe(setup)
                loop = TrainingLoop(
                    setup, executor, store, checkpoints, environment, followers, begun, position
                )
                del start, position
                return loop.run()


def checked_setup(config: RunConfig) -> Setup:
    """What a run is made of; a ConfigError, or a warning, where an attack or delta has no sense."""
    setup = prepare(config)
    check_effects(setup)
    warn_of_weak_rounds(setup)
    warn_of_delta(config, [len(setup.partition.train[c]) for c in setup.partition.participants])
    return setup


def resume(
    path: Path | str,
    overrides: Mapping[str, object] | None = None,
    callbacks: Sequence[Callback] = (),
    session: Session | None = None,
    accept_changed_code: bool = False,
) -> RunStore:
    """Resumes a run that was interrupted; see :func:`fedsim.resume`."""
    store = RunWriter(Path(path))
    config = configuration(store.path, overrides)
    if store.finished:
        return RunStore(store.path)
    begun, followers = time.perf_counter(), Callbacks(callbacks)
    with closing(followers), files.lock(store.path):
        before = store.read_environment()
        setup, start = start_of(prepare(config))
        same = store.path, setup.config, setup.provenance, setup.frozen
        before |= check_begun(*same, accept_changed_code=accept_changed_code)
        checkpoints, position = _restore(setup, store)
        if position is None:
            logger.warning(
                "%s: there is no checkpoint to resume from; starting again from round 1", store.path
            )
            position = Position(rounds=0, state=start)
        with checkpoints, closing(make_executor(setup, session)) as executor:
            environment = describe(setup)
            if position.rounds and (others := other_versions(before, environment)) is not None:
                logger.warning("%s: %s", store.path, others)
            environment |= {"after_round": position.rounds}
            begun -= position.seconds
            loop = TrainingLoop(
                *(setup, executor, store, checkpoints, environment, followers, begun, position),
                before=before,
            )
            store.remove_unfinished()
            store.truncate_tables(position.tables)
            del start, position
            return loop.run()


def fingerprint(setup: Setup) -> Fingerprint:
    """What the checkpoints of a run must agree with."""
    return Fingerprint(layout_hash(setup.layout), decisive(setup.config))


def write_split(setup: Setup, store: RunWriter) -> None:
    """Who owns what, in partition.csv and split.csv, the words of texts, and how features are made
    of new rows."""
    dataset, partition, bad = setup.dataset, setup.partition, setup.malicious
    store.write_partition(partitions.table(dataset, partition, malicious=bad))
    store.write_split(splits.columns(dataset, partition, bad, setup.root.tolist()))
    store.write_vocabulary(dataset.words)
    if isinstance(dataset.prepare, Preparation):
        store.write_preprocessing(dataset.prepare.record(dataset.train))


def _restore(setup: Setup, store: RunWriter) -> tuple[Checkpoints, Position | None]:
    """The run's checkpoints, and the newest that is whole."""
    engine = setup.config.engine
    return restore(
        store.path,
        fingerprint(setup),
        budget=engine.state_memory * 2**30,
        keep=engine.keep_checkpoints,
        every=engine.keep_every,
    )


def _notes(setup: Setup) -> tuple[str, ...]:
    """What a run says of its data and its model before it begins."""
    group = setup.config.data.group or "none"
    notes = [patients.grouping_line(setup.dataset, setup.partition, group)]
    notes += [*setup.dataset.remarks, *setup.start.notes]
    pipeline, normalization = setup.dataset.pipeline, setup.config.data.normalization
    if pipeline is not None and normalization not in (None, OF_DATASET):
        mean, std = (", ".join(f"{v:g}" for v in vs) for vs in (pipeline.mean, pipeline.std))
        size = f"{pipeline.size} x {pipeline.size}"
        notes.append(f"images of {size} pixels, mean {mean}, standard deviation {std}")
    if setup.budget is not None:
        notes += setup.budget.lines(setup.config.train.rounds)
    if setup.config.dp.level == "example":
        notes.append(line_of_samples(setup.config))
    notes.append(held_out_line(setup.partition))
    if setup.frozen:
        frozen, trained = sum(a.size for a in setup.frozen.values()), setup.layout.size
        notes.append(
            f"model.trainable={setup.model.trainable}: {trained:,} of {trained + frozen:,} values "
            "of the model are trained and sent"
        )
    return tuple(filter(None, notes))
