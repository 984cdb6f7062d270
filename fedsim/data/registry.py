"""The data sets by name: each is declared in the module of its reader.

A module of :mod:`fedsim.data.readers` lists what it reads as ``DATASETS``, a tuple of
:class:`~fedsim.data.dataset.DatasetInfo`. The typed keyword-only parameters of a reader are the
data set's options, as a method's are those of its ``build``: section ``NAME`` of the
configuration, ``--set NAME.option=value``, their check and the columns of summary.csv come from
the signature. A data set that lives elsewhere is named ``module:function``.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Any

from fedsim.core import imports
from fedsim.core.errors import ConfigError, DataError, nearest
from fedsim.core.imports import call, resolve, signature, users_code
from fedsim.core.rng import seed_for, torch_scope
from fedsim.core.settings import Scalar, checked
from fedsim.core.types import Dataset
from fedsim.data import readers
from fedsim.data.dataset import SCOPE, DatasetInfo, Request, assemble, check, in_one_part
from fedsim.data.readers.medmnist import REFUSED

_OF_LOADERS = ("image_size", "augment", "val_fraction", "test_fraction", "seed", "split")
"""Settings of section ``data`` that a user's loader is given if it has a parameter of the name."""


@functools.cache
def catalogue() -> tuple[DatasetInfo, ...]:
    """All data sets, the embedded one first, then by the name of the reader's module."""
    names = (module.name for module in pkgutil.iter_modules(readers.__path__))
    modules = [importlib.import_module(f"{readers.__name__}.{name}") for name in names]
    infos = [info for module in modules for info in getattr(module, "DATASETS", ())]
    return tuple(sorted(infos, key=lambda info: info.source != "embedded"))


def find(name: str) -> DatasetInfo | None:
    """The data set of that name, None where the catalogue has none."""
    return next((info for info in catalogue() if info.name == name), None)


def options(name: str) -> Mapping[str, Parameter]:
    """The options of a data set: the typed keyword-only parameters of its reader.

    Raises:
        ConfigError: no such data set, or ``module:function`` that cannot be imported.
    """
    return imports.options(reader(name), f"data set {name!r}", besides=_OF_LOADERS)


def load(
    name: str,
    folder: Path | None = None,
    *,
    image_size: int | None = None,
    enlarge: bool = True,
    augment: str | None = None,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
    seed: int = 0,
    split: str | None = None,
    num_clients: int = 50,
    group: str = "none",
    whole: bool = False,
    columns: Mapping[str, str] | None = None,
    known_words: tuple[str, ...] | None = None,
    **given: Scalar,
) -> Dataset:
    """Loads a data set by name, or by ``module:function``.

    A function of the user's is called with ``folder``, with those of the keyword arguments below,
    down to ``split``, that it accepts, and with its own options, and returns a
    :class:`fedsim.core.types.Dataset`.

    Args:
        name: of the catalogue, or ``module:function``.
        folder: ``data.dir``, the folder with the data set's own files, or that folder's parent.
            None: the embedded data set, or one that is downloaded into the cache.
        image_size: height and width in pixels that the model sees; None: the data set's default.
        enlarge: store smaller images at ``image_size``; else as they are, to be fitted on the
            device, batch by batch.
        augment: training augmentation, a key of :data:`fedsim.data.transforms.AUGMENTS`; None:
            the data set's default.
        val_fraction: of the training part, held out by ``seed`` as validation part where the data
            set has none of its own; stratified, and by patient where known.
        test_fraction: the same for a test part.
        seed: ``data.seed``, which draws these parts.
        split: the folder of client lists, for data sets that have such folders (retina:
            ``split_1``, ``split_2``, ...).
        num_clients: sites or users of generated data, of which each becomes a client.
        group: ``patient`` knows the patients of drawn parts by site and name, ``none`` by name;
            ``auto``: by site and name, but for data sets with client lists.
        whole: all samples are the test part, whatever the parts of the files: for predictions.
        columns: ``data.columns``, the names of columns by what they hold, such as ``label``.
        known_words: the vocabulary to read texts with, as ``Dataset.words``; None: their own one,
            as always with a user's function.
        given: the data set's own options, see :func:`options`.

    Raises:
        ConfigError: an unknown name or option, or a value that an option does not take.
        DataError: files that are missing, damaged or mislabelled; names file and row.
    """
    values = checked(name, options(name), given, "option")
    parts: dict[str, Any] = {"val_fraction": val_fraction, "test_fraction": test_fraction}
    parts |= {"image_size": image_size, "augment": augment, "seed": seed}
    info = find(name)
    if info is None:
        dataset = _load_own(name, folder, {**parts, "split": split}, values)
        return in_one_part(dataset) if whole else dataset
    if split is not None and not info.client_folders:
        raise ConfigError(f"data.partition_file {split!r}: {name} has no folders of client lists")
    request = Request(
        name=name,
        folder=folder,
        image_size=image_size,
        split=split,
        source=info.source,
        seed=seed,
        num_clients=num_clients,
        val_fraction=val_fraction,
        columns=columns or {},
        known_words=known_words,
    )
    raw = info.read(request, **values)
    return assemble(raw, name, enlarge=enlarge, group=group, whole=whole, **parts)


def reader(name: str) -> Callable[..., Any]:
    """The function that reads a data set, built in or a user's.

    Raises:
        ConfigError: there is none of that name.
    """
    info = find(name)
    if info is not None:
        return info.read
    if ":" in name:
        return resolve(name, f"data set {name!r}")
    if name in REFUSED:
        raise ConfigError(f"data set {name!r} {REFUSED[name]}")
    names = [info.name for info in catalogue()]
    raise ConfigError(
        f"unknown data set {name!r}{nearest(name, names)}; {SCOPE}; allowed: {', '.join(names)}, "
        "module:function"
    )


def _load_own(
    name: str, folder: Path | None, settings: Mapping[str, Any], values: Mapping[str, Scalar]
) -> Dataset:
    """Calls a user's loader, ``module:function``, and checks what it returns."""
    where = f"data set {name!r}"
    function = reader(name)
    parameters = signature(function, where).parameters
    every = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    accepted = {key: value for key, value in settings.items() if every or key in parameters}
    with torch_scope(seed_for(settings["seed"], "reader")):  # for one that draws globally
        dataset = call(function, where, folder, **accepted, **values)
    if not isinstance(dataset, Dataset):
        raise DataError(
            f"{where}: the function returned {type(dataset).__name__}, needed is "
            "fedsim.core.types.Dataset"
        )
    with users_code(where, DataError):
        check(dataset, name)
    return dataset
