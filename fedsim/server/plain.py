"""Plain rules: a user's function ``(gram, num_samples) -> coefficients`` as a reduction.

``gram`` (m, m) and ``num_samples`` (m,) are float64; the aggregate is ``sum_i c_i g_i`` of the
updates. Parameters named ``ctx`` and ``state`` get the :class:`~fedsim.core.types.RoundContext` and
a dictionary of arrays, which the function may change and checkpoints keep. All other parameters are
hyperparameters.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, get_origin

import numpy as np

from fedsim.core.errors import ConfigError, ContractError, one_line
from fedsim.core.imports import signature, users_code
from fedsim.core.types import F64, Array, RoundContext, Vectors
from fedsim.server.base import Reduced
from fedsim.server.cohort import Cohort
from fedsim.server.gram import shares

FORM = "def rule(gram, num_samples, *, eps=1e-3) -> coefficients"
"""What a plain rule looks like, for messages."""
GIVEN = ("ctx", "state")
"""Names of the parameters that a rule gets if it has them."""
FIRST = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
ARRAYS = ("ndarray", "NDArray", "F64", "Array", "Any")
"""Beginnings of annotations of arrays."""
NUMBERS: Mapping[type, Any] = {bool: bool, int: int | float, float: float, str: str}
"""The type of a hyperparameter without an annotation, by that of its default."""


def is_rule(function: Callable[..., Any], title: str) -> bool:
    """Whether a function of the user's is a plain rule, rather than the ``build`` of a method: its
    first parameter has no default, and no type or that of an array."""
    first = next(iter(signature(function, title).parameters.values()), None)
    if first is None or first.kind not in FIRST or first.default is not Parameter.empty:
        return False
    kind = first.annotation
    named = kind if isinstance(kind, str) else getattr(get_origin(kind) or kind, "__name__", "")
    return kind is Parameter.empty or named.rpartition(".")[2].startswith(ARRAYS)


def hyperparameters(function: Callable[..., Any], title: str) -> dict[str, Parameter]:
    """The hyperparameters of a plain rule; one without a type has that of its default."""
    declared = list(signature(function, title, evaluate=True).parameters.values())
    if len(declared) < 2 or any(p.kind not in FIRST for p in declared[:2]):
        raise ConfigError(f"{_refused(function, title)} takes gram and num_samples first: {FORM}")
    settings = {}
    for parameter in declared[2:]:
        if parameter.name in GIVEN:
            continue
        setting = typed(parameter)
        if setting.annotation is setting.empty or setting.kind not in BY_NAME:
            raise ConfigError(
                f"{_refused(function, title)} has a parameter {str(parameter)!r}, which needs a "
                f"type or a number as its default: {FORM}"
            )
        settings[setting.name] = setting
    return settings


def typed(parameter: Parameter) -> Parameter:
    """The parameter with the type of its default, where it has no type."""
    if parameter.annotation is not parameter.empty:
        return parameter
    return parameter.replace(annotation=NUMBERS.get(type(parameter.default), parameter.empty))


def _refused(function: Callable[..., Any], title: str) -> str:
    return f"{title}: {place(function)}: a rule"


def place(function: Callable[..., Any]) -> str:
    """File and line of a function, ``my.py:12``."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:  # an object with __call__
        return f"{function.__module__}"
    file = os.path.relpath(code.co_filename)
    return f"{code.co_filename if file.startswith('..') else file}:{code.co_firstlineno}"


@dataclass(frozen=True)
class PlainRule:
    """The user's function over the whole model; statistics are averaged by samples."""

    function: Callable[..., Any]
    hyperparameters: Mapping[str, Any]

    @property
    def takes(self) -> tuple[str, ...]:
        """Which of ``ctx`` and ``state`` it has as parameters."""
        declared = signature(self.function, self._where).parameters
        return tuple(name for name in GIVEN if name in declared)

    @property
    def _where(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return f"{place(self.function)}, in {name}"

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        """Keeps what the function leaves in its ``state``."""
        layout, n = cohort.layout, cohort.num_samples
        params, statistics = slice(0, layout.num_params), slice(layout.num_params, layout.size)
        kept = {name: array.copy() for name, array in state.items()}
        extras = {"ctx": ctx, "state": kept}
        chosen = {name: extras[name] for name in self.takes}
        with users_code(self._where, ContractError):
            returned = self.function(
                cohort.gram(params).copy(), n.copy(), **chosen, **self.hyperparameters
            )
        coefficients = self._checked(returned, len(n))
        averaged = shares(n, "samples")
        step = cohort.step([coefficients, averaged], [params, statistics])
        return Reduced(step, {name: self._array(name, kept[name]) for name in kept})

    def _checked(self, returned: object, m: int) -> F64:
        """The coefficients (m,)."""
        try:
            coefficients = np.asarray(returned, dtype=np.float64)
            problem = "None" if returned is None else f"an array of shape {coefficients.shape}"
            if coefficients.shape == (m,):
                if np.isfinite(coefficients).all():
                    return coefficients
                problem = "NaN or infinity"
        except (TypeError, ValueError) as error:
            problem = f"{type(returned).__name__} ({one_line(error)})"
        raise ContractError(
            f"{self._where}: returned {problem}; needed are finite coefficients ({m},), one for "
            f"each of the {m} updates: {FORM}"
        )

    def _array(self, name: object, value: object) -> Array:
        """An entry of the state, as an array of numbers."""
        array = np.array(value)
        if not isinstance(name, str) or array.dtype.kind not in "biuf":
            raise ContractError(
                f"{self._where}: state[{name!r}] is {type(value).__name__}; a state holds arrays "
                "of numbers by names"
            )
        return array
