"""Masks beside images: files of class indices, resized as their images are, and their classes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedsim.core.errors import DataError
from fedsim.core.types import I64, Array
from fedsim.data.images import opened, upright
from fedsim.tasks.segmentation import IGNORED

SUFFIXES = (".png", ".bmp", ".tif", ".tiff")
"""Of files of masks: formats without loss."""
FOREGROUND = 255
"""In masks of nothing but this and 0, the class 1."""
_INDEXED = ("1", "L", "P")


def decode_mask(source: Path | bytes, size: int, sides: tuple[int, int], where: str = "") -> Array:
    """A mask as (1, size, size) uint8, of an image whose width and height are ``sides``.

    Each pixel is the nearest one of the file at Resize(size), CenterCrop(size). A DataError, which
    begins with ``where``, by default the file, says what is no mask of this image.
    """
    where = where or str(source)
    with opened(source, where) as image:
        if image.mode not in _INDEXED:
            raise DataError(f"{where}: mode {image.mode}; a mask has one channel of class indices")
        values, mode = np.array(image, dtype=np.uint8), image.mode
    if values.shape[::-1] != sides:
        raise DataError(
            f"{where}: {values.shape[1]} x {values.shape[0]} pixels, its image has {sides[0]} x "
            f"{sides[1]}"
        )
    rows, columns = centres(values.shape, size)
    chosen = values[rows[:, None], columns]
    return (chosen * FOREGROUND if mode == "1" else chosen)[None]


def centres(sides: Sequence[int], size: int) -> list[I64]:
    """Of height and width (H, W) the indices (size,) of the pixels where those of the image at
    Resize(size), CenterCrop(size) have their centres."""
    places = []
    for length in sides:
        resized, start = _fitted(length, min(sides), size)
        places.append(((np.arange(size) + start + 0.5) * length / resized).astype(np.int64))
    return places


def enlarged(mask: Array, sides: Sequence[int]) -> Array:
    """The mask (H, W) uint8 of a whole image from that (size, size) of its resized centre, 0
    beyond it."""
    places = []
    for length in sides:
        resized, start = _fitted(length, min(sides), len(mask))
        at = ((np.arange(length) + 0.5) * resized / length).astype(np.int64) - start
        places.append(np.where((at >= 0) & (at < len(mask)), at, len(mask)))
    beyond = np.pad(mask, (0, 1))
    return beyond[places[0][:, None], places[1]]


def _fitted(length: int, shortest: int, size: int) -> tuple[int, int]:
    """A side's length after Resize(size), and where CenterCrop(size) begins."""
    resized = int(size * length / shortest)
    return resized, round((resized - size) / 2)


def of_classes(
    masks: Array, names: Sequence[str], where: Callable[[int], str], remedy: str
) -> tuple[tuple[str, ...], Array]:
    """The names of the classes of masks (N, H, W) and masks of their indices.

    Masks of 0 and 255 alone have a background and a foreground; else 255 is of pixels that do not
    count. Without ``names`` classes are numbered 0, 1, ... A DataError names the mask, by
    ``where``, and for classes that are missing the ``remedy``.
    """
    counts = np.zeros(256, np.int64)
    for mask in masks:
        counts += np.bincount(mask.ravel(), minlength=256)
    present = np.flatnonzero(counts)
    binary = set(present.tolist()) <= {0, FOREGROUND}
    if binary:
        masks, present = (masks == FOREGROUND).astype(np.uint8), np.array([0, 1])
    classes = present[present != IGNORED]
    most = len(names) if names else len(classes)
    if len(classes) and classes[-1] >= most:
        odd = int(classes[-1])
        first = next(i for i, mask in enumerate(masks) if (mask == odd).any())
        known = f"0..{most - 1} of {', '.join(names)}" if names else "0, 1, ... without a gap"
        raise DataError(
            f"{where(first)}: class {odd}; allowed are {known}, and {IGNORED} for pixels that do "
            f"not count{'' if names else f', {remedy}'}"
        )
    numbers = ("background", *(map(str, range(1, max(most, 2)))))
    return tuple(names) or (("background", "foreground") if binary else numbers), masks


def size_of(image: Path | bytes, where: str = "") -> tuple[int, int]:
    """Width and height of an image file, or the content of one, upright as its EXIF orientation
    says; messages as of :func:`decode_mask`."""
    with opened(image, where or str(image)) as file:
        return upright(file)


def colours() -> list[int]:
    """A palette for files of masks: black, and colours for the classes."""
    wheel = [(0, 0, 0), (230, 97, 0), (93, 58, 155), (0, 158, 115), (86, 180, 233), (240, 228, 66)]
    return [value for k in range(256) for value in (wheel[0] if not k else wheel[1 + (k - 1) % 5])]


def write_mask(file: Path, mask: Array) -> None:
    """A PNG file of class indices (H, W) uint8, in colours that viewers show."""
    image = Image.fromarray(mask).convert("P")
    image.putpalette(colours())
    image.save(file)
