"""Checks of single settings; each raises :class:`InvalidSetting`, one line that names the key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from inspect import Parameter
from typing import Any

from fedsim import algorithms
from fedsim.core.errors import ConfigError, nearest
from fedsim.core.settings import InvalidSetting, Scalar


def cohort_size(num_clients: int, sample_rate: float) -> int:
    """m = floor(rate K), the number of clients in a round.

    Raises:
        ConfigError: the rate samples no client.
    """
    expected = sample_rate * num_clients
    if expected + 1e-9 < 1:
        raise ConfigError(
            f"{num_clients} clients times sample rate {sample_rate:g} is {expected:g}, which "
            f"samples no client; the rate must be at least {1 / num_clients:.4g}"
        )
    return math.floor(expected + 1e-9)


def is_method(name: str) -> bool:
    """Whether a top-level key is a method's section: its name, or ``module:function``."""
    return ":" in name or name in algorithms.names()


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


def default_hyperparameters(role: str, name: str) -> dict[str, Any]:
    """The defaults of a method's ``build``; ``role`` is the key that names the method."""
    try:
        declared = algorithms.parameters(name)
    except ConfigError as error:
        raise InvalidSetting(role, str(error)) from error
    return {leaf: p.default for leaf, p in declared.items() if p.default is not Parameter.empty}


def check_hyperparameters(name: str, given: Any) -> dict[str, Scalar]:
    """One method's section, with the types that ``build`` declares, and accepted by it.

    Where ``build`` refuses the values, the key is that of the value that it refuses alone.
    """
    if not isinstance(given, Mapping | None):
        raise InvalidSetting(name, f"{given!r} given; must be a section of hyperparameters")
    values = algorithms.check(name, given or {})
    try:
        algorithms.load(name, values)
    except ConfigError as error:
        declared = algorithms.parameters(name)
        required = {k: v for k, v in values.items() if declared[k].default is Parameter.empty}
        for leaf, value in values.items():
            try:
                algorithms.load(name, required | {leaf: value})
            except ConfigError:
                raise InvalidSetting(f"{name}.{leaf}", str(error)) from error
        raise InvalidSetting(name, str(error)) from error
    return values
