"""Reader of a Hugging Face data set that ``save_to_disk`` wrote: images or texts with labels.

A saved ``Dataset`` has no parts of its own; of a ``DatasetDict`` the splits train, validation and
test are the parts. What each column holds follows from its name or from ``data.columns``. Nothing
is downloaded: an image has to be in the data set, not only its path.
"""

import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from fedsim.data.readers.leaf_text import PADDING, VOCABULARY, encoded, frequent, renumbered
from fedsim.data.readers.tables import Where, check_patients, coded, names_by_number
from fedsim.version import DISTRIBUTION

logger = logging.getLogger("fedsim")

SPLITS = {"train": TRAIN, "validation": VAL, "val": VAL, "valid": VAL, "dev": VAL, "test": TEST}
USUAL = {
    "image": ("image", "img"),
    "text": ("text",),
    "label": ("label", "labels"),
    "site": ("site",),
    "user": ("user",),
    "patient": ("patient",),
}
"""Names of columns by what they hold, where ``data.columns`` names none."""
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_BROKEN = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, MemoryError)
"""What ``datasets`` and ``pyarrow`` raise at files that are damaged or none of theirs."""


class Column(NamedTuple):
    """A column of a split.

    Args:
        where: folder, split and column, for messages.
        kind: ``classes``, ``integers``, ``texts``, ``images``, or the type that it has else.
        values: one per row; of images the content of a file, or a mapping with it as ``bytes``.
        names: of the classes.
    """

    where: str
    kind: str
    values: Sequence[Any]
    names: tuple[str, ...] = ()

    def cell(self, row: int) -> str:
        """What messages about a row begin with."""
        return f"{self.where}, row {row}"


class Split(NamedTuple):
    """The columns in use of a split, by what they hold; ``part`` None: not split yet."""

    part: int | None
    columns: Mapping[str, Column]


def hf(
    request: Request,
    *,
    words: Annotated[int, Field(ge=1, le=100_000)] = 100,
    vocabulary: Annotated[int, Field(ge=1, le=10_000_000)] = VOCABULARY,
) -> Raw:
    """Images as RGB, normalised with ImageNet's mean and standard deviation, or texts as words.

    With ``image_size`` P images are stored at Resize(P), CenterCrop(P); without, all have to be
    squares of one size. Texts are numbered as those of ``sent140``: V words and one token for
    unknown words, which also fills up. Samples are numbered in the order train, validation, test.

    Args:
        request: ``columns`` names columns by what they hold.
        words: number of words that are kept of a text, from its start.
        vocabulary: V, the most words that are known: the most frequent ones of the training split.
    """
    wanted = "a folder that save_to_disk of Hugging Face datasets wrote"
    folder = find_folder(request.own_folder, (), ("dataset_dict.json", "state.json"), wanted)
    splits, files = read(folder, request.columns)
    used = {role: [split.columns[role] for split in splits] for role in splits[0].columns}
    classes, y = labels(used["label"])
    sizes = [len(split.columns["label"].values) for split in splits]
    kinds = [split.part for split in splits]
    parts = None if None in kinds else np.repeat(np.array(kinds, dtype=np.int8), sizes)
    whose = "user" if "user" in used else "site"
    sites, site = names_of(used.get(whose, ()), whose)
    patients, patient = names_of(used.get("patient", ()), "patient")
    check_patients(patient, site, parts, patients, rows_of(used["label"]))
    raw = Raw(
        source=folder,
        x=y,
        y=y,
        class_names=classes,
        parts=parts,
        site=site,
        site_names=sites,
        sites_are_users=whose == "user" and site is not None,
        patient=patient,
        patient_names=patients,
    )
    if "text" in used:
        x, vocabulary_words = tokens(used["text"], parts, words, vocabulary, request.known_words)
        return replace(raw, x=x, vocabulary=len(vocabulary_words) + 1, words=vocabulary_words)
    x = _images(used["image"], files, request.image_size)
    return replace(raw, x=x, size=x.shape[-1], mean=_MEAN, std=_STD)


def read(folder: Path, named: Mapping[str, str]) -> tuple[list[Split], list[Path]]:
    """The splits in the order train, validation, test, and the files that they were read from.

    Args:
        folder: as ``save_to_disk`` wrote it.
        named: names of columns by what they hold.

    Raises:
        ConfigError: the package ``datasets`` is missing; no such column.
        DataError: a file is missing or damaged; there is no split train.
    """
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            f"data set 'hf' needs the package datasets, which cannot be imported ({error}): "
            f"pip install '{DISTRIBUTION}[datasets]'"
        ) from error
    try:
        loaded = datasets.load_from_disk(str(folder.resolve()))
    except _BROKEN as error:
        damaged = _damaged(folder) or folder
        raise DataError(f"{damaged}: missing, damaged or cut off ({one_line(error)})") from error
    stored: list[tuple[int | None, str, Any]] = [(None, str(folder), loaded)]
    if isinstance(loaded, datasets.DatasetDict):
        parts = {name: SPLITS.get(name) for name in loaded}
        unused = [name for name, part in parts.items() if part is None]
        if TRAIN not in parts.values():
            raise DataError(f"{folder}: no split train; splits are {', '.join(loaded) or 'none'}")
        if unused:
            logger.warning("%s: splits that are not used: %s", folder, ", ".join(unused))
        order = sorted((part, name) for name, part in parts.items() if part is not None)
        stored = [(part, f"{folder}, split {name}", loaded[name]) for part, name in order]
    chosen = choose(stored[0][2].column_names, named, folder)
    splits = [
        Split(part, {role: _column(split, name, where) for role, name in chosen.items()})
        for part, where, split in stored
    ]
    return splits, [Path(file["filename"]) for _, _, split in stored for file in split.cache_files]


