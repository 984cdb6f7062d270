"""Estimates what runs will take: time, disk and memory, from the first rounds of each kind of run.

Runs are of one kind if nothing differs that decides how long a round takes: seeds and learning
rates do not, the method, the data set, the model, the clients and the batch do.
"""

from __future__ import annotations

import heapq
import json
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedsim.config.run import RunConfig
from fedsim.core.errors import FedsimError
from fedsim.core.machine import num_gpus
from fedsim.studies.capacity import Parallel, local_runs, memory_of
from fedsim.training.callbacks import Callback, Rows

logger = logging.getLogger("fedsim")
FREE = {
    "data": ("seed", "alpha", "prior", "order"),
    "train": (
        *("rounds", "patience", "lr", "lr_head", "lr_schedule", "momentum", "weight_decay"),
        "clip_norm",
    ),
}
"""By section the keys that do not decide how long a round takes."""
SECONDS, ROUNDS, PATIENCE = 3.0, 10, 20.0
"""A kind is measured for so many seconds, from two rounds to so many; a first round that takes
longer than the last number is the only one."""
CONTENTION = 1.25
"""How much longer a run takes beside others on all cores: 49 s of CPU instead of 39 s for 18 short
runs in two processes."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the first rounds of a run took.

    Args:
        first: seconds of its start, first round and end.
        round: seconds of a later round, without what is not done in each.
        evaluation: seconds of an evaluation.
        decomposition: seconds of a decomposition.
        disk: bytes of files that do not grow.
        per_round: bytes that a round adds.
    """

    first: float
    round: float
    evaluation: float = 0.0
    decomposition: float = 0.0
    disk: float = 0.0
    per_round: float = 0.0

    def seconds(self, config: RunConfig) -> float:
        """Of the whole run, without early stopping."""
        later, evaluation = config.train.rounds - 1, config.evaluation
        every = evaluation.decompose_every
        return (
            self.first
            + later * self.round
            + later / evaluation.every * self.evaluation
            + (later / every * self.decomposition if every else 0)
        )


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The runs of one kind, and what was measured of the first of them."""

    runs: Sequence[RunConfig]
    measured: Measured | None

    def __str__(self) -> str:
        c = self.runs[0]
        method = f"{c.algorithm} + {c.server}" if c.server else c.algorithm
        return f"{method}, {c.data.name}, {c.model_name}, batch {c.train.batch_size}"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What some runs will take.

    Args:
        kinds: of the runs.
        at_once: runs executed at the same time.
        seconds: wall-clock time of all runs; None where nothing was measured.
        disk: bytes of all run directories; None where nothing was measured.
        memory: bytes of the processes of the runs at the same time, without the data.
        gpus: of the machines that do the work.
    """

    kinds: Sequence[Kind]
    at_once: int
    seconds: float | None
    disk: float | None
    memory: float
    gpus: float


def estimate(configs: Sequence[RunConfig], parallel: Parallel, *, measure: bool = True) -> Estimate:
    """Estimates what runs will take.

    With Ray the runs are taken one after the other, each on all that it may use: an upper bound.

    Args:
        configs: of all runs, at least one.
        parallel: how many runs at once.
        measure: whether a few rounds of each kind are trained; without, there is no time.

    Raises:
        FedsimError: a run cannot be started, or its first rounds failed.
    """
    imports = time.process_time()  # of this process so far: what each process of a sweep will take
    by_kind: dict[str, list[RunConfig]] = {}
    for config in configs:
        by_kind.setdefault(_kind_of(config), []).append(config)
    on_ray = [c.engine for c in configs if c.engine.kind == "ray"]
    at_once = 1 if on_ray else local_runs(configs, parallel)
    gpus = float(num_gpus())
    with ExitStack() as stack:
        session: Any = None
        if on_ray and measure:
            from fedsim.engine.ray.cluster import machines
            from fedsim.engine.ray.pool import Session

            session = stack.enter_context(Session(on_ray[0]))
            gpus = sum(node.gpus for node in machines())
        kinds = [
            Kind(runs=runs, measured=_measured(runs[0], session) if measure else None)
            for runs in by_kind.values()
        ]
    pairs = [(kind.measured, run) for kind in kinds for run in kind.runs if kind.measured]
    took = [measured.seconds(run) for measured, run in pairs]
    disk = [measured.disk + run.train.rounds * measured.per_round for measured, run in pairs]
    return Estimate(
        kinds=kinds,
        at_once=at_once,
        seconds=imports + _makespan(took, at_once) if measure else None,
        disk=sum(disk) if measure else None,
        memory=at_once * max(memory_of(kind.runs[0]) for kind in kinds),
        gpus=gpus,
    )


