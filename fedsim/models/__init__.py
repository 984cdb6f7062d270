"""Models: the catalogue, their start weights, and changes such as GroupNorm."""

from fedsim.models.registry import NAMES, build

__all__ = ["NAMES", "build"]
