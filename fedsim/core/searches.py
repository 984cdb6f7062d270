"""The names of metrics, samplers and pruners of a search."""

from fedsim.core.rows import SCORES

METRICS = tuple(f"val_{name}" for name in SCORES)
"""Columns of rounds.csv that a search may be judged by."""
SAMPLERS = ("tpe", "random", "grid")
PRUNERS = ("median", "asha", "none")
