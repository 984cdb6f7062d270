"""Writes fedsim/cli/names.json, for completion and ``fedsim show``: ``python docs/names.py``.

To import the methods, data sets and models themselves takes seconds.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedsim import algorithms, data
from fedsim.config import presets
from fedsim.core.settings import defaults
from fedsim.data import partitions
from fedsim.models.registry import NAMES

FILE = Path(__file__).resolve().parents[1] / "fedsim" / "cli" / "names.json"


def text() -> str:
    """The names of each kind with a description, and the defaults of their options."""
    methods = {
        name: {
            "description": algorithms.describe(name),
            "defaults": defaults(algorithms.parameters(name)),
        }
        for name in algorithms.names()
    }
    datasets = {
        info.name: {
            "description": info.title,
            "defaults": defaults(data.options(info.name)),
            "model": info.default_model,
            "partition": info.default_partition,
        }
        for info in data.catalogue()
    }
    found = {
        "algorithms": methods,
        "datasets": datasets,
        "models": {name: {"description": about} for name, about in NAMES.items()},
        "partitions": {n: {"description": about} for n, about in partitions.NAMES.items()},
        "presets": {n: {"description": presets.load(n).about} for n in presets.names()},
    }
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
