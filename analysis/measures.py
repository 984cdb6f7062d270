"""Measures by client: the columns of final_clients.csv and evaluations.csv, and what they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedsim.core.errors import nearest

from . import AnalysisError
from .files import header, read_table
from .formats import PERCENT, PLAIN
from .runs import Group
from .scores import Score, measures_of, scores_of

TABLES = ("final_clients", "evaluations")
ACCURACY, LOSS = "accuracy", "loss"
KEYS = {"round", "client_id", "group", "held_out", "split", "num_samples"}
"""Columns that are no measures."""
SHARES = ("sensitivity", "specificity")
"""Measures of classes in per cent beside :data:`~analysis.scores.SCORES`."""


def measure_of(groups: Sequence[Group], name: str) -> Score:
    """Title, unit and direction of a measure, also of one that env.json does not name."""
    if found := scores_of(groups).get(name):
        return found
    share, at, level = name.partition("@")
    title = f"{share} at specificity {level}" if at else share.replace("_", " ")
    return Score(title, PERCENT if share in SHARES else PLAIN)


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
    primary = measures_of(groups).primary
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
