"""Accuracy by client and by group of test samples, after a run's last evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from . import names, panels, series, style
from .client_parts import PARTS, last_accuracies
from .panels import Absent, Drawing, Facets, facet_lines, unit_of
from .runs import Group
from .stats import over_units

CLIENTS = "Accuracy by client"
GROUPS = "Accuracy by group of test samples"
MARKERS = ("o", "D", "s", "^", "v", "P", "X")


def by_client(facets: Facets) -> Drawing | Absent:
    """One dot per client and one box per method; a client's accuracy is its mean over seeds.

    Clients of different partitions hold different data: they are dots of their own.
    """
    nested = unit_of(facets) == "partition"
    found = {title: _accuracies(groups) for title, groups in facets.items()}
    part = next((name for name in PARTS if any(by[name] for by in found.values())), None)
    if part is None:
        return Absent(
            CLIENTS,
            "no rows of clients in evaluations.csv; `fedsim run --evaluate-clients-every N` "
            "writes them",
        )
    chosen = {title: by[part] for title, by in found.items()}
    labels = list(dict.fromkeys(label for by in chosen.values() for label in by))
    counts = [float(n) for by in chosen.values() for frame in by.values() for n in frame["n"]]
    lines = facet_lines(facets)
    sites = _sites(facets)
    with style.look():
        fig, places = panels.method_rows(list(chosen), labels, "Client accuracy (%)")
        for axes, by in zip(places, chosen.values(), strict=True):
            for label, frame in by.items():
                accuracies = 100 * frame["mean"]
                _strip(axes, accuracies, labels.index(label), lines[label].colour, sites)
        if sites:
            handles = [
                Line2D([], [], marker=marker, linestyle="", color="#444444")
                for marker, _ in zip(MARKERS, sites, strict=False)
            ]
            panels.legend(fig, handles, [names.short(name, 30) for name in sites.values()])
    who = f"client ({panels.means_note(counts, 'seed')})"
    if nested:
        who = "client on one of the partitions (mean over the training seeds)"
    every = dict.fromkeys(group.label for groups in facets.values() for group in groups)
    without = [style.title(label) for label in every if label not in labels]
    missing = f" Without such rows: {'; '.join(without)}." if without else ""
    return Drawing(
        name="clients",
        title=CLIENTS,
        caption=(
            f"Accuracy of each client on {PARTS[part]} after the last evaluation by client. A "
            f"dot is a {who}; boxes hold the middle half of the clients, the line in a "
            "box is the median, whiskers span all clients. Methods that keep a model per client "
            f"are evaluated with it, the others with the global model.{missing}"
            + " The shapes are the sites."
            * bool(sites)
        ),
        reading=(
            "A short box far to the right serves all clients well; dots far to the left are "
            "clients that the method leaves behind."
        ),
        figure=fig,
        alt=_told_clients(chosen),
    )


def _accuracies(groups: Sequence[Group]) -> dict[str, dict[str, pd.DataFrame]]:
    """By part and label, columns (mean | n) indexed by client_id.

    If the partition is the unit there is a row for each partition of a client, with n = 1.
    """

    def summed_up(frame: pd.DataFrame) -> pd.DataFrame:
        values = series.per_unit(frame)
        if groups[0].unit == "seed":
            return panels.column(over_units(values, ["client_id"]), "accuracy")
        one = values.set_axis(["mean"], axis=1).assign(n=1)
        return one.droplevel(series.UNIT).sort_index()

    return {
        part: {label: summed_up(frame) for label, frame in of.items()}
        for part, of in last_accuracies(groups).items()
    }


def _sites(facets: Facets) -> Mapping[int, str]:
    """The clients' names by id, if they are few and the same everywhere."""
    found = [names.clients(names.first_run(groups)) for groups in facets.values()]
    few = all(one == found[0] for one in found) and len(found[0]) <= len(MARKERS)
    return found[0] if few else {}


def _told_clients(chosen: Mapping[str, Mapping[str, Any]]) -> str:
    said = [
        f"{style.title(label)}{f' ({title})' if title else ''} {100 * frame['mean'].median():.1f} "
        f"({100 * frame['mean'].min():.1f} to {100 * frame['mean'].max():.1f})"
        for title, part in chosen.items()
        for label, frame in part.items()
    ]
    return f"Box plots. Median client accuracy in per cent, with its range: {'; '.join(said)}."


