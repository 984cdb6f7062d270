"""Functions that a user names, plugins, and imports of large libraries.

A function is named ``module:function``, or ``FILE.py:function`` by its file.
"""

import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsim.core.errors import ConfigError, FedsimError, described, nearest, one_line

SUFFIX = ".py"
"""End of what names a function by its file."""
_refusals: list[str] = []
"""Why no function that a user names may be imported now; the last one counts."""


@contextmanager
def refused(reason: str) -> Iterator[None]:
    """Within the block no function that a configuration names is imported, for this reason."""
    _refusals.append(reason)
    try:
        yield
    finally:
        _refusals.pop()


def resolve(name: str, where: str) -> Callable[..., Any]:
    """The callable of this name, imported; a ConfigError that begins with ``where`` if it fails."""
    module_name, function_name = module_of(name, where), name.rpartition(":")[2]
    if not all((*module_name.split("."), function_name)):
        raise ConfigError(f"{where}: {name!r} is not of the form module:function")
    try:
        module = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also of a module that ends the process
        reason = one_line(error) if isinstance(error, ImportError) else described(error)
        raise ConfigError(f"{where}: {module_name!r} cannot be imported ({reason})") from error
    file, module_file = name.rpartition(":")[0], str(getattr(module, "__file__", None))
    if file.endswith(SUFFIX) and Path(module_file).resolve() != Path(file).resolve():
        taken = f"another module {module_name!r} ({module_file})"
        raise ConfigError(f"{where}: Python already has {taken}; rename {file}")
    function = getattr(module, function_name, None)
    if not callable(function):
        callables = [key for key, value in vars(module).items() if callable(value)]
        raise ConfigError(
            f"{where}: {module_name} has no function {function_name!r}"
            f"{nearest(function_name, callables)}"
        )
    return function


def module_of(name: str, where: str) -> str:
    """The dotted module of ``module:function``.

    Of ``FILE.py:function`` it is the file's name, and its folder is put into ``sys.path`` and, for
    the workers of a Ray that this process starts, into ``PYTHONPATH``; on another cluster the file
    has to lie in the working directory.
    """
    if _refusals:
        raise ConfigError(f"{where}: {name}: {_refusals[-1]}")
    module = name.rpartition(":")[0]
    if not module.endswith(SUFFIX):
        return module
    file = Path(module)
    if not file.is_file():
        raise ConfigError(f"{where}: there is no file {module} in {Path.cwd()}")
    if not file.stem.isidentifier():
        raise ConfigError(f"{where}: {file.name} is no name of a module; rename it, as in my.py")
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
        others = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{others}" if others else folder
        importlib.invalidate_caches()
    return file.stem


def signature(
    function: Callable[..., Any], where: str, *, evaluate: bool = False
) -> inspect.Signature:
    """The parameters of ``function``; ``evaluate`` turns annotations that are text into types."""
    try:
        return inspect.signature(function, eval_str=evaluate)
    except (ValueError, TypeError, NameError, AttributeError, SyntaxError) as error:
        raise ConfigError(f"{where}: its parameters cannot be read ({error})") from error


def options(
    function: Callable[..., Any], where: str, besides: Iterable[str] = ()
) -> dict[str, inspect.Parameter]:
    """The typed keyword-only parameters of a function but those ``besides``, as its options."""
    declared = signature(function, where).parameters.values()
    names = [p.name for p in declared if p.kind is p.KEYWORD_ONLY and p.annotation is not p.empty]
    typed = signature(function, where, evaluate=True).parameters if {*names} - {*besides} else {}
    return {name: typed[name] for name in names if name not in besides}


def call(function: Callable[..., Any], where: str, *args: Any, **kwargs: Any) -> Any:
    """Calls a user's ``function``; a ConfigError where it takes other arguments or raises."""
    with users_code(where, ConfigError):
        return function(*args, **kwargs)


@functools.cache
def plugins(folders: tuple[str, ...], function: str) -> tuple[str, ...]:
    """The modules in ``folders`` that define ``function`` at their top, sorted; imports nothing."""
    defines = re.compile(rf"^def {function}\b", re.MULTILINE)
    patterns = ("[!_]*.py", "*/__init__.py")
    files = [f for folder in folders for pattern in patterns for f in Path(folder).glob(pattern)]
    return tuple(
        sorted(
            file.parent.name if file.stem == "__init__" else file.stem
            for file in files
            if defines.search(file.read_text(encoding="utf-8"))
        )
    )


@contextmanager
def users_code(where: str, kind: type[FedsimError]) -> Iterator[None]:
    """Turns what the user's code raises, but Ctrl-C, into an error of a ``kind`` with its line."""
    try:
        yield
    except (FedsimError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit as well: a run does not end without a word
        raise kind(f"{where}: {described(error)}") from error
