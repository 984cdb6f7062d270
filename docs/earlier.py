"""Writes analysis/earlier.json from the settings' declarations: ``python docs/earlier.py``.

The file has the values that stand for settings which a summary.csv of an earlier version lacks;
``analysis``, which imports nothing of fedsim, reads them there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedsim import algorithms, data
from fedsim.config import earlier

FILE = Path(__file__).resolve().parents[1] / "analysis" / "earlier.json"


def content() -> dict[str, dict[str, Any]]:
    """By section and key the values that are not null: an empty cell is that already."""
    methods, data_sets = algorithms.names(), [info.name for info in data.catalogue()]
    found: dict[str, dict[str, Any]] = {}
    for key, value in earlier.values(methods, data_sets).items():
        section, _, leaf = key.rpartition(".")
        if section and section != "engine" and value is not None:
            found.setdefault(section, {})[leaf] = value
    return found


def text() -> str:
    """The text of the file."""
    return json.dumps(content(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
