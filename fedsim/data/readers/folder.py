"""Reader of a plain folder of images with a table: the way to bring one's own pictures.

labels.csv has a header: filename, label, and where known site, patient, split (train, val, test).
Kaggle's and APTOS's names for the columns are understood, and file names without extension. The
images lie in the folder itself or in images/. Classes are numbers 0, 1, ... or names; classes.txt,
one name a line, settles their order and which ones there are.
"""

import os
from pathlib import Path

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.files import TableRow, find_folder, inside, read_lines, read_table, whole_number
from fedsim.core.types import I64
from fedsim.data.cache import packed
from fedsim.data.dataset import TEST, TRAIN, VAL, DatasetInfo, Parts, Raw, Request
from fedsim.data.images import decode

DEFAULT_SIZE = 224
ALIASES = {
    "image": "filename",
    "file": "filename",
    "name": "filename",
    "id_code": "filename",
    "level": "label",
    "grade": "label",
    "diagnosis": "label",
    "class": "label",
}
_PARTS = {"train": TRAIN, "val": VAL, "test": TEST}
_EXTENSIONS = ("", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def folder(request: Request) -> Raw:
    """A folder of images, stored as RGB at Resize(P), CenterCrop(P) for the model's P x P pixels.

    Normalised with ImageNet's mean and standard deviation.
    """
    root = find_folder(request.own_folder, (), ("labels.csv",), request.source)
    rows = read_table(root / "labels.csv", ("filename", "label"), ALIASES)
    classes, y = _classes(root / "classes.txt", rows)
    files = _files(root, rows)
    sites, site = _coded(rows, "site")
    patients, patient = _coded(rows, "patient")
    parts = _parts(rows)
    if parts is not None and patient is not None:
        _check_patients(rows, parts)
    size = request.image_size or DEFAULT_SIZE
    return Raw(
        source=root,
        x=packed("folder", files, size, decode),
        y=y,
        class_names=classes,
        mean=_MEAN,
        std=_STD,
        parts=parts,
        size=size,
        patient=patient,
        patient_names=patients,
        site=site,
        site_names=sites,
        files=tuple(file.relative_to(root).as_posix() for file in files),
    )


def _files(root: Path, rows: list[TableRow]) -> list[Path]:
    seen: dict[Path, str] = {}
    for row in rows:
        path = _file(root, row)
        if path in seen:
            raise DataError(f"{row.where}: {row.values['filename']!r} was given in {seen[path]}")
        seen[path] = row.where
    return list(seen)


def _file(root: Path, row: TableRow) -> Path:
    name = row.values["filename"]
    for place in (root, root / "images"):
        for extension in _EXTENSIONS:
            if name and os.path.isfile(place / f"{name}{extension}"):
                return inside(place, f"{name}{extension}", row.where)
    return inside(root, name, row.where)


def _classes(names_file: Path, rows: list[TableRow]) -> tuple[tuple[str, ...], I64]:
    """The class names and each row's class index."""
    texts = [row.values["label"] for row in rows]
    if names_file.exists():
        names = _class_names(names_file)
        return names, np.array([_index(row, names) for row in rows], dtype=np.int64)
    numeric = [text.replace(".", "", 1).lstrip("-").isdecimal() for text in texts]
    if numeric.count(True) not in (0, len(rows)):
        rare = 2 * numeric.count(True) < len(rows)  # the rarer kind is the mistake
        odd, other = rows[numeric.index(rare)], rows[numeric.index(not rare)]
        raise DataError(
            f"{odd.where}: label {odd.values['label']!r} beside {other.values['label']!r}: labels "
            "are numbers or names, not both"
        )
    if not numeric[0]:
        names = tuple(sorted(set(texts)))
        if "" in names:
            raise DataError(f"{rows[texts.index('')].where}: the label is empty")
        return names, np.array([names.index(text) for text in texts], dtype=np.int64)
    y = [whole_number(row.values["label"], f"{row.where}: label") for row in rows]
    missing = sorted(set(range(min(max(y), len(y)))) - set(y))
    if min(y) < 0 or missing:
        row = rows[y.index(min(y) if min(y) < 0 else max(y))]
        raise DataError(
            f"{row.where}: label {row.values['label']} is outside the classes: they are numbered "
            f"0, 1, ... without a gap{f' (no image of {missing[0]})' if missing else ''}, or named "
            "in a file classes.txt, one a line"
        )
    return tuple(map(str, range(max(y) + 1))), np.array(y, dtype=np.int64)


def _class_names(file: Path) -> tuple[str, ...]:
    lines: dict[str, int] = {}
    for number, name in read_lines(file):
        if name in lines:
            raise DataError(f"{file}, row {number}: {name!r} was given in row {lines[name]}")
        lines[name] = number
    return tuple(lines)


def _index(row: TableRow, names: tuple[str, ...]) -> int:
    text = row.values["label"]
    if text in names:
        return names.index(text)
    label = whole_number(text, f"{row.where}: label") if text.lstrip("-").isdecimal() else -1
    if not 0 <= label < len(names):
        raise DataError(
            f"{row.where}: label {text!r} is outside the classes of classes.txt: "
            f"{', '.join(names)}, or 0..{len(names) - 1}"
        )
    return label


def _coded(rows: list[TableRow], column: str) -> tuple[tuple[str, ...], I64 | None]:
    """The sorted values of an optional column and each row's index into them."""
    if column not in rows[0].values:
        return (), None
    for row in rows:
        if not row.values[column]:
            raise DataError(f"{row.where}: {column} is empty")
    names, codes = np.unique([row.values[column] for row in rows], return_inverse=True)
    return tuple(map(str, names)), codes.astype(np.int64)


def _parts(rows: list[TableRow]) -> Parts | None:
    if "split" not in rows[0].values:
        return None
    for row in rows:
        if row.values["split"] not in _PARTS:
            raise DataError(
                f"{row.where}: split {row.values['split']!r} is unknown; known: train, val, test"
            )
    return np.array([_PARTS[row.values["split"]] for row in rows], dtype=np.int8)


def _check_patients(rows: list[TableRow], parts: Parts) -> None:
    first: dict[tuple[str, str], int] = {}
    for i, row in enumerate(rows):
        j = first.setdefault((row.values.get("site", ""), row.values["patient"]), i)
        if parts[i] != parts[j]:
            raise DataError(
                f"{row.where}: patient {row.values['patient']!r} is in part "
                f"{row.values['split']}, and in part {rows[j].values['split']} in {rows[j].where}"
            )


DATASETS = (
    DatasetInfo(
        name="folder",
        title="your own image files and a table",
        read=folder,
        image_size=DEFAULT_SIZE,
        channels=3,
        source="a folder with labels.csv (filename,label[,site][,patient][,split]) and the images",
        needs_folder=True,
        patients=True,
    ),
)
