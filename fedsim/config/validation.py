"""Checks of single settings; each raises :class:`InvalidSetting`, one line that names the key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from inspect import Parameter
from typing import TYPE_CHECKING, Any

from fedsim import algorithms, data
from fedsim.attacks import ATTACKS
from fedsim.compressors import COMPRESSORS
from fedsim.config.attack import AttackConfig
from fedsim.config.compress import CompressConfig
from fedsim.core.errors import ConfigError, nearest
from fedsim.core.settings import InvalidSetting, Scalar, checked, defaults
from fedsim.data import partitions
from fedsim.tasks import TASKS

if TYPE_CHECKING:
    from fedsim.algorithms.base import Algorithm


def cohort_size(num_clients: int, sample_rate: float) -> int:
    """m = max(1, floor(rate K)), the clients in a round, up to floating-point rounding."""
    return max(1, math.floor(sample_rate * num_clients + 1e-9))


def is_section(name: str) -> bool:
    """Whether a top-level key is the section of a method, data set or task, or
    ``module:function``."""
    known = name in algorithms.names() or name in TASKS.names()
    return ":" in name or known or data.find(name) is not None


def check_name(
    key: str, value: str | None, allowed: Iterable[str], what: str, *, user_defined: bool = False
) -> None:
    """Checks that a name is known; ``user_defined`` also allows ``module:function``."""
    names = tuple(allowed)
    if value is None or value in names or (user_defined and ":" in value):
        return
    more = ", module:function" if user_defined else ""
    raise InvalidSetting(
        key, f"unknown {what} {value!r}{nearest(value, names)}; allowed: {', '.join(names)}{more}"
    )


def options_of(key: str, name: str) -> Mapping[str, Parameter]:
    """The options of what ``key`` names that are keys of a section of that name."""
    if key == "data.name":
        return data.options(name)
    declared, elsewhere = {
        "data.partition": (partitions.options, partitions.IN_DATA),
        "attack.name": (ATTACKS.parameters, AttackConfig.model_fields),
        "compress.name": (COMPRESSORS.parameters, CompressConfig.model_fields),
        "task": (TASKS.parameters, ()),
    }.get(key, (algorithms.parameters, ()))
    return {option: p for option, p in declared(name).items() if option not in elsewhere}


def default_options(key: str, name: str) -> dict[str, Any]:
    """The defaults of the options of what ``key`` names."""
    try:
        return defaults(options_of(key, name))
    except ConfigError as error:
        raise InvalidSetting(key, str(error)) from error


def check_data_options(
    name: str, given: Mapping[str, object], used: object, folder: object
) -> dict[str, Scalar]:
    """The section of data set ``name``; empty where another is ``used``."""
    declared, info = data.options(name), data.find(name)
    values = checked(name, declared, given, "option")
    generated = info is not None and info.generated
    words = "is drawn with it, without data.dir" if generated else "has it"
    for leaf, value in values.items():
        if (name != used or (generated and folder)) and value != declared[leaf].default:
            raise InvalidSetting(f"{name}.{leaf}", f"only data set {name} {words}")
    return values if name == used else {}


def check_hyperparameters(
    name: str, given: Mapping[str, object]
) -> tuple[dict[str, Scalar], Algorithm]:
    """One method's section, with the types that ``build`` declares, and the method it builds."""
    try:
        values = algorithms.check(name, given)
        return values, algorithms.load(name, values)
    except InvalidSetting:
        raise
    except ConfigError as error:
        raise InvalidSetting(name, str(error)) from error
