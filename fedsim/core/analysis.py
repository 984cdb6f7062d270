"""Imports from the package ``fedsim_analysis``, which has the statistics, tables and figures."""

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

PACKAGE = "fedsim_analysis"


def analysis(module: str) -> Any:
    """Imports a module of ``fedsim_analysis``.

    In a checkout that is not installed the package is the folder ``analysis`` beside ``fedsim``.
    """
    if PACKAGE not in sys.modules and find_spec(PACKAGE) is None:
        folder = Path(__file__).resolve().parents[2] / "analysis"
        spec = spec_from_file_location(
            PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None or not folder.is_dir():
            raise ModuleNotFoundError(f"no module named {PACKAGE!r}, and no folder {folder}")
        sys.modules[PACKAGE] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[PACKAGE])
    return import_module(f"{PACKAGE}.{module}")
