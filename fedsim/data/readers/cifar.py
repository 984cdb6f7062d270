"""Reader of CIFAR-10 and CIFAR-100: python-2 pickles, through a restricted unpickler."""

from pathlib import Path
from typing import Any

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.types import I64, Array
from fedsim.data.dataset import DatasetInfo, Raw, Request, parts_of
from fedsim.data.download import fetch, unpacked
from fedsim.data.files import check_labels, find_folder
from fedsim.data.pickles import PICKLE_ERRORS, ArrayUnpickler


def cifar10(request: Request) -> Raw:
    """CIFAR-10: ``data.dir`` with cifar-10-batches-py/ or with its files, or downloaded."""
    place = _place(request, "CIFAR10", "cifar-10-batches-py", "data_batch_1")
    train = [f"data_batch_{i}" for i in range(1, 6)]
    normal = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return _read(place, train, "test_batch", ("batches.meta", b"label_names"), b"labels", *normal)


def cifar100(request: Request) -> Raw:
    """CIFAR-100, the 100 fine classes: ``data.dir`` with cifar-100-python/, or downloaded."""
    place = _place(request, "CIFAR100", "cifar-100-python", "train")
    normal = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return _read(place, ["train"], "test", ("meta", b"fine_label_names"), b"fine_labels", *normal)


def _place(request: Request, torchvision_name: str, folder: str, marker: str) -> Path:
    if request.folder is not None:
        return find_folder(
            request.folder, (folder, f"{request.name}/{folder}"), (marker,), f"{folder}/"
        )
    from torchvision import datasets

    source = getattr(datasets, torchvision_name)
    archive = fetch((source.url,), source.tgz_md5, "cifar", source.filename)
    return unpacked(archive, f"cifar/{request.name}") / folder


def _read(
    place: Path,
    train: list[str],
    test: str,
    names: tuple[str, bytes],
    key: bytes,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Raw:
    file, names_key = names
    listed = _get(_load(place / file), names_key, place / file)
    if not isinstance(listed, list):
        raise DataError(f"{place / file}: {names_key.decode()} is no list of names")
    classes = tuple(map(_text, listed))
    batches = [_batch(place / name, key, len(classes)) for name in (*train, test)]
    num_test = len(batches[-1][1])
    y = np.concatenate([labels for _, labels in batches])
    return Raw(
        source=place,
        x=np.concatenate([x for x, _ in batches]),
        y=y,
        class_names=classes,
        mean=mean,
        std=std,
        parts=parts_of(len(y) - num_test, 0, num_test),
    )


def _batch(path: Path, key: bytes, num_classes: int) -> tuple[Array, I64]:
    """Images (n, 3, 32, 32) and labels (n,) of a batch file."""
    content = _load(path)
    data, labels = _get(content, b"data", path), _get(content, key, path)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3072,):
        raise DataError(f"{path}: data is no uint8 array (n, 3072)")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(f"{path}: labels are no list of integers")
    y = check_labels(np.array(labels), num_classes, str(path))
    if len(y) != len(data):
        raise DataError(f"{path}: truncated: {len(data)} images, but {len(y)} labels")
    return data.reshape(-1, 3, 32, 32), y


def _load(path: Path) -> dict[Any, Any]:
    try:
        with path.open("rb") as stream:
            content = ArrayUnpickler(stream, encoding="bytes").load()
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file") from error
    except PICKLE_ERRORS as error:
        raise DataError(f"{path}: truncated or no CIFAR batch ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds {type(content).__name__}, needed is a dict")
    return content


def _get(content: dict[Any, Any], key: bytes, path: Path) -> Any:
    """The entry of that name, as bytes (written by python 2) or str (by python 3)."""
    for name in (key, key.decode()):
        if name in content:
            return content[name]
    raise DataError(f"{path}: no entry {key.decode()}; there are {', '.join(map(_text, content))}")


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


DATASETS = tuple(
    DatasetInfo(
        name=f"cifar{number}",
        title=f"small photographs, {number} classes",
        read=read,
        num_classes=number,
        image_size=32,
        channels=3,
    )
    for number, read in ((10, cifar10), (100, cifar100))
)
