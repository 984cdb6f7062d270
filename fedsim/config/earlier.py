"""What stands for settings that runs of earlier versions did not write.

A setting that is missing in a run's config.yaml, in a checkpoint or in summary.csv has its default,
unless the field of :mod:`fedsim.config.sections`, or the parameter of the method or data set, is
marked by :class:`~fedsim.core.settings.Before`. There is no other list of such values; that of
``analysis``, which imports nothing of fedsim, is written from them (``docs/earlier.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import Parameter
from typing import Any

from fedsim import algorithms, data
from fedsim.config.experiments import Setting, Settings
from fedsim.config.sections import fields
from fedsim.core.settings import before

WRITTEN = (
    *("data.min_samples", "data.image_size", "data.augment", "model.weights", "train.threads"),
    *("evaluation.batch_size", "engine.cpus_per_client", "engine.working_dir"),
)
"""Keys that are in every run's config.yaml, of whatever version; together in no other file."""


def values(methods: Iterable[str] = (), data_sets: Iterable[str] = ()) -> dict[str, Any]:
    """By dotted key what stands for it in a run whose version did not have it.

    Args:
        methods: whose hyperparameters are wanted, too.
        data_sets: whose options are wanted, too.
    """
    return {key: value for key, (value, _) in _with_defaults(methods, data_sets).items()}


def of_its_version(settings: Settings) -> Settings:
    """The settings of a run, with what repeats it where its version did not have a key.

    Keys whose default does so are left out, as if they had not been given.
    """
    found = _with_defaults(*used({key: given.value for key, given in settings.items()}))
    marked = {
        key: Setting(value, f"{key}, of an earlier version")
        for key, (value, default) in found.items()
        if value != default
    }
    return {**marked, **settings}


def of_a_file(settings: Settings) -> Settings:
    """The settings of any file, which is only perhaps the config.yaml of a run."""
    return of_its_version(settings) if all(key in settings for key in WRITTEN) else settings


def used(settings: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The methods and the data set that a run of these settings uses, without the user's own."""
    given = {key: field.default for key, field in fields().items()} | dict(settings)
    server = given["server"]
    servers = server if isinstance(server, list) else str(server).split(",")
    named = dict.fromkeys(str(name).strip() for name in (given["algorithm"], *servers))
    data_set = str(given["data.name"])
    methods = [name for name in named if name in algorithms.names()]
    return methods, [data_set] if data.find(data_set) is not None else []


def _with_defaults(methods: Iterable[str], data_sets: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """What stands for each key, and its default."""
    found = {
        key: (before(field.metadata, field.default), field.default)
        for key, field in fields().items()
    }
    options = {name: algorithms.parameters(name) for name in methods}
    options |= {name: data.options(name) for name in data_sets}
    for section, declared in options.items():
        for leaf, parameter in declared.items():
            if parameter.default is not Parameter.empty:
                marks = getattr(parameter.annotation, "__metadata__", ())
                value = before(marks, parameter.default)
                found[f"{section}.{leaf}"] = value, parameter.default
    return found
