"""LEAF's data sets of images, and what all of LEAF's json files have in common.

A folder train/, test/ or val/ holds any number of json files, each with ``user_data``, {user: {x:
[...], y: [...]}}; ``num_samples``, which is wrong in some of LEAF's own files, and ``users`` are
not looked at. Users become sites.
"""

import json
import string
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsim.core.errors import DataError, one_line
from fedsim.core.types import I64, Array
from fedsim.data.cache import packed
from fedsim.data.dataset import TEST, TRAIN, VAL, DatasetInfo, Raw, Reader, Request
from fedsim.data.files import find_folder, inside
from fedsim.data.images import squashed
from fedsim.data.readers.tables import of_users

_SIDE = 28
_CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_CELEBA_SIZE = 84
SOURCE = "a folder with LEAF's json files in train/ and test/"
_PARTS = (("train", TRAIN), ("val", VAL), ("test", TEST))


class Samples(NamedTuple):
    """A user's samples in one file; ``where`` is "file, user" for messages."""

    user: str
    x: list[Any]
    y: list[Any]
    where: str


Convert = Callable[[Samples], tuple[Array, I64]]
"""A user's samples as arrays (n, ...) and (n,) or (n, T)."""


def place(request: Request) -> Path:
    """The folder with train/ and test/: ``data.dir``, data/ in it, or of the data set's name."""
    name = request.name
    below = ("data", name, f"{name}/data", f"data/{name}", f"data/{name}/data")
    return find_folder(request.own_folder, below, ("train", "test"), SOURCE)


def gather(folder: Path, convert: Convert) -> Raw:
    """All samples in the order of part, user's name, file; users are sites, sorted by name.

    Without train/ the samples of test/ are all there is: they count as training samples, of which
    a test part is drawn later, within each user's. Class names are not set.
    """
    blocks: dict[tuple[int, str], tuple[Array, I64]] = {}
    where: dict[tuple[int, str], str] = {}
    shape: tuple[int, ...] = ()
    for name, part in _PARTS:
        for samples in _users(folder / name) if (folder / name).is_dir() else ():
            key = part, samples.user
            if key in where:
                raise DataError(f"{samples.where}: the user is also in {where[key]}")
            where[key] = samples.where
            if not samples.y:
                continue
            x, y = convert(samples)
            shape = shape if blocks else x.shape[1:]
            if x.shape[1:] != shape:
                raise DataError(f"{samples.where}: x of shape {x.shape[1:]}, before it was {shape}")
            if len(y):
                blocks[key] = x, y
    if not blocks:
        raise DataError(f"{folder}: the json files hold no samples")
    users = sorted({user for _, user in blocks})
    raw = of_users(folder, {key: blocks[key] for key in sorted(blocks)}, users)
    if raw.parts is not None and not (folder / "train").is_dir():
        raw.parts[raw.parts == TEST] = TRAIN
    return raw


def labels(samples: Samples, num_classes: int) -> I64:
    """(n,) class indices; LEAF writes some as floats."""
    values = numbers(samples.y, "y", samples.where)
    inside = (values >= 0) & (values < num_classes) & (values == np.floor(values))
    wrong = np.flatnonzero(~inside) if values.ndim == 1 else [0]
    if len(wrong):
        raise DataError(
            f"{samples.where}: label {samples.y[wrong[0]]!r} of sample {wrong[0]} is no class of "
            f"0..{num_classes - 1}"
        )
    return values.astype(np.int64)


def numbers(values: list[Any], name: str, where: str) -> Array:
    """Nested lists as a float64 array; a DataError where they are no numbers, or uneven."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{where}: {name} is no list of numbers or of lists of equal length ({one_line(error)})"
        ) from error


def read(file: Path) -> dict[str, Any]:
    """The object in a json file; a DataError where there is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: truncated or no json file ({one_line(error)})") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: holds a {type(content).__name__}, needed is an object")
    return content


def _users(folder: Path) -> Iterator[Samples]:
    """The users of all json files, by the files' names."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(f"{folder}: there is no json file")
    for file in files:
        users = read(file).get("user_data")
        if not isinstance(users, dict):
            raise DataError(f"{file}: needed is the key user_data, an object")
        for user, record in users.items():
            where = f"{file}, user {user!r}"
            x, y = map(record.get, "xy") if isinstance(record, dict) else (None, None)
            if not isinstance(x, list) or not isinstance(y, list):
                raise DataError(f"{where}: needed are the lists x and y")
            if len(x) != len(y):
                raise DataError(f"{where}: x has {len(x)} samples, y has {len(y)}")
            yield Samples(user, x, y, where)


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
        files=tuple(file.relative_to(folder).as_posix() for file in files),
    )


def info(
    reader: Reader, title: str, num_classes: int, image_size: int = 0, channels: int = 0
) -> DatasetInfo:
    """The entry of one of LEAF's data sets, which is called as its reader."""
    name = reader.__name__
    return DatasetInfo(
        name=name,
        title=f"LEAF: {title}",
        read=reader,
        num_classes=num_classes,
        image_size=image_size,
        channels=channels,
        default_model=f"leaf_{name}",
        default_partition="natural",
        source=SOURCE,
        needs_folder=True,
    )


DATASETS = (
    info(femnist, "hand-written digits and letters, by writer", 62, 28, 1),
    info(celeba, "celebrities, smiling or not", 2, 84, 3),
)
