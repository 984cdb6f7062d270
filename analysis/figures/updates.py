"""How far the clients' updates agree: cosines, conflicts, gradient diversity, principal axes."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from .. import series, stats
from ..runs import Group
from ..units import ExperimentalUnit
from . import grid as panels
from . import style
from .grid import Absent, Drawing, Facets, Rounds, facet_lines, unit_of

SMOOTH = 20
"""Window of the moving mean: a SMOOTHth of the rounds, since each round has another cohort."""
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
PANELS: Sequence[tuple[str, str, float, tuple[float, float], tuple[float, ...]]] = (
    ("Conflicting pairs (%)", "conflict_ratio", 100, (0, 100), (0, 10)),
    ("Gradient diversity", "gradient_diversity", 1, (1, math.inf), (1,)),
    ("Share of first axis (%)", "top_axis_share", 100, (0, 100), ()),
)
"""Label, column of rounds.csv, factor, possible values and reach of each panel of the agreement."""


def agreement(
    rounds: Rounds,
    unit: ExperimentalUnit = "seed",
    lines: Mapping[str, style.Line] | None = None,
) -> Drawing | Absent:
    """Conflict ratio, gradient diversity and first axis' share by round; ``lines`` by label."""
    every: list[panels.Panel] = []
    for title, values in rounds.items():
        smooth = {label: _smooth(frame) for label, frame in values.items()}
        every += [
            panels.Panel(
                label=label, curves=panels.curves(smooth, column, factor), title=title,
                possible=possible, reach=reach, unit=unit,
            )
            for label, column, factor, possible, reach in PANELS
        ]  # fmt: skip
    kinds = [kind for kind in range(3) if any(panel.curves for panel in every[kind::3])]
    if not kinds:
        return panels.absent("agreement")
    shown = [panel for index, panel in enumerate(every) if index % 3 in kinds]
    note = panels.panel_note(shown)
    lines = lines or style.lines([label for values in rounds.values() for label in values])
    figure = panels.grid(shown, len(kinds), note, lines)
    return panels.drawing(
        "agreement", figure, note=note, rounds=2 * SMOOTH, smooth=SMOOTH, told=panels.told(shown)
    )


def cosines(facets: Facets) -> Drawing | Absent:
    """Sorted pairwise cosines and eigenvalue shares of the last round."""
    left = [
        panels.Panel(
            label="Cosine", curves=_sorted(groups), title=title, zero=True, possible=(-1, 1),
            x="Pairs of clients, sorted (%)", unit=unit_of(facets),
        )
        for title, groups in facets.items()
    ]  # fmt: skip
    if not any(panel.curves for panel in left):
        return panels.absent("cosines")
    right = [
        panels.Panel(
            label="Eigenvalue share (%)",
            curves=panels.curves(_spectrum(groups), "share", 100),
            title=title, possible=(0, 100), x="Principal axis", unit=unit_of(facets),
        )
        for title, groups in facets.items()
    ]  # fmt: skip
    shown = [panel for pair in zip(left, right, strict=True) for panel in pair]
    note = panels.panel_note(shown)
    figure = panels.grid(shown, 2, note, facet_lines(facets))
    return panels.drawing("cosines", figure, note=note, told=panels.told(shown))


def _spectrum(groups: Sequence[Group]) -> dict[str, pd.DataFrame]:
    return series.aggregated(groups, "spectrum", ["share"], "axis", take="last")


def _smooth(values: pd.DataFrame) -> pd.DataFrame:
    window = max(1, values.index.unique("round").size // SMOOTH)
    smooth = values.groupby(level=series.UNIT, group_keys=False).rolling(window).mean()
    return stats.over_units(smooth.droplevel(0), ["round"])


def _sorted(groups: Sequence[Group]) -> dict[str, pd.DataFrame]:
    """Sorted cosines of the last round, mean over units by rank in per cent of the pairs.

    Runs with more pairs than others are interpolated at the ranks of the run with the fewest.
    """
    by_label: dict[str, list[tuple[Mapping[str, int], Floats]]] = {}
    for part in series.each(groups, "cosines", ["round", "cosine"]):
        frame = part.frame.dropna()
        values = frame["cosine"][frame["round"] == frame["round"].max()].to_numpy()
        if len(values):
            by_label.setdefault(part.label, []).append((part.run, values))
    result = {}
    for label, runs in by_label.items():
        places = np.linspace(0, 1, min(len(values) for _, values in runs))
        sorted_runs = [
            pd.DataFrame({"cosine": np.quantile(values, places), "pair": 100 * places, **run})
            for run, values in runs
        ]
        frame = pd.concat(sorted_runs).set_index([*runs[0][0], "pair"])
        result[label] = stats.over_units(series.per_unit(frame), ["pair"])
    return panels.curves(result, "cosine")
