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
from fedsim.core import imports
from fedsim.core.errors import ConfigError, nearest
from fedsim.core.settings import InvalidSetting, Scalar, checked, defaults
from fedsim.data import partitions
from fedsim.server import plain

if TYPE_CHECKING:
    from fedsim.algorithms.base import Algorithm


def cohort_size(num_clients: int, sample_rate: float) -> int:
    """m = max(1, floor(rate K)), the number of clients in a round.

    A product that floating-point rounding leaves just below a whole number counts as that number.
    """
    return max(1, math.floor(sample_rate * num_clients + 1e-9))


def is_section(name: str) -> bool:
    """Whether a top-level key is the section of a method or data set, or ``module:function``."""
    return ":" in name or name in algorithms.names() or data.find(name) is not None


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
    """The options of what ``key`` names, that are keys of the section of that name.

    A partition's, an attack's and a compressor's may also be keys of ``data``, ``attack`` and
    ``compress``.
    """
    if key == "data.name":
        return data.options(name)
    declared, elsewhere = {
        "data.partition": (partitions.options, partitions.IN_DATA),
        "attack.name": (ATTACKS.parameters, AttackConfig.model_fields),
        "compress.name": (COMPRESSORS.parameters, CompressConfig.model_fields),
    }.get(key, (algorithms.parameters, ()))
    return {option: p for option, p in declared(name).items() if option not in elsewhere}


def default_options(key: str, name: str) -> dict[str, Any]:
    """The defaults of the options of what ``key`` names."""
    try:
        return defaults(options_of(key, name))
    except ConfigError as error:
        raise InvalidSetting(key, str(error)) from error


def check_part_options(key: str, name: str, given: Any) -> dict[str, Scalar]:
    """The section of the user's partition, attack or compressor that ``key`` names."""
    if not isinstance(given, Mapping):
        raise InvalidSetting(name, f"{given!r} given; must be a section of options")
    return checked(name, options_of(key, name), given, "option")


def check_unused_options(name: str, given: Any) -> dict[str, Scalar]:
    """The section of a ``module:function`` that is not used."""
    if not isinstance(given, Mapping | None):
        raise InvalidSetting(name, f"{given!r} given; must be a section of options")
    where = f"section {name!r}"
    try:
        declared = imports.signature(imports.resolve(name, where), where, evaluate=True).parameters
    except ConfigError as error:
        raise InvalidSetting(name, str(error)) from error
    given = given or {}
    typed = {key: plain.typed(p) for key, p in declared.items()}
    used = {k: p for k, p in typed.items() if k in given or p.default is not p.empty}
    return checked(name, used, given, "option")


def check_data_options(name: str, given: Any, used: object, folder: object) -> dict[str, Scalar]:
    """The section of data set ``name``; empty where ``used``, the value of data.name, is another.

    ``folder`` is the value of data.dir; with one, generated data are not drawn.

    Raises:
        InvalidSetting: no such option or value, or one that has no effect and not its default.
    """
    if not isinstance(given, Mapping | None):
        raise InvalidSetting(name, f"{given!r} given; must be a section of options")
    declared, info = data.options(name), data.find(name)
    values = checked(name, declared, given or {}, "option")
    generated = info is not None and info.generated
    if name == used and not (generated and folder):
        return values
    for leaf, value in values.items():
        if value != declared[leaf].default:
            drawn = "is drawn with it, without data.dir" if generated else "has it"
            raise InvalidSetting(f"{name}.{leaf}", f"only data set {name} {drawn}")
    return values if name == used else {}


def check_hyperparameters(name: str, given: Any) -> tuple[dict[str, Scalar], Algorithm]:
    """One method's section, with the types that ``build`` declares, and the method it builds.

    Where ``build`` refuses the values, the key is that of the value that it refuses alone.
    """
    if not isinstance(given, Mapping | None):
        raise InvalidSetting(name, f"{given!r} given; must be a section of hyperparameters")
    try:
        values = algorithms.check(name, given or {})
    except InvalidSetting:
        raise
    except ConfigError as error:
        raise InvalidSetting(name, str(error)) from error
    try:
        return values, algorithms.load(name, values)
    except ConfigError as error:
        declared = algorithms.parameters(name)
        required = {k: v for k, v in values.items() if declared[k].default is Parameter.empty}
        for leaf, value in values.items():
            try:
                algorithms.load(name, required | {leaf: value})
            except ConfigError:
                raise InvalidSetting(f"{name}.{leaf}", str(error)) from error
        raise InvalidSetting(name, str(error)) from error
