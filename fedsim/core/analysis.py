"""Imports from the package ``fedsim_analysis``, which has the statistics, tables and figures."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any


def analysis(module: str) -> Any:
    """A module of ``fedsim_analysis``, in a checkout that is not installed of ``analysis``."""
    package = "analysis" if find_spec("fedsim_analysis") is None else "fedsim_analysis"
    return import_module(f"{package}.{module}")
