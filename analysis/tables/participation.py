"""In how many rounds the clients took part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from .. import AnalysisError, series, stats
from ..files import read_env
from ..formats import NumberFormat
from ..runs import Group
from ..units import COLUMNS
from ..words import say
from .layout import Table, crossed

HEADS: Mapping[str, str] = {
    "least": "Least", "mean": "Mean", "most": "Most", "never": "Never (%)", "gini": "Gini",
}  # fmt: skip
"""What is made of the clients' numbers of rounds, and its heading."""


def rounds_by_client(groups: Sequence[Group]) -> dict[str, pd.DataFrame]:
    """By label, ``rounds`` in which each client's update counted, ascending, by run."""
    every = (row for one in groups for row in one.runs.to_dict("records"))
    registered = {str(row["path"]): int(float(row["num_clients"])) for row in every}
    found: dict[str, list[pd.DataFrame]] = {}
    for part in series.each(groups, "clients", ["client_id", "status"]):
        counts = part.frame.loc[part.frame["status"] == "ok", "client_id"].value_counts()
        held_out = read_env(part.path).get("heldout_clients", ())
        clients = max(registered[str(part.path)] - len(held_out), len(counts))
        rounds = np.sort(np.append(np.zeros(clients - len(counts)), counts.to_numpy(float)))
        frame = pd.DataFrame({"rounds": rounds, "place": np.arange(clients), **part.run})
        found.setdefault(part.label, []).append(frame.set_index([*part.run, "place"]))
    return {label: pd.concat(frames) for label, frames in found.items()}


def table(groups: Sequence[Group]) -> Table:
    """Of the numbers of rounds in which each client took part: the least, mean, most, and Gini."""
    counts = rounds_by_client(groups)
    if not counts:
        raise AnalysisError("in no run clients.csv has rows; every `fedsim run` writes them")
    levels = list(COLUMNS[groups[0].unit])
    by_run = {label: frame["rounds"].groupby(level=levels) for label, frame in counts.items()}
    measures: Any = ("min", "mean", "max", lambda rounds: 100 * (rounds == 0).mean(), gini)
    values = {
        name: {label: of.agg(measure) for label, of in by_run.items()}
        for name, measure in zip(HEADS, measures, strict=True)
    }
    return crossed(
        "participation", say("participation.title"), say("participation.table"),
        stats.cells(values), HEADS, NumberFormat(digits=2),
    )  # fmt: skip


def gini(values: pd.Series[float]) -> float:
    """sum_ij |x_i - x_j| / (2 n^2 mean(x)) of ascending x (n,) >= 0; 0 where all are 0."""
    n, total = len(values), float(values.sum())
    ranked = float((values.to_numpy() * (2 * np.arange(1, n + 1) - n - 1)).sum())
    return ranked / (n * total) if total else 0.0
