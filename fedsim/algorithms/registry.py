"""The methods: one file each, found by its name; ``build(**hyperparameters) -> Algorithm``.

The typed keyword parameters of ``build`` are the method's hyperparameters: help, the check of
configuration files and the CSV columns come from the signature. A method that lives elsewhere is
named ``module:function``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import fedsim.algorithms
from fedsim.algorithms.base import Algorithm
from fedsim.client.criterion import MarginControl
from fedsim.core.errors import ConfigError, nearest
from fedsim.core.imports import resolve, signature
from fedsim.core.settings import Scalar, checked


def names() -> tuple[str, ...]:
    """The names of all built-in methods, sorted."""
    modules = (m.name for m in pkgutil.iter_modules(fedsim.algorithms.__path__))
    return tuple(sorted(set(modules) - {"base", "registry"}))


def describe(name: str) -> str:
    """The first line of the method's docstring: what it is and its source."""
    text = inspect.getdoc(inspect.getmodule(builder(name))) or name
    return text.splitlines()[0]


FIELDS = ("client", "server", "state", "sends", "public code")
"""What every built-in method's docstring says at its end, for docs/METHODS.md."""


def fields(name: str) -> Mapping[str, str]:
    """The fields at the end of a method's docstring, ``:client: plain SGD`` and so on."""
    text = inspect.getdoc(inspect.getmodule(builder(name))) or ""
    found = re.findall(r"^:([a-z ]+): (.+(?:\n    .+)*)", text, re.MULTILINE)
    return {field: " ".join(content.split()) for field, content in found}


def parameters(name: str) -> Mapping[str, inspect.Parameter]:
    """The hyperparameters of a method: the keyword parameters of its ``build``.

    Raises:
        ConfigError: no such method, ``module:function`` that cannot be imported, or a parameter
            without a type or a name to give it by.
    """
    where = f"algorithm {name!r}"
    found = signature(builder(name), where, evaluate=True).parameters
    for key, parameter in found.items():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not named or parameter.annotation is parameter.empty:
            raise ConfigError(
                f"{where}: {str(parameter)!r} is no hyperparameter; all parameters of the function "
                f"have to be keywords with a type, as in {key}: float = 0.5"
            )
    return found


def check(name: str, hyperparameters: Mapping[str, Any]) -> dict[str, Scalar]:
    """The hyperparameters with the types that the method's ``build`` declares.

    Raises:
        ConfigError: no such method or hyperparameter, a value that is missing or of another type.
    """
    return checked(name, parameters(name), hyperparameters)


def load(name: str, hyperparameters: Mapping[str, Any] | None = None) -> Algorithm:
    """Builds a method.

    Raises:
        ConfigError: as :func:`check`, a value that the method refuses, or a function of the user's
            that builds something else.
    """
    built = builder(name)(**check(name, hyperparameters or {}))
    if not isinstance(built, Algorithm):
        raise ConfigError(
            f"algorithm {name!r}: the function returned {type(built).__name__}, needed is "
            "fedsim.algorithms.Algorithm"
        )
    return built


def compose(
    name: str,
    hyperparameters: Mapping[str, Mapping[str, Any]],
    *,
    server: str | None = None,
    margin: str | None = None,
    margin_weight: float | None = None,
    margin_threshold: float | None = None,
) -> Algorithm:
    """A method, with another method's reduction or another margin control where they are given.

    None means the method's own. ``server`` reads the hyperparameters of the method it names; an
    exchange (FedPAC's heads) stays with the clients it belongs to, a server optimiser goes with the
    server rule.

    Raises:
        ConfigError: as :func:`load`, or the two do not go together.
    """
    algorithm = load(name, hyperparameters.get(name))
    if server not in (None, name):
        other = load(server, hyperparameters.get(server)).server
        own = algorithm.server
        if own.fixed:
            raise ConfigError(f"server {server!r} cannot serve {name}, which {own.fixed}")
        if other.own_clients:
            what = other.fixed or "works with what its own clients send"
            raise ConfigError(f"server {server!r} cannot serve {name}: it {what}")
        both = replace(own, reduce=other.reduce, then=other.then, whole=other.whole)
        algorithm = replace(algorithm, server=both)
    loss = algorithm.criterion
    criterion = MarginControl(
        loss.form if margin is None else margin,
        loss.weight if margin_weight is None else margin_weight,
        loss.threshold if margin_threshold is None else margin_threshold,
    )
    return replace(algorithm, criterion=criterion)


def builder(name: str) -> Callable[..., Algorithm]:
    """The function that builds a method.

    Raises:
        ConfigError: no such method.
    """
    if ":" in name:
        return resolve(name, f"algorithm {name!r}")
    if name not in names():
        raise ConfigError(
            f"unknown algorithm {name!r}; known are {', '.join(names())}, "
            f"or module:function{nearest(name, names())}"
        )
    build: Callable[..., Algorithm] = importlib.import_module(f"fedsim.algorithms.{name}").build
    return build
