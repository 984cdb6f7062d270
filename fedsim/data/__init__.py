"""Data sets: decoded samples, labels, parts, and how they are partitioned and transformed."""

from __future__ import annotations

from fedsim.data.registry import DatasetInfo, catalogue, load

__all__ = ["DatasetInfo", "catalogue", "load"]
