"""Distributions of positive numbers, given as text: ``3``, ``choice(1, 10)``, ``uniform(1, 10)``.

``lognormal(100, 0.5)`` has the median 100; the logarithm's standard deviation is 0.5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

Name = Literal["choice", "uniform", "lognormal"]
FORMS = "a number, choice(a, b, ...), uniform(low, high) or lognormal(median, sigma)"
_TEXT = re.compile(r"\s*(choice|uniform|lognormal)\s*\(([^()]*)\)\s*")


@dataclass(frozen=True)
class Law:
    """A distribution; a ``choice`` of one value is that number.

    Args:
        name: which; the values of a ``choice`` are equally likely.
        values: those, or low and high, or median and sigma.
    """

    name: Name
    values: tuple[float, ...]

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest number that can be drawn."""
        if self.name == "lognormal":
            return math.ulp(0.0), math.inf
        return min(self.values), max(self.values)

    def draw(self, stream: Callable[[], np.random.Generator]) -> float:
        """A number; ``stream`` makes the generator, which a single number does not need."""
        if len(self.values) == 1:
            return self.values[0]
        first, second = self.values[:2]
        rng = stream()
        if self.name == "uniform":
            return float(rng.uniform(first, second))
        if self.name == "lognormal":
            return float(first * math.exp(second * rng.standard_normal()))
        return self.values[int(rng.integers(len(self.values)))]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{v:.17g}' for v in self.values)})"


def number(value: float) -> Law:
    """The law that always gives this number."""
    return Law("choice", (value,))


def parse(given: object) -> Law:
    """The law that a number or a text stands for.

    Raises:
        ValueError: it is none; says what is allowed.
    """
    match = _TEXT.fullmatch(str(given))
    name = cast(Name, match[1] if match else "choice")
    try:
        values = tuple(float(text) for text in (match[2].split(",") if match else [str(given)]))
    except ValueError:
        values = ()
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"must be {FORMS}")
    if name == "uniform" and not (len(values) == 2 and values[0] < values[1]):
        raise ValueError("must be uniform(low, high) with low below high")
    if name == "lognormal" and not (len(values) == 2 and values[0] > 0 and values[1] > 0):
        raise ValueError("must be lognormal(median, sigma) with both above 0")
    return Law(name, values)


def parse_within(given: object, low: float, high: float, allowed: str) -> Law:
    """The law that ``given`` stands for, all of whose numbers lie in ``low`` to ``high``.

    Raises:
        ValueError: it is none, or can be outside; ``allowed`` says what is inside.
    """
    law = parse(given)
    least, most = law.bounds
    if least < low or most > high:
        drawn = f", this goes from {least:g} to {most:g}" if least < most else ""
        raise ValueError(f"must be {allowed}{drawn}")
    return law


def written(given: object) -> float | str:
    """How a configuration holds what :func:`parse` accepts: a number, or the text."""
    law = parse(given)
    return law.values[0] if len(law.values) == 1 else " ".join(str(given).split())
