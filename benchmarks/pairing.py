"""fedsim and bare loops in turns, within one run: blocks A B B' A B B' ...

A run of fedsim calls its callbacks after every round; between two rounds its actors are idle, so
a callback is the place where the bare loops do the same rounds. So both sides see the same machine
minute by minute, and the run is a user's own: rows of CSV, checkpoints, everything.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import fedsim
from benchmarks.bare import Bare, job_of
from benchmarks.workloads import Workload, run_config
from fedsim.config.run import RunConfig
from fedsim.engine.ray.cluster import local_node
from fedsim.training.assemble import prepare

# Ray's workers are nicer than others by 15; where others work too, that would count against fedsim
os.environ.setdefault("RAY_worker_niceness", "0")


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of repeated measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of one or more values."""
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
        return cls(median, low, high)


@dataclass(frozen=True)
class Pairs:
    """Seconds per round, block by block.

    Args:
        fedsim: one value per block.
        bare: per variant of the bare loop one value per block, measured right after fedsim's.
        phases: seconds per round of fedsim's phases, medians over the timed rounds.
    """

    fedsim: tuple[float, ...]
    bare: Mapping[str, tuple[float, ...]]
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def faster(self) -> str:
        """The bare variant with the smaller median, which fedsim is compared with."""
        return min(self.bare, key=lambda label: statistics.median(self.bare[label]))

    @property
    def ratio(self) -> Spread:
        """Fedsim over the faster bare variant, block by block."""
        pairs = zip(self.fedsim, self.bare[self.faster], strict=True)
        return Spread.of([ours / theirs for ours, theirs in pairs])


@dataclass
class Turns(fedsim.Callback):
    """After each block of rounds it lets the bare loops do the same rounds.

    Every block of every side begins with a round that is not timed, since the other side has just
    filled the caches. Round 1 starts the actors, and the last round is evaluated: neither counts.
    """

    bares: Sequence[Bare]
    block: int
    repeats: int
    fedsim: list[float] = field(default_factory=list)
    bare: dict[str, list[float]] = field(default_factory=dict)
    done: int = 0
    begun: float = 0.0

    @property
    def rounds(self) -> int:
        """Rounds of the whole run."""
        return 1 + self.repeats * (1 + self.block) + 1

    @property
    def timed(self) -> list[int]:
        """The numbers of the timed rounds, from 1 as in the CSV files."""
        cycle = 1 + self.block
        return [r for r in range(2, self.rounds) if (r - 2) % cycle]

    def on_round_end(self, round: int, rows: Mapping[str, object]) -> None:
        """Starts a block's clock, or ends it and hands over to the bare loops."""
        now = time.perf_counter()
        self.done += 1
        position = (self.done - 2) % (1 + self.block)
        if self.done in (1, self.rounds):
            return
        if position == 0:
            self.begun = now
        if position == self.block:
            self.fedsim.append((now - self.begun) / self.block)
            first = self.done - 1 - self.block
            for bare in self.bares:
                spent = bare.rounds(first, 1 + self.block)[1:]
                self.bare.setdefault(bare.label, []).append(sum(spent) / self.block)


def compare(workload: Workload, method: str, repeats: int, **engine: Any) -> Pairs:
    """One run of fedsim, in turns with the bare loops.

    Args:
        workload: what is trained.
        method: ``fedavg`` or ``fedld``.
        repeats: blocks of each side.
        engine: keys of section ``engine``.
    """
    turns = Turns((), workload.block, repeats)
    config = run_config(workload, method, turns.rounds, **engine)
    with ExitStack() as stack:
        turns.bares = [stack.enter_context(b) for b in bare_loops(config, method)]
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedsim-benchmark-"))
        store = fedsim.run(config, Path(folder) / "run", [turns], progress=False)
        timings = store.read("timings")
    timed = timings[timings["round"].isin(turns.timed)]
    phases = timed.groupby("phase", sort=False)["seconds"].median()
    bare = {label: tuple(seconds) for label, seconds in turns.bare.items()}
    return Pairs(tuple(turns.fedsim), bare, {str(k): float(v) for k, v in phases.items()})


def bare_loops(config: RunConfig, method: str) -> list[Bare]:
    """The bare variants that are possible here, started."""
    setup, cores = prepare(config), int(local_node().cpus)
    shapes = {(1, cores), (cores, 1)}
    return [
        Bare(f"{p} x {t} thread", job_of(setup, method, t, cores), p) for p, t in sorted(shapes)
    ]
