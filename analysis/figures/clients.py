"""Accuracy by client and by group of test samples: one row per method, a panel per setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from .. import series
from ..facets import Facets, labels_in, labels_of, unit_of
from ..files import client_names
from ..labels import title_of
from ..runs import Group, first_run
from ..stats import over_units
from ..tables.clients import PARTS, last_scores
from . import grid, style
from .grid import Absent, Drawing

MARKERS = ("o", "D", "s", "^", "v", "P", "X")
DARK = "#444444"


def by_client(facets: Facets) -> Drawing | Absent:
    """One dot per client and one box per method; a client's accuracy is its mean over seeds.

    Clients of different partitions hold different data: they are dots of their own.
    """
    by_part = {setting: _accuracies(groups) for setting, groups in facets.items()}
    part = next((name for name in PARTS if any(parts[name] for parts in by_part.values())), None)
    if part is None:
        return grid.absent("clients")
    chosen = {setting: parts[part] for setting, parts in by_part.items()}
    labels, lines = labels_of(chosen), grid.facet_lines(facets)
    sites = _sites(facets)
    with style.look():
        fig, places = grid.method_rows(list(chosen), labels, "Client accuracy (%)")
        for axes, frames in zip(places, chosen.values(), strict=True):
            for label, frame in frames.items():
                _strip(axes, frame["mean"], labels.index(label), lines[label].colour, sites)
        if sites:
            handles = [_marker(marker, DARK) for marker, _ in zip(MARKERS, sites, strict=False)]
            grid.legend(fig, handles, [style.short(name, 30) for name in sites.values()])
    counts = [n for frames in chosen.values() for frame in frames.values() for n in frame["n"]]
    return grid.drawing(
        "clients", fig, part=PARTS[part], sites=bool(sites), unit=unit_of(facets),
        means=grid.means_note(counts, "seed"),
        without="; ".join(title_of(one) for one in labels_in(facets) if one not in labels),
        told=grid.by_label(chosen, lambda frame: f" {_range(frame['mean'])}"),
    )  # fmt: skip


def _accuracies(groups: Sequence[Group]) -> dict[str, dict[str, pd.DataFrame]]:
    """By part and label, columns mean (in per cent) and n, indexed by client_id.

    If the partition is the unit there is a row for each partition of a client, with n = 1.
    """

    def summary(frame: pd.DataFrame) -> pd.DataFrame:
        values = 100 * series.per_unit(frame)
        if groups[0].unit == "seed":
            return grid.column(over_units(values, ["client_id"]), "accuracy")
        one = values.set_axis(["mean"], axis=1).assign(n=1)
        return one.droplevel(series.UNIT).sort_index()

    return {
        part: {label: summary(frame) for label, frame in frames.items()}
        for part, frames in last_scores(groups).items()
    }


def _sites(facets: Facets) -> Mapping[int, str]:
    """The clients' names by id, if they are few and the same everywhere."""
    first, *others = [client_names(first_run(groups)) for groups in facets.values()]
    few = all(other == first for other in others) and len(first) <= len(MARKERS)
    return first if few else {}


def _range(values: pd.Series[float]) -> str:
    return f"{values.median():.1f} ({values.min():.1f} to {values.max():.1f})"


def _marker(marker: str, face: str) -> Line2D:
    """A handle of the legend."""
    return Line2D(
        [], [], marker=marker, linestyle="", color=DARK, markerfacecolor=face, markersize=7
    )


def _strip(
    axes: Axes, accuracies: pd.Series[float], row: int, colour: str, sites: Mapping[int, str]
) -> None:
    """A box plot with all its values, spread over the height of the row.

    ``accuracies`` are indexed by client; clients with a site have its shape.
    """
    values = accuracies.to_numpy()
    lines = {"color": colour, "linewidth": 1.1}
    axes.boxplot(
        values, positions=[row], orientation="horizontal", widths=0.56, whis=(0, 100),
        manage_ticks=False, patch_artist=True, showfliers=False,
        boxprops={"facecolor": "none", "edgecolor": colour, "linewidth": 1.1},
        medianprops={"color": colour, "linewidth": 2.2}, whiskerprops=lines, capprops=lines,
    )  # fmt: skip
    heights = row + 0.2 * (2 * (np.arange(len(values)) * 0.618034 % 1) - 1)
    dots: dict[str, Any] = {"color": colour, "linewidths": 0, "zorder": 3}
    if not sites:
        axes.scatter(values, heights, s=14 if len(values) <= 60 else 6, alpha=0.45, **dots)
    for marker, client in zip(MARKERS, sites, strict=False):
        at = accuracies[accuracies.index == client]
        axes.scatter(at, [row] * len(at), s=34, marker=marker, alpha=0.8, **dots)


def by_group(facets: Facets) -> Drawing | Absent:
    """Mean accuracy and 95 % interval by group of test samples, one row per method."""
    condition = {"split": "test"}
    accuracies = {
        setting: {
            label: grid.column(frame, "accuracy")
            for label, frame in series.aggregated(
                groups, "evaluations", ["accuracy"], "group", condition, take="last"
            ).items()
        }
        for setting, groups in facets.items()
    }
    frames = [frame for by_label in accuracies.values() for frame in by_label.values()]
    if not frames:
        return grid.absent("groups")
    names = list(dict.fromkeys(name for frame in frames for name in frame.index))
    labels, lines = labels_of(accuracies), grid.facet_lines(facets)
    faces = [DARK, *["white"] * (len(names) - 1)]
    note = grid.unit_note((n for frame in frames for n in frame["n"]), unit_of(facets), "bar")
    with style.look():
        fig, places = grid.method_rows(list(accuracies), labels, "Test accuracy (%)", most=2)
        for axes, by_label in zip(places, accuracies.values(), strict=True):
            for label, frame in by_label.items():
                _groups(axes, 100 * frame, names, labels.index(label), lines[label].colour)
        handles = [_marker(MARKERS[i % len(MARKERS)], face) for i, face in enumerate(faces)]
        grid.legend(fig, handles, names, note)

    def means(frame: pd.DataFrame) -> str:
        return ": " + ", ".join(f"{g} {value:.1f}" for g, value in (100 * frame["mean"]).items())

    alt = grid.by_label(accuracies, means)
    return grid.drawing("groups", fig, names=", ".join(names), note=note, told=alt)


def _groups(axes: Axes, frame: pd.DataFrame, names: list[str], row: int, colour: str) -> None:
    means = frame["mean"].reindex(names)
    axes.plot([means.min(), means.max()], [row, row], color="#BBBBBB", linewidth=1.2, zorder=1)
    for index, name in enumerate(names):
        if name in frame.index:
            half = frame["half"][name]
            axes.errorbar(
                means[name], row, xerr=None if np.isnan(half) else half,
                fmt=MARKERS[index % len(MARKERS)], color=colour, capsize=3, markersize=7,
                markerfacecolor=colour if index == 0 else "white", elinewidth=1.2,
            )  # fmt: skip
