"""AutoAugment (Cubuk et al., CVPR 2019), batched: samples of one operation share a call.

Policies and operations are torchvision's. Its ``v2.AutoAugment`` draws one pair of operations for a
whole batch, with strengths rounded to float32; here every sample draws its own.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

Step = tuple[str, float, int | None]
"""(operation, probability, magnitude): 0 to 9, or None where the operation has no magnitude."""
Policy = Sequence[tuple[Step, Step]]
"""Pairs of steps; each sample draws one of them."""


@functools.cache
def published(name: Literal["cifar10", "imagenet"]) -> Policy:
    """The 25 pairs that the paper found on that data set."""
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy  # takes a second to import

    policy: Policy = AutoAugment(AutoAugmentPolicy(name)).policies
    return policy


_SIGNED = (
    *("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness"),
)
"""Operations whose magnitude gets a random sign."""


def autoaugment(x: Tensor, policy: Policy) -> Tensor:
    """Applies to each image of (B, C, H, W) uint8, C 1 or 3, a pair of steps of its own.

    Random numbers come from torch's global generator of the CPU: the same number of them for every
    batch of B.
    """
    x, operations = x.clone(), _operations()
    drawn = torch.randint(len(policy), (len(x),)).tolist()
    coins, signs = torch.rand(2, 2, len(x)).tolist()
    for step in (0, 1):
        batches: dict[tuple[str, float], list[int]] = {}
        for sample, pair in enumerate(drawn):
            name, probability, level = policy[pair][step]
            if coins[step][sample] < probability:
                negative = name in _SIGNED and signs[step][sample] < 0.5
                strength = (-1 if negative else 1) * (level or 0) / 9
                batches.setdefault((name, strength), []).append(sample)
        for (name, strength), samples in batches.items():
            where = torch.tensor(samples, device=x.device)
            x[where] = operations[name](x[where], strength)
    return x


def _operations() -> Mapping[str, Callable[[Tensor, float], Tensor]]:
    """Every operation by name: images (B, C, H, W) uint8 and a strength in -1..1 to images."""
    from torchvision.transforms.v2 import functional as f  # takes two seconds to import

    def shifted(x: Tensor, right: float, down: float) -> Tensor:
        return f.affine(x, 0.0, [int(right), int(down)], 1.0, [0.0, 0.0])

    def sheared(x: Tensor, right: float, down: float) -> Tensor:
        angles = [math.degrees(math.atan(slope)) for slope in (right, down)]
        return f.affine(x, 0.0, [0, 0], 1.0, angles, center=[0.0, 0.0])

    return {
        "ShearX": lambda x, s: sheared(x, 0.3 * s, 0.0),
        "ShearY": lambda x, s: sheared(x, 0.0, 0.3 * s),
        "TranslateX": lambda x, s: shifted(x, 150 / 331 * x.shape[-1] * s, 0),
        "TranslateY": lambda x, s: shifted(x, 0, 150 / 331 * x.shape[-2] * s),
        "Rotate": lambda x, s: f.rotate(x, 30 * s),
        "Brightness": lambda x, s: f.adjust_brightness(x, 1 + 0.9 * s),
        "Color": lambda x, s: f.adjust_saturation(x, 1 + 0.9 * s),
        "Contrast": lambda x, s: f.adjust_contrast(x, 1 + 0.9 * s),
        "Sharpness": lambda x, s: f.adjust_sharpness(x, 1 + 0.9 * s),
        "Posterize": lambda x, s: f.posterize(x, 8 - round(4 * s)),
        "Solarize": lambda x, s: f.solarize(x, 255 * (1 - s)),
        "AutoContrast": lambda x, _: f.autocontrast(x),
        "Equalize": lambda x, _: f.equalize(x),
        "Invert": lambda x, _: f.invert(x),
    }
