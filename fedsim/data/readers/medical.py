"""Readers of Retina and COVID-FL in the folder layout of SSL-FL and FedLD.

::

    Retina/    train/*.npy  test/*.npy  labels.csv  train.csv  test.csv
               5_clients/split_{1,2,3}/client_{1..5}.csv
    COVID-FL/  train/*.png  test/*.png  labels.csv  train.csv  test.csv
               12_clients/split_real/<hospital>.csv

labels.csv has rows ``name,label`` without a header; in the lists the name is the field before the
first comma. Clients are in the order of their sorted file names and keep the order of their lists.
"""

import re
from pathlib import Path

import numpy as np

from fedsim.core.errors import DataError, nearest
from fedsim.core.tables import records, whole_number
from fedsim.core.types import I64
from fedsim.data.cache import packed
from fedsim.data.dataset import DatasetInfo, Raw, Request, parts_of
from fedsim.data.files import find_folder, inside
from fedsim.data.images import IMAGENET, decode, load_array
from fedsim.data.readers.tables import coded

PUBLISHED_SIZE = 384
RETINA_STORED = 256
_NORMAL = {"retina": ((0.5007, 0.5010, 0.5019), (0.0342, 0.0535, 0.0484)), "covid_fl": IMAGENET}
_CLASSES = {"retina": ("normal", "diseased"), "covid_fl": ("normal", "pneumonia", "COVID-19")}
_FOLDERS = {"retina": "Retina", "covid_fl": "COVID-FL"}


def medical(request: Request) -> Raw:
    """Retina and COVID-FL with the pipelines of the released FedLD code, at 384 pixels.

    Retina's .npy images are stored at 256 x 256 as published, or smaller if the model's size is;
    COVID-FL's image files as Resize(P), CenterCrop(P) for the model's P x P pixels. Crops are of
    0.6 to 1 of the area, COVID-FL's of 0.8 to 1.2 (here of the stored square, there of the
    picture), rotations up to 10 degrees. Retina's patients are the file names without ``_left``
    and ``_right``.
    """
    name, size = request.name, request.image_size or PUBLISHED_SIZE
    root = find_folder(request.own_folder, (_FOLDERS[name],), ("labels.csv",), request.source)
    labels = _labels(root / "labels.csv", len(_CLASSES[name]))
    listing = root / "train.csv"
    listing = listing if listing.exists() else root / "central" / "train.csv"
    train, test = _names(listing), _names(root / "test.csv")
    files: list[Path] = []
    for part, listed in (("train", train), ("test", test)):
        for image, where in listed.items():
            files.append(inside(root / part, image, where))
            if image not in labels:
                raise DataError(f"{where}: {image!r} has no label in {root}/labels.csv")
    people: tuple[str, ...] = ()
    patient: I64 | None = None
    if name == "retina":
        stems = [re.sub(r"_(left|right)$", "", Path(image).stem) for image in (*train, *test)]
        people, patient = coded(stems, str, "the patient")
        x = packed(name, files, min(size, RETINA_STORED), load_array)
    else:
        x = packed(name, files, size, decode)
    return Raw(
        source=root,
        x=x,
        y=np.array([labels[image] for image in (*train, *test)], dtype=np.int64),
        class_names=_CLASSES[name],
        mean=_NORMAL[name][0],
        std=_NORMAL[name][1],
        parts=parts_of(len(train), 0, len(test)),
        size=size,
        augment=name,
        patient=patient,
        patient_names=people,
        files=tuple(file.relative_to(root).as_posix() for file in files),
        clients=_clients(root, request.split, listing, [*train]),
    )


def _names(path: Path, earlier: dict[str, str] | None = None) -> dict[str, str]:
    """The names of a list in order, with "file, row n" of each; refuses one given ``earlier``."""
    rows: dict[str, str] = {}
    for row, (name, *_) in records(path):
        twice = rows.get(name) or (earlier or {}).get(name)
        if twice:
            raise DataError(f"{path}, row {row}: {name!r} was given in {twice} already")
        rows[name] = f"{path}, row {row}"
    return rows


def _labels(path: Path, num_classes: int) -> dict[str, int]:
    labels: dict[str, int] = {}
    for row, cells in records(path):
        where, (name, *rest) = f"{path}, row {row}", cells
        if len(rest) != 1:
            raise DataError(f"{where}: {','.join(cells)!r} is not name,label")
        label = whole_number(rest[0], f"{where}: label")
        if not 0 <= label < num_classes:
            raise DataError(f"{where}: label {label} is outside the classes 0..{num_classes - 1}")
        if name in labels:
            raise DataError(f"{where}: {name!r} was given in an earlier row already")
        labels[name] = label
    return labels


def _clients(
    root: Path, split: str | None, listing: Path, train: list[str]
) -> dict[str, I64] | None:
    """The clients' images as positions in the training list, None without lists.

    ``split`` is "split_2", "5_clients/split_2", or None: the first one.
    """
    folders = sorted(p for p in root.glob("*_clients/*") if p.is_dir())
    if not folders and split is None:
        return None
    wanted = split or min(p.name for p in folders)
    names = {p: f"{p.parent.name}/{p.name}" for p in folders}
    matching = [p for p in folders if wanted in (p.name, names[p])]
    if len(matching) != 1:
        near = nearest(wanted, [*names.values(), *(p.name for p in folders)])
        what = "is ambiguous" if matching else f"is unknown{near}"
        raise DataError(
            f"data.partition_file of {root}: split folder {wanted!r} {what}; there are: "
            f"{', '.join(names.values())}"
        )
    position = {name: i for i, name in enumerate(train)}
    seen: dict[str, str] = {}
    clients: dict[str, I64] = {}
    for path in sorted(matching[0].glob("*.csv")):
        images = _names(path, seen)
        for name, where in images.items():
            if name not in position:
                raise DataError(f"{where}: {name!r} is not in {listing}")
        seen |= images
        clients[path.stem] = np.array([position[name] for name in images], dtype=np.int64)
    if not clients:
        raise DataError(f"{matching[0]}: no client lists (*.csv)")
    return clients


DATASETS = tuple(
    DatasetInfo(
        name,
        f"{title} (SSL-FL, FedLD)",
        medical,
        len(_CLASSES[name]),
        PUBLISHED_SIZE,
        channels=3,
        default_partition="files",
        source=f"a folder {_FOLDERS[name]}/ as SSL-FL and FedLD lay it out: train/, test/, "
        "labels.csv, train.csv, test.csv, *_clients/",
        needs_folder=True,
        client_folders=True,
    )
    for name, title in (
        ("retina", "diabetic retinopathy, normal or diseased"),
        ("covid_fl", "chest X-rays of several hospitals: normal, pneumonia, COVID-19"),
    )
)