def _kind_of(config: RunConfig) -> str:
    """A text that runs of one kind share."""
    values = config.model_dump(mode="json")
    for section, keys in FREE.items():
        values[section] = {k: v for k, v in values[section].items() if k not in keys}
    shaping = ("kind", "client_batch", "precision", "deterministic")
    engine = {key: values["engine"][key] for key in shaping}
    free = dict.fromkeys(("label", "seed", "hyperparameters"))
    return json.dumps(values | free | {"engine": engine})


class _Clock(Callback):
    """Notes what each round took, and stops the run when enough are known."""

    reads_files = False

    def __init__(self) -> None:
        self.rounds: list[Counter[str]] = []
        self.begun = time.perf_counter()

    def on_round_end(self, round: int, rows: Rows) -> Literal["stop"] | None:
        took = Counter[str]()
        for row in rows["timings"]:
            took[row["phase"]] += row["seconds"]
        self.rounds.append(took)
        seconds = time.perf_counter() - self.begun
        enough = round >= ROUNDS or (round > 1 and seconds > SECONDS) or seconds > PATIENCE
        return "stop" if enough else None


def _measured(config: RunConfig, session: Any) -> Measured:
    """Trains the first rounds of a run in a temporary folder; each is evaluated.

    Raises:
        FedsimError: the run failed.
    """
    from fedsim.training import driver

    every = {"every": 1, "decompose_every": min(config.evaluation.decompose_every, 1)}
    config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update=every)})
    clock, level = _Clock(), logger.level
    with tempfile.TemporaryDirectory(prefix="fedsim-") as folder:
        logger.setLevel(logging.WARNING)  # what the run says is said again when it is done
        try:
            ray = session if config.engine.kind == "ray" else None
            store = driver.run(config, Path(folder, "run"), [clock], ray)
        except FedsimError as error:
            error.add_note("--no-measure lists the runs without training any")
            raise
        finally:
            logger.setLevel(level)
        end = time.perf_counter()
        tables = [f for f in store.path.glob("*.csv") if f.read_text("utf-8").startswith("round,")]
        growing = sum(file.stat().st_size for file in tables)
        size = sum(f.stat().st_size for f in store.path.rglob("*") if f.is_file())
    later = clock.rounds[1:] or clock.rounds
    mean = {phase: sum(r[phase] for r in later) / len(later) for phase in PHASES}
    return Measured(
        first=end - clock.begun - sum(r["total"] for r in clock.rounds[1:]),
        round=mean["total"] - mean["evaluate"] - mean["decompose"],
        evaluation=mean["evaluate"],
        decomposition=mean["decompose"],
        disk=size - growing,
        per_round=growing / len(clock.rounds),
    )


PHASES = ("total", "evaluate", "decompose")
"""Of timings.csv, which are looked at."""


def _makespan(seconds: Sequence[float], slots: int) -> float:
    """How long runs take on some slots, the longest first, as a sweep does them."""
    ends = [0.0] * slots
    for each in sorted(seconds, reverse=True):
        heapq.heappush(ends, heapq.heappop(ends) + each * (CONTENTION if slots > 1 else 1.0))
    return max(ends)
