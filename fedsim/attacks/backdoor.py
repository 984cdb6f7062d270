"""Backdoor: malicious clients put a trigger on images, and give them the class of the attacker.

As BadNets (Gu et al., 2017), on clients. With ``scale`` they send that many times their update,
model replacement: m / (weight of the server's step) makes the malicious model what a mean of m
equal clients gives, where the others hardly move (Bagdasaryan et al., AISTATS 2020).
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedsim.attacks.base import Attack, Federation
from fedsim.attacks.sign_flip import scaled
from fedsim.core.errors import ConfigError
from fedsim.core.rng import generator
from fedsim.core.settings import InvalidSetting, Positive
from fedsim.core.types import I64, ClientTask, Triggered


@dataclass(frozen=True)
class Backdoor:
    """Poisons floor(share n) of the n samples of other classes, drawn once for a run.

    ``triggered`` says which are of other classes, and what the trigger is.
    """

    triggered: Triggered
    share: float = 0.5

    def __call__(self, x: Tensor, y: Tensor, task: ClientTask) -> tuple[Tensor, Tensor]:
        others = np.flatnonzero(self.triggered.concerns(y.cpu().numpy()))
        order = generator(task.ctx.seed, "backdoor", task.client).permutation(len(others))
        poisoned = torch.from_numpy(np.sort(others[order[: self._count(len(others))]])).to(y.device)
        x, y = x.clone(), y.clone()
        x[poisoned] = marked(x[poisoned], self.triggered.pixels)
        y[poisoned] = self.triggered.target
        return x, y

    def affected(self, y: I64) -> int:
        """How many of the samples are poisoned."""
        return self._count(int(self.triggered.concerns(y).sum()))

    def _count(self, n: int) -> int:
        return math.floor(self.share * n + 1e-9)


def marked(x: Tensor, pixels: int) -> Tensor:
    """Images (n, C, H, W) uint8 with a white square of this side in the lower right corner."""
    if not pixels:
        return x
    x = x.clone()
    x[..., -pixels:, -pixels:] = 255
    return x


def build(
    federation: Federation,
    source: int | None = None,
    target: int = 0,
    poisoned: float = 0.5,
    pixels: int = 3,
    scale: Positive | None = None,
) -> Attack:
    """A backdoor to class ``target``."""
    dataset = federation.dataset
    federation.check_classes(source, target)
    if dataset.inputs != "images":
        raise ConfigError(
            f"attack.name backdoor: its trigger is a pattern of pixels; {dataset.name} has "
            f"{dataset.inputs}; label_flip with attack.source and attack.target needs no images"
        )
    side = dataset.x.shape[-1]
    if pixels > side:
        raise InvalidSetting("attack.pixels", f"{pixels} given; the images have {side} x {side}")
    backdoor = Backdoor(Triggered(target, source, pixels), poisoned)
    return Attack(
        samples=backdoor,
        affected=backdoor.affected,
        update=None if scale is None else partial(scaled, factor=scale),
        triggered=backdoor.triggered,
    )
