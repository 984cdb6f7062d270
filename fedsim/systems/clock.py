"""The virtual clock: how fast clients are, whether they answer, and what that makes of a round.

Nothing sleeps. What a client does in a round is a pure function of (seed, round, client), known
before it trains:

    n samples in batches of b, E epochs         planned steps, of which it does a share (``work``)
    seconds = down / download + samples seen / samples_per_second + up / upload

A client that would be later than the deadline is left out (``drop``), or does the steps that fit
(``partial``). Whether it is late is decided on the bytes of the model itself; what a method sends
beside it depends on its training, and counts in the seconds of the round.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedsim.core.rng import generator
from fedsim.core.types import Array
from fedsim.systems.distributions import Law, number

MB = 10**6
FLOAT = 4
"""Bytes of a floating number on its way."""
TIMED = ("samples_per_second", "download_mb_s", "upload_mb_s")
"""The traits of a client that take time; without one it takes none."""
TRAITS = (*TIMED, "availability")
BOUNDS: Mapping[str, tuple[float, float, str]] = {
    **{name: (math.ulp(0.0), math.inf, "above 0") for name in TIMED},
    **{name: (0.0, 1.0, "from 0 to 1") for name in ("availability", "work")},
}
"""The smallest and the largest value of each trait, and both in words."""
UNLIMITED = number(math.inf)
EVERYTHING = number(1.0)
ROUNDING = 1e-9
"""Of a share times a number of steps: 0.07 of 100 steps are 7."""


@dataclass(frozen=True)
class Series:
    """A trait of one client over the rounds (from 0), from a trace: the newest value counts."""

    rounds: tuple[int, ...]
    values: tuple[float, ...]

    def at(self, round: int) -> float:
        """The value in a round."""
        return self.values[bisect_right(self.rounds, round) - 1]


@dataclass(frozen=True)
class Plan:
    """What local training does if nothing stops it.

    Args:
        epochs: over the client's data, of all phases together.
        batch_size: samples per step.
        skips_lone: a single sample after whole batches is left out (BatchNorm trains).
    """

    epochs: int = 0
    batch_size: int = 1
    skips_lone: bool = False

    def seen(self, n: int) -> int:
        """Samples that an epoch over n samples looks at."""
        lone = self.skips_lone and n > self.batch_size and n % self.batch_size == 1
        return n - lone

    def steps(self, n: int) -> int:
        """The steps on n samples."""
        return self.epochs * -(-self.seen(n) // self.batch_size)

    def samples(self, n: int, steps: int) -> int:
        """Samples that the first steps look at."""
        epochs, rest = divmod(steps, -(-self.seen(n) // self.batch_size))
        return epochs * self.seen(n) + min(rest * self.batch_size, self.seen(n))


@dataclass(frozen=True)
class Visit:
    """What a client of the cohort does in a round.

    Args:
        max_steps: after so many steps it stops, None if its training ends before.
        compute: seconds of its steps.
        download: MB per second to it.
        upload: MB per second from it.
        absent: why it is left out, None where it takes part.
        late: it is left out for the deadline.
        probed: bytes from it in a pass before training, which is known afterwards.
    """

    max_steps: int | None = None
    compute: float = 0.0
    download: float = math.inf
    upload: float = math.inf
    absent: str | None = None
    late: bool = False
    probed: int = 0

    def seconds(self, down: int, up: int) -> float:
        """From the first of ``down`` bytes to it to the last of ``up`` bytes from it."""
        return down / (MB * self.download) + self.compute + up / (MB * self.upload)


@dataclass(frozen=True)
class Clock:
    """How fast clients are and whether they answer; the default takes no time and loses nobody.

    Args:
        seed: of the run.
        laws: by trait, drawn once for each client.
        trace: by trait and client, in place of a law.
        work: the share of its steps that a client does, drawn for each client in each round.
        deadline: seconds of a round.
        late: what becomes of clients that would be later.
        plan: their training.
        vector_bytes: of the model, without what stays on the client.
    """

    seed: int = 0
    laws: Mapping[str, Law] = field(default_factory=dict)
    trace: Mapping[str, Mapping[int, Series]] = field(default_factory=dict)
    work: Law = EVERYTHING
    deadline: float = math.inf
    late: Literal["drop", "partial"] = "drop"
    plan: Plan = Plan()
    vector_bytes: int = 0

    @property
    def timed(self) -> bool:
        """Whether anything takes time."""
        return any(trait in self.laws or trait in self.trace for trait in TIMED)

    def trait(self, name: str, round: int, client: int) -> float:
        """A trait of a client in a round (from 0); infinite where the clock does not have it."""
        if name in self.trace:
            return self.trace[name][client].at(round)
        law = self.laws.get(name, UNLIMITED)
        return law.draw(lambda: generator(self.seed, f"clock.{name}", client))

    def visit(self, round: int, client: int, n: int) -> Visit:
        """What a client with n samples does in a round (from 0)."""
        speed, download, upload, chance = (self.trait(name, round, client) for name in TRAITS)
        if chance < 1 and generator(self.seed, "clock.answers", round, client).random() >= chance:
            return Visit(absent=f"not available (clock.availability {chance:g})")

        def visit(steps: int) -> Visit:
            return Visit(
                None if steps == planned else steps,
                self.plan.samples(n, steps) / speed,
                download,
                upload,
            )

        def seconds(steps: int) -> float:
            return visit(steps).seconds(self.vector_bytes, self.vector_bytes)

        planned = self.plan.steps(n)
        share = self.work.draw(lambda: generator(self.seed, "clock.work", round, client))
        wanted = min(planned, max(1, math.ceil(share * planned - ROUNDING)))
        least = wanted if self.late == "drop" else min(1, wanted)
        fitting = bisect_right(range(1, wanted + 1), self.deadline, key=seconds)
        if fitting >= least:
            return visit(fitting)
        needed = f"needs {seconds(least):.6g} s for {least} of {planned} steps"
        return Visit(absent=f"late: {needed}, clock.deadline is {self.deadline:g} s", late=True)


def wire_bytes(arrays: Iterable[Array]) -> int:
    """Bytes of arrays on their way: floats have 4, integers and truth values their own size."""
    return sum(
        a.size * (FLOAT if np.issubdtype(a.dtype, np.floating) else a.itemsize) for a in arrays
    )
