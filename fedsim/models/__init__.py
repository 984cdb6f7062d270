"""The networks, and how they are built and changed."""

from __future__ import annotations

from fedsim.models.registry import NAMES, build

__all__ = ["NAMES", "build"]
