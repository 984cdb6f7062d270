"""Estimates what runs will take: time, disk and memory, from a few measured rounds of each shape.

Runs have the same shape if nothing differs that decides how long a round takes: seeds and learning
rates do not, the method, the data set, the model, the clients and the batch do.
"""

from __future__ import annotations

import heapq
import json
import logging
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedsim.config.keys import KEYS
from fedsim.config.run import RunConfig
from fedsim.config.validation import cohort_size
from fedsim.core.errors import FedsimError
from fedsim.core.machine import num_gpus
from fedsim.studies.capacity import Parallel, local_runs, memory_of, model_bytes
from fedsim.training.callbacks import Callback, Rows

logger = logging.getLogger("fedsim")
SECONDS, ROUNDS, PATIENCE = 3.0, 10, 20.0
"""A shape is measured for so many seconds, from two rounds to so many; a first round that takes
longer than the last number is the only one."""
MOST: Mapping[str, int] = {"epochs": 10, "steps": 200, "iterations": 1000}
"""By the last word of a key the most of them that a measured round does."""
FINETUNING = "evaluation.finetune_epochs"
"""The key of what is done once, after the last round."""
CONTENTION = 1.25
"""How much longer a run takes beside others on all cores: 49 s of CPU instead of 39 s for 18 short
runs in two processes."""


