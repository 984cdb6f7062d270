"""What malicious clients do, and where in a round it takes effect.

An attack changes the samples that a malicious client trains on, the update that it sends, or, where
malicious clients work together and know updates of others, the updates of the cohort. What a method
sends beside the update (control variates, prototypes) stays what training made it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsim.attacks.omniscient import Omniscient, Rule
from fedsim.client import Coded
from fedsim.core.errors import ConfigError
from fedsim.core.rng import generator
from fedsim.core.settings import InvalidSetting
from fedsim.core.types import (
    ClientTask,
    Dataset,
    Layout,
    RoundContext,
    Slot,
    Triggered,
    Vector,
    Vectors,
)
from fedsim.server import Cohort, Received


@dataclass(frozen=True)
class Federation:
    """What an attack is built for: the data of all clients, and the slots that stay on a client."""

    dataset: Dataset
    personal: Callable[[Slot], bool]

    def check_classes(self, source: int | None, target: int | None) -> None:
        """Refuses classes that the data have not, and equal ones, by a ConfigError."""
        last = self.dataset.num_classes - 1
        for key, label in (("source", source), ("target", target)):
            if label is not None and label > last:
                raise ConfigError(f"attack.{key}: {label} given; the classes are 0 to {last}")
        if source is not None and source == target:
            raise InvalidSetting("attack.source", f"{source} is attack.target, too")


SampleAttack = Callable[[Tensor, Tensor, ClientTask], tuple[Tensor, Tensor]]
"""Samples and labels (x, y) and the client's work -> those to train on, in other memory."""
UpdateAttack = Callable[[Vector, ClientTask, Layout], Vector]
"""What a client trained (D,), which must not be written to -> what it sends."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What malicious clients do in the rounds in which they attack; nothing by default.

    Args:
        samples: what they train on.
        changes_x: whether that is more than other labels.
        affected: of labels (n,), how many of such samples are changed; None: nobody knows.
        update: what they send in place of their update, before it is compressed.
        cohort: what they send in its place that know updates of the round.
        triggered: the test samples by whose predictions the success is measured; None: it is not.
    """

    samples: SampleAttack | None = None
    changes_x: bool = True
    affected: Callable[[NDArray[np.int64]], int] | None = None
    update: UpdateAttack | None = None
    cohort: Omniscient | None = None
    triggered: Triggered | None = None

    @property
    def changes_updates(self) -> bool:
        """Whether clients send another update than training made."""
        return self.update is not None or self.cohort is not None


@dataclass(frozen=True)
class Malicious:
    """The malicious clients of a run, and the first round (from 0) in which they attack."""

    clients: frozenset[int]
    start: int = 0

    def active(self, client: int, round: int) -> bool:
        """Whether a client attacks in a round (from 0)."""
        return round >= self.start and client in self.clients


def draw_malicious(participants: Sequence[int], fraction: float, seed: int) -> tuple[int, ...]:
    """floor(fraction n) of the n participants, uniformly, ascending; those of a smaller fraction
    are among those of a larger one."""
    count = math.floor(fraction * len(participants) + 1e-9)
    order = generator(seed, "attackers").permutation(len(participants))
    return tuple(sorted(participants[i] for i in order[:count].tolist()))


@dataclass(frozen=True)
class AttackedSamples:
    """The sample transform of an attack."""

    malicious: Malicious
    attack: SampleAttack
    changes_x: bool = True

    def __call__(self, x: Tensor, y: Tensor, task: ClientTask) -> tuple[Tensor, Tensor]:
        """Changes the samples of malicious clients alone."""
        active = self.malicious.active(task.client, task.ctx.round)
        return self.attack(x, y, task) if active else (x, y)


@dataclass(frozen=True)
class AttackedUpdates:
    """The client transform of an attack."""

    malicious: Malicious
    attack: UpdateAttack
    name: ClassVar[str] = "attack"

    def __call__(self, delta: Vector, state: Vectors, task: ClientTask, layout: Layout) -> Coded:
        """Changes the updates of malicious clients alone; keeps no state."""
        active = self.malicious.active(task.client, task.ctx.round)
        return Coded(self.attack(delta, task, layout) if active else delta)


@dataclass(frozen=True)
class AttackedCohort:
    """The cohort transform of an attack; a cohort of one kind of clients stays as it is."""

    malicious: Malicious
    attack: Omniscient
    name: ClassVar[str] = "attack"

    def __call__(
        self, cohort: Cohort, state: Vectors, ctx: RoundContext, rule: Rule | None = None
    ) -> Received:
        """Keeps what the attack keeps; ``rule`` is the server's, for attacks that try it."""
        active = (self.malicious.active(u.client_id, ctx.round) for u in cohort.updates)
        malicious = np.fromiter(active, np.bool_, len(cohort.updates))
        if malicious.any() and not malicious.all():
            return self.attack(cohort, malicious, state, ctx, rule)
        return Received(cohort=cohort, state=state)
