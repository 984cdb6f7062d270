"""Turns stored samples into a model's input, in batches on the device.

Every sample has random parameters of its own, from torch's global generator of the CPU, which the
caller seeds in a scope (:func:`fedsim.core.rng.torch_scope`): the device does not change them.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from fedsim.core.errors import ConfigError, nearest
from fedsim.core.types import Pipeline

_PAD = 4
Step = tuple[str, float, int | None]
"""(operation, probability, magnitude): 0 to 9, or None where the operation has no magnitude."""
Policy = Sequence[tuple[Step, Step]]
"""Pairs of steps; each sample draws one of them."""
_SIGNED = (
    *("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness"),
)
"""Operations of AutoAugment whose magnitude gets a random sign."""
Augment = Callable[[Tensor, int], Tensor]
"""From (B, C, H, W) uint8 and a size to uint8 of that size."""


class Transforms:
    """A pipeline for images: ``train`` augments, ``test`` does not; both normalise."""

    def __init__(
        self,
        pipeline: Pipeline,
        device: torch.device,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> None:
        check_augment(pipeline.augment)
        self._size = pipeline.size
        self._device = device
        self._format = memory_format
        self._augment = AUGMENTS[pipeline.augment]
        std = torch.tensor(pipeline.std, dtype=torch.float64).view(-1, 1, 1)
        mean = torch.tensor(pipeline.mean, dtype=torch.float64).view(-1, 1, 1)
        self._scale = (1 / (255 * std)).to(device, torch.float32)
        self._shift = (-mean / std).to(device, torch.float32)

    def train(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) uint8 to (B, C, size, size) float32, augmented and normalised."""
        return self._normalised(self._augment(x.to(self._device), self._size))

    def test(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) uint8 to (B, C, size, size) float32, normalised."""
        return self._normalised(_fitted(x.to(self._device), self._size))

    def _normalised(self, x: Tensor) -> Tensor:
        """(x / 255 - mean) / std as one product and one sum in place."""
        x = x.to(torch.float32, memory_format=self._format)
        return x.mul_(self._scale).add_(self._shift)


class Unchanged:
    """Passes features and tokens on unchanged, in training and test alike."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def train(self, x: Tensor) -> Tensor:
        """Features (B, d) to float32, or token ids (B, T) to int64, on the device."""
        return x.to(self._device, torch.float32 if x.is_floating_point() else torch.int64)

    test = train


def transforms(
    pipeline: Pipeline | None,
    device: torch.device,
    memory_format: torch.memory_format = torch.preserve_format,
) -> Transforms | Unchanged:
    """The transforms of a data set; ``pipeline`` is None for features and tokens."""
    return Transforms(pipeline, device, memory_format) if pipeline else Unchanged(device)


def check_augment(name: str) -> None:
    """Raises a ConfigError if ``name`` is no key of :data:`AUGMENTS`."""
    if name not in AUGMENTS:
        raise ConfigError(
            f"data.augment {name!r} is unknown{nearest(name, AUGMENTS)}; known: "
            f"{', '.join(AUGMENTS)}"
        )


def _fitted(x: Tensor, size: int) -> Tensor:
    """Resize(size), CenterCrop(size): one resize, since stored images are square."""
    if x.shape[-1] == size:
        return x
    from torchvision.transforms import v2  # takes two seconds to import

    return v2.functional.resize(x, [size, size], antialias=True)


def _flip(x: Tensor, size: int) -> Tensor:
    """Flips each sample horizontally with probability 1/2."""
    x = _fitted(x, size)
    flipped = torch.rand(len(x)).lt(0.5).to(x.device).view(-1, 1, 1, 1)
    return torch.where(flipped, x.flip(-1), x)


def _crop_flip(x: Tensor, size: int) -> Tensor:
    """Pads by four black pixels, crops at random to the image's size, and flips."""
    x = _flip(x, size)
    padded = torch.nn.functional.pad(x, (_PAD, _PAD, _PAD, _PAD))
    windows = padded.unfold(2, size, 1).unfold(3, size, 1)  # a view (B, C, 9, 9, size, size)
    row, column = torch.randint(0, 2 * _PAD + 1, (2, len(x))).to(x.device)
    return windows[torch.arange(len(x), device=x.device), :, row, column]


def _cropped(scale: tuple[float, float], x: Tensor, size: int) -> Tensor:
    """RandomResizedCrop(size, scale), RandomRotation(10), RandomHorizontalFlip, per sample.

    FedLD's released pipelines, with torchvision's defaults: bilinear crop with anti-aliasing,
    nearest rotation filled with black. A CPU takes one image after the other, which is faster
    there; a GPU the whole batch.
    """
    return (one_by_one if x.device.type == "cpu" else at_once)(x, size, scale)


def one_by_one(x: Tensor, size: int, scale: tuple[float, float]) -> Tensor:
    """:func:`_cropped` by torchvision; (B, C, H, W) uint8 to (B, C, size, size)."""
    from torchvision.transforms import v2  # takes two seconds to import

    crop, rotation = v2.RandomResizedCrop(size, scale=scale, antialias=True), v2.RandomRotation(10)
    pipeline = v2.Compose([crop, rotation, v2.RandomHorizontalFlip()])
    return torch.stack([pipeline(image) for image in x])


