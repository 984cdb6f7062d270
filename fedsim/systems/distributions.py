"""Distributions of positive numbers, given as text: ``3``, ``choice(1, 10)``, ``uniform(1, 10)``.

``lognormal(100, 0.5)`` has the median 100; the standard deviation of its logarithm is 0.5.
"""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

FORMS = "a number, choice(a, b, ...), uniform(low, high) or lognormal(median, sigma)"
FARTHEST = 14.0
"""Standard deviations. NumPy draws none farther from the mean: its tail ends at 13.7."""
LARGEST = math.log(sys.float_info.max)
_TEXT = re.compile(r"\s*(choice|uniform|lognormal)\s*\(([^()]*)\)\s*")


@dataclass(frozen=True)
class Distribution:
    """A distribution; a ``choice`` of one value is constant."""

    name: str  # choice, uniform or lognormal
    values: tuple[float, ...]  # equally likely; or low and high, or median and sigma

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest number that can be drawn."""
        if self.name != "lognormal":
            return min(self.values), max(self.values)
        median, sigma = self.values
        ends = (math.log(median) + sign * FARTHEST * sigma for sign in (-1, 1))
        low, high = (math.exp(end) if end < LARGEST else math.inf for end in ends)
        return low, high

    def draw(self, stream: Callable[[], np.random.Generator]) -> float:
        """A random number; ``stream`` makes the generator, which a constant does not need."""
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


def constant(value: float) -> Distribution:
    """The distribution of a constant."""
    return Distribution("choice", (value,))


def parse(value: object) -> Distribution:
    """The distribution that a number or a text describes; a ValueError says what is allowed."""
    match = _TEXT.fullmatch(str(value))
    name = match[1] if match else "choice"
    try:
        values = tuple(float(text) for text in (match[2].split(",") if match else [str(value)]))
    except ValueError:
        values = ()
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"must be {FORMS}")
    if name == "uniform" and not (len(values) == 2 and values[0] < values[1]):
        raise ValueError("must be uniform(low, high) with low below high")
    if name == "lognormal" and not (len(values) == 2 and values[0] > 0 and values[1] > 0):
        raise ValueError("must be lognormal(median, sigma) with both above 0")
    return Distribution(name, values)


def parse_within(value: object, low: float, high: float, allowed: str) -> Distribution:
    """As :func:`parse`, within ``low`` to ``high``, which ``allowed`` says in words."""
    distribution = parse(value)
    least, most = distribution.bounds
    if least < low or most > high:
        drawn = f", this goes from {least:g} to {most:g}" if least < most else ""
        raise ValueError(f"must be {allowed}{drawn}")
    return distribution


def normalised(value: object) -> float | str:
    """What a configuration stores of a value that :func:`parse` accepts: a number, or the text."""
    distribution = parse(value)
    return distribution.values[0] if len(distribution.values) == 1 else " ".join(str(value).split())
