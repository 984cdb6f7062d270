"""Data sets: decoded samples, labels, parts, and how they are partitioned and transformed."""

from fedsim.data.dataset import DatasetInfo
from fedsim.data.registry import catalogue, find, load, options

__all__ = ["DatasetInfo", "catalogue", "find", "load", "options"]
