"""The methods' names, docstrings and hyperparameters."""

from collections.abc import Mapping
from inspect import Parameter
from typing import Any

from fedsim.core.errors import ConfigError
from fedsim.core.registry import Registry
from fedsim.core.settings import Scalar, checked
from fedsim.server import plain

METHODS = Registry("algorithm", "fedsim.algorithms")
FIELDS = ("client", "server", "state", "sends", "public code")
"""What every built-in method's docstring says at its end, for docs/METHODS.md."""

names, describe, fields = METHODS.names, METHODS.describe, METHODS.fields


def parameters(name: str) -> Mapping[str, Parameter]:
    """The hyperparameters of a method: the keyword parameters of its ``build``, or of a rule."""
    if ":" in name and plain.is_rule(METHODS.builder(name), METHODS.title(name)):
        return plain.hyperparameters(METHODS.builder(name), METHODS.title(name))
    return METHODS.parameters(name)


def check(name: str, hyperparameters: Mapping[str, Any]) -> dict[str, Scalar]:
    """The hyperparameters with the types that the method's ``build`` declares."""
    return checked(name, parameters(name), hyperparameters)


def chain(server: str | None) -> tuple[str, ...]:
    """The methods that ``server`` names, in their order."""
    methods = () if server is None else tuple(part.strip() for part in server.split(","))
    for name in methods:
        if methods.count(name) > 1:
            raise ConfigError(
                f"server {server!r} names {name!r} twice, but there is one set of hyperparameters "
                "for each method"
            )
    return methods
