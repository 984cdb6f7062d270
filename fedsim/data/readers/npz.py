"""npz files: the user's own arrays with sites and patients, in one file or one for each client."""

import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.core.errors import DataError, one_line
from fedsim.core.types import I64, Array
from fedsim.data.dataset import TEST, TRAIN, DatasetInfo, Raw, Request
from fedsim.data.files import ArrayUnpickler, check_images, check_labels, unreadable
from fedsim.data.masks import of_classes
from fedsim.data.readers.tables import Coded, coded, names_by_number, of_users, people


def load_npz(
    path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, Array]:
    """The named arrays of an npz file; never unpickles."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in (*required, *optional) if key in archive}
            there = ", ".join(archive)
    except Exception as error:  # a damaged file raises anything
        raise DataError(
            f"{path}: missing, truncated or not an npz of plain arrays ({unreadable(error)})"
        ) from error
    missing = [key for key in required if key not in arrays]
    if missing:
        raise DataError(f"{path}: no array {', '.join(missing)}; there are {there}")
    return arrays


def with_sites(request: Request) -> Raw:
    """An npz with images, labels[, sites, site_names][, patients][, class_names]; for segmentation
    masks (N, H, H) of class indices, or 0 and 255, in place of labels.

    ``data.dir`` is the folder that holds it, that folder's parent, or the file itself; or a folder
    with a file for each client in train/ and test/, see :func:`of_clients`.
    """
    folder = request.own_folder
    if any((folder / "train").glob("*.npz")):
        return of_clients(folder)
    path = folder if folder.is_file() else _only_npz(folder, request)
    optional = ("sites", "site_names", "patients", "class_names")
    targets = "masks" if request.target == "mask" else "labels"
    arrays = load_npz(path, ("images", targets), optional)
    for key in ("sites", "patients"):
        if key in arrays and arrays[key].shape[:1] != arrays[targets].shape[:1]:
            raise DataError(
                f"{path}, {key}: {arrays[key].shape}, {targets} have {arrays[targets].shape}"
            )
    read = _masks if targets == "masks" else _named
    classes, y = read(arrays, targets, "class_names", path)
    sites: Coded = ((), None)
    if "sites" in arrays:
        sites = _named(arrays, "sites", "site_names", path)

    def where(row: int) -> str:
        return f"{path}, row {row}"

    patients: Coded = ((), None)
    if "patients" in arrays:
        patients = coded(arrays["patients"].tolist(), where, "the patient")
    return Raw(
        source=path,
        x=check_images(arrays["images"], len(y), f"{path}, images"),
        y=y,
        class_names=classes,
        **people(sites, patients, None, where),
    )


def _only_npz(folder: Path, request: Request) -> Path:
    below = (request.name, request.name.replace("_", "-"))
    places = (folder, *(folder / name for name in below))
    place = next((place for place in places if any(place.glob("*.npz"))), folder)
    archives = sorted(place.glob("*.npz"))
    if not archives:
        raise DataError(f"data.dir {folder}: no npz file; wanted is {request.source}")
    if len(archives) > 1:
        listed = ", ".join(file.name for file in archives)
        raise DataError(f"data.dir {place}: several npz files ({listed}); name one as data.dir")
    return archives[0]


def _named(
    arrays: dict[str, Array], key: str, names_key: str, path: Path
) -> tuple[tuple[str, ...], I64]:
    """The names in ``names_key``, else the numbers in ``key``: 0, 1, ... without a gap."""
    values, where = arrays[key], f"{path}, {key}"
    if names_key in arrays:
        names = tuple(map(str, arrays[names_key].reshape(-1)))
    elif not np.issubdtype(values.dtype, np.integer) or values.size == 0:
        raise DataError(f"{where}: {values.dtype} values need the names array {names_key}")
    else:
        remedy = f"or have the names array {names_key}"
        flat = values.reshape(-1)
        names = names_by_number(flat, lambda row: f"{where}, row {row}", remedy, key[:-1])
    return names, check_labels(values, len(names), where)


def _masks(
    arrays: dict[str, Array], key: str, names_key: str, path: Path
) -> tuple[tuple[str, ...], Array]:
    """The names in ``names_key``, else numbers; and masks of their indices."""
    masks, shape = arrays[key], arrays["images"].shape[:3]
    if masks.dtype not in (np.uint8, np.bool_) or masks.shape != shape:
        raise DataError(f"{path}, {key}: {masks.dtype} {masks.shape}, needed are uint8 {shape}")
    names = tuple(map(str, arrays.get(names_key, np.empty(0)).reshape(-1)))
    remedy = f"or have the names array {names_key}"
    whole = masks.astype(np.uint8)
    return of_classes(whole, names, lambda i: f"{path}, {key}, row {i}", remedy)


def of_clients(folder: Path) -> Raw:
    """A folder of npz files, one for each client and part: ``train/0.npz``, ``test/0.npz``, ...

    As PFLlib writes them: an entry ``data``, the pickle of a dictionary of the arrays x and y; or
    plain arrays x and y. Clients are in the order of the files' names, numbers as numbers; each
    owns its test samples. x holds features (n, d) or images (n, channels, H, H), uint8, or float in
    -1..1 or 0..1 as ToTensor and Normalize(0.5, 0.5) leave them, which are taken back to 0..255.
    """
    blocks: dict[tuple[int, str], tuple[Array, I64]] = {}
    shape: tuple[int, ...] = ()
    for name, part in (("train", TRAIN), ("test", TEST)):
        for file in sorted((folder / name).glob("*.npz"), key=lambda file: _order(file.stem)):
            blocks[part, file.stem] = _samples(file)
            before, shape = shape, blocks[part, file.stem][0].shape[1:]
            if len(blocks) > 1 and shape != before:
                raise DataError(f"{file}: x of shape {shape}, before it was {before}")
    raw = of_users(folder, blocks, sorted({client for _, client in blocks}, key=_order))
    return replace(
        raw,
        x=_pixels(raw.x, folder) if raw.x.ndim == 4 else raw.x.astype(np.float32),
        class_names=tuple(map(str, range(int(raw.y.max(initial=0)) + 1))),
    )


def _order(name: str) -> tuple[bool, int, str]:
    whole = name.isascii() and name.isdecimal()
    return not whole, int(name) if whole else 0, name


def _samples(file: Path) -> tuple[Array, I64]:
    """x (n, ...) and y (n,) of a file."""
    try:
        content = _content(file)
        x, y = np.asarray(content["x"]), np.asarray(content["y"])
    except Exception as error:  # a damaged file raises anything
        raise DataError(
            f"{file}: truncated, or not an npz of x and y, or of a dictionary of these arrays as "
            f"PFLlib's ({one_line(error)}); other pickled objects are never loaded"
        ) from error
    square = x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[2] == x.shape[3]
    if x.dtype.kind not in "fui" or x.dtype == np.int64 or not (x.ndim == 2 or square):
        raise DataError(
            f"{file}: x is {x.dtype} {x.shape}, needed are square images of 1 or 3 channels "
            "(n, channels, H, H) or features (n, d), as floats or uint8"
        )
    whole = y.astype(np.int64) if y.dtype.kind == "f" and np.array_equal(y, np.floor(y)) else y
    labels = check_labels(whole, 10**5, f"{file}, y")
    if len(labels) != len(x):
        raise DataError(f"{file}: {len(x)} samples in x, but {len(labels)} labels in y")
    return x, labels


def _content(file: Path) -> dict[str, Any]:
    """The arrays of an npz by name, those of PFLlib's dictionary ``data`` included."""
    with np.load(file, allow_pickle=False) as archive:
        if "data" not in archive:
            return dict(archive)
    with zipfile.ZipFile(file) as entries:
        stream = BytesIO(entries.read("data.npy"))
    np.lib.format.read_magic(stream)
    np.lib.format.read_array_header_1_0(stream)
    unpickled = ArrayUnpickler(stream).load()
    content: dict[str, Any] = unpickled.item() if isinstance(unpickled, np.ndarray) else unpickled
    return content


