"""Readers of npz files: MedMNIST, and arrays with sites and patients."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.files import BROKEN_ARRAY, check_images, check_labels, find, reason
from fedsim.core.types import I64, Array
from fedsim.data.dataset import Raw, Request, parts_of
from fedsim.data.download import fetch
from fedsim.data.readers.medmnist import MEDMNIST, SIZES, URL


def load_npz(
    path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, Array]:
    """The named arrays of an npz file; never unpickles.

    Raises:
        DataError: missing, truncated, without a required array, or with anything but arrays.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: holds one array, needed is an npz of arrays by name")
        with archive:
            missing = [key for key in required if key not in archive]
            if missing:
                raise DataError(
                    f"{path}: no array {', '.join(missing)}; there are {', '.join(archive)}"
                )
            arrays = {key: archive[key] for key in (*required, *optional) if key in archive}
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file") from error
    except BROKEN_ARRAY as error:
        raise DataError(
            f"{path}: truncated or not an npz of plain arrays ({reason(error)})"
        ) from error
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise DataError(f"{path}: its entry {key} is no array")
    return arrays


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
    keys = tuple(f"{part}_{what}" for part in ("train", "val", "test") for what in _WHAT)
    arrays = load_npz(path, keys)
    images, labels = [], []
    for part in ("train", "val", "test"):
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


_WHAT = ("images", "labels")


def _file(name: str, size: int) -> str:
    return f"{name}.npz" if size == SIZES[0] else f"{name}_{size}.npz"


def _local(folder: Path, name: str, image_size: int) -> tuple[Path, int]:
    """The file to take for ``image_size`` and the size it stores."""
    sizes = SIZES if image_size not in SIZES else (image_size,)
    names = [_file(name, size) for size in sizes]
    url = URL.format(file=_file(name, next((s for s in sizes if s >= image_size), SIZES[-1])))
    place = find(folder, (name,), names, f"the file of {url}")
    present = [size for size in sizes if (place / _file(name, size)).exists()]
    size = next((s for s in present if s >= image_size), present[-1])
    return place / _file(name, size), size


def with_sites(request: Request) -> Raw:
    """An npz with images, labels[, sites, site_names][, patients][, class_names].

    ``data.dir`` is the folder that holds it, that folder's parent, or the file itself.
    """
    folder = request.own_folder
    path = folder if folder.is_file() else _only_npz(folder, request)
    optional = ("sites", "site_names", "patients", "class_names")
    arrays = load_npz(path, ("images", "labels"), optional)
    classes = _names(arrays, "labels", "class_names", path)
    y = check_labels(arrays["labels"], len(classes), f"{path}, labels")
    x = check_images(arrays["images"], len(y), f"{path}, images")
    site = patient = None
    site_names: tuple[str, ...] = ()
    if "sites" in arrays:
        site_names = _names(arrays, "sites", "site_names", path)
        site = check_labels(arrays["sites"], len(site_names), f"{path}, sites")
        _check_length(site, y, f"{path}, sites")
    if "patients" in arrays:
        patient = np.unique(arrays["patients"], return_inverse=True)[1].astype(np.int64)
        _check_length(patient, y, f"{path}, patients")
    half = (0.5,) * x.shape[1]
    return Raw(path, x, y, classes, half, half, patient=patient, site=site, site_names=site_names)


def _only_npz(folder: Path, request: Request) -> Path:
    for place in (folder, folder / request.name, folder / request.name.replace("_", "-")):
        found = sorted(place.glob("*.npz"))
        if len(found) == 1:
            return found[0]
        if found:
            listed = ", ".join(file.name for file in found)
            raise DataError(f"data.dir {place}: several npz files ({listed}); name one as data.dir")
    raise DataError(f"data.dir {folder}: no npz file; wanted is {request.source}")


def _names(arrays: dict[str, Array], key: str, names_key: str, path: Path) -> tuple[str, ...]:
    """The names in ``names_key``, else the numbers in ``key``: 0, 1, ... without a gap."""
    if names_key in arrays:
        return tuple(map(str, arrays[names_key].reshape(-1)))
    values = arrays[key].reshape(-1)
    if not np.issubdtype(values.dtype, np.integer) or values.size == 0:
        raise DataError(f"{path}, {key}: {values.dtype} values need the names array {names_key}")
    present = np.unique(values).tolist()
    if present != list(range(len(present))):
        row = int(values.argmin() if present[0] < 0 else values.argmax())
        gap = next(i for i, value in enumerate(present) if value != i) if present[0] >= 0 else None
        raise DataError(
            f"{path}, {key}: {values[row]} in row {row}: without the names array {names_key} they "
            f"are numbered 0, 1, ... without a gap{'' if gap is None else f' (there is no {gap})'}"
        )
    return tuple(map(str, present))


def _check_length(values: I64, y: I64, where: str) -> None:
    if values.shape != y.shape:
        raise DataError(f"{where}: {values.shape}, labels have {y.shape}")
