"""Reader of a plain folder of images with a table: the way to bring one's own pictures.

labels.csv has a header: filename, label, and where known site, patient, split; Kaggle's and APTOS's
names for the columns are understood. The images lie in the folder itself or in images/. Classes are
numbers 0, 1, ... or names; classes.txt, one name a line, settles which and in which order. For
segmentation each image has a mask in masks/, and the table needs no labels.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.tables import Table, read_lines, read_table
from fedsim.core.text import few
from fedsim.core.types import I64, Array
from fedsim.data.cache import packed, packed_rows
from fedsim.data.dataset import DatasetInfo, Raw, Request
from fedsim.data.files import find_folder, inside
from fedsim.data.images import IMAGENET, decode
from fedsim.data.masks import SUFFIXES, decode_mask, of_classes, size_of
from fedsim.data.readers import tables

DEFAULT_SIZE = 224
ALIASES = dict.fromkeys(("image", "file", "name", "id_code"), "filename")
ALIASES |= dict.fromkeys(("level", "grade", "diagnosis", "class"), "label")
_EXTENSIONS = ("", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
_WITH_MASKS = "a folder with images/, masks/ and maybe labels.csv (filename[,site][,patient])"
_REMEDY = "or named in a file classes.txt, one a line"
LISTED = 10
"""So many missing files or odd labels are named; of more the number is given."""
SIMILAR, RARE = 0.85, 0.1
"""A label is taken for a typing error from this similarity (``difflib``) to another one on, if it
has one image or at most this share of the other's."""


def folder(request: Request, *, strict_labels: bool = False) -> Raw:
    """A folder of images, stored as RGB at Resize(P), CenterCrop(P) for the model's P x P pixels.

    Normalised with ImageNet's mean and standard deviation. Labels that look like typing errors,
    and classes with one image, are remarks, or refused with ``strict_labels``. Masks hold class
    indices, or 0 and 255; they are resized as the images, to the nearest pixel.
    """
    masked, size = request.target == "mask", request.image_size or DEFAULT_SIZE
    wanted = _WITH_MASKS if masked else request.source
    root = find_folder(request.own_folder, (), ("masks" if masked else "labels.csv",), wanted)
    listed = root / "classes.txt"
    remarks: tuple[str, ...] = ()
    if masked:
        table = _table_of_images(root)
        files = _files(root, table)
        classes, y = _masks(root, table, files, listed, size)
    else:
        table = read_table(root / "labels.csv", ("filename", "label"), ALIASES)
        classes, y = _listed_classes(listed, table) if listed.exists() else _classes(table)
        remarks = odd_labels(table, classes, y, named=listed.exists())
        if remarks and strict_labels:
            raise DataError(
                f"{root / 'labels.csv'}: {'; '.join(remarks)}; correct the table, or leave out "
                "folder.strict_labels"
            )
        files = _files(root, table)
    parts = tables.parts_of_rows(table, "split", ("train", "val", "test"))
    sites, patients = tables.coded_column(table, "site"), tables.coded_column(table, "patient")
    of_people = tables.people(sites, patients, parts, table.where)
    return Raw(
        source=root,
        x=packed("folder", files, size, decode),
        y=y,
        class_names=classes,
        mean=IMAGENET[0],
        std=IMAGENET[1],
        parts=parts,
        size=size,
        files=tuple(file.relative_to(root).as_posix() for file in files),
        remarks=remarks,
        **of_people,
    )


def _table_of_images(root: Path) -> Table:
    """labels.csv, or the names of all images where there is none."""
    file, images = root / "labels.csv", root / "images"
    if file.exists():
        return read_table(file, ("filename",), ALIASES)
    found = sorted(f for f in images.rglob("*") if f.suffix.lower() in _EXTENSIONS[1:])
    if not found:
        raise DataError(f"data.dir {root}: no image in {images}; wanted is {_WITH_MASKS}")
    names = [f.relative_to(images).as_posix() for f in found]
    return Table(images, {"filename": names}, range(1, 1 + len(names)))


def _masks(
    root: Path, table: Table, files: Sequence[Path], listed: Path, size: int
) -> tuple[tuple[str, ...], Array]:
    """The class names, and the mask of each image; a DataError says which are missing."""
    masks, missing = [], []
    for file, row in zip(files, table, strict=True):
        place = root / "images" if file.is_relative_to(root / "images") else root
        stem = root / "masks" / file.relative_to(place).with_suffix("")
        found = next((f for s in SUFFIXES if (f := stem.with_name(stem.name + s)).is_file()), None)
        if found is None:
            missing.append(f"{stem.relative_to(root)}.png ({row.where.rpartition(', ')[2]})")
        else:
            masks.append(found)
    if missing:
        raise DataError(
            f"{table.file}: {len(missing)} of {len(files)} images have no mask "
            f"({', '.join(SUFFIXES)}): {few(missing, LISTED)}"
        )

    def decoded(i: int) -> Array:
        return decode_mask(masks[i], size, size_of(files[i]))

    names = [name for _, name in read_lines(listed)] if listed.exists() else ()
    stored = packed_rows("masks", [*masks, *files], len(masks), size, "mask", decoded, 1)[:, 0]
    return of_classes(stored, names, lambda i: str(masks[i]), _REMEDY)


