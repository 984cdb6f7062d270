"""Reader of MNIST and Fashion-MNIST: idx files, plain or gzip."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.files import cache_dir
from fedsim.core.types import Array
from fedsim.data.dataset import DatasetInfo, Raw, Request, parts_of
from fedsim.data.download import fetch
from fedsim.data.files import check_images, check_labels, find_folder

_IMAGES, _LABELS = 0x00000803, 0x00000801
_DIGITS = tuple("0123456789")
_CLOTHES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def read_idx(path: Path, magic: int) -> Array:
    """The uint8 array of an idx file: magic, one big-endian uint32 per dimension, then values.

    Raises:
        DataError: truncated, too long, or of another kind than ``magic``.
    """
    start = 4 + 4 * (magic & 0xFF)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            head, data = stream.read(start), stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: truncated or not a gzip file ({error})") from error
    numbers = np.frombuffer(head, dtype=">u4") if len(head) == start else np.zeros(1)
    if numbers[0] != magic:
        raise DataError(f"{path}: not an idx file with magic 0x{magic:08x}")
    shape = tuple(int(n) for n in numbers[1:])
    count = math.prod(shape)
    if len(data) != count:
        how_many = "more" if len(data) > count else "fewer"
        raise DataError(
            f"{path}: truncated or damaged: {how_many} bytes of values than the header says, "
            f"{' x '.join(map(str, shape))}"
        )
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def mnist(request: Request) -> Raw:
    """MNIST: ``data.dir`` with the four files or with MNIST/raw/, or downloaded."""
    return _read(request, "MNIST", _DIGITS, 0.1307, 0.3081)


def fashion_mnist(request: Request) -> Raw:
    """Fashion-MNIST: ``data.dir`` with the four files or FashionMNIST/raw/, or downloaded."""
    return _read(request, "FashionMNIST", _CLOTHES, 0.2860, 0.3530)


def _read(
    request: Request, torchvision_name: str, names: tuple[str, ...], mean: float, std: float
) -> Raw:
    if request.folder is None:
        place = _download(torchvision_name)
    else:
        dashed = request.name.replace("_", "-")
        below = (f"{torchvision_name}/raw", "raw", request.name, dashed)
        stem = "train-images-idx3-ubyte"
        place = find_folder(
            request.folder, below, (stem, f"{stem}.gz"), f"{request.name}'s four files"
        )
    images, labels = [], []
    for part in ("train", "t10k"):
        file = _either(place, f"{part}-labels-idx1-ubyte")
        labels.append(check_labels(read_idx(file, _LABELS), len(names), str(file)))
        file = _either(place, f"{part}-images-idx3-ubyte")
        images.append(check_images(read_idx(file, _IMAGES), len(labels[-1]), str(file)))
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


def _either(place: Path, stem: str) -> Path:
    for path in (place / stem, place / f"{stem}.gz"):
        if path.exists():
            return path
    raise DataError(f"{place}: no {stem} or {stem}.gz")


def _download(torchvision_name: str) -> Path:
    """Downloads the four files that torchvision's class names, from the mirrors it names."""
    from torchvision import datasets

    source = getattr(datasets, torchvision_name)
    folder = f"{torchvision_name}/raw"
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
