"""Functions that a user names as ``module:function``."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from fedsim.core.errors import ConfigError, nearest, one_line


def resolve(name: str, where: str) -> Callable[..., Any]:
    """The callable that ``module:function`` names; its module is imported.

    Args:
        name: dotted module, colon, name in that module.
        where: where the name was given; every message begins with it.

    Raises:
        ConfigError: not of this form, a module that cannot be imported (whatever it raises), or
            nothing callable of that name.
    """
    module_name, _, function_name = name.partition(":")
    if not all((*module_name.split("."), function_name)):
        raise ConfigError(f"{where}: {name!r} is not of the form module:function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        reason = f"{kind}{one_line(error)}"
        raise ConfigError(f"{where}: {module_name!r} cannot be imported ({reason})") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        callables = [key for key, value in vars(module).items() if callable(value)]
        raise ConfigError(
            f"{where}: {module_name} has no function {function_name!r}"
            f"{nearest(function_name, callables)}"
        )
    return function


def signature(
    function: Callable[..., Any], where: str, *, evaluate: bool = False
) -> inspect.Signature:
    """The parameters of ``function``; ``evaluate`` turns annotations that are text into types.

    A ConfigError where they are unknown (some functions in C) or one cannot be evaluated.
    """
    try:
        return inspect.signature(function, eval_str=evaluate)
    except (ValueError, TypeError, NameError, AttributeError, SyntaxError) as error:
        raise ConfigError(f"{where}: its parameters cannot be read ({error})") from error


def call(function: Callable[..., Any], where: str, *args: Any, **kwargs: Any) -> Any:
    """Calls ``function``, whose own exceptions pass; a ConfigError where the arguments misfit."""
    expected = signature(function, where)
    try:
        expected.bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(
            f"{where}: the function takes {expected}, not this call ({error})"
        ) from error
    return function(*args, **kwargs)
