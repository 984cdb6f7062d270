"""How far the clients' updates agree: cosines, conflicts, gradient diversity, principal axes."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from . import panels, series, stats, style
from .panels import Absent, Drawing, Facets, Rounds, facet_lines, unit_of
from .runs import Group
from .units import ExperimentalUnit

AGREEMENT = "Agreement of the updates by round"
COSINES = "Pairwise cosines and principal axes in the last round"
SMOOTH = 20
"""Window of the moving mean: a SMOOTHth of the rounds, since each round has another cohort."""
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
PANELS: Sequence[tuple[str, str, float, tuple[float, float], tuple[float, ...]]] = (
    ("Conflicting pairs (%)", "conflict_ratio", 100, (0, 100), (0, 10)),
    ("Gradient diversity", "gradient_diversity", 1, (1, math.inf), (1,)),
    ("Share of first axis (%)", "top_axis_share", 100, (0, 100), ()),
)
"""Label, column of rounds.csv, factor, possible values and reach of each panel of the agreement."""


def agreement(rounds: Rounds, unit: ExperimentalUnit = "seed") -> Drawing | Absent:
    """Conflict ratio, gradient diversity and first axis' share by round."""
    found = []
    for title, values in rounds.items():
        smooth = {label: _smooth(frame) for label, frame in values.items()}
        found += [
            panels.Panel(
                label=label,
                curves=panels.curves(smooth, column, factor),
                title=title,
                possible=possible,
                reach=reach,
                unit=unit,
            )
            for label, column, factor, possible, reach in PANELS
        ]
    kinds = [kind for kind in range(3) if any(panel.curves for panel in found[kind::3])]
    if not kinds:
        return Absent(AGREEMENT, "a conflict needs two clients in a round; these runs have one")
    shown = [panel for index, panel in enumerate(found) if index % 3 in kinds]
    note = panels.panel_note(shown)
    lines = style.lines([label for values in rounds.values() for label in values])
    return Drawing(
        name="agreement",
        title=AGREEMENT,
        caption=(
            "Share of pairs of clients whose updates have a negative inner product, gradient "
            "diversity, and the share of the largest eigenvalue in the trace of the Gram matrix of "
            f"the updates, by communication round. {note}. Runs of {2 * SMOOTH} rounds or more: "
            f"moving means over a {SMOOTH}th of the rounds."
        ),
        reading=(
            "A conflicting pair pulls the model in opposing directions. Gradient diversity is 1 "
            "where all updates are equal and grows as they differ. A first axis with a large share "
            "means that the updates lie along one common direction, the one that principal "
            "aggregation keeps first."
        ),
        figure=panels.grid(shown, len(kinds), note, lines),
        alt=panels.told(shown),
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
        return Absent(COSINES, "no cosines.csv; `fedsim run --cosines` writes it")
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
    return Drawing(
        name="cosines",
        title=COSINES,
        caption=(
            "Left: cosines of all pairs of client updates in the last round, sorted within each "
            "run. Right: eigenvalues of the Gram matrix of the same updates as shares of their "
            f"sum. {note}."
        ),
        reading=(
            "A curve that goes further below the zero line has more pairs in conflict, and "
            "stronger ones. On the right, the steeper the fall, the fewer directions the updates "
            "share."
        ),
        figure=panels.grid(shown, 2, note, facet_lines(facets)),
        alt=panels.told(shown),
    )


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
    found: dict[str, list[tuple[Mapping[str, int], Floats]]] = {}
    for part in series.each(groups, "cosines", ["round", "cosine"]):
        frame = part.frame.dropna()
        values = frame["cosine"][frame["round"] == frame["round"].max()].to_numpy()
        if len(values):
            found.setdefault(part.label, []).append((part.run, values))
    result = {}
    for label, runs in found.items():
        places = np.linspace(0, 1, min(len(values) for _, values in runs))
        sorted_runs = [
            pd.DataFrame({"cosine": np.quantile(values, places), "pair": 100 * places, **run})
            for run, values in runs
        ]
        frame = pd.concat(sorted_runs).set_index([*runs[0][0], "pair"])
        result[label] = stats.over_units(series.per_unit(frame), ["pair"])
    return panels.curves(result, "cosine")
