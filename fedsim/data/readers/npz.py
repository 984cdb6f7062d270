"""npz files: the user's own arrays with sites and patients, and what all readers of npz share."""

from pathlib import Path

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.types import I64, Array
from fedsim.data.dataset import DatasetInfo, Raw, Request
from fedsim.data.files import ARRAY_FILE_ERRORS, check_images, check_labels, unreadable_array
from fedsim.data.readers import npz_clients
from fedsim.data.readers.tables import coded, names_by_number


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
    except ARRAY_FILE_ERRORS as error:
        raise DataError(
            f"{path}: truncated or not an npz of plain arrays ({unreadable_array(error)})"
        ) from error
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise DataError(f"{path}: its entry {key} is no array")
    return arrays


def with_sites(request: Request) -> Raw:
    """An npz with images, labels[, sites, site_names][, patients][, class_names].

    ``data.dir`` is the folder that holds it, that folder's parent, or the file itself; or a folder
    with a file for each client in train/ and test/, see :mod:`~fedsim.data.readers.npz_clients`.
    """
    folder = request.own_folder
    if npz_clients.is_there(folder):
        return npz_clients.read(folder)
    path = folder if folder.is_file() else _only_npz(folder, request)
    optional = ("sites", "site_names", "patients", "class_names")
    arrays = load_npz(path, ("images", "labels"), optional)
    classes = _names(arrays, "labels", "class_names", path)
    y = check_labels(arrays["labels"], len(classes), f"{path}, labels")
    x = check_images(arrays["images"], len(y), f"{path}, images")
    site = patient = None
    site_names: tuple[str, ...] = ()
    patient_names: tuple[str, ...] = ()
    if "sites" in arrays:
        site_names = _names(arrays, "sites", "site_names", path)
        site = check_labels(arrays["sites"], len(site_names), f"{path}, sites")
        _check_length(site, y, f"{path}, sites")
    if "patients" in arrays:
        patients = arrays["patients"].tolist()
        patient_names, patient = coded(patients, lambda row: f"{path}, row {row}", "the patient")
        _check_length(patient, y, f"{path}, patients")
    half = (0.5,) * x.shape[1]
    return Raw(
        source=path,
        x=x,
        y=y,
        class_names=classes,
        mean=half,
        std=half,
        patient=patient,
        patient_names=patient_names,
        site=site,
        site_names=site_names,
    )


def _only_npz(folder: Path, request: Request) -> Path:
    for place in (folder, folder / request.name, folder / request.name.replace("_", "-")):
        archives = sorted(place.glob("*.npz"))
        if len(archives) == 1:
            return archives[0]
        if archives:
            listed = ", ".join(file.name for file in archives)
            raise DataError(f"data.dir {place}: several npz files ({listed}); name one as data.dir")
    raise DataError(f"data.dir {folder}: no npz file; wanted is {request.source}")


def _names(arrays: dict[str, Array], key: str, names_key: str, path: Path) -> tuple[str, ...]:
    """The names in ``names_key``, else the numbers in ``key``: 0, 1, ... without a gap."""
    if names_key in arrays:
        return tuple(map(str, arrays[names_key].reshape(-1)))
    values = arrays[key].reshape(-1)
    if not np.issubdtype(values.dtype, np.integer) or values.size == 0:
        raise DataError(f"{path}, {key}: {values.dtype} values need the names array {names_key}")
    remedy = f"or have the names array {names_key}"
    return names_by_number(values, lambda row: f"{path}, {key}, row {row}", remedy, key[:-1])


def _check_length(values: I64, y: I64, where: str) -> None:
    if values.shape != y.shape:
        raise DataError(f"{where}: {values.shape}, labels have {y.shape}")


_SOURCE = "an npz with images, labels[, sites, site_names][, patients][, class_names]"
DATASETS = (
    DatasetInfo(
        name="npz",
        title="your own arrays, with sites and patients where known",
        read=with_sites,
        source=f"{_SOURCE}, or a folder with train/0.npz, test/0.npz, ... of x and y, as PFLlib's",
        needs_folder=True,
        patients=True,
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
        patients=True,
    ),
)
