"""The simulated clock: how fast clients are, whether they answer, and what follows for a round.

Nothing sleeps. What a client does in a round is a pure function of (seed, round, client), known
before it trains:

    n samples in batches of b, E epochs         planned steps, of which it does a share (``work``)
    seconds = down / download + samples seen / samples_per_second + up / upload

A client that would miss the deadline is left out (``drop``), or does the steps that fit
(``partial``). Lateness depends on the size of the model only, so the same clients are late under
every method; what a method sends beside the model counts in the seconds of the round.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedsim.core.errors import ConfigError
from fedsim.core.rng import generator
from fedsim.core.types import Array
from fedsim.systems.distributions import Distribution, constant

MB = 10**6
FLOAT_BYTES = 4
"""Bytes of a floating-point number in a message."""
TIMED = ("samples_per_second", "download_mb_s", "upload_mb_s")
"""The traits of a client that take time; a client without one of them is infinitely fast in it."""
TRAITS = (*TIMED, "availability")
BOUNDS: Mapping[str, tuple[float, float, str]] = {
    **{name: (1e-100, 1e100, "above 0 (1e-100 to 1e100)") for name in TIMED},
    **{name: (0.0, 1.0, "from 0 to 1") for name in ("availability", "work")},
}
"""The smallest and the largest value of each trait, and the range in words."""


@dataclass(frozen=True)
class Series:
    """A trait of one client over the rounds (from 0), from a trace: each value holds until the
    next one."""

    rounds: tuple[int, ...]
    values: tuple[float, ...]

    def at(self, round: int) -> float:
        """The value in a round."""
        return self.values[bisect_right(self.rounds, round) - 1]


@dataclass(frozen=True)
class LocalSchedule:
    """The steps of local training when nothing cuts it short."""

    epochs: int = 0  # over the client's data, of all phases together
    batch_size: int = 1
    skips_single: bool = False  # a last batch of one sample: BatchNorm cannot train on it
    fixed: int | None = None  # steps in place of epochs, as if each round began with a new pass

    def samples_per_epoch(self, n: int) -> int:
        """The samples that an epoch over n samples uses."""
        single = self.skips_single and n > self.batch_size and n % self.batch_size == 1
        return n - single

    def steps(self, n: int) -> int:
        """The steps on n samples."""
        if self.fixed is not None:
            return self.fixed
        return self.epochs * math.ceil(self.samples_per_epoch(n) / self.batch_size)

    def samples(self, n: int, steps: int) -> int:
        """The samples that the first ``steps`` steps on n samples use."""
        per_epoch = self.samples_per_epoch(n)
        epochs, rest = divmod(steps, math.ceil(per_epoch / self.batch_size))
        return epochs * per_epoch + min(rest * self.batch_size, per_epoch)


@dataclass(frozen=True, kw_only=True)
class Participation:
    """How a client of the cohort takes part in a round."""

    max_steps: int | None = None  # None: its training ends by itself
    compute: float = 0.0  # seconds of its steps
    download: float = math.inf  # MB per second
    upload: float = math.inf
    absent: str | None = None  # why it is left out; None: it takes part
    late: bool = False  # left out because it would miss the deadline
    probed: int = 0  # bytes that it sent in a pass before training, known after that pass
    received: int = 0  # bytes of the model that it has from such a pass

    def seconds(self, down: int, up: int) -> float:
        """From the first of ``down`` bytes to it, less those received before, to the last of
        ``up`` bytes from it."""
        down -= self.received
        return down / (MB * self.download) + self.compute + up / (MB * self.upload)


ALWAYS = Participation()
"""A client that takes part with all of its steps."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How fast clients are and whether they answer; by default they are infinitely fast and do."""

    seed: int = 0
    distributions: Mapping[str, Distribution] = field(default_factory=dict)  # drawn per client
    trace: Mapping[str, Mapping[int, Series]] = field(default_factory=dict)  # in their place
    work: Distribution = field(default_factory=lambda: constant(1.0))  # share of steps, each round
    deadline: float = math.inf  # seconds of a round
    late: Literal["drop", "partial"] = "drop"  # leave out who misses it, or do the steps that fit
    schedule: LocalSchedule = LocalSchedule()
    vector_bytes: int = 0  # of the model, without the parts that stay on the clients

    def __post_init__(self) -> None:
        if self.deadline < math.inf and not self.timed:
            traits = ", ".join(f"clock.{name}" for name in TIMED)
            raise ConfigError(
                f"clock.deadline: {self.deadline:g} given, but nothing takes time; give {traits} "
                "or columns of that name in clock.trace"
            )

    @property
    def timed(self) -> bool:
        """Whether anything takes time."""
        return any(trait in self.distributions or trait in self.trace for trait in TIMED)

    def trait(self, name: str, round: int, client: int) -> float:
        """A trait of a client in a round (from 0); infinite where the clock does not have it."""
        if name in self.trace:
            return self.trace[name][client].at(round)
        distribution = self.distributions.get(name, constant(math.inf))
        return distribution.draw(lambda: generator(self.seed, f"clock.{name}", client))

    @property
    def idle(self) -> bool:
        """Whether every client takes part in every round with all of its steps, in no time."""
        return not (self.distributions or self.trace) and self.work.values == (1.0,)

    def participation(
        self, round: int, client: int, n: int, stream: int | None = None
    ) -> Participation:
        """How a client with n samples takes part in a round (from 0); what is drawn anew each time
        has the key ``stream``, by default the round."""
        if self.idle:
            return ALWAYS
        stream = round if stream is None else stream
        speed, download, upload, chance = (self.trait(name, round, client) for name in TRAITS)
        if chance < 1 and generator(self.seed, "clock.answers", stream, client).random() >= chance:
            return Participation(absent=f"not available (clock.availability {chance:g})")

        def after(steps: int) -> Participation:
            return Participation(
                max_steps=None if steps == planned else steps,
                compute=self.schedule.samples(n, steps) / speed,
                download=download,
                upload=upload,
            )

        def seconds(steps: int) -> float:
            return after(steps).seconds(self.vector_bytes, self.vector_bytes)

        planned = self.schedule.steps(n)
        share = self.work.draw(lambda: generator(self.seed, "clock.work", stream, client))
        wanted = min(planned, max(1, math.ceil(share * planned - 1e-9)))  # 0.07 of 100 steps are 7
        least = wanted if self.late == "drop" else min(1, wanted)
        fitting = bisect_right(range(1, wanted + 1), self.deadline, key=seconds)
        if fitting >= least:
            return after(fitting)
        needed = f"needs {seconds(least):.6g} s for {least} of {planned} steps"
        reason = f"late: {needed}, clock.deadline is {self.deadline:g} s"
        return Participation(absent=reason, late=True)


def wire_bytes(arrays: Iterable[Array]) -> int:
    """Bytes of arrays in messages: 4 per float, its own size per integer or truth value."""
    return sum(
        a.size * (FLOAT_BYTES if np.issubdtype(a.dtype, np.floating) else a.itemsize)
        for a in arrays
    )
