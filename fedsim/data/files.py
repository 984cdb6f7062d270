"""Files of data sets: where they lie, what unpickles them, and what arrays in them have to be."""

import os
import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.core.errors import DataError, one_line
from fedsim.core.settings import in_line, listed
from fedsim.core.types import I64, Array


def find_folder(folder: Path, below: Iterable[str], markers: Sequence[str], wanted: str) -> Path:
    """The folder that holds one of the files ``markers``: ``folder`` or one of ``below`` in it.

    A DataError where there is none says what was wanted and where it was looked for.
    """
    if not folder.is_dir():
        raise DataError(f"data.dir {folder}: there is no such folder; wanted is {wanted}")
    places = [folder, *(folder / name for name in below)]
    for place in places:
        if any((place / marker).exists() for marker in markers):
            return place
    tried = ", ".join(map(str, places))
    raise DataError(f"data.dir {folder}: no {' or '.join(markers)} in {tried}; wanted is {wanted}")


def places(data_dir: Path | str) -> list[Path]:
    """What ``data.dir`` names: one file or folder, or, where there is none of the name, several
    files with commas between."""
    whole = Path(data_dir)
    try:
        return [whole] if whole.exists() else [Path(name) for name in listed(str(data_dir))]
    except ValueError:  # no line of names
        return [whole]


def absolute(data_dir: str) -> str:
    """``data.dir`` from whatever folder."""
    each = [str(place.absolute()) for place in places(data_dir)]
    return each[0] if len(each) == 1 else in_line(each)


def listed_files(place: Path) -> list[Path]:
    """The CSV files of a folder, by name; else the file, or files, of :func:`places`."""
    if place.is_dir():
        files = sorted(f for f in place.iterdir() if f.suffix.lower() == ".csv" and f.is_file())
        if not files:
            raise DataError(f"{place}: no CSV file (*.csv) in this folder")
        return files
    return places(place)


def inside(folder: Path, name: str, where: str) -> Path:
    """``folder / name``; a DataError where that is no file or lies outside ``folder``."""
    normal = os.path.normpath(name)
    if not name or os.path.isabs(name) or normal.startswith("..") or "\\" in name:
        raise DataError(f"{where}: {name!r} leaves the data folder {folder}")
    if not os.path.isfile(folder / normal):  # also of names that no file can have
        raise DataError(f"{where}: there is no file {folder / normal}")
    return folder / normal


def unreadable(error: BaseException) -> str:
    """Why NumPy cannot load a file, without its advice on how to unpickle it."""
    text = one_line(error)
    return "it holds pickled objects, which are never loaded" if "pickle" in text else text


class ArrayUnpickler(pickle.Unpickler):
    """Knows NumPy's arrays and nothing else, so that a file cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        """A name that arrays are made with; an UnpicklingError for any other."""
        module = module.replace("numpy.core", "numpy._core")
        if f"{module}.{name}" not in (
            "numpy._core.multiarray._reconstruct",
            "numpy.ndarray",
            "numpy.dtype",
            "_codecs.encode",
        ):
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return super().find_class(module, name)


def check_labels(labels: Array, num_classes: int, where: str) -> I64:
    """Labels (N,) or (N, 1) as int64 (N,); rows in messages count from 0, as in the array."""
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or not np.issubdtype(flat.dtype, np.integer):
        raise DataError(
            f"{where}: labels are {labels.dtype} {labels.shape}, needed are integers (N,) or (N, 1)"
        )
    y = flat.astype(np.int64)
    wrong = np.flatnonzero((y < 0) | (y >= num_classes))
    if len(wrong):
        raise DataError(
            f"{where}: label {y[wrong[0]]} in row {wrong[0]} is outside the classes "
            f"0..{num_classes - 1}"
        )
    return y


def check_label_sets(labels: Array, num_labels: int, where: str) -> Array:
    """Labels (N, L), each 0 or 1, as float32."""
    if labels.ndim != 2 or labels.shape[1] != num_labels or not np.isin(labels, (0, 1)).all():
        raise DataError(
            f"{where}: labels are {labels.dtype} {labels.shape}, needed are (N, {num_labels}), "
            "each 0 or 1"
        )
    return labels.astype(np.float32)


def check_images(images: Array, num_labels: int, where: str) -> Array:
    """Images (N, H, W) or (N, H, W, 1 or 3) uint8, as (N, channels, H, W) with H = W."""
    x = images[..., None] if images.ndim == 3 else images
    square = x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] == x.shape[2] > 0
    if images.dtype != np.uint8 or not square:
        raise DataError(
            f"{where}: images are {images.dtype} {images.shape}, needed are square uint8 images "
            "(N, H, H), (N, H, H, 1) or (N, H, H, 3)"
        )
    if len(x) != num_labels:
        raise DataError(f"{where}: {len(x)} images, but {num_labels} labels")
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
