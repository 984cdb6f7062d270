"""Models: the catalogue, their start weights, and changes such as GroupNorm."""

from __future__ import annotations

from fedsim.models.registry import NAMES, build

__all__ = ["NAMES", "build"]
