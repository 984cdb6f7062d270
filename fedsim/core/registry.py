"""Parts of a run that are found by name: one file each in a package, or a function of the user's.

The file defines ``build``, whose typed keyword parameters are the part's settings: help, the check
of configuration files and CSV columns come from the signature. A part that lives elsewhere is named
``module:function`` or ``FILE.py:function``.
"""

import ast
import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from typing import Any, TypeVar

from fedsim.core.errors import ConfigError, nearest
from fedsim.core.imports import plugins, resolve, signature, users_code
from fedsim.core.settings import checked

T = TypeVar("T")


@dataclass(frozen=True)
class Registry:
    """The parts of one ``kind``, as messages call it: files of a ``package`` that define ``build``,
    whose ``first`` so many parameters fedsim gives.
    """

    kind: str
    package: str
    first: int = 0

    def names(self) -> tuple[str, ...]:
        """The names of all built-in parts, sorted."""
        return plugins(tuple(importlib.import_module(self.package).__path__), "build")

    def check_known(self, name: str) -> None:
        """Refuses what is no built-in part."""
        if name not in self.names():
            raise ConfigError(
                f"unknown {self.kind} {name!r}; known are {', '.join(self.names())}, "
                f"module:function or FILE.py:function{nearest(name, self.names())}"
            )

    def builder(self, name: str) -> Callable[..., Any]:
        """The function that builds a part; its module is imported."""
        if ":" in name:
            return resolve(name, self.title(name))
        self.check_known(name)
        build: Callable[..., Any] = importlib.import_module(f"{self.package}.{name}").build
        return build

    def parameters(self, name: str) -> Mapping[str, Parameter]:
        """The settings of a part: the keyword parameters of its ``build``, with their types."""
        declared = signature(self.builder(name), self.title(name), evaluate=True).parameters
        settings = dict(list(declared.items())[self.first :])
        for key, parameter in settings.items():
            by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if not by_name or parameter.annotation is parameter.empty:
                raise ConfigError(
                    f"{self.title(name)}: {str(parameter)!r} is no hyperparameter; all parameters "
                    f"of the function have to be keywords with a type, as in {key}: float = 0.5"
                )
        return settings

    def defaults(self, name: str) -> dict[str, Any]:
        """The settings of a built-in part that have a default, read without importing its file."""
        build = _source(f"{self.package}.{name}")[1].args
        keys = (*build.args[len(build.args) - len(build.defaults) :], *build.kwonlyargs)
        pairs = zip(keys, (*build.defaults, *build.kw_defaults), strict=True)
        return {key.arg: ast.literal_eval(value) for key, value in pairs if value is not None}

    def build(self, name: str, kind: type[T], first: Iterable[Any], values: Mapping[str, Any]) -> T:
        """The part; ``first`` are the arguments that fedsim gives, ``values`` the settings."""
        builder, settings = self.builder(name), checked(name, self.parameters(name), values)
        return self.made(name, kind, builder, *first, **settings)

    def made(
        self, name: str, kind: type[T], function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> T:
        """What ``function`` returns, a ConfigError where that is no ``kind``."""
        with users_code(self.title(name), ConfigError):
            part = function(*args, **kwargs)
        if not isinstance(part, kind):
            raise ConfigError(
                f"{self.title(name)}: the function returned {type(part).__name__}, needed is "
                f"{kind.__module__}.{kind.__qualname__}"
            )
        return part

    def title(self, name: str) -> str:
        """What messages begin with."""
        return f"{self.kind} {name!r}"

    def describe(self, name: str) -> str:
        """The first line of a built-in part's file: what it is and its source."""
        return self.docstrings(name)[0].partition("\n")[0] or name

    def fields(self, name: str) -> Mapping[str, str]:
        """The fields at the end of that docstring, ``:client: plain SGD`` and so on."""
        field = re.compile(r"^:([a-z ]+): (.+(?:\n    .+)*)", re.MULTILINE)
        pairs = field.findall(self.docstrings(name)[0])
        return {field: " ".join(content.split()) for field, content in pairs}

    def docstrings(self, name: str) -> tuple[str, str]:
        """The docstrings of a built-in part's file and of its ``build``; imports nothing."""
        self.check_known(name)
        file, build = _source(f"{self.package}.{name}")
        return ast.get_docstring(file) or "", ast.get_docstring(build) or ""


@cache
def _source(module: str) -> tuple[ast.Module, ast.FunctionDef]:
    """A part's file as it is written, and its ``build``."""
    spec = find_spec(module)
    file = ast.parse(Path(spec.origin if spec and spec.origin else "").read_text(encoding="utf-8"))
    functions = {node.name: node for node in file.body if isinstance(node, ast.FunctionDef)}
    return file, functions["build"]
