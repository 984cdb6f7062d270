"""Reader of a plain folder of images with a table: the way to bring one's own pictures.

labels.csv has a header: filename, label, and where known site, patient, split (train, val, test).
Commas, semicolons or tabs separate its columns. Kaggle's and APTOS's names for the columns are
understood, and file names without extension. The images lie in the folder itself or in images/.
Classes are numbers 0, 1, ... or names; classes.txt, one name a line, settles their order and which
ones there are.
"""

import os
import re
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.tables import Table, TableRow, read_lines, read_table, whole_number
from fedsim.core.types import I64
from fedsim.data.cache import packed
from fedsim.data.dataset import DatasetInfo, Raw, Request
from fedsim.data.files import find_folder, inside, within
from fedsim.data.images import decode
from fedsim.data.readers.tables import (
    check_patients,
    coded,
    coded_column,
    names_by_number,
    parts_of_rows,
)

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
_EXTENSIONS = ("", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LISTED = 10
"""So many missing files or odd labels are named; of more the number is given."""
SIMILAR, RARE = 0.85, 0.1
"""A label is taken for a typing error from this similarity (``difflib``) to another one on, if it
has one image or at most this share of the other's."""


def folder(request: Request, *, strict_labels: bool = False) -> Raw:
    """A folder of images, stored as RGB at Resize(P), CenterCrop(P) for the model's P x P pixels.

    Normalised with ImageNet's mean and standard deviation. Labels that look like typing errors,
    and classes with one image, are remarks, or refused with ``strict_labels``.
    """
    root = find_folder(request.own_folder, (), ("labels.csv",), request.source)
    table = read_table(root / "labels.csv", ("filename", "label"), ALIASES)
    classes, y = _classes(root / "classes.txt", table)
    remarks = odd_labels(table, classes, y, named=(root / "classes.txt").exists())
    if remarks and strict_labels:
        raise DataError(
            f"{root / 'labels.csv'}: {'; '.join(remarks)}; correct the table, or leave out "
            "folder.strict_labels"
        )
    files = _files(root, table)
    sites, site = coded_column(table, "site")
    patients, patient = coded_column(table, "patient")
    parts = parts_of_rows(table, "split", ("train", "val", "test"))
    check_patients(patient, site, parts, patients, table.where)
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
        remarks=remarks,
    )


def odd_labels(
    table: Table,
    classes: tuple[str, ...],
    y: I64,
    *,
    named: bool,
    thing: str = "image",
) -> tuple[str, ...]:
    """What is odd about the labels, in a line for each kind; nothing where all is well.

    A label that differs from a more frequent one by capitals, spaces, hyphens or underscores alone,
    or a rare one that is spelt nearly like it (:data:`SIMILAR`, :data:`RARE`; numbers in both have
    to be the same), and classes with one image.

    Args:
        table: whose rows they are.
        classes: their names.
        y: (n,) the class of each row.
        named: whether all are meant, as where classes.txt says which classes there are.
        thing: what a row is.
    """
    count = Counter(y.tolist())
    labels, first = np.unique(y, return_index=True)
    line = {label: table.numbers[i] for label, i in zip(labels.tolist(), first, strict=True)}

    def described(label: int) -> str:
        things = f"1 {thing}" if count[label] == 1 else f"{count[label]} {thing}s, first"
        return f"{classes[label]!r} ({things} in row {line[label]})"

    spelt = {label: _spelling(classes[label]) for label in count}
    frequent = [label for label, _ in count.most_common()]
    alike: dict[int, int] = {}  # by rarer label the more frequent one
    for place, rare in enumerate(frequent if not named else []):
        seldom = count[rare] == 1
        for other in (label for label in frequent[:place] if label not in alike):
            typed = seldom or count[rare] <= RARE * count[other]
            if spelt[rare] == spelt[other] or (typed and _alike(spelt[rare], spelt[other])):
                alike[rare] = other
                break
    single = [label for label in sorted(count) if count[label] == 1 and label not in alike]
    remarks = []
    if alike:
        pairs = [
            f"{described(rare)} like {classes[other]!r} ({count[other]})"
            for rare, other in sorted(alike.items())
        ]
        remarks.append(f"labels that may be typing errors: {_few(pairs)}")
    if single:
        noun = "class" if len(single) == 1 else "classes"
        remarks.append(
            f"{noun} with a single {thing}: {_few([described(label) for label in single])}"
        )
    return tuple(remarks)