def _strip(
    axes: Axes, accuracies: pd.Series[float], row: int, colour: str, sites: Mapping[int, str]
) -> None:
    """A box plot with all its values, spread over the height of the row.

    ``accuracies`` are in per cent, indexed by client; clients with a site have its shape.
    """
    values = accuracies.to_numpy()
    axes.boxplot(
        values, positions=[row], orientation="horizontal", widths=0.56, whis=(0, 100),
        manage_ticks=False, patch_artist=True, showfliers=False,
        boxprops={"facecolor": "none", "edgecolor": colour, "linewidth": 1.1},
        medianprops={"color": colour, "linewidth": 2.2},
        whiskerprops={"color": colour, "linewidth": 1.1},
        capprops={"color": colour, "linewidth": 1.1},
    )  # fmt: skip
    heights = row + 0.2 * (2 * (np.arange(len(values)) * 0.618034 % 1) - 1)
    size = 14 if len(values) <= 60 else 6
    dots: dict[str, Any] = {"color": colour, "linewidths": 0, "zorder": 3}
    if not sites:
        axes.scatter(values, heights, s=size, alpha=0.45, **dots)
    for marker, client in zip(MARKERS, sites, strict=False):
        if client in accuracies.index:
            own = accuracies[accuracies.index == client]
            axes.scatter(own, [row] * len(own), s=34, marker=marker, alpha=0.8, **dots)


def by_group(facets: Facets) -> Drawing | Absent:
    """Mean accuracy and 95 % interval by group of test samples, one row per method."""
    found = {
        title: series.aggregated(
            groups, "evaluations", ["accuracy"], "group", {"split": "test"}, take="last"
        )
        for title, groups in facets.items()
    }
    frames = [frame["accuracy"] for part in found.values() for frame in part.values()]
    if not frames:
        return Absent(
            GROUPS, "no rows of groups in evaluations.csv; data with groups of test samples "
            "(`-d shortcut`) have them",
        )  # fmt: skip
    known = list(dict.fromkeys(name for frame in frames for name in frame.index))
    labels = list(dict.fromkeys(label for part in found.values() for label in part))
    lines = facet_lines(facets)
    with style.look():
        fig, places = panels.method_rows(list(found), labels, "Test accuracy (%)", columns=2)
        for axes, part in zip(places, found.values(), strict=True):
            for label, frame in part.items():
                row, colour = labels.index(label), lines[label].colour
                _groups(axes, 100 * panels.column(frame, "accuracy"), known, row, colour)
        handles = [
            Line2D(
                [], [], marker=MARKERS[index % len(MARKERS)], linestyle="", markersize=7,
                color="#444444", markerfacecolor="#444444" if index == 0 else "white",
            )
            for index, _ in enumerate(known)
        ]  # fmt: skip
        counts = (n for frame in frames for n in frame["n"])
        note = panels.unit_note(counts, unit_of(facets), "bar")
        panels.legend(fig, handles, known, note)
    return Drawing(
        name="groups",
        title=GROUPS,
        caption=(
            f"Accuracy on the groups of test samples ({', '.join(known)}) after the last round. "
            f"{note}."
        ),
        reading=(
            "The grey line joins the groups of one method: the longer it is, the more the method "
            "relies on what tells the groups apart (in aligned samples the shortcut agrees with "
            "the label, in conflicting ones it points to the other class)."
        ),
        figure=fig,
        alt=_told_groups(found),
    )


def _told_groups(found: Mapping[str, Mapping[str, pd.DataFrame]]) -> str:
    said = []
    for title, part in found.items():
        for label, frame in part.items():
            means = (100 * frame["accuracy"]["mean"]).items()
            texts = ", ".join(f"{name} {value:.1f}" for name, value in means)
            said.append(f"{style.title(label)}{f' ({title})' if title else ''}: {texts}")
    return f"Dot plot. Test accuracy in per cent by group: {'; '.join(said)}."


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
