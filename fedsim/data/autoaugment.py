"""AutoAugment (Cubuk et al., CVPR 2019), batched: samples of one operation share a call.

Policies and strengths are those of ``torchvision.transforms.v2.AutoAugment``, which draws one pair
of operations for a whole batch; here every sample draws its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Step = tuple[str, float, int]
"""An operation, with which probability it is done, and how strongly: 0 to 9."""
Policy = Sequence[tuple[Step, Step]]
"""The pairs of steps that a sample draws one of."""

CIFAR10: Policy = (
    (("Invert", 0.1, 0), ("Contrast", 0.2, 6)),
    (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
    (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
    (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.5, 0), ("Equalize", 0.9, 0)),
    (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
    (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
    (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
    (("Equalize", 0.6, 0), ("Equalize", 0.5, 0)),
    (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
    (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
    (("Equalize", 0.3, 0), ("AutoContrast", 0.4, 0)),
    (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
    (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
    (("Solarize", 0.5, 2), ("Invert", 0.0, 0)),
    (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.2, 0), ("Equalize", 0.6, 0)),
    (("Color", 0.9, 9), ("Equalize", 0.6, 0)),
    (("AutoContrast", 0.8, 0), ("Solarize", 0.2, 8)),
    (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
    (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 0)),
    (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.9, 0), ("Solarize", 0.8, 3)),
    (("Equalize", 0.8, 0), ("Invert", 0.1, 0)),
    (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0)),
)
IMAGENET: Policy = (
    (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
    (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
    (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
    (("Equalize", 0.4, 0), ("Rotate", 0.8, 8)),
    (("Solarize", 0.6, 3), ("Equalize", 0.6, 0)),
    (("Posterize", 0.8, 5), ("Equalize", 1.0, 0)),
    (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
    (("Equalize", 0.6, 0), ("Posterize", 0.4, 6)),
    (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
    (("Rotate", 0.4, 9), ("Equalize", 0.6, 0)),
    (("Equalize", 0.0, 0), ("Equalize", 0.8, 0)),
    (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
    (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
    (("Sharpness", 0.4, 7), ("Invert", 0.6, 0)),
    (("ShearX", 0.6, 5), ("Equalize", 1.0, 0)),
    (("Color", 0.4, 0), ("Equalize", 0.6, 0)),
    (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
    (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
)

_EITHER_WAY = (
    *("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness"),
)
"""Operations whose strength is positive or negative, at even odds."""


def autoaugment(x: Tensor, policy: Policy) -> Tensor:
    """Each image of (B, C, H, W) uint8, C 1 or 3, by a pair of steps of its own; a new tensor.

    Random numbers come from torch's global generator of the CPU: the same number of them for every
    batch of B.
    """
    x, operations = x.clone(), _operations()
    drawn = torch.randint(len(policy), (len(x),)).tolist()
    coins, signs = torch.rand(2, 2, len(x)).tolist()
    for step in (0, 1):
        alike: dict[tuple[str, float], list[int]] = {}
        for sample, pair in enumerate(drawn):
            name, probability, level = policy[pair][step]
            if coins[step][sample] < probability:
                negative = name in _EITHER_WAY and signs[step][sample] < 0.5
                strength = (-level if negative else level) / 9
                alike.setdefault((name, strength), []).append(sample)
        for (name, strength), samples in alike.items():
            where = torch.tensor(samples, device=x.device)
            x[where] = operations[name](x[where], strength)
    return x


def _operations() -> Mapping[str, Callable[[Tensor, float], Tensor]]:
    """Every operation by name: images (B, C, H, W) uint8 and a strength in -1..1 to images."""
    from torchvision.transforms.v2 import functional as f  # two seconds to import

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
