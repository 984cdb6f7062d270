"""The search space of ``fedsim tune``: which values of which keys are tried.

``uniform(a, b)`` and ``loguniform(a, b)`` are real numbers, ``int(a, b)`` whole numbers, between
two ends that belong to them; ``choice(a, b, ...)`` is one of the values, as YAML reads them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import yaml

from fedsim.config.experiments import Setting, Settings
from fedsim.config.resolve import pairs, resolve
from fedsim.core.errors import ConfigError
from fedsim.core.settings import Scalar

Form = Literal["uniform", "loguniform", "int", "choice"]
FORMS = "uniform(a, b), loguniform(a, b), int(a, b) or choice(a, b, ...)"
_TEXT = re.compile(r"\s*(uniform|loguniform|int|choice)\s*\((.*)\)\s*", re.DOTALL)


@dataclass(frozen=True)
class Dimension:
    """The values of one key that a search may try: the ends of a range, or those of a choice."""

    form: Form
    values: tuple[Scalar, ...]
    origin: str

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value of a dimension that is no choice."""
        low, high = self.values
        return float(low or 0), float(high or 0)

    @property
    def listed(self) -> Sequence[Scalar] | None:
        """All values, in their order; None of a range of real numbers."""
        if self.form == "choice":
            return self.values
        low, high = self.bounds
        return range(int(low), int(high) + 1) if self.form == "int" else None

    @property
    def examples(self) -> tuple[Scalar, ...]:
        """Values that tell whether the key takes all: both ends and one between, or the choices."""
        if self.form in ("choice", "int"):
            return self.values
        low, high = self.bounds
        return low, low + (high - low) / math.pi, high

    def __str__(self) -> str:
        return f"{self.form}({', '.join(map(_plain, self.values))})"


Space = Mapping[str, Dimension]
"""By dotted key."""


def parse(setting: Setting) -> Dimension:
    """The dimension that a text describes; a ConfigError says what is allowed."""
    match = _TEXT.fullmatch(setting.value) if isinstance(setting.value, str) else None
    form: Form | None = match[1] if match else None  # type: ignore[assignment]
    values = _values(match[2]) if match else None
    problem = None
    if form is None or values is None:
        problem = f"must be {FORMS}"
    elif form == "choice":
        if not values:
            problem = "must be choice(a, b, ...) with at least one value"
        for place, value in enumerate(values):
            if value in values[:place]:
                problem = f"has {_plain(value)} twice"
    else:
        kind = int if form == "int" else (int, float)
        numbers = [v for v in values if isinstance(v, kind) and not isinstance(v, bool)]
        whole = "whole " * (form == "int")
        if (
            len(values) != 2
            or len(numbers) != 2
            or not -math.inf < numbers[0] < numbers[1] < math.inf
        ):
            problem = f"must be {form}(a, b) of {whole}numbers with a below b"
        elif form == "loguniform" and not numbers[0] > 0:
            problem = "must be loguniform(a, b) with a above 0"
    if form is None or values is None or problem:
        raise ConfigError(f"{setting.origin}: {setting.value!r} given; {problem}")
    return Dimension(form, values, setting.origin)


def _values(text: str) -> tuple[Scalar, ...] | None:
    """The values between the brackets, of which 1e-4 is a number; None: another content."""
    try:
        values = yaml.safe_load(f"[{text}]")
    except (yaml.YAMLError, ValueError):
        return None
    if not all(isinstance(value, str | int | float | None) for value in values):
        return None
    number = re.compile(r"[-+.\d]+e[-+\d]+", re.IGNORECASE)
    return tuple(float(v) if isinstance(v, str) and number.fullmatch(v) else v for v in values)


def _plain(value: Scalar) -> str:
    """A value as YAML writes it within a list."""
    text = yaml.safe_dump([value], default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.strip()[1:-1]


def from_flags(texts: Iterable[str]) -> Settings:
    """The settings of ``--search``, each ``key=form(...)``."""
    return pairs("--search", texts, "train.lr=loguniform(0.001, 1)")


def make_space(searched: Settings, settings: Settings, overrides: Settings) -> Space:
    """The space of ``searched`` texts but for flags, each value checked over the settings."""
    space = {key: parse(setting) for key, setting in searched.items() if key not in overrides}
    if not space:
        raise ConfigError(
            "there is nothing to search: give a section 'search:' with lines such as "
            "'train.lr: loguniform(0.001, 1)' in the file, or --search KEY=FORM"
        )
    first = point(space, {key: dimension.examples[0] for key, dimension in space.items()})
    resolve(settings, first, overrides)
    for key, dimension in space.items():
        for value in dimension.examples[1:]:
            resolve(settings, first, point(space, {key: value}), overrides)
    return space


def point(space: Space, values: Mapping[str, Scalar]) -> Settings:
    """Values of searched keys as settings."""
    return {key: Setting(value, space[key].origin) for key, value in values.items()}
