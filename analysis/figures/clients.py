"""Accuracy by client and by group of test samples: one row per method, a panel per setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from .. import series
from ..facets import Facets, groups_in, labels_in, labels_of, unit_of
from ..labels import title_of
from ..runs import Group
from ..scores import primary_of
from ..stats import over_units
from ..tables.clients import PARTS, last_scores
from . import grid, style
from .grid import Absent, Drawing

MARKERS = ("o", "D", "s", "^", "v", "P", "X")
DARK = "#444444"


def by_client(facets: Facets) -> Drawing | Absent:
    """A dot per client (and partition), a mean over seeds, and a box per method."""
    name, score = primary_of(groups_in(facets))
    factor = score.unit.factor
    by_part = {setting: _by_part(groups, name, factor) for setting, groups in facets.items()}
    part = next((name for name in PARTS if any(parts[name] for parts in by_part.values())), None)
    if part is None:
        return grid.absent("clients", score=score.name)
    chosen = {setting: parts[part] for setting, parts in by_part.items()}
    labels, lines = labels_of(chosen), grid.facet_lines(facets)
    with style.look():
        axis = score.unit.head(f"Client {score.title}")
        fig, places = grid.method_rows(list(chosen), labels, axis)
        for axes, frames in zip(places, chosen.values(), strict=True):
            for label, frame in frames.items():
                _strip(axes, frame["mean"].to_numpy(), labels.index(label), lines[label].colour)
    counts = [n for frames in chosen.values() for frame in frames.values() for n in frame["n"]]
    return grid.drawing(
        "clients", fig, part=PARTS[part], unit=unit_of(facets), score=score.name,
        lowest=score.lowest, means=grid.means_note(counts, "seed"),
        without="; ".join(title_of(one) for one in labels_in(facets) if one not in labels),
    )  # fmt: skip


def _by_part(
    groups: Sequence[Group], name: str, factor: float
) -> dict[str, dict[str, pd.DataFrame]]:
    """By part and label, mean (as shown) and n by client_id, or by client and partition."""

    def summary(frame: pd.DataFrame) -> pd.DataFrame:
        values = factor * series.per_unit(frame)
        if groups[0].unit == "seed":
            return pd.DataFrame(over_units(values, ["client_id"])[name])
        return values.set_axis(["mean"], axis=1).assign(n=1)

    return {
        part: {label: summary(frame) for label, frame in frames.items()}
        for part, frames in last_scores(groups, name).items()
    }


def _strip(
    axes: Axes, values: np.ndarray[tuple[int], np.dtype[np.float64]], row: int, colour: str
) -> None:
    """A box plot with all its values, spread over the height of the row."""
    lines = {"color": colour, "linewidth": 1.1}
    axes.boxplot(
        values, positions=[row], orientation="horizontal", widths=0.56, whis=(0, 100),
        manage_ticks=False, patch_artist=True, showfliers=False,
        boxprops={"facecolor": "none", "edgecolor": colour, "linewidth": 1.1},
        medianprops={"color": colour, "linewidth": 2.2}, whiskerprops=lines, capprops=lines,
    )  # fmt: skip
    heights = row + 0.2 * (2 * (np.arange(len(values)) * 0.618034 % 1) - 1)
    size = 14 if len(values) <= 60 else 6
    axes.scatter(values, heights, s=size, alpha=0.45, color=colour, linewidths=0, zorder=3)


def by_group(facets: Facets) -> Drawing | Absent:
    """Mean accuracy and 95 % interval by group of test samples, one row per method."""
    (name, score), test_part = primary_of(groups_in(facets)), {"split": "test"}
    scores = {}
    for setting, groups in facets.items():
        of = series.aggregated(groups, "evaluations", [name], "group", test_part, take="last")
        scores[setting] = {label: frame[name] for label, frame in of.items()}
    frames = [frame for by_label in scores.values() for frame in by_label.values()]
    if not frames:
        return grid.absent("groups", score=score.name)
    names = list(dict.fromkeys(name for frame in frames for name in frame.index))
    labels, lines = labels_of(scores), grid.facet_lines(facets)
    looks: dict[str, dict[str, Any]] = {
        name: {"marker": MARKERS[i % len(MARKERS)], "markersize": 7, "linestyle": ""}
        | ({"markerfacecolor": "white"} if i else {})
        for i, name in enumerate(names)
    }
    note = grid.unit_note((n for frame in frames for n in frame["n"]), unit_of(facets), "bar")
    with style.look():
        axis = score.unit.head(f"Test {score.title}")
        fig, places = grid.method_rows(list(scores), labels, axis, most=2)
        for axes, by_label in zip(places, scores.values(), strict=True):
            for label, frame in by_label.items():
                row, factor = labels.index(label), score.unit.factor
                means, halves = factor * frame["mean"], factor * frame["half"]
                axes.plot([means.min(), means.max()], [row, row], color="#BBBBBB", linewidth=1.2)
                for name in means.index:
                    axes.errorbar(
                        means[name], row, xerr=halves[name] if halves[name] > 0 else None,
                        capsize=3, elinewidth=1.2, color=lines[label].colour, **looks[name],
                    )  # fmt: skip
        handles = [Line2D([], [], color=DARK, **look) for look in looks.values()]
        grid.legend(fig, handles, names, note)
    return grid.drawing("groups", fig, names=", ".join(names), note=note, score=score.name)
