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

_CLOTHES = "T-shirt/top trouser pullover dress coat sandal shirt sneaker bag ankle_boot"


def cifar10(request: Request) -> Raw:
    """CIFAR-10: ``data.dir`` with cifar-10-batches-py/ or with its files, or downloaded."""
    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    place = _place(request, "cifar-10-batches-py", batches[0])
    (classes,) = _load(place / "batches.meta", "label_names")
    normal = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return _cifar(place, batches, "labels", classes, *normal)


def cifar100(request: Request) -> Raw:
    """CIFAR-100, the 100 fine classes: ``data.dir`` with cifar-100-python/, or downloaded."""
    place = _place(request, "cifar-100-python", "train")
    (classes,) = _load(place / "meta", "fine_label_names")
    normal = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return _cifar(place, ["train", "test"], "fine_labels", classes, *normal)


def _place(request: Request, folder: str, marker: str) -> Path:
    if request.folder is not None:
        below = (folder, f"{request.name}/{folder}")
        return find_folder(request.folder, below, (marker,), f"{folder}/")
    from torchvision import datasets

    source = getattr(datasets, request.name.upper())
    archive = fetch((source.url,), source.tgz_md5, "cifar", source.filename)
    return unpacked(archive, f"cifar/{request.name}") / folder


def _cifar(
    place: Path,
    batches: list[str],
    key: str,
    classes: list[Any],
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Raw:
    blocks = [_batch(place / name, key, len(classes)) for name in batches]
    y, num_test = np.concatenate([labels for _, labels in blocks]), len(blocks[-1][1])
    return Raw(
        source=place,
        x=np.concatenate([x for x, _ in blocks]),
        y=y,
        class_names=tuple(map(_text, classes)),
        mean=mean,
        std=std,
        parts=parts_of(len(y) - num_test, 0, num_test),
    )


def _batch(path: Path, key: str, num_classes: int) -> tuple[Array, I64]:
    """Images (n, 3, 32, 32) and labels (n,) of a batch file; the last one is the test part."""
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


def mnist(request: Request) -> Raw:
    """MNIST: ``data.dir`` with the four files or with MNIST/raw/, or downloaded."""
    return _mnist(request, "MNIST", tuple("0123456789"), 0.1307, 0.3081)


def fashion_mnist(request: Request) -> Raw:
    """Fashion-MNIST: ``data.dir`` with the four files or FashionMNIST/raw/, or downloaded."""
    names = tuple(name.replace("_", " ") for name in _CLOTHES.split())
    return _mnist(request, "FashionMNIST", names, 0.2860, 0.3530)


def _mnist(
    request: Request, torchvision_name: str, names: tuple[str, ...], mean: float, std: float
) -> Raw:
    if request.folder is None:
        place = _download(torchvision_name)
    else:
        dashed, stem = request.name.replace("_", "-"), "train-images-idx3-ubyte"
        below = (f"{torchvision_name}/raw", "raw", request.name, dashed)
        wanted = f"{request.name}'s four files"
        place = find_folder(request.folder, below, (stem, f"{stem}.gz"), wanted)
    images, labels = [], []
    for part in ("train", "t10k"):
        y, file = read_idx(place, f"{part}-labels-idx1-ubyte", 1)
        labels.append(check_labels(y, len(names), str(file)))
        x, file = read_idx(place, f"{part}-images-idx3-ubyte", 3)
        images.append(check_images(x, len(y), str(file)))
    if images[0].shape[1:] != images[1].shape[1:]:
        raise DataError(f"{place}: training and test images differ in size")
    return Raw(
        source=place,
        x=np.concatenate(images),
        y=np.concatenate(labels),
        class_names=names,
        mean=(mean,),
        std=(std,),
        parts=parts_of(len(labels[0]), 0, len(labels[1])),
    )


def _download(torchvision_name: str) -> Path:
    """Downloads the four files that torchvision's class names, from the mirrors it names."""
    from torchvision import datasets

    source, folder = getattr(datasets, torchvision_name), f"{torchvision_name}/raw"
    for file, md5 in source.resources:
        fetch(tuple(mirror + file for mirror in source.mirrors), md5, folder, file)
    return cache_dir() / folder


DATASETS = tuple(
    DatasetInfo(
        name=read.__name__,
        title=title,
        read=read,
        num_classes=100 if read is cifar100 else 10,
        image_size=size,
        channels=channels,
    )
    for read, title, size, channels in (
        (cifar10, "small photographs, 10 classes", 32, 3),
        (cifar100, "small photographs, 100 classes", 32, 3),
        (mnist, "hand-written digits", 28, 1),
        (fashion_mnist, "Zalando's pieces of clothing", 28, 1),
    )
)
