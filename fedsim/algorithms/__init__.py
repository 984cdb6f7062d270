"""The methods: one file each, found by its name; ``build(**hyperparameters) -> Algorithm``.

What imports torch is imported on first use: names and hyperparameters are known without.
"""

from typing import TYPE_CHECKING, Any

from fedsim.algorithms.catalogue import FIELDS, chain, check, describe, fields, names, parameters

if TYPE_CHECKING:
    from fedsim.algorithms.base import Algorithm, Probe
    from fedsim.algorithms.registry import compose, load

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

_HOME = {
    **dict.fromkeys(("Algorithm", "Probe"), "base"),
    **dict.fromkeys(("compose", "load"), "registry"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedsim.algorithms' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"fedsim.algorithms.{_HOME[name]}"), name)
