"""The names of metrics, samplers and pruners of a search."""

METRIC = r"val_\S+"
"""A column of rounds.csv that a search may be judged by: a measure of its task."""
SAMPLERS = ("tpe", "random", "grid")
PRUNERS = ("median", "asha", "none")
