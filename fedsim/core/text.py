"""Numbers, counts and lists as text."""

import math
from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def few(names: Sequence[str], most: int, noun: str = "") -> str:
    """``a, b, and 3 more``; at most so many are named."""
    rest = len(names) - most
    more = f", and {rest} more {noun}".rstrip() if rest > 0 else ""
    return ", ".join(names[:most]) + more


def decimals(value: object, digits: int = 4) -> str:
    """``0.9123``; ``-`` for what is no finite number."""
    finite = isinstance(value, float | int) and math.isfinite(value)
    return f"{value:.{digits}f}" if finite else "-"


def duration(seconds: float) -> str:
    """``12 s``, ``3 min`` or ``1 h 20 min``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{minutes} min"


def megabytes(count: float) -> str:
    """``12.0 MB`` or ``1.5 GB``."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def setting_text(value: object) -> str:
    """A setting as YAML has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
