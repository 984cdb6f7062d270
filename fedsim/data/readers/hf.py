"""Reader of a Hugging Face data set that ``save_to_disk`` wrote: images or texts with labels.

Of a ``DatasetDict`` the splits train, validation and test are the parts. Nothing is downloaded: an
image has to be in the data set, not only its path.
"""

import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from fedsim.core.errors import ConfigError, DataError, nearest, one_line
from fedsim.core.types import I64, Array
from fedsim.data import images
from fedsim.data.cache import packed_rows
from fedsim.data.dataset import TEST, TRAIN, VAL, DatasetInfo, Parts, Raw, Request
from fedsim.data.files import find_folder
from fedsim.data.masks import decode_mask, of_classes, size_of
from fedsim.data.readers.leaf_text import VOCABULARY, tokens
from fedsim.data.readers.tables import Coded, coded, names_by_number, people
from fedsim.version import DISTRIBUTION

logger = logging.getLogger("fedsim")

SPLITS = {"train": TRAIN, "validation": VAL, "val": VAL, "valid": VAL, "dev": VAL, "test": TEST}
USUAL = {"image": ("image", "img"), "text": ("text",), "label": ("label", "labels")}
USUAL |= {role: (role,) for role in ("site", "user", "patient")}
"""Names of columns by what they hold, where ``data.columns`` names none."""
_NEEDED = {
    "image": ("images", "images (type Image) or the bytes of image files"),
    "text": ("texts", "texts"),
    "label": (
        "classes integers",
        "classes (ClassLabel, which class_encode_column makes of any column) or integers",
    ),
}
_NAMES = "classes integers texts", "texts, integers or classes"


class Saved(NamedTuple):
    """The rows of all splits, a ``datasets.Dataset``, in the order train, validation, test.

    ``columns`` are the names of those in use, by what they hold, ``splits`` the numbers of rows by
    name, which is empty where the data set has not been split yet.
    """

    folder: Path
    rows: Any
    columns: Mapping[str, str]
    splits: Mapping[str, int]

    def where(self, row: int) -> str:
        """What messages about a row, by its number in all splits, begin with."""
        ends = list(accumulate(self.splits.values()))
        split = bisect_right(ends, row)
        name = [*self.splits][split]
        row -= ends[split - 1] if split else 0
        return f"{self.folder}{f', split {name}' if name else ''}, row {row}"

    def values(self, role: str) -> tuple[Sequence[Any], tuple[str, ...]]:
        """The values of a column, and the names of its classes where it has some."""
        name = self.columns[role]
        feature = self.rows.features[name]
        kind, (allowed, needed) = _kind(feature), _NEEDED.get(role, _NAMES)
        if kind not in allowed.split():
            raise DataError(
                f"{self.folder}, column {name}: {role}s are {kind}, needed are {needed}"
            )
        stored = self.rows.data.column(name)
        values = stored if kind == "images" else stored.to_pylist()
        if kind != "images" and None in values:
            raise DataError(f"{self.where(values.index(None))}: there is no {role}")
        return values, tuple(feature.names) if kind == "classes" else ()

    def content(self, role: str, row: int) -> bytes:
        """The file of an image, or mask."""
        value = self.rows.data.column(self.columns[role])[row].as_py()
        encoded = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(encoded, bytes):
            raise DataError(
                f"{self.where(row)}: there is no image, or its path alone: save_to_disk has to "
                "write the images themselves"
            )
        return encoded

    @property
    def files(self) -> list[Path]:
        """Where the rows are stored."""
        return [Path(file["filename"]) for file in self.rows.cache_files]


