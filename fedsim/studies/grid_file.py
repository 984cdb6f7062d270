"""The file of a sweep with named rows: a study's comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import yaml

from fedsim.config.experiments import Setting
from fedsim.config.resolve import resolve, unused


def grid_text(
    rows: Mapping[str, Mapping[str, object]], seeds: Sequence[int], about: str = ""
) -> str:
    """The file of a sweep with named rows.

    Settings that all rows share stand at the top; those of methods that no row uses are left out.

    Args:
        rows: by name the settings of each, by dotted key.
        seeds: the training seeds of every row.
        about: a description.

    Raises:
        ConfigError: settings that cannot be used.
    """
    given = {key: Setting(value, key) for row in rows.values() for key, value in row.items()}
    settings = [{key: Setting(value, key) for key, value in row.items()} for row in rows.values()]
    idle = {"seed", *unused(given, [resolve(row, build=False) for row in settings])}
    first = next(iter(rows.values()))
    common = {
        key: value
        for key, value in first.items()
        if key not in idle
        and key != "label"
        and all(key in row and row[key] == value for row in rows.values())
    }
    own = (
        {name: {k: v for k, v in row.items() if k not in common and k not in idle}}
        for name, row in rows.items()
    )
    lines = [f"{key}: {_flow(value)}" for key, value in {"about": about, **common}.items()]
    lines += ["grid:", "  method:", *(f"    - {_flow(row)[1:-1]}" for row in own)]
    return "\n".join([*lines, f"  seed: {_flow([*seeds])}"]) + "\n"


def _flow(value: object) -> str:
    """A value in one line of YAML."""
    text = yaml.safe_dump(
        [value], default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return text.strip()[1:-1]
