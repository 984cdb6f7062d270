"""In how many rounds the clients took part."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pandas as pd

from .. import AnalysisError, series, stats
from ..formats import NumberFormat
from ..runs import Group
from ..units import COLUMNS
from ..words import say
from .layout import Table, crossed, crossed_heads, with_seeds

MEASURES: Mapping[str, str] = {
    "least": "Least", "mean": "Mean", "most": "Most", "never": "Never (%)", "gini": "Gini",
}  # fmt: skip
"""What is made of the clients' numbers of rounds, and its heading."""


def rounds_by_client(groups: Sequence[Group]) -> dict[str, pd.DataFrame]:
    """By label, ``rounds`` in which the update of each client counted, in ascending order.

    Clients that may train and never did have 0. Indexed by (*:data:`analysis.units.COLUMNS`,
    place), the place from 0.
    """
    paths = {str(row["path"]): row for one in groups for row in one.runs.to_dict("records")}
    found: dict[str, list[pd.DataFrame]] = {}
    for part in series.each(groups, "clients", ["client_id", "status"]):
        row = paths[str(part.path)]
        counts = part.frame.loc[part.frame["status"] == "ok", "client_id"].value_counts()
        clients = max(_participants(row), len(counts))
        rounds = np.sort(np.append(np.zeros(clients - len(counts)), counts.to_numpy(float)))
        frame = pd.DataFrame({"rounds": rounds, "place": np.arange(clients), **part.run})
        found.setdefault(part.label, []).append(frame.set_index([*part.run, "place"]))
    return {label: pd.concat(frames) for label, frames in found.items()}


def _participants(row: Mapping[Hashable, object]) -> int:
    """The clients of a run that may train, from its summary."""
    count = int(float(str(row["num_clients"])))
    out = float(str(row.get("data.heldout_clients", 0)))
    return count - (max(1, round(out * count)) if 0 < out < 1 else int(out) if out >= 1 else 0)


def table(groups: Sequence[Group]) -> Table:
    """Of the numbers of rounds in which each client took part: the least, mean, most, and Gini.

    Raises:
        AnalysisError: no run has a clients.csv.
    """
    counts = rounds_by_client(groups)
    if not counts:
        raise AnalysisError("in no run clients.csv has rows; every `fedsim run` writes them")
    levels = list(COLUMNS[groups[0].unit])
    values: dict[str, dict[str, pd.Series[float]]] = {name: {} for name in MEASURES}
    for label, frame in counts.items():
        of = frame["rounds"].groupby(level=levels)
        values["least"][label], values["most"][label] = of.min(), of.max()
        values["mean"][label] = of.mean()
        values["never"][label] = 100 * (frame["rounds"] == 0).groupby(level=levels).mean()
        values["gini"][label] = of.agg(lambda rounds: gini(rounds.to_numpy()))
    shown = stats.cells(values)
    texts, seeds = with_seeds(shown, NumberFormat(digits=2))
    return crossed(
        "participation", say("participation.title"), say("participation.table") + seeds,
        texts, crossed_heads(shown, MEASURES),
    )  # fmt: skip


def gini(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """sum_ij |x_i - x_j| / (2 n^2 mean(x)) of ascending x (n,) >= 0; 0 where all are 0."""
    n, total = len(values), float(values.sum())
    ranked = float((values * (2 * np.arange(1, n + 1) - n - 1)).sum())
    return ranked / (n * total) if total else 0.0