def hf(
    request: Request,
    *,
    words: Annotated[int, Field(ge=1, le=100_000)] = 100,
    vocabulary: Annotated[int, Field(ge=1, le=10_000_000)] = VOCABULARY,
) -> Raw:
    """Images as RGB, normalised with ImageNet's mean and standard deviation, or texts as words.

    With ``image_size`` P images are stored at Resize(P), CenterCrop(P); without, all have to be
    squares of one size. For segmentation the label is an image too: a mask of class indices.
    Texts are numbered as those of ``sent140``: V words and one token for unknown words, which also
    fills up. Samples are numbered in the order train, validation, test.

    Args:
        request: ``columns`` names columns by what they hold.
        words: number of words that are kept of a text, from its start.
        vocabulary: V, the most words that are known: the most frequent ones of the training split.
    """
    wanted = "a folder that save_to_disk of Hugging Face datasets wrote"
    folder = find_folder(request.own_folder, (), ("dataset_dict.json", "state.json"), wanted)
    saved = read(folder, request.columns)
    masked = request.target == "mask"
    if masked and "image" not in saved.columns:
        raise DataError(f"{folder}: texts have no masks; segmentation needs images")
    y: Array = np.empty(0)
    classes, y = ((), y) if masked else _labels(saved)
    parts: Parts | None = None
    if "" not in saved.splits:
        kinds = np.array([SPLITS[name] for name in saved.splits], dtype=np.int8)
        parts = np.repeat(kinds, list(saved.splits.values()))
    whose = "user" if "user" in saved.columns else "site"
    sites, patients = _names_of(saved, whose), _names_of(saved, "patient")
    about = people(sites, patients, parts, saved.where) | {"sites_are_users": whose == "user"}
    if "image" in saved.columns:
        x, (mean, std) = _images(saved, request.image_size), images.IMAGENET
        about |= {"size": x.shape[-1], "mean": mean, "std": std}
        classes, y = _masks(saved, x.shape[-1]) if masked else (classes, y)
    else:
        known = np.ones(len(y), bool) if parts is None else parts == TRAIN
        texts, _ = saved.values("text")
        x, dictionary = tokens(texts, words, known, vocabulary, request.known_words)
        about |= {"vocabulary": len(dictionary) + 1, "words": dictionary}
    return Raw(source=folder, x=x, y=y, class_names=classes, parts=parts, **about)


def read(folder: Path, named: Mapping[str, str]) -> Saved:
    """What ``save_to_disk`` wrote; ``named`` are names of columns by what they hold."""
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            f"data set 'hf' needs the package datasets, which cannot be imported ({error}): "
            f"pip install '{DISTRIBUTION}[datasets]'"
        ) from error
    try:
        loaded = datasets.load_from_disk(str(folder.resolve()))
    except Exception as error:  # datasets' and pyarrow's errors have no common type
        raise DataError(f"{folder}: missing, damaged or cut off ({one_line(error)})") from error
    splits = {"": loaded}
    if isinstance(loaded, datasets.DatasetDict):
        splits = {
            name: loaded[name] for _, name in sorted((SPLITS[n], n) for n in loaded if n in SPLITS)
        }
        if "train" not in splits:
            raise DataError(f"{folder}: no split train; splits are {', '.join(loaded) or 'none'}")
        if unused := [name for name in loaded if name not in SPLITS]:
            logger.warning("%s: splits that are not used: %s", folder, ", ".join(unused))
    columns = choose(next(iter(splits.values())).column_names, named, folder)
    try:
        used = [rows.select_columns([*columns.values()]) for rows in splits.values()]
        together = datasets.concatenate_datasets(used)
    except ValueError as error:
        raise DataError(f"{folder}: its splits have other columns ({one_line(error)})") from error
    if not len(together):
        raise DataError(f"{folder}: there are no samples")
    return Saved(folder, together, columns, {name: len(rows) for name, rows in splits.items()})


