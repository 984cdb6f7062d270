"""Attacks that a malicious client does on its own: it knows its data and its update alone.

What a method sends beside the update (control variates, prototypes) stays what training made it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsim.client.transform import Coded
from fedsim.core.malicious import Malicious
from fedsim.core.rng import generator
from fedsim.core.types import ClientTask, Layout, Slot, Triggered, Vector, Vectors


@dataclass(frozen=True)
class SignFlip:
    """Sends ``-scale`` times the change of the parameters."""

    malicious: Malicious
    scale: float = 1.0
    name: ClassVar[str] = "attack"

    def __call__(self, delta: Vector, state: Vectors, task: ClientTask, layout: Layout) -> Coded:
        """Changes the updates of malicious clients alone; keeps no state."""
        if not self.malicious.active(task.client, task.ctx.round):
            return Coded(delta)
        sent = delta.copy()
        sent[: layout.num_params] *= -self.scale
        return Coded(sent)


@dataclass(frozen=True)
class Boosted:
    """Sends ``scale`` times the change of the parameters: model replacement.

    With scale m / (weight of the server's step) the malicious model is what a mean of m equal
    clients gives, where the others hardly move (Bagdasaryan et al., AISTATS 2020).
    """

    malicious: Malicious
    scale: float
    name: ClassVar[str] = "attack"

    def __call__(self, delta: Vector, state: Vectors, task: ClientTask, layout: Layout) -> Coded:
        """Changes the updates of malicious clients alone; keeps no state."""
        return SignFlip(self.malicious, -self.scale)(delta, state, task, layout)


@dataclass(frozen=True)
class Gaussian:
    """Sends noise N(0, scale^2) in place of the change of each parameter.

    ``personal`` says of which slots nothing is sent.
    """

    malicious: Malicious
    personal: Callable[[Slot], bool]
    scale: float = 1.0
    name: ClassVar[str] = "attack"

    def __call__(self, delta: Vector, state: Vectors, task: ClientTask, layout: Layout) -> Coded:
        """Changes the updates of malicious clients alone; keeps no state."""
        if not self.malicious.active(task.client, task.ctx.round):
            return Coded(delta)
        rng, sent = generator(task.ctx.seed, self.name, task.key, task.client), delta.copy()
        for slot in layout.slots:
            if slot.role == "param" and not self.personal(slot):
                sent[slot.where] = self.scale * rng.standard_normal(slot.stop - slot.start)
        return Coded(sent)


@dataclass(frozen=True)
class LabelFlip:
    """Trains on the labels C - 1 - y, or on ``target`` wherever the label is ``source``.

    Labels below 0, of tokens that do not count, stay.
    """

    malicious: Malicious
    num_classes: int
    source: int | None = None
    target: int | None = None
    changes_x: ClassVar[bool] = False

    def __call__(self, x: Tensor, y: Tensor, task: ClientTask) -> tuple[Tensor, Tensor]:
        """The samples that a client trains on; labels of malicious clients are changed."""
        if not self.malicious.active(task.client, task.ctx.round):
            return x, y
        if self.source is None or self.target is None:
            return x, torch.where(y < 0, y, self.num_classes - 1 - y)
        return x, torch.where(y == self.source, self.target, y)


@dataclass(frozen=True)
class Backdoor:
    """Puts a trigger on a share of the samples of other classes, and gives them the target class.

    The poisoned ones, floor(share n) of n, are drawn once for a run; ``triggered`` says which are
    of other classes, and what the trigger is. As BadNets (Gu et al., 2017), on clients.
    """

    malicious: Malicious
    triggered: Triggered
    share: float = 0.5
    changes_x: ClassVar[bool] = True

    def __call__(self, x: Tensor, y: Tensor, task: ClientTask) -> tuple[Tensor, Tensor]:
        """The samples that a client trains on; those of malicious clients are poisoned."""
        if not self.malicious.active(task.client, task.ctx.round):
            return x, y
        able = np.flatnonzero(self.triggered.concerns(y.cpu().numpy()))
        order = generator(task.ctx.seed, "backdoor", task.client).permutation(len(able))
        count = math.floor(self.share * len(able) + 1e-9)
        where = torch.from_numpy(np.sort(able[order[:count]])).to(y.device)
        x, y = x.clone(), y.clone()
        x[where], y[where] = marked(x[where], self.triggered.pixels), self.triggered.target
        return x, y


def marked(x: Tensor, pixels: int) -> Tensor:
    """Images (n, C, H, W) uint8 with a white square of this side in the lower right corner."""
    if not pixels:
        return x
    x = x.clone()
    x[..., -pixels:, -pixels:] = 255
    return x
