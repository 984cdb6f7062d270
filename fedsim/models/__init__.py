"""Models: the catalogue, their start weights, and changes such as GroupNorm."""

from typing import TYPE_CHECKING, Any

from fedsim.models.catalogue import NAMES

if TYPE_CHECKING:
    from fedsim.models.registry import build, start

__all__ = ["NAMES", "build", "start"]


def __getattr__(name: str) -> Any:
    if name not in ("build", "start"):
        raise AttributeError(f"module 'fedsim.models' has no attribute {name!r}")
    from fedsim.models import registry  # imports torch, which takes seconds

    return getattr(registry, name)
