"""Reader of CIFAR-10 and CIFAR-100: python-2 pickles, through a restricted unpickler."""

from pathlib import Path
from typing import Any

import numpy as np

from fedsim.core.errors import DataError, one_line
from fedsim.core.types import I64, Array
from fedsim.data.dataset import DatasetInfo, Raw, Request, parts_of
from fedsim.data.download import fetch, unpacked
from fedsim.data.files import ArrayUnpickler, check_labels, find_folder


def cifar10(request: Request) -> Raw:
    """CIFAR-10: ``data.dir`` with cifar-10-batches-py/ or with its files, or downloaded."""
    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    place = _place(request, "cifar-10-batches-py", batches[0])
    (classes,) = _load(place / "batches.meta", "label_names")
    normal = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return _read(place, batches, "labels", classes, *normal)


def cifar100(request: Request) -> Raw:
    """CIFAR-100, the 100 fine classes: ``data.dir`` with cifar-100-python/, or downloaded."""
    place = _place(request, "cifar-100-python", "train")
    (classes,) = _load(place / "meta", "fine_label_names")
    normal = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return _read(place, ["train", "test"], "fine_labels", classes, *normal)


def _place(request: Request, folder: str, marker: str) -> Path:
    if request.folder is not None:
        below = (folder, f"{request.name}/{folder}")
        return find_folder(request.folder, below, (marker,), f"{folder}/")
    from torchvision import datasets

    source = getattr(datasets, request.name.upper())
    archive = fetch((source.url,), source.tgz_md5, "cifar", source.filename)
    return unpacked(archive, f"cifar/{request.name}") / folder


def _read(
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
