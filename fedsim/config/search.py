"""The search space of ``fedsim tune``: which values of which keys are tried.

``uniform(a, b)`` and ``loguniform(a, b)`` are real numbers, ``int(a, b)`` whole numbers, between
two ends that belong to them; ``choice(a, b, ...)`` is one of the values, as YAML reads them.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import yaml

from fedsim.config.experiments import Setting, Settings
from fedsim.config.resolve import resolve
from fedsim.core.errors import ConfigError
from fedsim.core.settings import Scalar

Form = Literal["uniform", "loguniform", "int", "choice"]
FORMS = "uniform(a, b), loguniform(a, b), int(a, b) or choice(a, b, ...)"
MOST_CHOICES = 1000
"""Values of a choice; each is checked before the search begins."""
MOST_INT = 2**53
"""Whole numbers up to it are exact as floating-point numbers."""
_TEXT = re.compile(r"\s*(uniform|loguniform|int|choice)\s*\((.*)\)\s*", re.DOTALL)


@dataclass(frozen=True)
class Dimension:
    """The values of one key that a search may try.

    Args:
        form: its name in a file.
        values: the smallest and the largest one, or those of a choice.
        origin: where it was given.
    """

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
    """The dimension that a text describes.

    Raises:
        ConfigError: another text; names where it was given, and what is allowed.
    """
    try:
        return _parsed(setting)
    except ValueError as error:
        raise ConfigError(f"{setting.origin}: {setting.value!r} given; {error}") from None


def _parsed(setting: Setting) -> Dimension:
    match = _TEXT.fullmatch(setting.value) if isinstance(setting.value, str) else None
    if match is None:
        raise ValueError(f"must be {FORMS}")
    form: Form = match[1]  # type: ignore[assignment]
    values = tuple(_values(match[2]))
    if form == "choice":
        if not values:
            raise ValueError("must be choice(a, b, ...) with at least one value")
        if len(values) > MOST_CHOICES:
            raise ValueError(f"has {len(values):,} values, allowed are {MOST_CHOICES:,}")
        for place, value in enumerate(values):
            if value in values[:place]:
                raise ValueError(f"has {_plain(value)} twice")
        return Dimension(form, values, setting.origin)
    kind = int if form == "int" else (int, float)
    numbers = [v for v in values if isinstance(v, kind) and not isinstance(v, bool)]
    if len(values) != 2 or len(numbers) != 2 or not -math.inf < numbers[0] < numbers[1] < math.inf:
        raise ValueError(
            f"must be {form}(a, b) of {'whole ' * (form == 'int')}numbers with a below b"
        )
    if form == "loguniform" and not numbers[0] > 0:
        raise ValueError("must be loguniform(a, b) with a above 0")
    if form == "int" and max(map(abs, numbers)) > MOST_INT:
        raise ValueError(f"must be int(a, b) of numbers up to {MOST_INT:,}")
    if not math.isfinite(float(numbers[1]) - float(numbers[0])):
        raise ValueError(f"must be {form}(a, b) of numbers whose difference is a number, too")
    return Dimension(form, values, setting.origin)


def _values(text: str) -> Iterator[Scalar]:
    """The values between the brackets; a text that Python reads as a number, like 1e-4, is one."""
    try:
        values = yaml.safe_load(f"[{text}]")
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"the values between the brackets are no list (must be {FORMS})"
        ) from error
    for value in values:
        if not isinstance(value, str | int | float | None):
            raise ValueError(f"must hold single values, not {reprlib.repr(value)}")
        if isinstance(value, str) and re.fullmatch(r"[-+.\d]+e[-+\d]+", value, re.IGNORECASE):
            value = float(value)
        yield value


def _plain(value: Scalar) -> str:
    """A value as YAML writes it within a list."""
    text = yaml.safe_dump([value], default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.strip()[1:-1]


def from_flags(texts: Iterable[str]) -> Settings:
    """The settings of ``--search``, each ``key=form(...)``.

    Raises:
        ConfigError: a text without ``=``, or a key that is given twice.
    """
    settings: dict[str, Setting] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (equals and key):
            example = "--search 'train.lr=loguniform(0.001, 1)'"
            raise ConfigError(f"--search {text}: must be key=form, such as {example}")
        if key in settings:
            raise ConfigError(f"--search {text}: {key} is given twice")
        settings[key] = Setting(value, f"--search {key}")
    return settings


def make_space(searched: Settings, settings: Settings, overrides: Settings) -> Space:
    """The space of ``searched`` texts by key, each value checked as ``--set`` is.

    ``settings`` lie below the searched keys; a key in ``overrides``, the flags, is not searched.

    Raises:
        ConfigError: nothing is left to search, a key that there is not, a form that cannot be
            read, or a value that the key does not take; names where it was given.
    """
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
