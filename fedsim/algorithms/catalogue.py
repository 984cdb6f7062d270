"""The methods' names, docstrings and hyperparameters, read from their source.

To import the methods takes two seconds, since they import torch. Lists, completion and the check of
a configuration do without; a test compares what is read here with what is imported.
"""

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from importlib import resources
from inspect import Parameter
from typing import Any

import fedsim.algorithms
from fedsim.core.errors import ConfigError, nearest
from fedsim.core.imports import plugins, resolve, signature
from fedsim.core.settings import Scalar, checked

FIELDS = ("client", "server", "state", "sends", "public code")
"""What every built-in method's docstring says at its end, for docs/METHODS.md."""
_FROM_SOURCE = ("fedsim.algorithms", "fedsim.client", "fedsim.server")
"""Packages that are read, not imported."""


def names() -> tuple[str, ...]:
    """The names of all built-in methods, sorted: of the files that define ``build``."""
    return plugins(fedsim.algorithms.__path__, "build")


def check_known(name: str) -> None:
    """Refuses what is no built-in method.

    Raises:
        ConfigError: no such method.
    """
    if name not in names():
        raise ConfigError(
            f"unknown algorithm {name!r}; known are {', '.join(names())}, "
            f"or module:function{nearest(name, names())}"
        )


def describe(name: str) -> str:
    """The first line of the method's docstring: what it is and its source."""
    return (_docstring(name) or name).splitlines()[0]


def fields(name: str) -> Mapping[str, str]:
    """The fields at the end of a method's docstring, ``:client: plain SGD`` and so on."""
    found = re.findall(r"^:([a-z ]+): (.+(?:\n    .+)*)", _docstring(name), re.MULTILINE)
    return {field: " ".join(content.split()) for field, content in found}


def build_docstring(name: str) -> str:
    """The docstring of the method's ``build``, which describes the hyperparameters."""
    if ":" in name:
        return inspect.getdoc(_users(name)) or ""
    return ast.get_docstring(_build(name)) or ""


def parameters(name: str) -> Mapping[str, Parameter]:
    """The hyperparameters of a method: the keyword parameters of its ``build``.

    Raises:
        ConfigError: no such method, ``module:function`` that cannot be imported, or a parameter
            without a type or a name to give it by.
    """
    if ":" not in name:
        check_known(name)
        return _declared(name)
    where = f"algorithm {name!r}"
    found = signature(_users(name), where, evaluate=True).parameters
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


def chain(server: str | None) -> tuple[str, ...]:
    """The methods that ``server`` names, in their order.

    Raises:
        ConfigError: one of them is named twice.
    """
    found = () if server is None else tuple(part.strip() for part in server.split(","))
    for name in found:
        if found.count(name) > 1:
            raise ConfigError(
                f"server {server!r} names {name!r} twice, but there is one set of hyperparameters "
                "for each method"
            )
    return found


def _users(name: str) -> Callable[..., Any]:
    return resolve(name, f"algorithm {name!r}")


def _docstring(name: str) -> str:
    if ":" in name:
        return inspect.getdoc(inspect.getmodule(_users(name))) or ""
    check_known(name)
    return ast.get_docstring(_tree(f"fedsim.algorithms.{name}")) or ""


@functools.cache
def _tree(module: str) -> ast.Module:
    """The syntax tree of a module of fedsim."""
    *folders, name = module.split(".")[1:]
    folder = resources.files("fedsim").joinpath(*folders)
    if folder.joinpath(name).is_dir():
        folder, name = folder.joinpath(name), "__init__"
    return ast.parse(folder.joinpath(f"{name}.py").read_text(encoding="utf-8"))


def _build(name: str) -> ast.FunctionDef:
    """The definition of a method's ``build``."""
    check_known(name)
    statements = _tree(f"fedsim.algorithms.{name}").body
    return next(s for s in statements if isinstance(s, ast.FunctionDef) and s.name == "build")


@functools.cache
def _declared(name: str) -> Mapping[str, Parameter]:
    """The parameters of a built-in method's ``build``, as :mod:`inspect` would give them."""
    arguments, known = _build(name).args, _names(f"fedsim.algorithms.{name}")
    missing: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    given = zip(arguments.args, missing + list(arguments.defaults), strict=True)
    only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    kinds = ((given, Parameter.POSITIONAL_OR_KEYWORD), (only, Parameter.KEYWORD_ONLY))
    return {
        argument.arg: Parameter(
            argument.arg,
            kind,
            default=Parameter.empty if default is None else known.value(default),
            annotation=known.value(argument.annotation),
        )
        for pairs, kind in kinds
        for argument, default in pairs
    }


class _Names(dict[str, Any]):
    """The names that a module of fedsim assigns or imports at its top, evaluated on first use."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self._nodes: dict[str, ast.expr] = {}
        self._imports: dict[str, tuple[str, str]] = {}
        for node in _tree(module).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._nodes[node.targets[0].id] = node.value
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self._imports[alias.asname or alias.name] = node.module, alias.name

    def __missing__(self, name: str) -> Any:
        """The value of a name; a KeyError leaves it to Python's own."""
        if name in self._nodes:
            self[name] = self.value(self._nodes[name])
        else:
            module, original = self._imports[name]
            if module.startswith(_FROM_SOURCE):
                self[name] = _names(module)[original]
            else:
                self[name] = getattr(importlib.import_module(module), original)
        return self[name]

    def value(self, expression: Any) -> Any:
        """The value of an expression, with the module's names."""
        return eval(compile(ast.Expression(expression), "<method>", "eval"), {}, self)


_names = functools.cache(_Names)
