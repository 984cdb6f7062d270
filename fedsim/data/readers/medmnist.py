"""MedMNIST's 2-D data sets with one label per image.

Source of names, classes and md5 sums: ``medmnist/info.py`` of MedMNIST 3 (https://medmnist.com),
which serves the files from Zenodo record 10519652. Licence of the data: CC BY 4.0, but for
dermamnist CC BY-NC 4.0.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.reading import parse_json
from fedsim.data.dataset import DatasetInfo, Raw, Request, parts_of
from fedsim.data.download import fetch
from fedsim.data.files import check_images, check_labels, find_folder
from fedsim.data.readers.npz import load_npz

URL = "https://zenodo.org/records/10519652/files/{file}?download=1"
SIZES = (28, 64, 128, 224)
REFUSED = {"chestmnist": "has 14 labels per image, and fedsim's losses take one label per image"}


class MedInfo(NamedTuple):
    """A row of the table; the md5 sums are those of the files in the order of SIZES."""

    title: str
    channels: int
    class_names: tuple[str, ...]
    md5: tuple[str, str, str, str]


MEDMNIST: Mapping[str, MedInfo] = {
    name: MedInfo(row["title"], row["channels"], tuple(row["class_names"]), tuple(row["md5"]))
    for name, row in parse_json(Path(__file__).with_suffix(".json").read_bytes()).items()
}


def medmnist(request: Request) -> Raw:
    """A MedMNIST set, from ``data.dir`` or downloaded.

    ``data.image_size`` 28, 64, 128 and 224 take the file of that size; other sizes are made from
    the next larger file that is there (the download takes it), else from the largest.
    A local file may be a re-saved copy: its md5 is not asked for, its structure is.
    """
    info = MEDMNIST[request.name]
    if request.folder is None:
        size = next((s for s in SIZES if s >= (request.image_size or 28)), SIZES[-1])
        file, md5 = _file(request.name, size), info.md5[SIZES.index(size)]
        path = fetch((URL.format(file=file),), md5, "medmnist", file)
    else:
        path, size = _local(request.folder, request.name, request.image_size or 28)
    parts = ("train", "val", "test")
    arrays = load_npz(path, tuple(f"{p}_{kind}" for p in parts for kind in ("images", "labels")))
    images, labels = [], []
    for part in parts:
        where = f"{path}, {part}_labels"
        labels.append(check_labels(arrays[f"{part}_labels"], len(info.class_names), where))
        x = check_images(arrays[f"{part}_images"], len(labels[-1]), f"{path}, {part}_images")
        if x.shape[1:] != (info.channels, size, size):
            raise DataError(
                f"{path}: {part}_images are {x.shape[1:]} (channels, height, width), "
                f"{request.name} at {size} has {(info.channels, size, size)}"
            )
        images.append(x)
    return Raw(
        source=path,
        x=np.concatenate(images),
        y=np.concatenate(labels),
        class_names=info.class_names,
        mean=(0.5,) * info.channels,
        std=(0.5,) * info.channels,
        parts=parts_of(*map(len, labels)),
    )


def _file(name: str, size: int) -> str:
    return f"{name}.npz" if size == SIZES[0] else f"{name}_{size}.npz"


def _local(folder: Path, name: str, image_size: int) -> tuple[Path, int]:
    """The file to take for ``image_size`` and the size it stores."""
    sizes = SIZES if image_size not in SIZES else (image_size,)
    names = [_file(name, size) for size in sizes]
    url = URL.format(file=_file(name, next((s for s in sizes if s >= image_size), SIZES[-1])))
    place = find_folder(folder, (name,), names, f"the file of {url}")
    present = [size for size in sizes if (place / _file(name, size)).exists()]
    size = next((s for s in present if s >= image_size), present[-1])
    return place / _file(name, size), size


DATASETS = tuple(
    DatasetInfo(
        name=name,
        title=f"MedMNIST: {info.title}",
        read=medmnist,
        num_classes=len(info.class_names),
        image_size=SIZES[0],
        channels=info.channels,
    )
    for name, info in MEDMNIST.items()
)