def _pixels(x: Array, folder: Path) -> Array:
    """Images as uint8, from values in 0..255, 0..1 or -1..1."""
    if x.dtype == np.uint8:
        return x
    low, high = float(x.min(initial=0)), float(x.max(initial=0))
    if not -1 <= low <= high <= 1:
        raise DataError(
            f"{folder}: values of x are in {low:g}..{high:g}, needed are uint8, or floats in -1..1 "
            "or 0..1 (ToTensor, with or without Normalize(0.5, 0.5))"
        )
    unit = (x + 1) / 2 if low < 0 else x
    return np.rint(unit * 255).astype(np.uint8)


_SOURCE = "an npz with images, labels or masks[, sites, site_names][, patients][, class_names]"
DATASETS = (
    DatasetInfo(
        name="npz",
        title="your own arrays, with sites and patients where known",
        read=with_sites,
        source=f"{_SOURCE}, or a folder with train/0.npz, test/0.npz, ... of x and y, as PFLlib's",
        needs_folder=True,
    ),
    DatasetInfo(
        name="covid_cxr",
        title="chest X-rays with their hospitals: normal, pneumonia, COVID-19",
        read=with_sites,
        num_classes=3,
        channels=1,
        default_partition="by_site",
        source=_SOURCE,
        needs_folder=True,
    ),
)
