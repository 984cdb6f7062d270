"""The methods: one file each, found by its name; ``build(**hyperparameters) -> Algorithm``.

What imports torch is imported on first use: names and hyperparameters are known without.
"""

from typing import TYPE_CHECKING, Any

from fedsim.algorithms.catalogue import FIELDS, chain, check, describe, fields, names, parameters

if TYPE_CHECKING:
    from fedsim.algorithms.base import Algorithm, Probe, compose, load

__all__ = [
    "FIELDS",
    "Algorithm",
    "Probe",
    "chain",
    "check",
    "compose",
    "describe",
    "fields",
    "load",
    "names",
    "parameters",
]


def __getattr__(name: str) -> Any:
    if name not in ("Algorithm", "Probe", "compose", "load"):
        raise AttributeError(f"module 'fedsim.algorithms' has no attribute {name!r}")
    from fedsim.algorithms import base

    return getattr(base, name)
