"""Counts in words."""


def counted(count: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{count} {noun}{'s' * (count != 1)}"
