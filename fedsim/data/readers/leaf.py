"""Readers of LEAF's images and features: femnist, celeba, synthetic. Users become sites."""

from __future__ import annotations

import string
from dataclasses import replace

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.files import inside
from fedsim.core.types import I64, Array
from fedsim.data.cache import packed
from fedsim.data.dataset import Raw, Request
from fedsim.data.images import squashed
from fedsim.data.readers.leaf_json import Samples, gather, labels, numbers, place

_SIDE = 28
_CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_CELEBA_SIZE = 84
_MOST_CLASSES = 10_000


def femnist(request: Request) -> Raw:
    """FEMNIST: grey images of 28 x 28 pixels, 62 characters, a user per writer.

    Stored as round(255 x) of LEAF's 0..1; the model sees 0..1, white paper is 1.
    """
    raw = gather(place(request), _femnist)
    return replace(raw, class_names=_CHARACTERS, mean=(0.0,), std=(1.0,))


def _femnist(samples: Samples) -> tuple[Array, I64]:
    x = numbers(samples.x, "x", samples.where)
    if x.shape[1:] != (_SIDE * _SIDE,) or not ((x >= 0) & (x <= 1)).all():
        raise DataError(f"{samples.where}: x has to be lists of {_SIDE * _SIDE} numbers in 0..1")
    pixels = np.rint(255 * x).astype(np.uint8)
    return pixels.reshape(-1, 1, _SIDE, _SIDE), labels(samples, len(_CHARACTERS))


def celeba(request: Request) -> Raw:
    """CelebA: smiling or not, a user per celebrity; images in raw/img_align_celeba/.

    Every image is brought to 84 x 84 pixels, whatever its shape, and the model sees 0..255, both
    as in LEAF.
    """
    folder = place(request)
    images = folder / "raw" / "img_align_celeba"

    def convert(samples: Samples) -> tuple[Array, I64]:
        for i, name in enumerate(samples.x):
            if not isinstance(name, str):
                raise DataError(f"{samples.where}: x of sample {i} is no file name")
            inside(images, name, f"{samples.where}: sample {i}")
        return np.array(samples.x, dtype=np.str_), labels(samples, 2)

    raw = gather(folder, convert)
    files = [images / name for name in raw.x.tolist()]
    size = request.image_size or _CELEBA_SIZE
    return replace(
        raw,
        x=packed("celeba", files, size, squashed),
        class_names=("not smiling", "smiling"),
        mean=(0.0,) * 3,
        std=(1 / 255,) * 3,
        size=size,
    )


def synthetic(request: Request) -> Raw:
    """LEAF's or FedProx's synthetic data from their json: features (N, d), classes as in y."""
    raw = gather(place(request), _synthetic)
    return replace(raw, class_names=tuple(map(str, range(int(raw.y.max()) + 1))))


def _synthetic(samples: Samples) -> tuple[Array, I64]:
    x = numbers(samples.x, "x", samples.where).astype(np.float32)
    if x.ndim != 2 or not x.size or not np.isfinite(x).all():
        raise DataError(f"{samples.where}: x has to be lists of finite numbers")
    return x, labels(samples, _MOST_CLASSES)
