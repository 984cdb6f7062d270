"""Writes LEAF json files for the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Users = Mapping[str, tuple[list[Any], list[Any]]]


def write(folder: Path, name: str, users: Users) -> Path:
    """One json file, with wrong counts as in some of LEAF's own."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "num_samples": [len(y) + 79 for _, y in users.values()],
        "users": list(users),
        "user_data": {user: {"y": y, "x": x} for user, (x, y) in users.items()},
    }
    (folder / name).write_text(json.dumps(content))
    return folder / name
