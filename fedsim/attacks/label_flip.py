"""Label flipping: malicious clients train on the labels C - 1 - y, or on ``target`` for ``source``.

Labels below 0, of tokens that do not count, stay.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsim.attacks.base import Attack, Federation
from fedsim.core.settings import InvalidSetting
from fedsim.core.types import I64, ClientTask, Triggered


@dataclass(frozen=True)
class LabelFlip:
    """Other labels, of all classes or of ``source`` alone."""

    num_classes: int
    source: int | None = None
    target: int | None = None

    def __call__(self, x: Tensor, y: Tensor, task: ClientTask) -> tuple[Tensor, Tensor]:
        if self.source is None or self.target is None:
            return x, torch.where(y < 0, y, self.num_classes - 1 - y)
        return x, torch.where(y == self.source, self.target, y)

    def affected(self, y: I64) -> int:
        """How many labels change."""
        if self.source is None:
            return int(np.count_nonzero((y >= 0) & (y != self.num_classes - 1 - y)))
        return int(np.count_nonzero(y == self.source))


def build(federation: Federation, source: int | None = None, target: int | None = None) -> Attack:
    """Flipped labels; those of one class with ``source`` and ``target``."""
    dataset = federation.dataset
    federation.check_classes(source, target)
    if (source is None) != (target is None):
        key, other = ("source", "target") if target is None else ("target", "source")
        raise InvalidSetting(f"attack.{key}", f"give attack.{other} too")
    flip = LabelFlip(dataset.num_classes, source, target)
    measured = target is not None and not dataset.per_token
    triggered = Triggered(target or 0, source) if measured else None
    return Attack(samples=flip, changes_x=False, affected=flip.affected, triggered=triggered)
