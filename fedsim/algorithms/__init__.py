"""The methods: one file each, found by its name; ``build(**hyperparameters) -> Algorithm``."""

from fedsim.algorithms.base import Algorithm, Probe
from fedsim.algorithms.registry import (
    FIELDS,
    chain,
    check,
    compose,
    describe,
    fields,
    load,
    names,
    parameters,
)

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
