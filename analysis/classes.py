"""Recall by class after the last round."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import bars, panels, streams, style
from analysis.drawing import Absent, Drawing
from analysis.facets import Facets

TITLE = "Recall by class"
PRINTED = 12
"""Up to so many classes in one panel the recalls are printed."""


def draw(facets: Facets) -> Drawing | Absent:
    """A heat map per setting: methods by classes, means over seeds."""
    found = {
        title: streams.last(groups, "classes", ["recall"], key="label")
        for title, groups in facets.items()
    }
    frames = [frame["recall"] for part in found.values() for frame in part.values()]
    if not frames:
        return Absent(TITLE, "no recall in classes.csv; every `fedsim run` that tests writes it")
    labels = list(dict.fromkeys(label for part in found.values() for label in part))
    recalls = {
        title: pd.DataFrame({label: part[label]["recall"]["mean"] for label in part}).T.reindex(
            labels
        )
        for title, part in found.items()
    }
    seeds = panels.over_seeds(n for frame in frames for n in frame["n"]).partition(",")[0].lower()
    return Drawing(
        "classes",
        TITLE,
        f"Share of each class's test samples that are recognised after the last round; {seeds}. "
        "Classes without test samples are white.",
        "A light cell in a dark row is a class that the method gives up. Rows that are even "
        "treat the classes alike.",
        _figure(recalls, labels),
    )


def _figure(recalls: dict[str, pd.DataFrame], labels: list[str]) -> Figure:
    with style.look():
        columns = 1 if max(part.shape[1] for part in recalls.values()) > PRINTED else 2
        fig, places = bars.frame(list(recalls), labels, "Class", columns)
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
