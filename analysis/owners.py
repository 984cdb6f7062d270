"""The partitions that a report's runs were made on, a picture each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis import partition
from analysis.drawing import Absent, Drawing
from analysis.runs import Group, text

TITLE = "Who owns which samples"
MOST = 4
"""Pictures of partitions in a report."""
NAMED = ("dataset", "data.partition", "alpha", "data.seed", "seed")
"""Settings that say which partition a picture shows, in words of summary.csv."""


def draw(groups: Sequence[Group]) -> Iterator[Drawing | Absent]:
    """The first run's picture of each distinct partition.csv, at most :data:`MOST`."""
    first: dict[bytes, tuple[Path, str]] = {}
    for group in groups:
        for _, run in group.runs.iterrows():
            file = Path(run["path"]) / "partition.csv"
            if file.is_file():
                known = (f"{c} {text(run[c])}" for c in NAMED if text(run.get(c)) != "unset")
                digest = hashlib.sha256(file.read_bytes()).digest()
                first.setdefault(digest, (file, ", ".join(known)))
    if not first:
        yield Absent(TITLE, "no partition.csv; every `fedsim run` writes it")
    several = len(first) > 1
    more = f" The runs have {len(first)} partitions; {MOST} are shown." if len(first) > MOST else ""
    for index, (file, words) in enumerate(list(first.values())[:MOST], start=1):
        yield Drawing(
            f"partition_{index}",
            f"{TITLE} ({index} of {len(first)})" if several else TITLE,
            f"Training samples by class and client, of the first run with this partition ({words})."
            f"{more}",
            "Each client is a column and each class a row; above are the clients' totals. Columns "
            "that look alike mean clients with the same mix of classes, columns with few filled "
            "cells mean clients that know few classes.",
            partition.figure(partition.load(file).dropna(axis="columns", how="all")),
        )
