"""Accuracy by client, by group of test samples, and by class, after a run's last evaluation."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from . import panels, series, style
from .panels import Absent, Drawing, Facets, facet_lines

CLIENTS = "Accuracy by client"
GROUPS = "Accuracy by group of test samples"
CLASSES = "Recall by class"
SPLITS = {
    "own_test": "its own test part", "own_val": "its own validation part",
    "own_train": "its own training part", "test": "the common test part",
}  # fmt: skip
"""Splits in clients' rows of evaluations.csv, the preferred one first, and their names."""
PRINTED = 12
"""Recalls are printed in panels of at most this many classes."""
MARKERS = ("o", "D", "s", "^", "v", "P", "X")


def by_client(facets: Facets) -> Drawing | Absent:
    """One dot per client and one box per method; a client's accuracy is its mean over seeds."""
    found = {
        title: series.aggregated(
            groups, "evaluations", ["accuracy"], ("split", "client_id"), take="last"
        )
        for title, groups in facets.items()
    }
    held = {s for part in found.values() for frame in part.values() for s in frame.index.unique(0)}
    split = next((name for name in SPLITS if name in held), None)
    if split is None:
        return Absent(
            CLIENTS,
            "no rows of clients in evaluations.csv; `fedsim run --evaluate-clients-every N` "
            "writes them",
        )
    chosen = {
        title: {
            label: frame.xs(split, level="split")["accuracy"]
            for label, frame in part.items()
            if split in frame.index.unique(0)
        }
        for title, part in found.items()
    }
    labels = list(dict.fromkeys(label for part in chosen.values() for label in part))
    counts = [float(n) for part in chosen.values() for frame in part.values() for n in frame["n"]]
    lines = facet_lines(facets)
    with style.look():
        fig, places = panels.method_rows(list(chosen), labels, "Client accuracy (%)")
        for axes, part in zip(places, chosen.values(), strict=True):
            for label, frame in part.items():
                accuracies = 100 * frame["mean"].to_numpy()
                _strip(axes, accuracies, labels.index(label), lines[label].colour)
    seeds = panels.seed_note(counts).partition(",")[0].lower()
    every = dict.fromkeys(group.label for groups in facets.values() for group in groups)
    without = [style.title(label) for label in every if label not in labels]
    missing = f" Without such rows: {'; '.join(without)}." if without else ""
    return Drawing(
        name="clients",
        title=CLIENTS,
        caption=(
            f"Accuracy of each client on {SPLITS[split]} after the last evaluation by client. A "
            f"dot is a client ({seeds}); boxes hold the middle half of the clients, the line in a "
            "box is the median, whiskers span all clients. Methods that keep a model per client "
            f"are evaluated with it, the others with the global model.{missing}"
        ),
        reading=(
            "A short box far to the right serves all clients well; dots far to the left are "
            "clients that the method leaves behind."
        ),
        figure=fig,
    )


def _strip(axes: Axes, values: np.ndarray, row: int, colour: str) -> None:
    """A box plot with all its values, spread over the height of the row."""
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
    axes.scatter(values, heights, s=size, color=colour, alpha=0.45, linewidths=0, zorder=3)


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
    names = list(dict.fromkeys(name for frame in frames for name in frame.index))
    labels = list(dict.fromkeys(label for part in found.values() for label in part))
    lines = facet_lines(facets)
    with style.look():
        fig, places = panels.method_rows(list(found), labels, "Test accuracy (%)", columns=2)
        for axes, part in zip(places, found.values(), strict=True):
            for label, frame in part.items():
                row, colour = labels.index(label), lines[label].colour
                _groups(axes, 100 * panels.column(frame, "accuracy"), names, row, colour)
        handles = [
            Line2D(
                [], [], marker=MARKERS[index % len(MARKERS)], linestyle="", markersize=7,
                color="#444444", markerfacecolor="#444444" if index == 0 else "white",
            )
            for index, _ in enumerate(names)
        ]  # fmt: skip
        seeds = panels.seed_note((n for frame in frames for n in frame["n"]), "bar")
        panels.legend(fig, handles, names, seeds)
    return Drawing(
        name="groups",
        title=GROUPS,
        caption=(
            f"Accuracy on the groups of test samples ({', '.join(names)}) after the last round. "
            f"{seeds}."
        ),
        reading=(
            "The grey line joins the groups of one method: the longer it is, the more the method "
            "relies on what tells the groups apart (in aligned samples the shortcut agrees with "
            "the label, in conflicting ones it points to the other class)."
        ),
        figure=fig,
    )


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


def by_class(facets: Facets) -> Drawing | Absent:
    """Recall as one heat map of methods by classes per setting, means over seeds."""
    found = {
        title: series.aggregated(groups, "classes", ["recall"], "label", take="last")
        for title, groups in facets.items()
    }
    frames = [frame["recall"] for part in found.values() for frame in part.values()]
    if not frames:
        return Absent(CLASSES, "no recall in classes.csv; every `fedsim run` that tests writes it")
    labels = list(dict.fromkeys(label for part in found.values() for label in part))
    recalls = {
        title: pd.DataFrame({label: part[label]["recall"]["mean"] for label in part}).T.reindex(
            labels
        )
        for title, part in found.items()
    }
    seeds = panels.seed_note(n for frame in frames for n in frame["n"]).partition(",")[0].lower()
    return Drawing(
        name="classes",
        title=CLASSES,
        caption=(
            "Share of each class's test samples that are recognised after the last round; "
            f"{seeds}. Classes without test samples are white."
        ),
        reading=(
            "A light cell in a dark row is a class that the method gives up. Rows that are even "
            "treat the classes alike."
        ),
        figure=_recall_maps(recalls, labels),
    )


def _recall_maps(recalls: dict[str, pd.DataFrame], labels: list[str]) -> Figure:
    with style.look():
        columns = 1 if max(part.shape[1] for part in recalls.values()) > PRINTED else 2
        fig, places = panels.method_rows(list(recalls), labels, "Class", columns)
        for axes, part in zip(places, recalls.values(), strict=True):
            values = 100 * part.to_numpy(dtype=np.float64)
            count = values.shape[1]
            image = axes.pcolormesh(
                np.arange(count + 1) - 0.5, np.arange(len(labels) + 1) - 0.5, values,
                cmap="Blues", vmin=0, vmax=100, edgecolors="white", linewidth=0.8,
            )  # fmt: skip
            axes.grid(visible=False)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            step = -(-count // 20)
            names = [f"{name:g}" for name in part.columns[::step]]
            axes.set_xticks(range(0, count, step), names)
            for (row, column), value in np.ndenumerate(values) if count <= PRINTED else ():
                if np.isfinite(value):
                    axes.text(
                        column, row, f"{value:.0f}", ha="center", va="center", fontsize=9.5,
                        color="white" if value > 60 else "black",
                    )  # fmt: skip
        places[0].set_ylim(len(labels) - 0.5, -0.5)
        bar = fig.colorbar(image, ax=places, pad=0.015, label="Recall (%)")
        bar.outline.set_visible(False)
    return fig
