"""Measures by client: the columns of final_clients.csv and evaluations.csv, and what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsim.core.errors import nearest

from . import AnalysisError
from .files import header, read_env, read_table
from .formats import PERCENT, PLAIN, UNITS
from .runs import Group
from .scores import SCORES, Score

TABLES = ("final_clients", "evaluations")
ACCURACY, LOSS = "accuracy", "loss"
KEYS = {"round", "client_id", "group", "held_out", "split", "num_samples"}
"""Columns that are no measures."""
SHARES = ("sensitivity", "specificity")
"""Measures of classes in per cent beside :data:`~analysis.scores.SCORES`."""


def measure_of(groups: Sequence[Group], name: str) -> Score:
    """Title, unit and direction of a measure: of classes, or as env.json says of a run's task."""
    task = _task(groups)
    if name == LOSS and task.get("primary", ACCURACY) != ACCURACY:
        return replace(SCORES[LOSS], unit=PLAIN)
    if name in SCORES:
        return SCORES[name]
    if known := task.get("measures", {}).get(name):
        unit = UNITS.get(known.get("unit"), PLAIN)
        return Score(str(known.get("title", name)), unit, lowest=known.get("better") == "down")
    share, at, level = name.partition("@")
    title = f"{share} at specificity {level}" if at else share.replace("_", " ")
    return Score(title, PERCENT if share in SHARES else PLAIN)


def _task(groups: Sequence[Group]) -> Mapping[str, Any]:
    """What env.json of the first run says of its task; nothing of plain classes."""
    paths = [path for group in groups for path in group.runs["path"]]
    task = read_env(Path(paths[0])).get("task") if paths else None
    return task if isinstance(task, dict) else {}


def by_client(groups: Sequence[Group]) -> list[str]:
    """The measures that any run has values of by client, the primary one first and loss last."""
    found: dict[str, None] = {}
    for path in (Path(path) for group in groups for path in group.runs["path"]):
        for file in (path / f"{table}.csv" for table in TABLES):
            columns = [c for c in header(file) if c not in KEYS and not c.startswith("finetuned_")]
            if {*columns} <= found.keys():
                continue
            frame = read_table(file, ("client_id",), optional=columns)
            values = frame[frame["client_id"].notna()][columns]
            found |= dict.fromkeys(c for c in columns if values[c].notna().any())
    primary = _task(groups).get("primary", ACCURACY)
    return sorted(found, key=lambda name: (name != primary) + (name == LOSS))


def chosen(groups: Sequence[Group], name: str | None) -> str:
    """The measure to show by client: ``name``, else the first that the runs have."""
    recorded = by_client(groups)
    if name is None or (not recorded and name == ACCURACY):
        return recorded[0] if recorded else ACCURACY
    if name not in recorded:
        have = f"those that are: {', '.join(recorded)}" if recorded else "none is"
        raise AnalysisError(
            f"measure {name!r}: in no run is it recorded by client{nearest(name, recorded)}; {have}"
        )
    return name