def choose(names: Sequence[str], named: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The columns in use by what they hold: those that are given, else those of the usual names.

    There is one of image and text, and one at most of site and user; else a ConfigError.
    """
    listed = f"columns of {folder} are {', '.join(names)}"
    for role, name in named.items():
        if name not in names:
            near = nearest(name, names)
            raise ConfigError(f"data.columns.{role}: there is no column {name!r}{near}; {listed}")
    usual = {role: n for role, kinds in USUAL.items() for n in reversed(kinds) if n in names}
    columns = {role: n for role, n in usual.items() if n not in named.values()} | dict(named)
    for one, other in (("image", "text"), ("site", "user")):
        if one in columns and other in columns:
            if (one in named) == (other in named) and (one in named or one == "site"):
                raise ConfigError(
                    f"data.columns: {folder} has the columns {one} and {other}, at most one can be "
                    f"used: name it, as in data.columns.{other}={columns[other]}"
                )
            del columns[one if other in named else other]
    for needed in (("image", "text"), ("label",)):
        if not columns.keys() & set(needed):
            usually = ", ".join(name for role in needed for name in USUAL[role])
            raise ConfigError(
                f"data.columns.{' or data.columns.'.join(needed)} is needed: no column is called "
                f"{usually}; {listed}"
            )
    return {role: columns[role] for role in USUAL if role in columns}


def _kind(feature: Any) -> str:
    """What a column of the type ``feature`` of ``datasets`` holds."""
    kind = type(feature).__name__
    stored = str(feature.dtype).removeprefix("large_") if kind == "Value" else kind
    if stored.startswith(("int", "uint")):
        return "integers"
    kinds = {"ClassLabel": "classes", "Image": "images", "string": "texts", "binary": "images"}
    return kinds.get(stored, stored)


def _labels(saved: Saved) -> tuple[tuple[str, ...], I64]:
    """The names of the classes, and the labels (N,)."""
    values, names = saved.values("label")
    y = np.array(values, dtype=np.int64)
    if not names:
        return names_by_number(y, saved.where, "or of type ClassLabel"), y
    for row in np.flatnonzero((y < 0) | (y >= len(names)))[:1]:
        where = f"{saved.where(row)}: label {y[row]}"
        raise DataError(f"{where} is outside the classes 0..{len(names) - 1}")
    return names, y


def _names_of(saved: Saved, role: str) -> Coded:
    """The sorted values of a column as names, and the index (N,) of each; None of no column."""
    if role not in saved.columns:
        return (), None
    values, names = saved.values(role)
    texts = [names[value] for value in values] if names else values
    return coded(texts, saved.where, f"the {role}")


def _masks(saved: Saved, size: int) -> tuple[tuple[str, ...], Array]:
    """The numbers of the classes, and masks (N, size, size) uint8, from the cache as images."""
    name = saved.columns["label"]
    if _kind(saved.rows.features[name]) != "images":
        raise DataError(f"{saved.folder}, column {name}: needed for segmentation are images")

    def decoded(row: int) -> Array:
        where = saved.where(row)
        sides = size_of(saved.content("image", row), where)
        return decode_mask(saved.content("label", row), size, sides, f"{where}, {name}")

    how = f"mask: {name} {saved.columns['image']} {saved.splits}"
    packed = packed_rows("hf-masks", saved.files, len(saved.rows), size, how, decoded, 1)[:, 0]
    return of_classes(packed, (), saved.where, "as those of a folder with classes.txt")


def _images(saved: Saved, image_size: int | None) -> Array:
    """(N, 3, size, size) uint8, from the cache where they were decoded before."""
    saved.values("image")  # refuses another type
    width, height = images.sides(saved.content("image", 0), saved.where(0))
    if image_size is None and width != height:
        raise DataError(
            f"{saved.where(0)}: {width} x {height} pixels are no square: set data.image_size"
        )
    size = image_size or width

    def decoded(row: int) -> Array:
        encoded, where = saved.content("image", row), saved.where(row)
        if image_size is None and (sides := images.sides(encoded, where)) != (size, size):
            raise DataError(
                f"{where}: {sides[0]} x {sides[1]} pixels, the first image has {size} x {size}: "
                "set data.image_size"
            )
        return images.decode(encoded, size, where)

    how = f"{'resized' if image_size else 'as stored'}: {saved.columns['image']} {saved.splits}"
    return packed_rows("hf", saved.files, len(saved.rows), size, how, decoded)


DATASETS = (
    DatasetInfo(
        "hf", "a saved Hugging Face data set of images or texts", hf,
        needs_folder=True, columns=tuple(USUAL),
        source="a folder of save_to_disk, also as -d hf:DIR; "
        f"pip install '{DISTRIBUTION}[datasets]'",
    ),
)  # fmt: skip
