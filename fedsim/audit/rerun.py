"""Rounds of a run done again, from its checkpoints; its directory stays as it is.

What a round does follows from the settings, the data and the state before it alone, so that the
same rows and the same model come again, byte for byte, on the same kind of processor.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedsim.config import experiments
from fedsim.core.errors import ConfigError, FedsimError, StoreError
from fedsim.core.imports import users_code
from fedsim.core.machine import num_gpus
from fedsim.core.rows import ModelRow
from fedsim.engine.base import Executor
from fedsim.identity.environment import check_begun, device_of
from fedsim.identity.resume import configuration
from fedsim.storage import status
from fedsim.storage.checkpoint import FOLDER, Fingerprint, Position, ServerState, records, round_of
from fedsim.storage.client_states import ClientStateStore
from fedsim.storage.restore import read
from fedsim.storage.run_dir import RunStore
from fedsim.training.assemble import make_executor, prepare, start_of
from fedsim.training.driver import fingerprint
from fedsim.training.round import context, model_sha256, run_round
from fedsim.training.rows import RoundLog
from fedsim.training.setup import Setup

logger = logging.getLogger("fedsim")


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """The complete rounds of a run, which is only read, to be done again."""

    setup: Setup
    executor: Executor
    store: RunStore
    rounds: int
    start: ServerState  # before the first round
    fingerprint: Fingerprint  # what checkpoints must agree with

    def check(self, number: int, name: str) -> None:
        """Refuses a round that the run has not, by a ConfigError that begins with the name."""
        if not 1 <= number <= self.rounds:
            there = f"rounds 1 to {self.rounds}" if self.rounds else "no complete round"
            raise ConfigError(f"{name} {number}: the run has {there}")

    def checkpoints(self) -> dict[int, Path]:
        """The records of the run's checkpoints by the number of rounds, fewest first."""
        paths = {round_of(path): path for path in records(self.store.path)}
        return {rounds: paths[rounds] for rounds in sorted(paths) if 0 < rounds <= self.rounds}

    def nearest(self, rounds: int) -> Position:
        """The newest intact checkpoint of at most so many rounds, else the start."""
        for number, record in reversed(self.checkpoints().items()):
            if number > rounds:
                continue
            budget = self.setup.config.engine.state_memory * 2**30
            states = ClientStateStore(self.store.path / FOLDER, budget)
            try:
                return read(self.store.path, record, self.fingerprint, states)[0]
            except (ValueError, StoreError) as error:
                logger.warning("%s cannot be used: %s", record, error)
        return Position(rounds=0, state=self.start)

    def state(self, rounds: int) -> ServerState:
        """The state after so many rounds: that of the nearest checkpoint, and what follows."""
        position = self.nearest(rounds)
        state = position.state
        for number in range(position.rounds + 1, rounds + 1):
            state, _ = self.step(state, number)
        return state

    def step(self, state: ServerState, number: int) -> tuple[ServerState, RoundLog]:
        """Round ``number``, from 1, done again: the state after it, and its rows."""
        log = RoundLog(number)
        ctx = context(self.setup, number - 1)
        with users_code(f"round {number}", FedsimError):
            after = run_round(self.setup, self.executor, state, ctx, log)
        log.add(ModelRow(round=number, sha256=model_sha256(after.params)))  # as the driver does
        return after, log


@contextmanager
def opened(
    run: Path,
    overrides: Mapping[str, object] | None = None,
    *,
    data_dir: str | None = None,
    accept_changed_code: bool = False,
) -> Iterator[Rerun]:
    """The rounds of a run, finished or not; ends its processes at the end.

    ``overrides`` say where the work is done, by dotted key; unless said one process, with a GPU
    where the run was done on one and there is one here. ``data_dir`` replaces ``data.dir``.
    """
    store, rounds = RunStore(run), len(status.rounds(run))
    on_gpu = device_of(store.read_environment()) != "cpu" and num_gpus() > 0
    here = {"engine.kind": "serial", "engine.gpus_per_client": int(on_gpu)}
    config = configuration(run, here | dict(overrides or {}), data_dir=data_dir)
    setup, start = start_of(prepare(config))
    check_begun(
        run, setup.config, setup.provenance, setup.frozen, accept_changed_code=accept_changed_code
    )
    written = experiments.read(run / "config.yaml").settings.get("data.dir")  # may have moved
    now = fingerprint(setup)
    settings = {**now.settings, "data.dir": None if written is None else written.value}
    with closing(make_executor(setup)) as executor:
        yield Rerun(
            setup=setup, executor=executor, store=store, rounds=rounds, start=start,
            fingerprint=replace(now, settings=settings),
        )  # fmt: skip