def _damaged(folder: Path) -> Path | None:
    """The first file of Arrow's below ``folder`` that cannot be read."""
    import pyarrow

    for file in sorted(folder.rglob("*.arrow")):
        try:
            pyarrow.ipc.open_stream(pyarrow.memory_map(str(file))).read_all()
        except _BROKEN:
            return file
    return None


def choose(names: Sequence[str], named: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The columns in use by what they hold: those that are given, else those of the usual names.

    There is one of image and text, and one at most of site and user.

    Raises:
        ConfigError: a column that is given does not exist, or one that is needed was not found.
    """
    columns = f"columns of {folder} are {', '.join(names)}"
    for role, name in named.items():
        if name not in names:
            near = nearest(name, names)
            raise ConfigError(f"data.columns.{role}: there is no column {name!r}{near}; {columns}")
    for one, other in (("image", "text"), ("site", "user")):
        if one in named and other in named:
            raise ConfigError(f"data.columns: {one} and {other} given, at most one can be used")
    usual = {w: n for w, kinds in USUAL.items() for n in reversed(kinds) if n in names}
    columns_of = {w: name for w, name in usual.items() if name not in named.values()} | dict(named)
    for one, other in (("image", "text"), ("site", "user")):
        if one in columns_of and other in columns_of:
            if one == "site" and one not in named and other not in named:
                raise ConfigError(
                    f"data.columns: {folder} has the columns site and user: name the one whose "
                    "values are the clients, as in data.columns.user=user"
                )
            del columns_of[one if other in named else other]
    for needed in (("image", "text"), ("label",)):
        if not columns_of.keys() & set(needed):
            usually = ", ".join(name for role in needed for name in USUAL[role])
            raise ConfigError(
                f"data.columns.{' or data.columns.'.join(needed)} is needed: no column is called "
                f"{usually}; {columns}"
            )
    return {role: columns_of[role] for role in USUAL if role in columns_of}


class _Cells(Sequence[Any]):
    """The values of a column, each read from the memory-mapped file when it is asked for."""

    def __init__(self, chunks: Sequence[Any]) -> None:
        self._chunks = chunks
        self._ends = list(accumulate(len(chunk) for chunk in chunks))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, row: Any) -> Any:
        chunk = bisect_right(self._ends, row)
        return self._chunks[chunk][row - self._ends[chunk]].as_py()  # negative: from the end


def _column(split: Any, name: str, where: str) -> Column:
    """A column of a ``datasets.Dataset``."""
    if name not in split.column_names:
        columns = ", ".join(split.column_names)
        raise DataError(f"{where}: there is no column {name!r}; columns are {columns}")
    where, feature = f"{where}, column {name}", split.features[name]
    try:
        stored = split.data.column(name)
        stored.validate(full=True)
        kind = _kind(feature)
        values = _Cells(stored.chunks) if kind == "images" else stored.to_pylist()
    except _BROKEN as error:
        raise DataError(f"{where}: damaged ({one_line(error)})") from error
    names = tuple(feature.names) if kind == "classes" else ()
    return Column(where, kind, values, names)


def _kind(feature: Any) -> str:
    """What a column of the type ``feature`` of ``datasets`` holds."""
    kind = type(feature).__name__
    if kind in ("ClassLabel", "Image"):
        return {"ClassLabel": "classes", "Image": "images"}[kind]
    stored = str(feature.dtype) if kind == "Value" else ""
    if stored.startswith(("int", "uint")):
        return "integers"
    kinds = {"string": "texts", "binary": "images"}
    return kinds.get(stored.removeprefix("large_"), stored or kind)


def labels(columns: Sequence[Column]) -> tuple[tuple[str, ...], I64]:
    """The names of the classes, and the labels (N,) of all splits.

    Raises:
        DataError: they are no integers, outside the classes, or not the same classes everywhere.
    """
    first = columns[0]
    for column in columns:
        if column.kind not in ("classes", "integers"):
            raise DataError(
                f"{column.where}: labels are {column.kind}, needed are classes (ClassLabel, which "
                "class_encode_column makes of any column) or integers"
            )
        if column.names != first.names:
            raise DataError(f"{column.where}: other classes than those of {first.where}")
        if None in column.values:
            raise DataError(f"{column.cell(column.values.index(None))}: there is no label")
    where = rows_of(columns)
    y = np.array([value for column in columns for value in column.values], dtype=np.int64)
    if not first.names:
        return names_by_number(y, where, "or of type ClassLabel"), y
    outside = np.flatnonzero((y < 0) | (y >= len(first.names)))
    if len(outside):
        raise DataError(
            f"{where(outside[0])}: label {y[outside[0]]} is outside the classes "
            f"0..{len(first.names) - 1}"
        )
    return first.names, y


def rows_of(columns: Sequence[Column]) -> Where:
    """What messages about a row, by its number in all splits, begin with."""
    ends = list(accumulate(len(column.values) for column in columns))

    def where(row: int) -> str:
        split = bisect_right(ends, row)
        return columns[split].cell(row - ends[split] + len(columns[split].values))

    return where


def names_of(columns: Sequence[Column], what: str) -> tuple[tuple[str, ...], I64 | None]:
    """The sorted values of all splits as names, and the index (N,) of each; None of no columns.

    Raises:
        DataError: they are no classes, integers or texts, or one is missing.
    """
    values: list[Any] = []
    for column in columns:
        if column.kind not in ("classes", "integers", "texts") or column.kind != columns[0].kind:
            raise DataError(
                f"{column.where}: values are {column.kind}, needed are texts, integers or classes, "
                "in all splits alike"
            )
        classes = dict(enumerate(column.names))
        values += [classes.get(value, value) for value in column.values]
    return coded(values, rows_of(columns), f"the {what}") if columns else ((), None)


def tokens(
    columns: Sequence[Column],
    parts: Parts | None,
    words: int,
    most: int,
    fixed: tuple[str, ...] | None = None,
) -> tuple[Array, tuple[str, ...]]:
    """Token ids (N, words) int32 of the texts, and the vocabulary without the last token.

    The vocabulary is the one ``fixed``, or the ``most`` most frequent words of the training part.

    Raises:
        DataError: they are no texts, or one is missing.
    """
    texts: list[str] = []
    for column in columns:
        if column.kind != "texts":
            raise DataError(f"{column.where}: values are {column.kind}, needed are texts")
        if None in column.values:
            raise DataError(f"{column.cell(column.values.index(None))}: there is no text")
        texts += column.values
    numbers = {PADDING: 0}
    x = encoded(texts, numbers, words)
    vocabulary = fixed
    if vocabulary is None:
        vocabulary = tuple(frequent(x if parts is None else x[parts == TRAIN], numbers, 1, most))
    return renumbered(numbers, vocabulary, unknown=len(vocabulary))[x], vocabulary


def _images(columns: Sequence[Column], files: Sequence[Path], image_size: int | None) -> Array:
    """(N, 3, size, size) uint8, from the cache where they were decoded before."""
    for column in columns:
        if column.kind != "images":
            raise DataError(
                f"{column.where}: values are {column.kind}, needed are images (type Image) or the "
                "bytes of image files"
            )
    cells = [(column, row) for column in columns for row in range(len(column.values))]
    if not cells:
        return np.zeros((0, 3, 1, 1), dtype=np.uint8)
    size = image_size or stored_size(cells[0][0])

    def decoded(i: int) -> Array:
        return image(*cells[i], size, resized=image_size is not None)

    how = f"{'resized' if image_size else 'as stored'}: {[c.where for c in columns if c.values]}"
    return packed_rows("hf", files, len(cells), size, how, decoded)


def stored_size(column: Column) -> int:
    """Height and width of the first image, which have to be equal."""
    width, height = images.sides(content(column, 0), column.cell(0))
    if width != height:
        raise DataError(
            f"{column.cell(0)}: {width} x {height} pixels are no square: set data.image_size"
        )
    return width


def image(column: Column, row: int, size: int, *, resized: bool) -> Array:
    """An image as RGB (3, size, size) uint8; without ``resized`` it has to be stored so.

    Raises:
        DataError: no or a damaged image, or one of another size.
    """
    where = column.cell(row)
    encoded_image = content(column, row)
    if not resized and (sides := images.sides(encoded_image, where)) != (size, size):
        raise DataError(
            f"{where}: {sides[0]} x {sides[1]} pixels, the first image has {size} x {size}: set "
            "data.image_size"
        )
    return images.decode(encoded_image, size, where)


def content(column: Column, row: int) -> bytes:
    """The content of an image file.

    Raises:
        DataError: there is none.
    """
    value = column.values[row]
    encoded_image = value.get("bytes") if isinstance(value, Mapping) else value
    if not isinstance(encoded_image, bytes):
        raise DataError(
            f"{column.cell(row)}: there is no image, or its path alone: save_to_disk has to write "
            "the images themselves"
        )
    return encoded_image


DATASETS = (
    DatasetInfo(
        name="hf",
        title="a saved Hugging Face data set of images or texts",
        read=hf,
        source="a folder of save_to_disk, also as -d hf:DIR; "
        f"pip install '{DISTRIBUTION}[datasets]'",
        needs_folder=True,
        patients=True,
        columns=tuple(USUAL),
    ),
)
