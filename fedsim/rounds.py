"""The driver: begins a run, or goes on with one that was ended."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim import lock, resuming
from fedsim.checkpoint import Checkpoints, Position
from fedsim.clientstates import Shelf
from fedsim.config import RunConfig, to_yaml
from fedsim.drive import Drive, Observer, RunInfo
from fedsim.errors import DataError
from fedsim.finished import decisive
from fedsim.oneround import draw_cohort, lr_at, run_round
from fedsim.record import FOLDER, Identity, layout_hash
from fedsim.restore import restore
from fedsim.roundlog import RoundLog
from fedsim.setup import Setup, make_executor, prepare, start_of
from fedsim.state import ServerState
from fedsim.store import RunStore, check_free, default_path, environment, file_sha256

if TYPE_CHECKING:
    from fedsim.engine.session import Session

__all__ = [
    "Observer",
    "RoundLog",
    "RunInfo",
    "ServerState",
    "draw_cohort",
    "lr_at",
    "resume",
    "run",
    "run_round",
]


def run(
    config: RunConfig,
    out: Path | str | None = None,
    observer: Observer | None = None,
    session: Session | None = None,
) -> RunStore:
    """Runs an experiment and returns its run directory.

    Ctrl-C, SIGTERM and errors leave a checkpoint of the last complete round.

    Args:
        config: what to run.
        out: the run directory, new or empty; default ``runs/<dataset>/<algorithm>/<time>-<id>``.
        observer: is told of the progress.
        session: Ray and its warm actors, shared with the runs before and after.

    Raises:
        ConfigError, DataError: the run cannot start.
        DivergedError, WorkerError, StoreError: it cannot go on.
        Interrupted: the process was told to end.
    """
    path = Path(out) if out else default_path(config.data.name, config.algorithm)
    check_free(path)
    begun = time.perf_counter()
    setup, start = start_of(prepare(config))
    executor = make_executor(setup, session)
    try:
        store = RunStore.create(path)
        with lock.held(path):
            store.write("config.yaml", to_yaml(setup.config))
            engine = setup.config.engine
            shelf = Shelf(path / FOLDER, engine.state_memory * 2**30)
            known = _environment(setup)
            with Checkpoints(path, _identity(setup), shelf, engine.keep_checkpoints) as checkpoints:
                drive = Drive(
                    setup,
                    executor,
                    store,
                    checkpoints,
                    lambda found: known | dict(found),
                    observer,
                    begun,
                    Position(0, start),
                )
                del start
                return drive.to_the_end()
    finally:
        executor.close()


def resume(
    path: Path | str,
    overrides: Mapping[str, object] | None = None,
    observer: Observer | None = None,
    session: Session | None = None,
    tell: Callable[[str], None] | None = None,
) -> RunStore:
    """Goes on with a run that was ended; its files are then those of an undisturbed run.

    Tables are cut back to the newest checkpoint that is whole. Where there is none at all the run
    begins again in its directory. A finished run is returned as it is.

    Args:
        path: the run directory.
        overrides: settings that say where the work is done, such as ``{"engine.kind": "serial"}``.
        observer: is told of the progress.
        session: Ray and its warm actors, shared with the runs before and after.
        tell: shows a line on what is not as expected; by default on stderr.

    Raises:
        ConfigError: no run is there, another process has it, or its configuration was changed.
        DataError: the data cannot be read, or have changed.
        DivergedError, WorkerError, StoreError: the run cannot go on; where the reason is that all
            its checkpoints are damaged nothing has been changed.
        Interrupted: the process was told to end.
    """
    store = RunStore(Path(path))
    config = resuming.configuration(store.path, overrides)
    if store.finished:
        return store
    begun = time.perf_counter()
    with lock.held(store.path):
        setup, start = start_of(prepare(config))
        _check_trace(config, store)
        checkpoints, position = _position(setup, start, store, tell or _on_stderr)
        with checkpoints:
            executor = make_executor(setup, session)
            try:
                store.clean()
                store.cut(position.tables)
                drive = Drive(
                    setup,
                    executor,
                    store,
                    checkpoints,
                    _environments(setup, store, position.rounds),
                    observer,
                    begun - position.seconds,
                    position,
                )
                del start, position
                return drive.to_the_end()
            finally:
                executor.close()


def _position(
    setup: Setup, start: ServerState, store: RunStore, tell: Callable[[str], None]
) -> tuple[Checkpoints, Position]:
    """Where a run goes on: after its newest whole checkpoint, before round 1 if it has none."""
    engine = setup.config.engine
    checkpoints, position = restore(
        store.path,
        _identity(setup),
        engine.state_memory * 2**30,
        engine.keep_checkpoints,
        tell,
    )
    if position is None:
        tell(f"{store.path}: there is no checkpoint to go on from; starting again from round 1")
        return checkpoints, Position(0, start)
    return checkpoints, position


def _identity(setup: Setup) -> Identity:
    return Identity(layout_hash(setup.layout), decisive(setup.config))


def _environment(setup: Setup) -> dict[str, object]:
    """What env.json says of the run beside the executor's part; hashes and asks git once."""
    known = environment() | {"classes": list(setup.dataset.class_names)}
    if setup.model.weights is not None:
        known["weights_sha256"] = file_sha256(Path(setup.model.weights))
    if setup.config.clock.trace is not None:
        known["trace_sha256"] = file_sha256(Path(setup.config.clock.trace))
    return known


def _check_trace(config: RunConfig, store: RunStore) -> None:
    """Refuses a ``clock.trace`` that is another one than the run began with.

    Raises:
        DataError: it has changed.
    """
    trace, path = config.clock.trace, store.path / "env.json"
    if trace is None or not path.exists():
        return
    began = json.loads(path.read_text(encoding="utf-8")).get("trace_sha256")
    if began not in (None, file_sha256(Path(trace))):
        raise DataError(
            f"clock.trace {trace}: it has changed since the run in {store.path} began, which "
            "cannot go on with it"
        )


def _environments(
    setup: Setup, store: RunStore, rounds: int
) -> Callable[[Mapping[str, object]], Mapping[str, object]]:
    """env.json of a run that goes on: what it said, and a part for each time that it went on."""
    now = _environment(setup) | {"after_round": rounds}
    path = store.path / "env.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    parts = before.get("resumed", [])
    return lambda found: before | {"resumed": [*parts, now | dict(found)]}


def _on_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")