class _Clock(Callback):
    """Notes what each round took, and stops the run when enough are known."""

    reads_files = False

    def __init__(self) -> None:
        self.rounds: list[defaultdict[str, float]] = []
        self.begun = time.perf_counter()

    def on_round_end(self, round: int, rows: Rows) -> Literal["stop"] | None:
        took = defaultdict[str, float](float)
        for row in rows["timings"]:
            took[row["phase"]] += row["seconds"]
        took["samples"] = sum(row["num_samples"] or 0 for row in rows["clients"])
        self.rounds.append(took)
        self.last = time.perf_counter()
        seconds = self.last - self.begun
        enough = round >= ROUNDS or (round > 1 and seconds > SECONDS) or seconds > PATIENCE
        return "stop" if enough else None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one run of a shape was measured to take.

    Args:
        num_clients: K.
        first: seconds of its start, first round and end.
        train: seconds of training in a later round, for a cohort of average size.
        evaluate: seconds of an evaluation.
        decompose: seconds of a decomposition.
        other: seconds of a round's other work.
        fixed: bytes of files that do not grow.
        per_round: bytes that a round adds.
        shortened: by key how many epochs, steps or iterations were measured, and how many there
            are; the time of epochs and steps is scaled to all of them.
    """

    num_clients: int
    first: float
    train: float
    evaluate: float
    decompose: float
    other: float
    fixed: float
    per_round: float
    shortened: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def seconds(self, config: RunConfig) -> float:
        """Of the whole run, without early stopping."""
        later, evaluation = config.train.rounds - 1, config.evaluation
        decompositions = later / evaluation.decompose_every if evaluation.decompose_every else 0
        return (
            self.first
            + later * (self.train + self.other)
            + later / evaluation.every * self.evaluate
            + decompositions * self.decompose
        )

    def disk(self, config: RunConfig) -> float:
        """Bytes of the run directory."""
        return self.fixed + config.train.rounds * self.per_round


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Runs of one shape: the first of them, their number, and what was measured."""

    config: RunConfig
    rounds: tuple[int, ...]
    measured: Measured | None

    def __str__(self) -> str:
        c = self.config
        chain = f" + {c.server}" if c.server else ""
        return (
            f"{c.algorithm}{chain}, {c.data.name}, {c.model_name}{self._clients()}, batch "
            f"{c.train.batch_size}"
        )

    def _clients(self) -> str:
        """Size of the cohort and number of clients; empty where only the data would say it."""
        c, known = self.config, self.measured
        if known is None and not c.decides_num_clients:
            return ""
        count = c.data.num_clients if known is None else known.num_clients
        return f", {cohort_size(count, c.train.sample_rate)} of {count} clients"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What some runs will take.

    Args:
        shapes: of the runs.
        at_once: runs executed at the same time.
        seconds: wall-clock time of all runs; None where nothing was measured.
        disk: bytes of all run directories.
        memory: bytes of the processes of the runs at the same time, without the data.
        gpus: of the machines that do the work.
    """

    shapes: tuple[Shape, ...]
    at_once: int
    seconds: float | None
    disk: float
    memory: float
    gpus: float

    @property
    def gpu_hours(self) -> float | None:
        """Hours times all GPUs of the machines, busy or not; None where nothing was measured."""
        return None if self.seconds is None else self.seconds / 3600 * self.gpus


def estimate(configs: Sequence[RunConfig], parallel: Parallel, *, measure: bool = True) -> Estimate:
    """Estimates what runs will take.

    With Ray the runs are taken one after the other, each on all that it may use: an upper bound.

    Args:
        configs: of all runs, at least one.
        parallel: how many runs at once.
        measure: whether a few rounds of each shape are trained; without, there is no time.

    Raises:
        FedsimError: a run cannot be started, or its first rounds failed.
    """
    imports = time.process_time()  # of this process so far: what each process of a sweep will take
    by_shape: dict[str, list[RunConfig]] = {}
    for config in configs:
        by_shape.setdefault(_shape_of(config), []).append(config)
    on_ray = [c.engine for c in configs if c.engine.kind == "ray"]
    at_once = 1 if on_ray else local_runs(configs, parallel)
    gpus = float(num_gpus())
    shapes = []
    with ExitStack() as stack:
        session: Any = None
        if on_ray and measure:
            from fedsim.engine.ray.cluster import machines
            from fedsim.engine.ray.pool import Session

            session = stack.enter_context(Session(on_ray[0]))
            gpus = sum(node.gpus for node in machines())
        for runs in by_shape.values():
            ray = session if runs[0].engine.kind == "ray" else None
            measured = _measured(runs[0], ray) if measure else None
            rounds = tuple(run.train.rounds for run in runs)
            shapes.append(Shape(config=runs[0], rounds=rounds, measured=measured))
    pairs = list(zip(shapes, by_shape.values(), strict=True))
    took = [s.measured.seconds(run) for s, runs in pairs if s.measured for run in runs]
    disk = sum(s.measured.disk(r) if s.measured else _files(r) for s, runs in pairs for r in runs)
    return Estimate(
        shapes=tuple(shapes),
        at_once=at_once,
        seconds=imports + _makespan(took, at_once) if measure else None,
        disk=disk,
        memory=at_once * max(memory_of(runs[0]) for runs in by_shape.values()),
        gpus=gpus,
    )


def _shape_of(config: RunConfig) -> str:
    """A text that runs of one shape share."""
    values = config.model_dump(mode="json")
    for section in ("data", "train"):
        leaves = [leaf for leaf in values[section] if KEYS[f"{section}.{leaf}"].shape]
        values[section] = {leaf: values[section][leaf] for leaf in leaves}
    shaping = ("kind", "client_batch", "precision", "deterministic")
    engine = {leaf: values["engine"][leaf] for leaf in shaping}
    free = dict.fromkeys(("label", "seed", "hyperparameters"))
    return json.dumps(values | free | {"engine": engine})


def _measured(config: RunConfig, session: Any) -> Measured:
    """Trains the first rounds of a run in a temporary folder.

    Every round is evaluated, so that one is seen; rounds of many epochs or steps are shortened.

    Raises:
        FedsimError: the run failed.
    """
    from fedsim.training import driver

    every = {"every": 1, "decompose_every": min(config.evaluation.decompose_every, 1)}
    evaluation = config.evaluation.model_copy(update=every)
    short, shortened = _shortened(config.model_copy(update={"evaluation": evaluation}))
    clock = _Clock()
    level = logger.level
    with tempfile.TemporaryDirectory(prefix="fedsim-") as folder:
        logger.setLevel(logging.WARNING)  # what the run says is said again when it is done
        try:
            store = driver.run(short, Path(folder, "run"), [clock], session)
        except FedsimError as error:
            error.add_note("--no-measure lists the runs without training any")
            raise
        finally:
            logger.setLevel(level)
        end = time.perf_counter()
        later = clock.rounds[1:] or clock.rounds
        split = store.read("partition").groupby("client_id")["train_samples"].sum()
        growing = {
            file: file.stat().st_size
            for file in store.path.glob("*.csv")
            if file.read_text(encoding="utf-8").startswith("round,")
        }
        files = sum(f.stat().st_size for f in store.path.rglob("*") if f.is_file())
    mean = {key: sum(r[key] for r in later) / len(later) for key in (*PHASES, "samples")}
    expected = cohort_size(len(split), config.train.sample_rate) * float(split.mean())
    more = expected / mean["samples"] if mean["samples"] else 1.0
    scale = {key: wanted / done for key, (done, wanted) in shortened.items()}
    tuned = scale.pop(FINETUNING, 1.0)
    longer = max((n for key, n in scale.items() if not key.endswith("iterations")), default=1.0)
    first = end - clock.begun - sum(r["total"] for r in clock.rounds[1:])
    first += (longer - 1) * clock.rounds[0]["train"] + (tuned - 1) * (end - clock.last)
    return Measured(
        num_clients=len(split),
        first=first,
        train=mean["train"] * more * longer,
        evaluate=mean["evaluate"],
        decompose=mean["decompose"],
        other=mean["total"] - mean["train"] - mean["evaluate"] - mean["decompose"],
        fixed=files - sum(growing.values()),
        per_round=sum(growing.values()) / len(clock.rounds),
        shortened=shortened,
    )


def _shortened(config: RunConfig) -> tuple[RunConfig, dict[str, tuple[int, int]]]:
    """The configuration with at most :data:`MOST` epochs, steps and iterations in a round.

    Returns:
        It, and by key the number that is measured and the one that was wanted, where they differ.
    """
    sections = {"train": dict(config.train), "evaluation": dict(config.evaluation)}
    fewer: dict[str, tuple[int, int]] = {}
    update: dict[str, dict[str, Any]] = {}
    for name, values in {**sections, **config.hyperparameters}.items():
        for leaf, value in values.items():
            most = MOST.get(leaf.rpartition("_")[2])
            if most is not None and isinstance(value, int) and value > most:
                fewer[f"{name}.{leaf}"] = most, value
                update.setdefault(name, {})[leaf] = most
    methods = {k: {**own, **update.get(k, {})} for k, own in config.hyperparameters.items()}
    changed = {name: getattr(config, name).model_copy(update=update.get(name)) for name in sections}
    return config.model_copy(update={**changed, "hyperparameters": methods}), fewer


PHASES = ("total", "train", "evaluate", "decompose")
"""Of timings.csv, which are looked at."""


def _files(config: RunConfig) -> float:
    """Bytes of a run's models: the final one, and the checkpoints that are kept."""
    vector, frozen = model_bytes(config)
    e, rounds = config.engine, config.train.rounds
    kept = min(e.keep_checkpoints + (rounds // e.keep_every if e.keep_every else 0), rounds)
    return kept * vector + (vector + frozen) * e.save_model


def _makespan(seconds: Sequence[float], slots: int) -> float:
    """How long runs take on some slots, the longest first, as a sweep does them."""
    ends = [0.0] * slots
    for each in sorted(seconds, reverse=True):
        heapq.heappush(ends, heapq.heappop(ends) + each * (CONTENTION if slots > 1 else 1.0))
    return max(ends)
