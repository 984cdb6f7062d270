"""Reader of MNIST and Fashion-MNIST: idx files, plain or gzip."""

import gzip
import math
from pathlib import Path

import numpy as np

from fedsim.core.errors import DataError, one_line
from fedsim.core.files import cache_dir
from fedsim.core.types import Array
from fedsim.data.dataset import DatasetInfo, Raw, Request, parts_of
from fedsim.data.download import fetch
from fedsim.data.files import check_images, check_labels, find_folder

_CLOTHES = "T-shirt/top trouser pullover dress coat sandal shirt sneaker bag ankle_boot"


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
    return _read(request, "MNIST", tuple("0123456789"), 0.1307, 0.3081)


def fashion_mnist(request: Request) -> Raw:
    """Fashion-MNIST: ``data.dir`` with the four files or FashionMNIST/raw/, or downloaded."""
    names = tuple(name.replace("_", " ") for name in _CLOTHES.split())
    return _read(request, "FashionMNIST", names, 0.2860, 0.3530)


def _read(
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
        name=read.__name__, title=title, read=read, num_classes=10, image_size=28, channels=1
    )
    for read, title in (
        (mnist, "hand-written digits"),
        (fashion_mnist, "Zalando's pieces of clothing"),
    )
)
