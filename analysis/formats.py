"""How numbers are written: units of scores, p values."""

import math
from dataclasses import dataclass

from .stats import FEWEST, Estimate

NONE = "n/a"  # shown if a number is not available


@dataclass(frozen=True, kw_only=True)
class NumberFormat:
    """Number format of a table."""

    factor: float = 1.0  # from the stored to the shown number
    digits: int = 4  # after the decimal point
    name: str = ""  # the unit, such as ``%``, or empty
    of_differences: str = ""  # the unit of differences
    largest: float = math.inf  # difference, as stored, that a test can be meant to detect

    def too_few(self, units: float, detectable: float) -> bool:
        """Whether so few units tell nothing of the differences that would be detected."""
        return units < FEWEST or detectable > self.largest

    def number(self, value: float, sign: str = "") -> str:
        """The formatted value; ``sign="+"`` also marks positive ones."""
        if math.isnan(value):
            return NONE
        shown = round(self.factor * value, self.digits) + 0.0
        return "infinity" if value == math.inf else f"{shown:{sign}.{self.digits}f}"

    def spread(self, estimate: Estimate, sign: str = "") -> str:
        """``84.00 ± 9.94``, mean and half-width of its interval; only the mean for one value."""
        mean = self.number(estimate.mean, sign)
        return mean if math.isnan(estimate.half) else f"{mean} ± {self.number(estimate.half)}"

    def interval(self, estimate: Estimate, sign: str = "") -> str:
        """``[74.06, 93.94]``, the 95 % interval."""
        if math.isnan(estimate.half):
            return NONE
        return f"[{self.number(estimate.low, sign)}, {self.number(estimate.high, sign)}]"

    def head(self, words: str, differences: bool = False) -> str:
        """The heading of a column: words and unit."""
        name = self.of_differences if differences else self.name
        return f"{words} ({name})" if name else words


PERCENT = NumberFormat(factor=100, digits=2, name="%", of_differences="points", largest=0.5)
PLAIN = NumberFormat()
BUDGET = NumberFormat(digits=2)  # of epsilon
NATS = NumberFormat(name="nats", of_differences="nats", largest=math.log(1000))
UNITS = {"%": PERCENT, "nats": NATS, "": PLAIN}
"""Formats by the name of their unit."""


def p_value(p: float) -> str:
    """``0.0123``, ``<0.0001`` or ``n/a``."""
    return NONE if math.isnan(p) else "<0.0001" if p < 1e-4 else f"{p:.4f}"
