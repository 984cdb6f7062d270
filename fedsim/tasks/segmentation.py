"""A class for each pixel: cross-entropy and soft Dice; Dice and IoU of images and of all pixels.

Class 0 is the background and no class of the means; pixels of :data:`IGNORED` count nowhere. Of an
image, T pixels are of a class, P are predicted so, I are both: Dice is 2 I / (P + T), IoU is
I / (P + T - I). Where both masks are empty they are undefined and the image is left out; a
prediction where nothing is there counts 0. (MONAI's ``ignore_empty=True`` leaves out the second
kind too, ``False`` counts 1 for the first.) ``dice`` and ``iou`` are means over images, then over
classes; ``dice_pooled`` and ``iou_pooled`` have I, P and T summed over images.

:func:`more`: ``hausdorff95``, of images where both masks have pixels of the class: the larger of
the two 95th percentiles of the distances, in pixels, of the pixels on one mask's edge to the other
mask's (as MONAI; medpy takes the percentile of all distances together).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedsim.core.task import Measure, TargetError, Task, mean_known
from fedsim.core.types import F64, I64, Array

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = 255
"""The value of pixels that count nowhere."""
SMOOTHING = 1.0
"""Pixels added to both sides of the soft Dice, which is 1 where a class is nowhere."""


def check(y: Array) -> None:
    """(N, H, W) uint8, with a pixel that counts in every image."""
    if y.dtype != np.uint8 or y.ndim != 3:
        raise TargetError(f"y is {y.dtype} {y.shape}, needed are masks uint8 (N, H, W)")
    empty = (y == IGNORED).all(axis=(1, 2))
    if empty.any():
        raise TargetError(f"all pixels of a mask are {IGNORED}", int(empty.argmax()))


def width(y: Array) -> int:
    """The classes up to the largest one, two at least."""
    return max([2, *(1 + int(mask[mask != IGNORED].max(initial=0)) for mask in y)])


def loss(outputs: "Tensor", y: "Tensor") -> "Tensor":
    """(B,) cross-entropy, the mean over an image's pixels, plus 1 - soft Dice (Milletari et al.,
    2016), the mean over the classes c > 0 of (2 sum p_c y_c + s) / (sum p_c + sum y_c + s), where
    s is :data:`SMOOTHING`."""
    import torch

    labels = y.long().unsqueeze(1)
    classes = torch.arange(outputs.shape[1], device=outputs.device).view(-1, 1, 1)
    counted, true = (labels != IGNORED).to(outputs), (labels == classes).to(outputs)
    logs = outputs.log_softmax(dim=1)
    each = -(logs * true).sum(dim=(1, 2, 3)) / counted.sum(dim=(1, 2, 3))
    chances = logs.exp()[:, 1:] * counted
    both, sizes = ((chances * true[:, 1:]).sum(dim=(2, 3)), (chances + true[:, 1:]).sum(dim=(2, 3)))
    dice = (2 * both + SMOOTHING) / (sizes + SMOOTHING)
    return each + 1 - dice.mean(dim=1)


def classes_of(outputs: Array) -> Array:
    """(N, H, W) uint8: the first of the largest outputs of each pixel."""
    return outputs.argmax(axis=1).astype(np.uint8)


def predict(outputs: Array) -> Mapping[str, Array]:
    """The masks."""
    return {"mask": classes_of(outputs)}


def prints(y: Array) -> Sequence[str]:
    """The classes in an image and their numbers of pixels."""
    found = (np.unique(mask, return_counts=True) for mask in y)
    return [" ".join(f"{k}:{n}" for k, n in zip(*one, strict=True)) for one in found]


def overlaps(outputs: Array, y: Array) -> I64:
    """(3, N, C) pixels: I, P and T of each image and class."""
    n, c = outputs.shape[:2]
    image = np.broadcast_to(np.arange(n)[:, None, None], y.shape)
    pairs = (image * c + y) * c + classes_of(outputs)
    confusion = np.bincount(pairs[y != IGNORED], minlength=n * c * c).reshape(n, c, c)
    return np.stack([confusion.diagonal(0, 1, 2), confusion.sum(axis=1), confusion.sum(axis=2)])


def _dice(i: I64, p: I64, t: I64) -> tuple[I64, I64]:
    return 2 * i, p + t


def _iou(i: I64, p: I64, t: I64) -> tuple[I64, I64]:
    return i, p + t - i


Ratio = Callable[[I64, I64, I64], tuple[I64, I64]]


def _images(ratio: Ratio, outputs: Array, y: Array) -> F64:
    """By class the sum of the ratios of images that have one, and the number of these."""
    above, below = ratio(*overlaps(outputs, y))
    return np.stack([(above / np.maximum(below, 1)).sum(axis=0), (below > 0).sum(axis=0)]).ravel()


def _pixels(ratio: Ratio, outputs: Array, y: Array) -> F64:
    """By class both parts of the ratio."""
    return np.stack(ratio(*overlaps(outputs, y))).sum(axis=1).astype(np.float64).ravel()


def by_class(sums: F64) -> list[float | None]:
    """The quotient of each class, None where nothing counted."""
    return [above / below if below else None for above, below in sums.reshape(2, -1).T.tolist()]


def mean_of_classes(sums: F64) -> float | None:
    """The mean over the classes but the background that have a value."""
    return mean_known(by_class(sums)[1:])


def hausdorff95(a: Array, b: Array) -> float:
    """The 95 % Hausdorff distance of two masks (H, W) bool with pixels, in pixels."""
    from scipy.ndimage import binary_erosion, distance_transform_edt

    edges = [mask ^ binary_erosion(mask) for mask in (a, b)]
    pairs = (edges, edges[::-1])
    return float(max(np.percentile(distance_transform_edt(~to)[of], 95) for of, to in pairs))


def _hausdorff(outputs: Array, y: Array) -> F64:
    """By class the sum of the distances of images that have one, and the number of these."""
    counted, sums = y != IGNORED, np.zeros((2, outputs.shape[1]))
    predicted = np.where(counted, classes_of(outputs), 0)
    for mask, true in zip(predicted, np.where(counted, y, 0), strict=True):
        for k in np.intersect1d(mask, true).tolist():
            sums[:, k] += hausdorff95(mask == k, true == k), 1
    return sums.ravel()


def _measure(name: str, title: str, of: Callable[[Array, Array], F64], **given: str) -> Measure:
    value = {"value": mean_of_classes, "by_class": by_class}
    return Measure(name=name, title=title, of=of, **value, **given)  # type: ignore[arg-type]


def more(name: str) -> Measure | None:
    """The Hausdorff distance, which takes milliseconds an image."""
    title = "Hausdorff distance (95 %, pixels)"
    distance = _measure("hausdorff95", title, _hausdorff, better="down")
    return distance if name == distance.name else None


def collapsed(measures: Mapping[str, float | None]) -> bool:
    """Nothing but background."""
    return measures["dice"] == 0


def build() -> Task:
    """The task."""
    return Task(
        name="segmentation",
        title="a class for each pixel",
        target="mask",
        check=check,
        width=width,
        loss=loss,
        measures=(
            _measure("dice", "Dice", partial(_images, _dice), unit="%"),
            _measure("iou", "IoU", partial(_images, _iou), unit="%"),
            _measure("dice_pooled", "Dice over all pixels", partial(_pixels, _dice), unit="%"),
            _measure("iou_pooled", "IoU over all pixels", partial(_pixels, _iou), unit="%"),
        ),
        primary="dice",
        predict=predict,
        prints=prints,
        collapsed=collapsed,
        output="pixel",
        streams=True,
        more=more,
        further=("hausdorff95",),
    )