def _spelling(text: str) -> str:
    """A label without capitals, spaces, hyphens and underscores, itself where nothing is left."""
    return re.sub(r"[\W_]", "", text.casefold()) or text


def _alike(rare: str, other: str) -> bool:
    """Whether two spellings are nearly the same, with the same numbers."""
    same_numbers = re.findall(r"\d+", rare) == re.findall(r"\d+", other)
    return same_numbers and SequenceMatcher(None, rare, other).ratio() >= SIMILAR


def _few(texts: list[str]) -> str:
    more = f", and {len(texts) - LISTED} more" if len(texts) > LISTED else ""
    return ", ".join(texts[:LISTED]) + more


def _files(root: Path, table: Table) -> list[Path]:
    """The file of each row; a DataError says which are missing, and where they were looked for."""
    seen: dict[Path, str] = {}
    missing = []
    for row in table:
        path = _file(root, row)
        if path is None:
            missing.append(f"{row.values['filename']} ({row.where.rpartition(', ')[2]})")
        elif path in seen:
            raise DataError(f"{row.where}: {row.values['filename']!r} was given in {seen[path]}")
        else:
            seen[path] = row.where
    if missing:
        places = f"{root} or {root / 'images'}" if (root / "images").is_dir() else str(root)
        verb = "is" if len(missing) == 1 else "are"
        raise DataError(
            f"{table.file}: {len(missing)} of {len(table)} files {verb} missing in {places}: "
            f"{_few(missing)}; add what is missing, or remove its rows"
        )
    return list(seen)


def _file(root: Path, row: TableRow) -> Path | None:
    """The file of a row, None where there is none; a DataError where it leaves the folder."""
    name = row.values["filename"]
    for place in (root, root / "images"):
        for extension in _EXTENSIONS:
            if name and os.path.isfile(place / f"{name}{extension}"):
                return inside(place, f"{name}{extension}", row.where)
    within(root, name, row.where)
    return None


def _classes(names_file: Path, table: Table) -> tuple[tuple[str, ...], I64]:
    """The class names and each row's class index."""
    texts = [_with_decimal_point(text) for text in table.columns["label"]]
    if names_file.exists():
        names = _class_names(names_file)
        return names, np.array([_index(row, names) for row in table], dtype=np.int64)
    numeric = [text.replace(".", "", 1).lstrip("-").isdecimal() for text in texts]
    if not any(numeric):
        return coded(texts, table.where, "the label")
    if not all(numeric):
        rare = 2 * sum(numeric) < len(numeric)  # the rarer kind is the mistake
        odd, other = numeric.index(rare), numeric.index(not rare)
        raise DataError(
            f"{table.where(odd)}: label {texts[odd]!r} beside {texts[other]!r}: labels are numbers "
            "or names, not both"
        )
    y = Table(table.file, {"label": texts}, table.numbers).whole("label")
    return names_by_number(y, table.where, "or named in a file classes.txt, one a line"), y


def _with_decimal_point(text: str) -> str:
    """``1.0`` of ``1,0``, as Excel writes a whole number in many countries."""
    return text.replace(",", ".") if re.fullmatch(r"-?\d+,0+", text) else text


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
    text = re.sub(r",0+$", "", text)
    label = whole_number(text, f"{row.where}: label") if text.lstrip("-").isdecimal() else -1
    if not 0 <= label < len(names):
        raise DataError(
            f"{row.where}: label {text!r} is outside the classes of classes.txt: "
            f"{', '.join(names)}, or 0..{len(names) - 1}"
        )
    return label


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
