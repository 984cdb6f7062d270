"""The executors: one file each in this package, found by its name, or ``module:function``.

The file defines ``make_executor``, see :class:`MakeExecutor`, without which it is a helper; and
``check_settings(engine)`` where it refuses settings, with a ConfigError, before anything starts.
"""

import importlib
import inspect
from typing import Any, Protocol, cast

import fedsim.engine
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, nearest
from fedsim.core.imports import call, plugins, resolve
from fedsim.engine.base import Executor
from fedsim.engine.spec import WorkerSpec


class MakeExecutor(Protocol):
    """Starts an executor; the keyword arguments are for those that can use them.

    Args:
        spec: what its workers are made of.
        engine: section ``engine`` of the configuration; a ConfigError where it cannot be met here.
        update_bytes: size of one client's delta.
        whole: the setting for which the driver needs whole deltas, None where none does.
        session: of the runs before and after, what they share; None for a run of its own.
    """

    def __call__(
        self,
        spec: WorkerSpec,
        engine: EngineConfig,
        *,
        update_bytes: int,
        whole: str | None,
        session: Any,
    ) -> Executor:
        """The executor, ready to train."""


def names() -> tuple[str, ...]:
    """The names of all built-in executors, sorted: of the files that define ``make_executor``."""
    return plugins(tuple(fedsim.engine.__path__), "make_executor")


def load(kind: str) -> MakeExecutor:
    """The function that starts an executor, by its built-in name or ``module:function``; a
    ConfigError where there is none."""
    if ":" in kind:
        return cast(MakeExecutor, resolve(kind, "engine.kind"))
    if kind not in names():
        raise ConfigError(
            f"--engine {kind!r}: must be one of {', '.join(names())}, or module:function"
            f"{nearest(kind, names())}"
        )
    return cast(MakeExecutor, importlib.import_module(f"fedsim.engine.{kind}").make_executor)


def start(spec: WorkerSpec, engine: EngineConfig, **given: Any) -> Executor:
    """The executor of ``engine.kind``; ``given`` as for :class:`MakeExecutor`. A ConfigError where
    there is none, or it cannot be started."""
    make = load(engine.kind)
    if ":" not in engine.kind:
        return make(spec, engine, **given)
    executor = call(make, f"engine.kind={engine.kind}", spec, engine, **given)
    if not hasattr(executor, "run"):
        raise ConfigError(f"engine.kind={engine.kind}: gives {executor!r}, which is no executor")
    return cast(Executor, executor)


def check(engine: EngineConfig) -> None:
    """A ConfigError where there is no executor ``engine.kind``, or it refuses a setting."""
    check_settings = getattr(inspect.getmodule(load(engine.kind)), "check_settings", None)
    if check_settings is not None:
        call(check_settings, f"engine.kind={engine.kind}", engine)
