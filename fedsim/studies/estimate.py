"""What runs will take, from the first rounds of one run."""

from __future__ import annotations

import heapq
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedsim.config.run import RunConfig
from fedsim.core.errors import FedsimError
from fedsim.training.callbacks import Callback, Rows

logger = logging.getLogger("fedsim")
SECONDS, ROUNDS, PATIENCE = 3.0, 10, 20.0
"""A kind is measured for so many seconds, from two rounds to so many; a first round that takes
longer than the last number is the only one."""
CONTENTION = 1.25
"""How much longer a run takes beside others on all cores: 49 s of CPU instead of 39 s for 18 short
runs in two processes."""


@dataclass(frozen=True)
class Measured:
    """Seconds of the start with the first round, of a later round, and of an evaluation."""

    first: float
    round: float
    evaluation: float

    def seconds(self, config: RunConfig) -> float:
        """Of the whole run, without early stopping."""
        later = config.train.rounds - 1
        return self.first + later * (self.round + self.evaluation / config.evaluation.every)


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


def measure(config: RunConfig) -> Measured:
    """Trains the first rounds of a run in a temporary folder; each is evaluated."""
    from fedsim.training import driver

    evaluation = config.evaluation.model_copy(update={"every": 1})
    clock, level = _Clock(), logger.level
    with tempfile.TemporaryDirectory(prefix="fedsim-") as folder:
        logger.setLevel(logging.WARNING)  # what the run says is said again when it is done
        try:
            config = config.model_copy(update={"evaluation": evaluation})
            driver.run(config, Path(folder, "run"), [clock])
        except FedsimError as error:
            error.add_note("--no-measure lists the runs without training any")
            raise
        finally:
            logger.setLevel(level)
        end = time.perf_counter()
    later = clock.rounds[1:] or clock.rounds
    total, evaluated = (sum(r[p] for r in later) / len(later) for p in ("total", "evaluate"))
    first = end - clock.begun - sum(r["total"] for r in clock.rounds[1:])
    return Measured(first, total - evaluated, evaluated)


def makespan(seconds: Sequence[float], at_once: int) -> float:
    """How long runs take, so many at once, the longest first."""
    ends = [0.0] * at_once
    for each in sorted(seconds, reverse=True):
        heapq.heappush(ends, heapq.heappop(ends) + each * (CONTENTION if at_once > 1 else 1.0))
    return max(ends)
