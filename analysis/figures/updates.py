"""How far the clients' updates agree, by cosines, conflicts and axes, and who takes part."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from .. import series, stats
from ..facets import Facets, unit_of
from ..runs import Group
from ..tables.participation import rounds_by_client
from ..units import ExperimentalUnit
from . import grid, style
from .grid import Absent, Drawing, Panel

SMOOTH = 20
"""Window of the moving mean: a SMOOTHth of the rounds, since each round has another cohort."""
AGREEMENT: Sequence[tuple[str, str, float, tuple[float, float], tuple[float, ...]]] = (
    ("Conflicting pairs (%)", "conflict_ratio", 100, (0, 100), (0, 10)),
    ("Gradient diversity", "gradient_diversity", 1, (1, math.inf), (1,)),
    ("Share of first axis (%)", "top_axis_share", 100, (0, 100), ()),
)
"""Label, column of rounds.csv, factor, possible values and reach of each row of the agreement."""
Rounds = Mapping[str, Mapping[str, pd.DataFrame]]
"""Columns of rounds.csv indexed by (unit, round), by setting and label."""


def agreement(
    rounds: Rounds, unit: ExperimentalUnit, lines: Mapping[str, style.Line]
) -> Drawing | Absent:
    """Conflict ratio, gradient diversity and first axis' share by round; ``lines`` by label."""
    smooth: dict[str, dict[str, pd.DataFrame]] = {title: {} for title in rounds}
    for title, label, values in ((t, *item) for t, of in rounds.items() for item in of.items()):
        window = max(1, values.index.unique("round").size // SMOOTH)
        means = values.groupby(level=series.UNIT, group_keys=False).rolling(window).mean()
        smooth[title][label] = stats.over_units(means.droplevel(0), ["round"])
    panels = [
        Panel(
            label=label, curves=grid.curves(frames, column, factor), title=title, possible=possible,
            reach=reach, unit=unit,
        )
        for label, column, factor, possible, reach in AGREEMENT
        for title, frames in smooth.items()
    ]  # fmt: skip
    return grid.of_panels("agreement", panels, lines, rounds=2 * SMOOTH, smooth=SMOOTH)


def cosines(facets: Facets) -> Drawing | Absent:
    """Sorted pairwise cosines and eigenvalue shares of the last round."""
    unit, lines = unit_of(facets), grid.facet_lines(facets)
    sorted_ones = [
        Panel(
            label="Cosine", curves=_sorted(groups), title=title, zero=True, possible=(-1, 1),
            x="Pairs of clients, sorted (%)", unit=unit,
        )
        for title, groups in facets.items()
    ]  # fmt: skip
    if not any(panel.curves for panel in sorted_ones):
        return grid.absent("cosines")
    spectra = {
        title: series.aggregated(groups, "spectrum", ["share"], "axis", take="last")
        for title, groups in facets.items()
    }
    shares = [
        Panel(
            label="Eigenvalue share (%)", title=title, possible=(0, 100), unit=unit,
            curves=grid.curves(spectrum, "share", 100), x="Principal axis",
        )
        for title, spectrum in spectra.items()
    ]  # fmt: skip
    return grid.of_panels("cosines", [*sorted_ones, *shares], lines)


def _sorted(groups: Sequence[Group]) -> dict[str, pd.DataFrame]:
    """Cosines of the last round, mean over units by rank in per cent of the fewest pairs."""
    by_label: dict[str, list[tuple[Mapping[str, int], pd.Series]]] = {}
    for part in series.each(groups, "cosines", ["round", "cosine"]):
        frame = part.frame.dropna()
        last = frame["cosine"][frame["round"] == frame["round"].max()]
        if len(last):
            by_label.setdefault(part.label, []).append((part.run, last))
    result = {}
    for label, runs in by_label.items():
        places = np.linspace(0, 1, min(len(cosines) for _, cosines in runs))
        sorted_runs = [
            pd.DataFrame({"cosine": np.quantile(cosines, places), "pair": 100 * places, **run})
            for run, cosines in runs
        ]
        frame = pd.concat(sorted_runs).set_index([*runs[0][0], "pair"])
        result[label] = stats.over_units(series.per_unit(frame), ["pair"])
    return grid.curves(result, "cosine")


BY_ROUND: Sequence[tuple[str, str, str, float, tuple[float, float]]] = (
    ("clients", "staleness", "Staleness (server steps)", 1, (0, math.inf)),
    ("rounds", "attack_success_rate", "Attack success rate (%)", 100, (0, 100)),
    ("rounds", "epsilon", "Privacy budget \N{GREEK SMALL LETTER EPSILON}", 1, (0, math.inf)),
)
"""Table, column, label, factor and possible values of the rows by round."""


def participation(facets: Facets) -> Drawing | Absent:
    """Staleness, attack success and epsilon by round, and rounds by client; of those there are."""
    unit = unit_of(facets)
    panels = [
        Panel(
            label=label, title=title, possible=possible, unit=unit,
            curves=grid.curves(series.aggregated(groups, table, [column]), column, factor),
        )
        for table, column, label, factor, possible in BY_ROUND
        for title, groups in facets.items()
    ]  # fmt: skip
    none = pd.Series(dtype=object)
    selections = [g.runs.get("train.selection", none) for of in facets.values() for g in of]
    selected = any((values.dropna() != "uniform").any() for values in selections)
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