def odd_labels(
    table: Table, classes: tuple[str, ...], y: I64, *, named: bool, thing: str = "image"
) -> tuple[str, ...]:
    """What is odd about the labels, in a line for each kind; nothing where all is well.

    A label that differs from a more frequent one by capitals, spaces, hyphens or underscores alone,
    or a rare one that is spelt nearly like it (:data:`SIMILAR`, :data:`RARE`; numbers in both have
    to be the same), unless ``named``: all are meant; and classes with a single ``thing``.
    """
    count = Counter(y.tolist())
    labels, first = np.unique(y, return_index=True)
    line = {label: table.line(i) for label, i in zip(labels.tolist(), first, strict=True)}
    spelt = {
        label: re.sub(r"[\W_]", "", classes[label].casefold()) or classes[label] for label in count
    }
    frequent = [label for label, _ in count.most_common()]
    alike: dict[int, int] = {}  # by rarer label the more frequent one
    for place, rare in enumerate([] if named else frequent):
        for other in (label for label in frequent[:place] if label not in alike):
            seldom = count[rare] == 1 or count[rare] <= RARE * count[other]
            if spelt[rare] == spelt[other] or (seldom and _alike(spelt[rare], spelt[other])):
                alike[rare] = other
                break
    single = [label for label in sorted(count) if count[label] == 1 and label not in alike]

    def described(label: int) -> str:
        things = f"1 {thing}" if count[label] == 1 else f"{count[label]} {thing}s, first"
        return f"{classes[label]!r} ({things} in row {line[label]})"

    pairs = [
        f"{described(rare)} like {classes[other]!r} ({count[other]})"
        for rare, other in sorted(alike.items())
    ]
    noun = "class" if len(single) == 1 else "classes"
    remarks = {
        "labels that may be typing errors": pairs,
        f"{noun} with a single {thing}": [described(label) for label in single],
    }
    return tuple(f"{what}: {few(labels, LISTED)}" for what, labels in remarks.items() if labels)


def _alike(rare: str, other: str) -> bool:
    """Whether two spellings are nearly the same, with the same numbers."""
    same_numbers = re.findall(r"\d+", rare) == re.findall(r"\d+", other)
    return same_numbers and SequenceMatcher(None, rare, other).ratio() >= SIMILAR


def _files(root: Path, table: Table) -> list[Path]:
    """The file of each row; a DataError says which are missing, and where they were looked for."""
    rows: dict[Path, str] = {}
    missing = []
    places = [place for place in (root, root / "images") if place.is_dir()]
    candidates = [(place, extension) for place in places for extension in _EXTENSIONS]
    for row in table:
        name = row.values["filename"]
        exist = (c for c in candidates if name and os.path.isfile(c[0] / f"{name}{c[1]}"))
        place, extension = next(exist, (None, ""))
        if place is None:
            missing.append(f"{name} ({row.where.rpartition(', ')[2]})")
            continue
        path = inside(place, f"{name}{extension}", row.where)
        if path in rows:
            raise DataError(f"{row.where}: {name!r} was given in {rows[path]}")
        rows[path] = row.where
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise DataError(
            f"{table.file}: {len(missing)} of {len(table)} files {verb} missing in "
            f"{' or '.join(map(str, places))}: {few(missing, LISTED)}; add what is missing, or "
            "remove its rows"
        )
    return list(rows)


def _classes(table: Table) -> tuple[tuple[str, ...], I64]:
    """The class names and each row's class index: numbers without a gap, or sorted names."""
    # 1.0 of 1,0, as Excel writes a whole number in many countries
    texts = [re.sub(r"^(-?\d+),(0+)$", r"\1.\2", text) for text in table.columns["label"]]
    numeric = [text.replace(".", "", 1).lstrip("-").isdecimal() for text in texts]
    if not any(numeric):
        return tables.coded(texts, table.where, "the label")
    if not all(numeric):
        rare = 2 * sum(numeric) < len(numeric)  # the rarer kind is the mistake
        odd, other = numeric.index(rare), numeric.index(not rare)
        raise DataError(
            f"{table.where(odd)}: label {texts[odd]!r} beside {texts[other]!r}: labels are numbers "
            "or names, not both"
        )
    y = Table(table.file, {"label": texts}, table.numbers).whole("label")
    return tables.names_by_number(y, table.where, _REMEDY), y


def _listed_classes(file: Path, table: Table) -> tuple[tuple[str, ...], I64]:
    """The classes of classes.txt, and each row's class index: labels are names or numbers."""
    names = tuple(name for _, name in read_lines(file))
    if len(set(names)) < len(names):
        raise DataError(f"{file}: {Counter(names).most_common(1)[0][0]!r} is given twice")
    index = {str(i): i for i in range(len(names))} | {name: i for i, name in enumerate(names)}
    labels = []
    for row in table:
        text = row.values["label"]
        label = index.get(text, index.get(re.sub(r"[.,]0+$", "", text)))
        if label is None:
            raise DataError(
                f"{row.where}: label {text!r} is outside the classes of classes.txt: "
                f"{', '.join(names)}, or 0..{len(names) - 1}"
            )
        labels.append(label)
    return names, np.array(labels, dtype=np.int64)


DATASETS = (
    DatasetInfo(
        "folder", "your own image files and a table", folder,
        image_size=DEFAULT_SIZE, channels=3, needs_folder=True,
        source="a folder with labels.csv (filename,label[,site][,patient][,split]) and the images; "
        "for --task segmentation images/ and masks/",
    ),
)  # fmt: skip
