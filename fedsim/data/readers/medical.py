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
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedsim.core.errors import DataError, nearest
from fedsim.core.tables import records, whole_number
from fedsim.core.types import I64, Array
from fedsim.data.cache import packed
from fedsim.data.dataset import DatasetInfo, Raw, Request, parts_of
from fedsim.data.files import find_folder, inside
from fedsim.data.images import decode, load_array

PUBLISHED_SIZE = 384
RETINA_STORED = 256
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def retina(request: Request) -> Raw:
    """Retina: .npy images, stored at 256 x 256 as published, or smaller if the model's size is.

    The pipeline of the released FedLD code: 384 pixels, crops of 0.6 to 1 of the area, rotations
    up to 10 degrees, flips. Patients are the file names without ``_left`` and ``_right``.
    """
    size = request.image_size or PUBLISHED_SIZE
    normal = (0.5007, 0.5010, 0.5019), (0.0342, 0.0535, 0.0484)
    stored = min(size, RETINA_STORED)
    return _read(request, "Retina", ("normal", "diseased"), (size, stored), load_array, normal)


def covid_fl(request: Request) -> Raw:
    """COVID-FL: image files, stored as Resize(P), CenterCrop(P) for the model's P x P pixels.

    The pipeline of the released FedLD code: 384 pixels, crops of 0.8 to 1.2 of the area (here of
    the stored square, there of the original picture), rotations up to 10 degrees, flips.
    """
    size = request.image_size or PUBLISHED_SIZE
    classes = ("normal", "pneumonia", "COVID-19")
    return _read(request, "COVID-FL", classes, (size, size), decode, _IMAGENET)


def _read(
    request: Request,
    folder: str,
    classes: tuple[str, ...],
    sizes: tuple[int, int],
    decoder: Callable[[Path, int], Array],
    normal: tuple[tuple[float, ...], tuple[float, ...]],
) -> Raw:
    root = find_folder(request.own_folder, (folder,), ("labels.csv",), request.source)
    labels = _labels(root / "labels.csv", len(classes))
    listing = root / "train.csv"
    listing = listing if listing.exists() else root / "central" / "train.csv"
    train, test = _names(listing), _names(root / "test.csv")
    files: list[Path] = []
    for part, listed in (("train", train), ("test", test)):
        for name, where in listed.items():
            files.append(inside(root / part, name, where))
            if name not in labels:
                raise DataError(f"{where}: {name!r} has no label in {root}/labels.csv")
    stems = [re.sub(r"_(left|right)$", "", Path(name).stem) for name in (*train, *test)]
    people, patient = np.unique(np.array(stems), return_inverse=True)
    with_patients = request.name == "retina"
    return Raw(
        source=root,
        x=packed(request.name, files, sizes[1], decoder),
        y=np.array([labels[name] for name in (*train, *test)], dtype=np.int64),
        class_names=classes,
        mean=normal[0],
        std=normal[1],
        parts=parts_of(len(train), 0, len(test)),
        size=sizes[0],
        augment=request.name,
        patient=patient.astype(np.int64) if with_patients else None,
        patient_names=tuple(map(str, people)) if with_patients else (),
        files=tuple(file.relative_to(root).as_posix() for file in files),
        clients=_indices(_clients(root, request.split), [*train], listing, root / "train"),
    )


def _names(path: Path) -> dict[str, str]:
    """The names of a list in order, with "file, row n" of each; refuses one that is given twice."""
    seen: dict[str, str] = {}
    for row, (name, *_) in records(path):
        where = f"{path}, row {row}"
        if name in seen:
            earlier = seen[name].removeprefix(f"{path}, ")
            raise DataError(f"{where}: {name!r} was given in {earlier} already")
        seen[name] = where
    return seen


def _labels(path: Path, num_classes: int) -> dict[str, int]:
    labels: dict[str, int] = {}
    for row, (name, *rest) in records(path):
        where = f"{path}, row {row}"
        if len(rest) != 1:
            raise DataError(f"{where}: {','.join((name, *rest))!r} is not name,label")
        label = whole_number(rest[0], f"{where}: label")
        if not 0 <= label < num_classes:
            raise DataError(f"{where}: label {label} is outside the classes 0..{num_classes - 1}")
        if name in labels:
            raise DataError(f"{where}: {name!r} was given in an earlier row already")
        labels[name] = label
    return labels


def _clients(root: Path, split: str | None) -> dict[str, dict[str, str]]:
    """The clients' lists of ``split``: "split_2", "5_clients/split_2", or None: the first one."""
    folders = sorted(p for p in root.glob("*_clients/*") if p.is_dir())
    if not folders and split is None:
        return {}
    by_name: dict[str, list[Path]] = {}
    for folder in folders:
        for name in (folder.name, f"{folder.parent.name}/{folder.name}"):
            by_name.setdefault(name, []).append(folder)
    wanted = split or min(p.name for p in folders)
    if wanted not in by_name:
        raise DataError(
            f"data.partition_file of {root}: split folder {wanted!r} is unknown"
            f"{nearest(wanted, by_name)}; there are: {', '.join(by_name)}"
        )
    matching = by_name[wanted]
    if len(matching) > 1:
        both = ", ".join(f"{p.parent.name}/{p.name}" for p in matching)
        raise DataError(f"data.partition_file {wanted!r} of {root} is ambiguous: {both}")
    lists = {path.stem: _names(path) for path in sorted(matching[0].glob("*.csv"))}
    if not lists:
        raise DataError(f"{matching[0]}: no client lists (*.csv)")
    return lists


def _indices(
    lists: dict[str, dict[str, str]], train: list[str], listing: Path, train_folder: Path
) -> dict[str, I64] | None:
    """The clients' images as positions in the training list, or None without lists."""
    position = {name: i for i, name in enumerate(train)}
    owner: dict[str, str] = {}
    for listed in lists.values():
        for name, where in listed.items():
            if name not in position:
                inside(train_folder, name, where)
                raise DataError(f"{where}: {name!r} is not in {listing}")
            if name in owner:
                raise DataError(f"{where}: {name!r} was given in {owner[name]} already")
        owner |= listed
    clients = {name: [position[image] for image in listed] for name, listed in lists.items()}
    return {name: np.array(images, dtype=np.int64) for name, images in clients.items()} or None


DATASETS = tuple(
    DatasetInfo(
        name=read.__name__,
        title=f"{title} (SSL-FL, FedLD)",
        read=read,
        num_classes=num_classes,
        image_size=PUBLISHED_SIZE,
        channels=3,
        default_partition="files",
        source=f"a folder {folder}/ as SSL-FL and FedLD lay it out: train/, test/, labels.csv, "
        "train.csv, test.csv, *_clients/",
        needs_folder=True,
        client_folders=True,
        patients=read is retina,
    )
    for read, folder, num_classes, title in (
        (retina, "Retina", 2, "diabetic retinopathy, normal or diseased"),
        (covid_fl, "COVID-FL", 3, "chest X-rays of several hospitals: normal, pneumonia, COVID-19"),
    )
)
