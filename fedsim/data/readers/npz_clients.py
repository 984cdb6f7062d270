"""A folder of npz files, one for each client and part: ``train/0.npz``, ``test/0.npz``, ...

As PFLlib writes them: an entry ``data``, the pickle of a dictionary of the arrays x and y, which is
read without running any code of the file; or plain arrays x and y. Clients are the files' names.
"""

import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.core.errors import DataError, one_line
from fedsim.core.types import I64, Array
from fedsim.data.dataset import TEST, TRAIN, Parts, Raw
from fedsim.data.files import check_labels
from fedsim.data.pickles import PICKLE_ERRORS, ArrayUnpickler

_PARTS = (("train", TRAIN), ("test", TEST))
MOST_CLASSES = 10**5
"""Labels are numbers below this."""


def is_there(folder: Path) -> bool:
    """Whether a folder holds such files of training samples."""
    return any((folder / "train").glob("*.npz"))


def read(folder: Path) -> Raw:
    """All clients, in the order of their names, numbers as numbers; each owns its test samples.

    x holds images (n, channels, H, H), uint8, or float in -1..1 or 0..1 as torchvision's ToTensor
    and Normalize(0.5, 0.5) leave them, which are taken back to 0..255; or features (n, d).

    Raises:
        DataError: a damaged file, or arrays that do not fit together; names the file.
    """
    names = sorted(
        {file.stem for part, _ in _PARTS for file in (folder / part).glob("*.npz")}, key=_number
    )
    blocks: list[tuple[Array, I64]] = []
    whose: list[tuple[int, int]] = []
    for part, code in _PARTS:
        for client, name in enumerate(names):
            file = folder / part / f"{name}.npz"
            if not file.exists():
                continue
            block = _samples(file)
            shape = block[0].shape[1:]
            first = blocks[0][0].shape[1:] if blocks else shape
            if shape != first:
                raise DataError(f"{file}: x of shape {shape}, before it was {first}")
            blocks.append(block)
            whose.append((client, code))
    x = np.concatenate([block for block, _ in blocks])
    y = np.concatenate([labels for _, labels in blocks])
    sizes = [len(labels) for _, labels in blocks]
    site = np.repeat(np.array([client for client, _ in whose], dtype=np.int64), sizes)
    parts: Parts = np.repeat(np.array([code for _, code in whose], dtype=np.int8), sizes)
    half = (0.5,) * x.shape[1] if x.ndim == 4 else ()
    return Raw(
        source=folder,
        x=_pixels(x, folder) if x.ndim == 4 else x.astype(np.float32),
        y=y,
        class_names=tuple(map(str, range(int(y.max(initial=0)) + 1))),
        mean=half,
        std=half,
        parts=parts,
        site=site,
        site_names=tuple(names),
        sites_are_users=True,
    )


def _number(name: str) -> tuple[int, int, str]:
    whole = name.isascii() and name.isdecimal()
    return (0, int(name), name) if whole else (1, 0, name)


def _samples(file: Path) -> tuple[Array, I64]:
    """x (n, ...) and y (n,) of a file."""
    try:
        content = _content(file)
    except PICKLE_ERRORS as error:
        raise DataError(
            f"{file}: truncated, or not an npz of x and y, or of a dictionary of these arrays as "
            f"PFLlib's ({one_line(error)}); other pickled objects are never loaded"
        ) from error
    x, y = content.get("x"), content.get("y")
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        raise DataError(f"{file}: needed are the arrays x and y, there are {', '.join(content)}")
    if x.dtype.kind not in "fui" or x.dtype == np.int64 or x.ndim not in (2, 4):
        raise DataError(
            f"{file}: x is {x.dtype} {x.shape}, needed are images (n, channels, H, H) or features "
            "(n, d), as floats or uint8"
        )
    if x.ndim == 4 and (x.shape[1] not in (1, 3) or x.shape[2] != x.shape[3]):
        raise DataError(f"{file}: x is {x.shape}, needed are square images of 1 or 3 channels")
    whole = y.astype(np.int64) if y.dtype.kind == "f" and np.array_equal(y, np.floor(y)) else y
    labels = check_labels(whole, MOST_CLASSES, f"{file}, y")
    if len(labels) != len(x):
        raise DataError(f"{file}: {len(x)} samples in x, but {len(labels)} labels in y")
    return x, labels


def _content(file: Path) -> dict[str, Any]:
    """The arrays of an npz by name, those of PFLlib's dictionary ``data`` included."""
    with np.load(file, allow_pickle=False) as archive:
        if "data" not in archive:
            return {name: archive[name] for name in ("x", "y") if name in archive}
    with zipfile.ZipFile(file) as entries:
        stream = BytesIO(entries.read("data.npy"))
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError(f"version {version} of the npy format")
    _, _, kind = np.lib.format.read_array_header_1_0(stream)
    if not kind.hasobject:
        raise ValueError(f"data is an array of {kind}")
    unpickled = ArrayUnpickler(stream).load()
    boxed = isinstance(unpickled, np.ndarray) and unpickled.size == 1
    content = unpickled.item() if boxed else unpickled
    if not isinstance(content, dict):
        raise ValueError(f"data is {type(content).__name__}, no dictionary")
    return {str(name): value for name, value in content.items()}


def _pixels(x: Array, folder: Path) -> Array:
    """Images as uint8, from values in 0..255, 0..1 or -1..1."""
    if x.dtype == np.uint8:
        return x
    low, high = float(x.min(initial=0)), float(x.max(initial=0))
    if not -1 <= low <= high <= 1:
        raise DataError(
            f"{folder}: values of x are in {low:g}..{high:g}, needed are uint8, or floats in -1..1 "
            "or 0..1 (ToTensor, with or without Normalize(0.5, 0.5))"
        )
    unit = (x + 1) / 2 if low < 0 else x
    return np.rint(unit * 255).astype(np.uint8)