def at_once(x: Tensor, size: int, scale: tuple[float, float]) -> Tensor:
    """The same with the same random numbers in a few operations of the whole batch.

    Pixels agree to one of 255 levels: here the crop is rounded once, in torchvision once a side.
    """
    from torchvision.transforms import v2  # takes two seconds to import

    crop, rotation = v2.RandomResizedCrop(size, scale=scale, antialias=True), v2.RandomRotation(10)
    boxes, angles, flips = [], [], []
    for image in x:
        box = crop.make_params([image])
        boxes.append([box[key] for key in ("top", "left", "height", "width")])
        angles.append(rotation.make_params([image])["angle"])
        flips.append(bool(torch.rand(1) < 0.5))
    x = resized_crops(x, size, torch.tensor(boxes))
    x = rotated(x, torch.tensor(angles, dtype=torch.float64))
    return torch.where(torch.tensor(flips).to(x.device).view(-1, 1, 1, 1), x.flip(-1), x)


def resized_crops(x: Tensor, size: int, boxes: Tensor) -> Tensor:
    """Cuts a box (B, 4), top, left, height, width, out of each image of a batch; resizes it.

    As ``v2.functional.resized_crop``, bilinear with anti-aliasing, up to rounding: an output row is
    a weighted sum of input rows, a column of columns, so that a batch is two matrix products.
    """
    top, left, height, width = boxes.to(x.device).unbind(1)
    rows = _triangles(size, x.shape[-2], top, height)
    columns = _triangles(size, x.shape[-1], left, width)
    resized = rows.unsqueeze(1) @ x.to(torch.float32) @ columns.mT.unsqueeze(1)
    return resized.round_().clamp_(0, 255).to(torch.uint8)


def _triangles(size: int, length: int, start: Tensor, extent: Tensor) -> Tensor:
    """Weights (B, size, length) of input pixels in output pixels, those of a triangle filter.

    Of the input's pixels ``extent`` (B,) are used, from ``start`` (B,) on.
    """
    start, extent = (v.to(torch.float32).view(-1, 1, 1) for v in (start, extent))
    scale = extent / size
    output = torch.arange(size, device=start.device, dtype=torch.float32).view(1, -1, 1)
    pixel = torch.arange(length, device=start.device, dtype=torch.float32).view(1, 1, -1) - start
    distance = (pixel + 0.5 - scale * (output + 0.5)).abs() / scale.clamp(min=1)
    used = (pixel >= 0) & (pixel < extent)
    weights = torch.where(used, (1 - distance).clamp_(min=0), 0)
    return weights / weights.sum(-1, keepdim=True)


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Turns each image (C, H, W) uint8 of a batch, nearest pixel, black outside.

    As ``v2.functional.rotate``; ``angles`` (B,) are degrees counter-clockwise, float64.
    """
    height, width = x.shape[-2:]
    radians = angles.deg2rad()
    cos, sin = (
        v.to(x.device, torch.float32).view(-1, 1, 1) for v in (radians.cos(), radians.sin())
    )
    across = torch.arange(width, device=x.device).view(1, 1, -1) - (width - 1) / 2
    down = torch.arange(height, device=x.device).view(1, -1, 1) - (height - 1) / 2
    column = (cos * across - sin * down + (width - 1) / 2).round_().long()
    row = (sin * across + cos * down + (height - 1) / 2).round_().long()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    pixels = (row.clamp_(0, height - 1) * width + column.clamp_(0, width - 1)).flatten(1)
    turned = x.flatten(2).gather(2, pixels.unsqueeze(1).expand(-1, x.shape[1], -1)).view_as(x)
    return torch.where(inside.unsqueeze(1), turned, 0)


@functools.cache
def published(name: Literal["cifar10", "imagenet"]) -> Policy:
    """The 25 pairs that AutoAugment (Cubuk et al., CVPR 2019) found on that data set."""
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy  # takes a second to import

    policy: Policy = AutoAugment(AutoAugmentPolicy(name)).policies
    return policy


def _autoaugmented(name: Literal["cifar10", "imagenet"], x: Tensor, size: int) -> Tensor:
    """Random crop and flip, then AutoAugment, per sample: the pipeline of FedDecorr's code."""
    return autoaugment(_crop_flip(x, size), published(name))


def autoaugment(x: Tensor, policy: Policy) -> Tensor:
    """Applies to each image of (B, C, H, W) uint8, C 1 or 3, a pair of steps of its own.

    Images of one operation share a call. The operations are torchvision's, whose own
    ``v2.AutoAugment`` draws one pair for a whole batch. Every batch of B draws as many numbers.
    """
    x, by_name = x.clone(), operations()
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
            x[where] = by_name[name](x[where], strength)
    return x


def operations() -> Mapping[str, Callable[[Tensor, float], Tensor]]:
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


AUGMENTS: Mapping[str, Augment] = {
    "none": _fitted,
    "flip": _flip,
    "crop_flip": _crop_flip,
    "autoaugment_cifar10": functools.partial(_autoaugmented, "cifar10"),
    "autoaugment_imagenet": functools.partial(_autoaugmented, "imagenet"),
    "retina": functools.partial(_cropped, (0.6, 1.0)),
    "covid_fl": functools.partial(_cropped, (0.8, 1.2)),
}
"""The training augmentations."""
