"""Reader of CIFAR, MNIST and Fashion-MNIST: the published files, from torchvision's addresses."""

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.core.errors import DataError, one_line
from fedsim.core.files import cache_dir
from fedsim.core.types import I64, Array
from fedsim.data.cache import fetch, unpacked
from fedsim.data.dataset import DatasetInfo, Raw, Request, parts_of
from fedsim.data.files import ArrayUnpickler, check_images, check_labels, find_folder

_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_CIFAR = {  # folder; files, the last one is the test part; file and entry of names; entry of labels
    "cifar10": ("cifar-10-batches-py", _BATCHES, "batches.meta", "label_names", "labels"),
    "cifar100": (
        *("cifar-100-python", ("train", "test"), "meta"),
        *("fine_label_names", "fine_labels"),
    ),
}
_CLOTHES = "T-shirt/top trouser pullover dress coat sandal shirt sneaker bag ankle_boot"
_NORMAL = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
}
"""Mean and standard deviation by channel."""


def cifar(request: Request) -> Raw:
    """CIFAR-10, or CIFAR-100's fine classes: ``data.dir`` with the files, or downloaded.

    The files are pickles of python 2, read through a restricted unpickler.
    """
    folder, batches, meta, names, key = _CIFAR[request.name]
    if request.folder is not None:
        below = (folder, f"{request.name}/{folder}")
        place = find_folder(request.folder, below, (batches[0],), f"{folder}/")
    else:
        from torchvision import datasets

        source = getattr(datasets, request.name.upper())
        archive = fetch((source.url,), source.tgz_md5, "cifar", source.filename)
        place = unpacked(archive, f"cifar/{request.name}") / folder
    (classes,) = _load(place / meta, names)
    blocks = [_batch(place / name, key, len(classes)) for name in batches]
    x, y = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
    num_test = len(blocks[-1][1])
    return _raw(request, place, x, y, tuple(map(_text, classes)), num_test)


def _raw(
    request: Request, place: Path, x: Array, y: I64, classes: tuple[str, ...], num_test: int
) -> Raw:
    mean, std = _NORMAL[request.name]
    parts = parts_of(len(y) - num_test, 0, num_test)
    return Raw(source=place, x=x, y=y, class_names=classes, mean=mean, std=std, parts=parts)


def _batch(path: Path, key: str, num_classes: int) -> tuple[Array, I64]:
    """Images (n, 3, 32, 32) and labels (n,) of a batch file."""
    data, labels = _load(path, "data", key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3072,):
        raise DataError(f"{path}: data is no uint8 array (n, 3072)")
    y = check_labels(np.array(labels), num_classes, str(path))
    if len(y) != len(data):
        raise DataError(f"{path}: truncated: {len(data)} images, but {len(y)} labels")
    return data.reshape(-1, 3, 32, 32), y


def _load(path: Path, *keys: str) -> list[Any]:
    """Entries of a file, whose names are bytes (written by python 2) or texts (by python 3)."""
    try:
        with path.open("rb") as stream:
            content = ArrayUnpickler(stream, encoding="bytes").load()
        entries = {_text(name): value for name, value in content.items()}
        return [entries[key] for key in keys]
    except Exception as error:  # a damaged pickle raises anything
        raise DataError(
            f"{path}: missing, truncated or no CIFAR batch with {' and '.join(keys)} "
            f"({one_line(error)})"
        ) from error


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def mnist(request: Request) -> Raw:
    """MNIST or Fashion-MNIST: ``data.dir`` with the four files or MNIST/raw/, or downloaded."""
    name = "MNIST" if request.name == "mnist" else "FashionMNIST"
    classes = "0 1 2 3 4 5 6 7 8 9" if request.name == "mnist" else _CLOTHES
    if request.folder is None:
        place = _download(name)
    else:
        dashed, stem = request.name.replace("_", "-"), "train-images-idx3-ubyte"
        below, wanted = (f"{name}/raw", "raw", request.name, dashed), f"{request.name}'s four files"
        place = find_folder(request.folder, below, (stem, f"{stem}.gz"), wanted)
    images, labels = [], []
    for part in ("train", "t10k"):
        y, file = read_idx(place, f"{part}-labels-idx1-ubyte", 1)
        labels.append(check_labels(y, 10, str(file)))
        x, file = read_idx(place, f"{part}-images-idx3-ubyte", 3)
        images.append(check_images(x, len(y), str(file)))
    if images[0].shape[1:] != images[1].shape[1:]:
        raise DataError(f"{place}: training and test images differ in size")
    names = tuple(text.replace("_", " ") for text in classes.split())
    x, y = np.concatenate(images), np.concatenate(labels)
    return _raw(request, place, x, y, names, len(labels[1]))


def read_idx(place: Path, stem: str, ndim: int) -> tuple[Array, Path]:
    """The uint8 array of an idx file of that many dimensions, and the file, plain or gzip.

    It is a magic number, one big-endian uint32 per dimension, then the values.
    """
    path = place / stem if (place / stem).exists() else place / f"{stem}.gz"
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        magic, *shape = np.frombuffer(content, ">u4", 1 + ndim).tolist()
    except Exception as error:  # a damaged gzip file raises anything
        raise DataError(
            f"{path}: missing, truncated or not an idx file ({one_line(error)})"
        ) from error
    if magic != 0x800 + ndim:
        raise DataError(f"{path}: not an idx file with magic 0x{0x800 + ndim:08x}")
    if len(content) != 4 + 4 * ndim + math.prod(shape):
        raise DataError(
            f"{path}: truncated or damaged: {len(content)} bytes do not hold "
            f"{' x '.join(map(str, shape))} values"
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * ndim).reshape(shape), path


def _download(name: str) -> Path:
    """Downloads the four files that torchvision's class names, from the mirrors it names."""
    from torchvision import datasets

    source = getattr(datasets, name)
    for file, md5 in source.resources:
        fetch(tuple(mirror + file for mirror in source.mirrors), md5, f"{name}/raw", file)
    return cache_dir() / name / "raw"


DATASETS = (
    DatasetInfo("cifar10", "small photographs, 10 classes", cifar, 10, 32, 3),
    DatasetInfo("cifar100", "small photographs, 100 classes", cifar, 100, 32, 3),
    DatasetInfo("mnist", "hand-written digits", mnist, 10, 28, 1),
    DatasetInfo("fashion_mnist", "Zalando's pieces of clothing", mnist, 10, 28, 1),
)
