"""Names of classes (env.json) and of the clients' sites (partition.csv) of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from fedsim.core.files import csv_plain
from fedsim.core.reading import parse_json, read_bytes
from fedsim.core.terminal import printable

from . import AnalysisError
from .runs import Group, read

LONG = 12
"""Figures shorten longer names."""


def classes(run: Path) -> list[str] | None:
    """The names of a run's classes, by label; None where env.json does not have them.

    Raises:
        AnalysisError: env.json is no JSON.
    """
    file = run / "env.json"
    if not file.is_file():
        return None
    try:
        found = parse_json(read_bytes(file))
    except (OSError, ValueError) as error:
        raise AnalysisError(f"{file}: cannot be read as JSON ({error})") from error
    names = found.get("classes") if isinstance(found, dict) else None
    return [str(name) for name in names] if isinstance(names, list) and names else None


def of_labels(labels: Sequence[int], known: Sequence[str] | None) -> list[str]:
    """The names of labels, or the labels themselves where they have no name."""
    return [
        known[label] if known is not None and 0 <= label < len(known) else str(label)
        for label in labels
    ]


def first_run(groups: Sequence[Group]) -> Path:
    """The folder of the first run."""
    return Path(groups[0].runs["path"].iloc[0])


def clients(run: Path) -> Mapping[int, str]:
    """The names of a run's clients by id; empty where partition.csv does not name all of them."""
    file = run / "partition.csv"
    if not file.is_file():
        return {}
    frame = read(file, numbers=("client_id",)).drop_duplicates("client_id")
    if "name" not in frame or not frame["name"].notna().all():
        return {}
    known = plain_names(frame.astype({"name": "str"}))
    return dict(zip(known["client_id"].astype(int), known["name"], strict=True))


def short(name: str, most: int = LONG) -> str:
    """A name of at most ``most`` characters, all of which can be seen."""
    name = printable(name)
    return name if len(name) <= most else name[: most - 1] + "…"


def plain_names(frame: pd.DataFrame) -> pd.DataFrame:
    """A partition.csv whose column ``name`` is as :func:`fedsim.core.files.csv_plain` has it."""
    if "name" not in frame.columns:
        return frame
    return frame.assign(name=frame["name"].map(csv_plain, na_action="ignore"))
