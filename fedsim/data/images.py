"""Image files and arrays to uint8 pixels, and from one size to another."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import BITSPERSAMPLE, TiffImageFile

from fedsim.core.errors import DataError, one_line
from fedsim.core.types import Array
from fedsim.data.files import unreadable

if TYPE_CHECKING:
    import torch

FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
"""What an image file may be, whatever its name; no other decoder of Pillow is tried."""
EIGHT_BIT = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's colours, of values in 0..1."""
_CHUNK = 1024
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # scans are large
warnings.filterwarnings("ignore", module=r"PIL\.")  # damaged EXIF data, which are left out


def resize(x: Array, size: int) -> Array:
    """Images (N, C, H, W) uint8 at ``size`` x ``size``, bilinear with anti-aliasing, rounded.

    Computed in float32, since torch's uint8 kernels differ between processors.
    """
    if x.shape[2:] == (size, size):
        return x
    import torch  # takes seconds to import, which the names of the data sets do without

    out = np.empty((*x.shape[:2], size, size), dtype=np.uint8)
    for start in range(0, len(x), _CHUNK):
        block = torch.from_numpy(x[start : start + _CHUNK].astype(np.float32))
        out[start : start + _CHUNK] = _resized(block, [size, size])
    return out


def nearest(masks: Array, size: int) -> Array:
    """Masks (N, H, W) at ``size`` x ``size``: each pixel as the one where its centre falls."""
    if masks.shape[1:] == (size, size):
        return masks
    rows, columns = (((np.arange(size) + 0.5) * n / size).astype(int) for n in masks.shape[1:])
    return np.ascontiguousarray(masks[:, rows[:, None], columns])


def decode(source: Path | bytes, size: int, where: str = "") -> Array:
    """An image file, or the content of one, as RGB (3, size, size) uint8: Resize, CenterCrop.

    Messages begin with ``where``, by default the file.
    """
    return _resized(_rgb(source, where or str(source)), [size], crop=True)


def squashed(path: Path, size: int) -> Array:
    """An image file as RGB (3, size, size) uint8, all of it; errors as :func:`decode`."""
    return _resized(_rgb(path, str(path)), [size, size])


def grey(x: Array) -> Array:
    """An image (3, H, W) uint8 as (1, H, W), by ITU-R 601; grey images keep their values."""
    weights = np.array([0.299, 0.587, 0.114], dtype=np.float32)
    return np.rint(np.tensordot(weights, x.astype(np.float32), 1))[None].astype(np.uint8)


def sides(source: Path | bytes, where: str = "") -> tuple[int, int]:
    """Width and height of an image file, or of the content of one; errors as :func:`decode`."""
    with opened(source, where or str(source)) as image:
        return image.size


def upright(image: Image.Image) -> tuple[int, int]:
    """Width and height of an image once it is turned as its EXIF orientation says."""
    turned = False
    with suppress(Exception):  # damaged EXIF data
        turned = image.getexif().get(_ORIENTATION, 1) > _UNTURNED
    return image.size[::-1] if turned else image.size


_ORIENTATION, _UNTURNED = 0x0112, 4
"""The EXIF tag, and the largest of its values that keep width and height."""


@contextmanager
def opened(source: Path | bytes, where: str) -> Iterator[Image.Image]:
    """The image of a file, of which the header alone is read yet."""
    try:
        file = source if isinstance(source, Path) else BytesIO(source)
        with Image.open(file, formats=FORMATS) as image:
            if cut := _cut(image):
                raise DataError(f"{where}: {cut}")
            yield image
    except DataError:
        raise
    except Exception as error:  # a damaged file raises anything
        raise DataError(
            f"{where}: truncated or not an image of a known format, {', '.join(FORMATS)} "
            f"({one_line(error)})"
        ) from error


def _cut(image: Image.Image) -> str:
    """What the file has that eight bits a channel of one RGB image do not hold; empty: nothing.

    Pillow opens 16-bit colours as RGB, cut to their high bytes: the file's own header says it.
    """
    pages, bits = getattr(image, "n_frames", 1), 8
    if pages > 1 and image.format != "MPO":  # a JPEG file with previews after the image
        return f"{pages} pages or frames, needed is a file for each image"
    if isinstance(image, PngImageFile) and any(";16" in str(tile[3]) for tile in image.tile):
        bits = 16
    if isinstance(image, TiffImageFile):
        bits = max(image.tag_v2.get(BITSPERSAMPLE, (1,)))
    if bits <= 8 and image.mode in EIGHT_BIT:
        return ""
    return f"{bits} bits a channel (mode {image.mode}), needed are eight (0..255)"


def _rgb(source: Path | bytes, where: str) -> torch.Tensor:
    """(3, H, W) float32 in 0..255, upright as the EXIF orientation says."""
    with opened(source, where) as image:
        upright = rgb = image.convert("RGB")
        with suppress(Exception):  # damaged EXIF data: the pixels are whole
            upright = ImageOps.exif_transpose(rgb)
        pixels = np.array(upright, dtype=np.float32)
    import torch

    return torch.from_numpy(pixels).permute(2, 0, 1)


def load_array(path: Path, size: int) -> Array:
    """A .npy image, H x W (x channels), as RGB (3, size, size) uint8; as SSL-FL reads Retina.

    Of more than three channels the first three are kept. Values are uint8, or floats in 0..255;
    SSL-FL turns uint8 arrays black, and cuts fractions off, which are rounded here.
    """
    import torch

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        shape, kind, pixels = array.shape, array.dtype, array.astype(np.float32)
    except Exception as error:  # a damaged file raises anything
        raise DataError(f"{path}: truncated or not a .npy array ({unreadable(error)})") from error
    if len(shape) not in (2, 3) or pixels.size == 0 or shape[2:] == (2,):
        raise DataError(f"{path}: {shape}, not height x width (x one, three or more channels)")
    low, high = float(pixels.min()), float(pixels.max())
    bytes_or_floats = kind == np.uint8 or kind.kind == "f"
    if not bytes_or_floats or not 0 <= low <= high <= 255 or (kind.kind == "f" and 0 < high <= 1):
        raise DataError(
            f"{path}: values are {kind} in {low:g}..{high:g}, needed is uint8 or float in 0..255"
        )
    x = torch.from_numpy(pixels.reshape(*shape[:2], -1)).permute(2, 0, 1)
    return _resized(x[:3].expand(3, -1, -1), [size, size])


def _resized(x: torch.Tensor, size: list[int], crop: bool = False) -> Array:
    """Bilinear, anti-aliased, as float32, and rounded to uint8; ``crop``: the centre of it."""
    from torchvision.transforms.v2 import functional as f  # takes two seconds to import

    x = f.resize(x, size, antialias=True)
    x = f.center_crop(x, size) if crop else x
    out: Array = x.round().clamp(0, 255).byte().numpy()
    return out
