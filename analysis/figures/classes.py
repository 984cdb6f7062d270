"""What becomes of each class after a run's last evaluation: recall, AUC and confusion."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from numpy.typing import NDArray

from .. import series
from ..facets import Facets, labels_of, unit_of
from ..files import class_names
from ..labels import title_of
from ..runs import first_run
from ..words import say
from . import grid, style
from .grid import Absent, Drawing

PRINTED = 12  # numbers are printed in panels of at most this many classes
MOST = 24  # a figure has at most this many confusion matrices
KINDS: Mapping[str, tuple[str, int]] = {"recall": ("classes", 0), "auc": ("class_auc", 50)}
"""By column of classes.csv: the section of figures.j2, and the value of guessing in per cent."""
Matrix = NDArray[np.float64]


def by_class(facets: Facets) -> Iterator[Drawing | Absent]:
    """Recall and AUC, each as a heat map of methods by classes per setting, means over units."""
    for column, (key, least) in KINDS.items():
        frames = {
            setting: series.aggregated(groups, "classes", [column], "label", take="last")
            for setting, groups in facets.items()
        }
        if not any(f[column]["mean"].notna().any() for of in frames.values() for f in of.values()):
            yield grid.absent(key)
            continue
        labels, tables = labels_of(frames), {}
        for setting, by_label in frames.items():
            table = pd.DataFrame({k: 100 * f[column]["mean"] for k, f in by_label.items()}).T
            names = class_names(first_run(facets[setting]))
            heads = style.of_labels([int(label) for label in table.columns], names)
            tables[setting] = table.set_axis(heads, axis=1).reindex(labels)
        counts = (n for by in frames.values() for f in by.values() for n in f[column]["n"])
        figure = _heat_map(tables, labels, least, say(f"{key}.axis"))
        yield grid.drawing(key, figure, note=grid.means_note(counts, unit_of(facets)))


def _heat_map(
    tables: Mapping[str, pd.DataFrame], labels: list[str], least: int, axis: str
) -> Figure:
    """Methods by classes, in per cent, a panel per setting."""
    widest = max(sum(map(len, table.columns)) for table in tables.values())
    most = 1 if widest > 40 or any(t.shape[1] > PRINTED for t in tables.values()) else 2
    with style.look():
        fig, places = grid.method_rows(list(tables), labels, "Class", most)
        for axes, table in zip(places, tables.values(), strict=True):
            image = _cells(axes, table.to_numpy(dtype=np.float64), least)
            grid.name_ticks(axes, list(table.columns), 75 // most)
        places[0].set_ylim(len(labels) - 0.5, -0.5)
        fig.colorbar(image, ax=places, pad=0.015, label=axis).outline.set_visible(False)
    return fig


def _cells(axes: Axes, values: Matrix, least: int, size: float = 9.5) -> QuadMesh:
    """Coloured cells of per cent (rows, columns), with numbers if there are few columns."""
    dark = least + 0.6 * (100 - least)
    texts = {
        place: (f"{value:.0f}", bool(value > dark))
        for place, value in np.ndenumerate(values)
        if values.shape[1] <= PRINTED and math.isfinite(value)
    }
    return grid.heat_cells(axes, values, texts, size, vmin=least, vmax=100, linewidth=0.8)


def confusion(facets: Facets) -> Drawing | Absent:
    """A matrix per method and setting: rows are classes, columns predictions, means over units."""
    matrices: dict[tuple[str, str], tuple[Matrix, list[str]]] = {}
    counts: list[float] = []
    for setting, groups in facets.items():
        values = series.values(groups, "confusion", ["count"], ("label", "prediction"), take="last")
        names = class_names(first_run(groups))
        row = "\n".join(filter(None, (setting, "Class")))
        for label, frame in values.items():
            matrix = _matrix(frame["count"], len(names or ()))
            counts.append(frame.index.unique(series.UNIT).size)
            classes = style.of_labels(list(range(len(matrix))), names)
            matrices[row, title_of(label)] = matrix, classes
    if not matrices:
        return grid.absent("confusion")
    shown = dict(list(matrices.items())[:MOST])
    most = 3 if max(len(matrix) for matrix, _ in shown.values()) <= 6 else 2
    across = min(most, len({label for _, label in shown}))
    with style.look():
        spots = dict.fromkeys(shown, "Predicted class")
        fig, places = grid.grid(spots, height=7.4 / max(across, 2), most=most)
        for place, (matrix, classes) in shown.items():
            axes = places[place]
            image = _cells(axes, matrix, 0, 9.5 if len(matrix) <= 8 else 8)
            grid.name_ticks(axes, classes, 60 // across)
            axes.set_yticks(*grid.thinned(classes))
            axes.tick_params(labelbottom=True)
            axes.set_ylim(len(matrix) - 0.5, -0.5)
            axes.set_aspect("equal")
        bar = fig.colorbar(
            image, ax=list(places.values()), pad=0.015, shrink=0.9, label="Share of the class (%)",
            aspect=30,
        )  # fmt: skip
        bar.outline.set_visible(False)
    note = grid.means_note(counts, unit_of(facets))
    return grid.drawing("confusion", fig, note=note, shown=len(shown), all=len(matrices))


def _matrix(counts: pd.Series[float], size: int) -> Matrix:
    """Shares (C, C) in per cent of each class, mean over units; NaN for classes without samples."""
    table = counts.unstack("prediction", fill_value=0)
    shares = 100 * table.div(table.sum(axis="columns").replace(0, math.nan), axis="index")
    by_class = shares.groupby(level="label").mean()
    labels, predictions = (axis.to_numpy(int) for axis in (by_class.index, by_class.columns))
    size = max(size, int(labels.max()) + 1, int(predictions.max()) + 1)
    matrix = np.full((size, size), math.nan)
    matrix[labels] = 0.0
    matrix[np.ix_(labels, predictions)] = by_class.to_numpy()
    return matrix
