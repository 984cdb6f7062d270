"""Image files and arrays to uint8 pixels, and from one size to another."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import BITSPERSAMPLE, EXTRASAMPLES, SAMPLEFORMAT, TiffImageFile

from fedsim.core.errors import ConfigError, DataError, one_line
from fedsim.core.types import Array
from fedsim.data.files import ARRAY_FILE_ERRORS, unreadable_array

if TYPE_CHECKING:
    import torch

FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
"""What an image file may be, whatever its name; no other decoder of Pillow is tried."""
EIGHT_BIT = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_CHUNK = 1024
_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    MemoryError,
    Image.DecompressionBombError,
)
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # scans are large
warnings.filterwarnings("ignore", module=r"PIL\.")  # damaged EXIF data, which are left out


def resize(x: Array, size: int) -> Array:
    """Images (N, C, H, W) uint8 at ``size`` x ``size``, bilinear with anti-aliasing, rounded.

    Computed in float32, since torch's uint8 kernels differ between processors.

    Raises:
        ConfigError: they do not fit into memory.
    """
    if x.shape[2:] == (size, size):
        return x
    try:
        out = np.empty((*x.shape[:2], size, size), dtype=np.uint8)
    except MemoryError as error:
        raise ConfigError(f"data.image_size {size}: {one_line(error)}") from error
    import torch  # takes seconds to import, which the names of the data sets do without

    for start in range(0, len(x), _CHUNK):
        block = torch.from_numpy(x[start : start + _CHUNK].astype(np.float32))
        out[start : start + _CHUNK] = _rounded(_resized(block, [size, size]))
    return out


def decode(source: Path | bytes, size: int, where: str = "") -> Array:
    """An image file, or the content of one, as RGB (3, size, size) uint8: Resize, CenterCrop.

    Messages begin with ``where``, by default the file.

    Raises:
        DataError: the file is truncated or no image; or its content would be cut: it has several
            pages, more than eight bits a channel, or channels beside colours and transparency.
    """
    from torchvision.transforms.v2.functional import center_crop

    rgb = _rgb(source, where or str(source))
    return _rounded(center_crop(_resized(rgb, [size]), [size]))


def grey(x: Array) -> Array:
    """An image (3, H, W) uint8 as (1, H, W), by ITU-R 601; grey images keep their values."""
    weights = np.array([0.299, 0.587, 0.114], dtype=np.float32)
    return np.rint(np.tensordot(weights, x.astype(np.float32), 1))[None].astype(np.uint8)


def squashed(path: Path, size: int) -> Array:
    """An image file as RGB (3, size, size) uint8, all of it, whatever its shape.

    Raises:
        DataError: as :func:`decode`.
    """
    return _rounded(_resized(_rgb(path), [size, size]))


@contextmanager
def _opened(source: Path | bytes, where: Path | str) -> Iterator[Image.Image]:
    """The image of a file, of which the header alone is read yet."""
    try:
        file = source if isinstance(source, Path) else BytesIO(source)
        with Image.open(file, formats=FORMATS) as image:
            if cut := _cut(image):
                raise DataError(f"{where}: {cut}")
            yield image
    except UnidentifiedImageError as error:
        wanted = ", ".join(FORMATS)
        raise DataError(
            f"{where}: truncated or not an image of a known format ({wanted})"
        ) from error
    except _BROKEN as error:
        raise DataError(f"{where}: truncated or not an image ({one_line(error)})") from error


def _cut(image: Image.Image) -> str:
    """What the file has that eight bits a channel of one RGB image do not hold; empty: nothing.

    Pillow opens 16-bit colours as RGB, cut to their high bytes: the file's own header says it.
    """
    pages = getattr(image, "n_frames", 1)
    if pages > 1 and image.format != "MPO":  # a JPEG file with previews after the image
        return f"{pages} pages or frames, needed is a file for each image"
    deep = f"pixels of mode {image.mode!r}" if image.mode not in EIGHT_BIT else ""
    if isinstance(image, PngImageFile) and any(";16" in str(tile[3]) for tile in image.tile):
        deep = "16 bits a channel"
    if isinstance(image, TiffImageFile):
        most = max(image.tag_v2.get(BITSPERSAMPLE, (1,)))
        deep = f"{most} bits a channel" if most > 8 else deep
        deep = "signed numbers" if 2 in image.tag_v2.get(SAMPLEFORMAT, ()) else deep
        if 0 in image.tag_v2.get(EXTRASAMPLES, ()):
            return "a channel beside colours and transparency"
    return deep and f"{deep}, needed are eight bits a channel (0..255)"


def sides(source: Path | bytes, where: str = "") -> tuple[int, int]:
    """Width and height of an image file, or of the content of one; messages as :func:`decode`.

    Raises:
        DataError: the file is truncated or no image.
    """
    with _opened(source, where or str(source)) as image:
        return image.size


def _rgb(source: Path | bytes, where: str = "") -> torch.Tensor:
    """(3, H, W) float32 in 0..255, upright as the EXIF orientation says."""
    where = where or str(source)
    with _opened(source, where) as image:
        pixels = np.array(_upright(image.convert("RGB")), dtype=np.float32)
    import torch

    return torch.from_numpy(pixels).permute(2, 0, 1)


def _upright(image: Image.Image) -> Image.Image:
    """A decoded image, turned as its EXIF orientation says, where its EXIF data can be read.

    Pillow has applied that of a TIFF file, and removed it.
    """
    try:
        return ImageOps.exif_transpose(image)
    except (*_BROKEN, LookupError, TypeError):
        return image  # the pixels are whole


def load_array(path: Path, size: int) -> Array:
    """A .npy image, H x W (x channels), as RGB (3, size, size) uint8; as SSL-FL reads Retina.

    Of more than three channels the first three are kept. Values are uint8, or floats in 0..255.
    SSL-FL resizes with scikit-image, which turns uint8 arrays black, and cuts fractions off; here
    both kinds keep their values and are rounded.

    Raises:
        DataError: a truncated file, another dtype or shape, values outside 0..255 or in 0..1.
    """
    import torch

    try:  # by memory map: the header may promise more than there is
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ARRAY_FILE_ERRORS as error:
        reason = unreadable_array(error)
        raise DataError(f"{path}: truncated or not a .npy array ({reason})") from error
    if not isinstance(array, np.ndarray) or array.ndim not in (2, 3) or array.size == 0:
        raise DataError(f"{path}: not an array of height x width (x channels)")
    array = array[..., :3] if array.ndim == 3 and array.shape[2] > 3 else array
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise DataError(f"{path}: values are {array.dtype}, needed is uint8 or float in 0..255")
    pixels = array.astype(np.float32)
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0 and high <= 255) or (array.dtype.kind == "f" and 0 < high <= 1):
        raise DataError(f"{path}: values are in {low:g}..{high:g}, needed is 0..255")
    x = torch.from_numpy(pixels if pixels.ndim == 3 else pixels[..., None]).permute(2, 0, 1)
    if x.shape[0] == 2:
        raise DataError(f"{path}: two channels, needed are one, three or more")
    rgb = x[:3].expand(3, -1, -1)
    return _rounded(_resized(rgb, [size, size]))


def _resized(x: torch.Tensor, size: list[int]) -> torch.Tensor:
    """Bilinear, anti-aliased, as float32."""
    from torchvision.transforms.v2.functional import resize as scaled  # takes two seconds to import

    return scaled(x, size, antialias=True)


def _rounded(x: torch.Tensor) -> Array:
    return x.round().clamp(0, 255).byte().numpy()
