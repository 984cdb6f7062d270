"""Checks of single settings; each raises :class:`InvalidSetting`, one line that names the key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from inspect import Parameter
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedsim import algorithms
from fedsim.core.errors import ConfigError, nearest

Scalar = str | int | float | bool | None


class InvalidSetting(ConfigError):
    """A setting that cannot be used.

    Args:
        key: dotted, such as ``train.lr``.
        reason: what was given and what is allowed.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key, self.reason = key, reason

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"


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
    key: str, value: str | None, allowed: Iterable[str], what: str, own: bool = False
) -> None:
    """Checks that a name is known; ``own`` also allows ``module:function``."""
    names = tuple(allowed)
    if value is None or value in names or (own and ":" in value):
        return
    more = ", module:function" if own else ""
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
    """One method's section, each value of the type that ``build`` declares and accepted by it."""
    if not isinstance(given, Mapping | None):
        raise InvalidSetting(name, f"{given!r} given; must be a section of hyperparameters")
    declared = algorithms.parameters(name)
    values: dict[str, Scalar] = {}
    for leaf, value in (given or {}).items():
        if leaf not in declared:
            allowed = f"allowed: {', '.join(declared)}" if declared else f"{name} has none"
            raise InvalidSetting(
                f"{name}.{leaf}",
                f"unknown hyperparameter {leaf!r}{nearest(leaf, declared)}; {allowed}",
            )
        values[leaf] = _typed(f"{name}.{leaf}", value, declared[leaf].annotation)
    for leaf, parameter in declared.items():
        if parameter.default is Parameter.empty and leaf not in values:
            raise InvalidSetting(f"{name}.{leaf}", f"missing; {name} has no default for it")
    _build(name, values)
    return values


def _build(name: str, values: Mapping[str, Scalar]) -> None:
    """Builds the method; where it refuses, finds the value that it refuses alone."""
    try:
        algorithms.load(name, values)
    except ConfigError as error:
        required = {
            leaf: values[leaf]
            for leaf, p in algorithms.parameters(name).items()
            if p.default is Parameter.empty
        }
        for leaf, value in values.items():
            try:
                algorithms.load(name, required | {leaf: value})
            except ConfigError:
                raise InvalidSetting(f"{name}.{leaf}", str(error)) from error
        raise InvalidSetting(name, str(error)) from error


def _typed(key: str, value: object, kind: Any) -> Scalar:
    if isinstance(value, bool) and kind is not bool:
        raise InvalidSetting(key, f"{value!r} given; must not be true or false")
    adapter: TypeAdapter[Scalar] = TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise InvalidSetting(key, complaint(error)) from None


def complaint(error: ValidationError) -> str:
    """pydantic's first complaint in our words: ``'x' given; must be a valid number``."""
    first = error.errors(include_url=False)[0]
    said = first["msg"].removeprefix("Value error, ").removeprefix("Input should ")
    said = said.partition(", unable to parse")[0].partition(", unable to interpret")[0]
    said = said if said.startswith("must") else f"must {said}"
    value = first["input"]
    if not isinstance(value, str | int | float | None):
        return said
    choices = str(first.get("ctx", {}).get("expected", "")).split("'")[1::2]
    given = "null" if value is None else repr(value)
    return f"{given} given; {said}{nearest(str(value), choices)}"
