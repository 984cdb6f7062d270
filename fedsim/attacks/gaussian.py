"""Gaussian noise: malicious clients send N(0, scale^2) in place of the change of each parameter."""

from collections.abc import Callable
from dataclasses import dataclass

from fedsim.attacks.base import Attack, Federation
from fedsim.core.rng import generator
from fedsim.core.settings import Positive
from fedsim.core.types import ClientTask, Layout, Slot, Vector


@dataclass(frozen=True)
class Gaussian:
    """Noise in all parameters but those that are ``personal``."""

    personal: Callable[[Slot], bool]
    scale: float

    def __call__(self, delta: Vector, task: ClientTask, layout: Layout) -> Vector:
        """The noise; running statistics stay those of training."""
        rng, sent = generator(task.ctx.seed, "attack", task.key, task.client), delta.copy()
        for slot in layout.slots:
            if slot.role == "param" and not self.personal(slot):
                sent[slot.where] = self.scale * rng.standard_normal(slot.stop - slot.start)
        return sent


def build(federation: Federation, scale: Positive = 1.0) -> Attack:
    """Noise of standard deviation ``scale``."""
    return Attack(update=Gaussian(federation.personal, scale))
