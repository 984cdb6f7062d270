"""Selection, asynchrony, attacks and privacy: a table of participation, and panels by round."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pandas as pd

from .. import AnalysisError, series, stats
from ..figures import grid as panels
from ..figures.grid import Absent, Drawing, Facets, Panel, facet_lines, unit_of
from ..runs import Group
from ..units import COLUMNS
from ..words import say
from .layout import Table, Unit, crossed, crossed_heads, with_seeds

MEASURES: Mapping[str, str] = {
    "least": "Least", "mean": "Mean", "most": "Most", "never": "Never (%)", "gini": "Gini",
}  # fmt: skip
"""What is made of the clients' numbers of rounds, and its heading."""
BY_ROUND: Sequence[tuple[str, str, str, float, tuple[float, float]]] = (
    ("clients", "staleness", "Staleness (server steps)", 1, (0, math.inf)),
    ("rounds", "attack_success_rate", "Attack success rate (%)", 100, (0, 100)),
    ("rounds", "epsilon", "Privacy budget \N{GREEK SMALL LETTER EPSILON}", 1, (0, math.inf)),
)
"""Table, column, label, factor and possible values of the panels by round."""


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
    found = rounds_by_client(groups)
    if not found:
        raise AnalysisError("in no run clients.csv has rows; every `fedsim run` writes them")
    levels = list(COLUMNS[groups[0].unit])
    values: dict[str, dict[str, pd.Series[float]]] = {name: {} for name in MEASURES}
    for label, frame in found.items():
        of = frame["rounds"].groupby(level=levels)
        values["least"][label], values["most"][label] = of.min(), of.max()
        values["mean"][label] = of.mean()
        values["never"][label] = 100 * (frame["rounds"] == 0).groupby(level=levels).mean()
        values["gini"][label] = of.agg(lambda rounds: gini(rounds.to_numpy()))
    shown = stats.cells(values)
    texts, seeds = with_seeds(shown, Unit(digits=2))
    return crossed(
        "participation", say("participation.title"), say("participation.table") + seeds,
        texts, crossed_heads(shown, MEASURES),
    )  # fmt: skip


def gini(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """sum_ij |x_i - x_j| / (2 n^2 mean(x)) of ascending x (n,) >= 0; 0 where all are 0."""
    n, total = len(values), float(values.sum())
    ranked = float((values * (2 * np.arange(1, n + 1) - n - 1)).sum())
    return ranked / (n * total) if total else 0.0


def draw(facets: Facets) -> Drawing | Absent:
    """Staleness, attack success and epsilon by round, and rounds by client; of those there are.

    Rounds by client are shown where a run selects clients in another way than uniformly.
    """
    shown: list[Panel] = []
    unit = unit_of(facets)
    for table, column, label, factor, possible in BY_ROUND:
        row = [
            Panel(
                label=label, title=title, possible=possible, unit=unit,
                curves=panels.curves(
                    series.aggregated(groups, table, [column], "round"), column, factor
                ),
            )
            for title, groups in facets.items()
        ]  # fmt: skip
        shown += row if any(panel.curves for panel in row) else []
    if any(_selects(group) for groups in facets.values() for group in groups):
        for title, groups in facets.items():
            by_place = {
                label: stats.over_units(series.per_unit(frame), ["place"])
                for label, frame in rounds_by_client(groups).items()
            }
            shown.append(
                Panel(
                    label="Rounds taken part in", title=title, possible=(0, math.inf), unit=unit,
                    reach=(0,), curves=panels.curves(by_place, "rounds"), x="Clients, sorted",
                )
            )  # fmt: skip
    if not shown:
        return panels.absent("participation")
    note = panels.panel_note(shown)
    figure = panels.grid(shown, min(2, len(shown)), note, facet_lines(facets))
    return panels.drawing("participation", figure, note=note, told=panels.told(shown))


def _selects(group: Group) -> bool:
    """Whether its runs select clients in another way than uniformly."""
    selections = group.runs.get("train.selection", pd.Series(dtype=object)).dropna()
    return bool((selections != "uniform").any())
