"""Turns stored samples into a model's input, in batches on the device.

Random numbers come from torch's global generators, which the caller seeds in a scope
(:func:`fedsim.core.rng.torch_scope`), and are drawn on the CPU, so that the device does not change
them. Every sample has parameters of its own.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from fedsim.core.errors import ConfigError, nearest
from fedsim.core.types import Pipeline
from fedsim.data.autoaugment import autoaugment, published

_PAD = 4


class Transforms:
    """A pipeline for images: ``train`` augments, ``test`` does not; both normalise.

    Raises:
        ConfigError: the pipeline names an unknown augmentation.
    """

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
    if pipeline is None:
        return Unchanged(device)
    return Transforms(pipeline, device, memory_format)


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


def _cropped(scale: tuple[float, float]) -> Callable[[Tensor, int], Tensor]:
    """RandomResizedCrop(size, scale), RandomRotation(10), RandomHorizontalFlip, per sample.

    FedLD's released pipelines. Bilinear crop with anti-aliasing, nearest rotation filled with
    black: torchvision's defaults. (A crop of more than the whole area falls back to the whole.)
    A CPU takes one image after the other, which is faster there; a GPU the whole batch.
    """

    def augment(x: Tensor, size: int) -> Tensor:
        by_device = one_by_one if x.device.type == "cpu" else at_once
        return by_device(x, size, scale)

    return augment


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
    """Cuts a box of its own out of each image and resizes it, bilinear with anti-aliasing.

    An output row is a weighted sum of input rows, a column of columns, so that a batch is two
    batched products with matrices of weights: as ``v2.functional.resized_crop``, up to rounding.

    Args:
        x: (B, C, H, W) uint8.
        size: pixels of the result's sides.
        boxes: (B, 4) top, left, height, width.

    Returns:
        (B, C, size, size) uint8.
    """
    top, left, height, width = boxes.to(x.device).unbind(1)
    rows = _triangles(size, x.shape[-2], top, height)
    columns = _triangles(size, x.shape[-1], left, width)
    resized = rows.unsqueeze(1) @ x.to(torch.float32) @ columns.mT.unsqueeze(1)
    return resized.round_().clamp_(0, 255).to(torch.uint8)


def _triangles(size: int, length: int, start: Tensor, extent: Tensor) -> Tensor:
    """Weights (B, size, length) of input pixels in output pixels, those of a triangle filter.

    Args:
        size: output pixels.
        length: input pixels, of which ``extent`` (B,) from ``start`` (B,) are used.
        start: (B,) first pixel.
        extent: (B,) number of pixels.
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
    """Turns each image about its centre, nearest pixel, black outside: ``v2.functional.rotate``.

    Args:
        x: (B, C, H, W) uint8.
        angles: (B,) degrees counter-clockwise, float64.
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


def _autoaugmented(policy: Literal["cifar10", "imagenet"]) -> Callable[[Tensor, int], Tensor]:
    """Random crop and flip, then AutoAugment, per sample: the pipeline of FedDecorr's code."""
    return lambda x, size: autoaugment(_crop_flip(x, size), published(policy))


AUGMENTS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "none": _fitted,
    "flip": _flip,
    "crop_flip": _crop_flip,
    "autoaugment_cifar10": _autoaugmented("cifar10"),
    "autoaugment_imagenet": _autoaugmented("imagenet"),
    "retina": _cropped((0.6, 1.0)),
    "covid_fl": _cropped((0.8, 1.2)),
}
"""The training augmentations: from (B, C, H, W) uint8 and a size to uint8 of that size."""
