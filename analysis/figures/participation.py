"""Selection, asynchrony, attacks and privacy by round, and the rounds of each client."""

import math
from collections.abc import Sequence

import pandas as pd

from .. import series, stats
from ..facets import Facets, unit_of
from ..runs import Group
from ..tables.participation import rounds_by_client
from . import grid
from .grid import Absent, Drawing, Panel

BY_ROUND: Sequence[tuple[str, str, str, float, tuple[float, float]]] = (
    ("clients", "staleness", "Staleness (server steps)", 1, (0, math.inf)),
    ("rounds", "attack_success_rate", "Attack success rate (%)", 100, (0, 100)),
    ("rounds", "epsilon", "Privacy budget \N{GREEK SMALL LETTER EPSILON}", 1, (0, math.inf)),
)
"""Table, column, label, factor and possible values of the rows by round."""


def draw(facets: Facets) -> Drawing | Absent:
    """Staleness, attack success and epsilon by round, and rounds by client; of those there are.

    Rounds by client are shown where a run selects clients in another way than uniformly.
    """
    unit = unit_of(facets)
    panels = [
        Panel(
            label=label, title=title, possible=possible, unit=unit,
            curves=grid.curves(series.aggregated(groups, table, [column]), column, factor),
        )
        for table, column, label, factor, possible in BY_ROUND
        for title, groups in facets.items()
    ]  # fmt: skip
    selected = any(_selects(group) for groups in facets.values() for group in groups)
    for title, groups in facets.items() if selected else ():
        places = {
            label: stats.over_units(series.per_unit(frame), ["place"])
            for label, frame in rounds_by_client(groups).items()
        }
        panels.append(
            Panel(
                label="Rounds taken part in", title=title, possible=(0, math.inf), unit=unit,
                reach=(0,), curves=grid.curves(places, "rounds"), x="Clients, sorted",
            )
        )  # fmt: skip
    return grid.of_panels("participation", panels, grid.facet_lines(facets))


def _selects(group: Group) -> bool:
    """Whether its runs select clients in another way than uniformly."""
    selections = group.runs.get("train.selection", pd.Series(dtype=object)).dropna()
    return bool((selections != "uniform").any())
