"""Measures by client: the columns of final_clients.csv and evaluations.csv, and what they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedsim.core.errors import nearest

from . import AnalysisError
from .files import header, read_env, read_table
from .formats import PERCENT, UNITS, NumberFormat
from .runs import Group
from .scores import SCORES, Score

TABLES = ("final_clients", "evaluations")
ALWAYS = ("accuracy", "loss")
"""The columns of every run; those of other tasks may be empty."""
KEYS = {"round", "client_id", "group", "held_out", "split", "num_samples"}
"""Columns that are no measures."""
FALLING = {"mae", "rmse", "mse", "hausdorff", "hausdorff95", "hd95"}
"""Known measures of which small values are better, where a run does not say so."""


def measure_of(groups: Sequence[Group], name: str) -> Score:
    """Title, unit and direction of a measure: a score of fedsim's, or as env.json of a run has it.

    There ``measures`` holds by name ``{title, unit, better}``, with the unit "%" (a share that is
    shown times 100), a word or none, and better "up" or "down".
    """
    if name in SCORES:
        return SCORES[name]
    paths = [str(path) for group in groups for path in group.runs["path"]]
    declared = next((of for path in paths if (of := _declared(path, name))), {})
    known = re.fullmatch(r"(sensitivity|specificity)@(.+)", name)
    if known:
        other = {"sensitivity": "specificity", "specificity": "sensitivity"}[known[1]]
        return Score(declared.get("title") or f"{known[1]} at {other} {known[2]}", PERCENT)
    unit = declared.get("unit", "")
    shown = UNITS.get(unit, NumberFormat(name=unit, of_differences=unit))
    better = declared.get("better", "down" if name in FALLING else "up")
    return Score(declared.get("title") or name.replace("_", " "), shown, lowest=better == "down")


def _declared(path: str, name: str) -> dict[str, str]:
    measures = read_env(Path(path)).get("measures")
    found = measures.get(name) if isinstance(measures, dict) else None
    return {k: str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def by_client(groups: Sequence[Group]) -> list[str]:
    """The measures that any run has values of by client, accuracy and loss first where they are."""
    found: dict[str, None] = {}
    for path in (Path(path) for group in groups for path in group.runs["path"]):
        for file in (path / f"{table}.csv" for table in TABLES):
            columns = [c for c in header(file) if c not in KEYS and not c.startswith("finetuned_")]
            if not columns or {*columns} <= found.keys():
                continue
            frame = read_table(file, ("client_id",), optional=columns)
            frame = frame[frame["client_id"].notna()]
            found |= dict.fromkeys(c for c in columns if frame[c].notna().any())
    first = [name for name in ALWAYS if name in found]
    return [*first, *(name for name in found if name not in ALWAYS)]


def chosen(groups: Sequence[Group], name: str | None) -> str:
    """The measure to show by client: ``name``, else accuracy, or the first that the runs have."""
    recorded = by_client(groups)
    if name is None or (not recorded and name in ALWAYS):
        others = [other for other in recorded if other != "loss"]
        return next(iter([*others, *recorded]), name or ALWAYS[0])
    if name not in recorded:
        have = f"those that are: {', '.join(recorded)}" if recorded else "none is"
        raise AnalysisError(
            f"measure {name!r}: in no run is it recorded by client{nearest(name, recorded)}; {have}"
        )
    return name
