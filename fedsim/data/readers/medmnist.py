"""MedMNIST's 2-D data sets; chestmnist has several labels per image.

Names, classes and md5 sums are those of ``medmnist/info.py`` of MedMNIST 3 (https://medmnist.com).
Licence of the data: CC BY 4.0, but for dermamnist CC BY-NC 4.0.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsim.core.errors import DataError
from fedsim.data.cache import fetch
from fedsim.data.dataset import DatasetInfo, Raw, Request, parts_of
from fedsim.data.files import check_images, check_label_sets, check_labels, find_folder
from fedsim.data.readers.npz import load_npz
from fedsim.tasks import find

URL = "https://zenodo.org/records/10519652/files/{file}?download=1"
SIZES = (28, 64, 128, 224)
PARTS = ("train", "val", "test")
SEVERAL_LABELS = ("chestmnist",)


class MedInfo(NamedTuple):
    """A row of the table; the md5 sums are those of the files in the order of SIZES."""

    title: str
    channels: int
    class_names: tuple[str, ...]
    md5: tuple[str, str, str, str]


MEDMNIST: Mapping[str, MedInfo] = {
    name: MedInfo(row["title"], row["channels"], tuple(row["class_names"]), tuple(row["md5"]))
    for name, row in json.loads(Path(__file__).with_suffix(".json").read_bytes()).items()
}


def medmnist(request: Request) -> Raw:
    """A MedMNIST set, from ``data.dir`` or downloaded.

    ``data.image_size`` 28, 64, 128 and 224 take the file of that size; other sizes are made from
    the next larger file that is there (the download takes it), else from the largest.
    A local file may be a re-saved copy: its md5 is not asked for, its structure is.
    """
    info, wanted = MEDMNIST[request.name], request.image_size or 28
    files = {s: f"{request.name}.npz" if s == 28 else f"{request.name}_{s}.npz" for s in SIZES}
    size = next((s for s in SIZES if s >= wanted), SIZES[-1])
    url = URL.format(file=files[size])
    if request.folder is None:
        path = fetch((url,), info.md5[SIZES.index(size)], "medmnist", files[size])
    else:
        possible = [s for s in SIZES if s == wanted or wanted not in SIZES]
        markers = [files[s] for s in possible]
        place = find_folder(request.folder, (request.name,), markers, f"the file of {url}")
        present = [s for s in possible if (place / files[s]).exists()]
        size = next((s for s in present if s >= wanted), present[-1])
        path = place / files[size]
    arrays = load_npz(path, tuple(f"{p}_{kind}" for p in PARTS for kind in ("images", "labels")))
    several = request.name in SEVERAL_LABELS
    check = check_label_sets if several else check_labels
    images, labels = [], []
    for part in PARTS:
        where = f"{path}, {part}"
        y = check(arrays[f"{part}_labels"], len(info.class_names), f"{where}_labels")
        x = check_images(arrays[f"{part}_images"], len(y), f"{where}_images")
        if x.shape[1:] != (info.channels, size, size):
            raise DataError(
                f"{path}: {part}_images are {x.shape[1:]} (channels, height, width), "
                f"{request.name} at {size} has {(info.channels, size, size)}"
            )
        images.append(x)
        labels.append(y)
    return Raw(
        source=path,
        x=np.concatenate(images),
        y=np.concatenate(labels),
        class_names=info.class_names,
        parts=parts_of(*map(len, labels)),
        task=find("multilabel") if several else None,
    )


DATASETS = tuple(
    DatasetInfo(
        name, f"MedMNIST: {info.title}", medmnist, len(info.class_names), SIZES[0], info.channels
    )
    for name, info in MEDMNIST.items()
)
