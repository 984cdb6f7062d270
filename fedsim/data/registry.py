"""The data sets by name, each declared in ``DATASETS`` of its reader's module; or the user's.

The typed keyword-only parameters of a reader are the data set's options: section ``NAME`` of the
configuration, ``--set NAME.option=value``, their check and the columns of summary.csv.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter
from pathlib import Path
from typing import Any

from fedsim import tasks
from fedsim.core import imports
from fedsim.core.errors import ConfigError, DataError, nearest
from fedsim.core.imports import call, resolve, signature, users_code
from fedsim.core.rng import seed_for, torch_scope
from fedsim.core.settings import Scalar, checked
from fedsim.core.task import Task
from fedsim.core.types import Dataset
from fedsim.data import readers
from fedsim.data.dataset import DatasetInfo, Request, assemble, check, for_task, in_one_part
from fedsim.data.own_task import check_own

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
    """The options of a data set: the typed keyword-only parameters of its reader."""
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
    preprocessing: Mapping[str, Any] | None = None,
    task: str | None = None,
    task_options: Mapping[str, Scalar] | None = None,
    measures: Sequence[str] = (),
    **given: Scalar,
) -> Dataset:
    """Loads a data set by name, or by ``module:function``.

    The user's function is called with ``folder``, those arguments below, down to ``split``, that it
    accepts, and its options, and returns a :class:`~fedsim.core.types.Dataset`.

    ``folder`` has the data set's files, or is their folder's parent; None: embedded or downloaded.
    The model sees ``image_size`` pixels a side, None is the data set's default, as of ``augment``,
    a key of :data:`fedsim.data.transforms.AUGMENTS`; smaller images are stored at that size with
    ``enlarge``, else fitted batch by batch. ``val_fraction`` and ``test_fraction`` are held out of
    the training part where the files have no such part, by ``seed``, stratified, and by patient
    where known: with ``group`` "patient" by site and name, with "none" by name, with "auto" by both
    but for data sets with client lists. ``split`` is the folder of these (retina: ``split_1``).

    ``num_clients`` are sites or users of generated data. With ``whole`` all samples are the test
    part, for predictions. ``columns`` are names of columns by what they hold, ``known_words`` the
    vocabulary to read texts with, ``preprocessing`` what a run keeps of that of tables, ``given``
    the data set's own options, see :func:`options`. ``task`` is what is learnt, by default the data
    set's own, ``measures`` what it measures beside, ``task_options`` the settings of the task.
    """
    asked_task = None if task is None else tasks.find(task, task_options)
    values = checked(name, options(name), given, "option")
    parts: dict[str, Any] = {"val_fraction": val_fraction, "test_fraction": test_fraction}
    parts |= {"image_size": image_size, "augment": augment, "seed": seed}
    info = find(name)
    if info is None:
        dataset = _load_own(name, folder, {**parts, "split": split}, values, asked_task)
        dataset = _measured(dataset, measures)
        return in_one_part(dataset) if whole else dataset
    if split is not None and not info.client_folders:
        raise ConfigError(f"data.partition_file {split!r}: {name} has no folders of client lists")
    asked: dict[str, Any] = {"folder": folder, "split": split, "num_clients": num_clients}
    asked |= {"image_size": image_size, "seed": seed, "columns": columns or {}}
    asked |= {"source": info.source, "known_words": known_words, "preprocessing": preprocessing}
    asked |= {"task": asked_task}
    raw = info.read(Request(name=name, **asked), **values)
    made: dict[str, Any] = {"enlarge": enlarge, "group": group, "whole": whole}
    made |= {"task": asked_task}
    return _measured(assemble(raw, name, **made, **parts), measures)


def _measured(dataset: Dataset, measures: Sequence[str]) -> Dataset:
    """The data set whose task has further measures; a task of the user's is tried before."""
    if dataset.task is not None and ":" in dataset.task.name:
        check_own(dataset.task, dataset)
    return (
        replace(dataset, task=tasks.with_more(tasks.of(dataset), measures)) if measures else dataset
    )


def reader(name: str) -> Callable[..., Any]:
    """The function that reads a data set, built in or a user's."""
    info = find(name)
    if info is not None:
        return info.read
    if ":" in name:
        return resolve(name, f"data set {name!r}")
    names = [info.name for info in catalogue()]
    raise ConfigError(
        f"unknown data set {name!r}{nearest(name, names)}; allowed: {', '.join(names)}, "
        "module:function"
    )


def _load_own(
    name: str,
    folder: Path | None,
    settings: Mapping[str, Any],
    values: Mapping[str, Scalar],
    task: Task | None = None,
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
        kind = type(dataset).__name__
        raise DataError(f"{where}: returned {kind}, needed is fedsim.core.types.Dataset")
    with users_code(where, DataError):
        dataset = replace(dataset, **for_task(dataset, task))
        check(dataset, name)
    return dataset
