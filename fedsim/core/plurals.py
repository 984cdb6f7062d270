"""Counts of things: one run, two runs."""


def counted(count: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{count} {noun}{'s' * (count != 1)}"
