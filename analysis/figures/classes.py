"""What becomes of each class after a run's last evaluation: recall, AUC and confusion."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from numpy.typing import NDArray

from .. import series
from ..files import class_names
from ..runs import first_run
from ..units import ExperimentalUnit
from ..words import say
from . import grid as panels
from . import style
from .grid import SPOKEN, Absent, Drawing, Facets, unit_of

PRINTED = 12
"""Numbers are printed in panels of at most this many classes."""
NAMED = 24
"""Axes show the names of at most this many classes."""
MOST = 24
"""A figure has at most this many confusion matrices."""
KINDS: Mapping[str, tuple[str, int]] = {"recall": ("classes", 0), "auc": ("class_auc", 50)}
"""By column of classes.csv: the section of words.toml, and the value of guessing in per cent."""
Matrix = NDArray[np.float64]
ByClass = dict[str, Mapping[str, pd.DataFrame]]
"""By setting and label: aggregated columns of classes.csv by class."""


def by_class(facets: Facets) -> Iterator[Drawing | Absent]:
    """Recall and AUC, each as a heat map of methods by classes per setting, means over units."""
    by_column: dict[str, ByClass] = {column: {} for column in KINDS}
    for title, groups in facets.items():
        every = list(KINDS)
        together = [every] if not series.absent(groups, "classes", every) else [[c] for c in every]
        for columns in together:
            part = series.aggregated(groups, "classes", columns, "label", take="last")
            for column in columns:
                by_column[column][title] = part
    known = {title: class_names(first_run(groups)) for title, groups in facets.items()}
    for column, parts in by_column.items():
        yield _heat_map(column, parts, known, unit_of(facets))


def _heat_map(
    column: str,
    by_setting: ByClass,
    known: Mapping[str, Sequence[str] | None],
    unit: ExperimentalUnit,
) -> Drawing | Absent:
    """The heat map of a key of :data:`KINDS`."""
    key, least = KINDS[column]
    frames = [frame[column] for by in by_setting.values() for frame in by.values()]
    if not frames:
        return panels.absent(key)
    labels = panels.labels_of(by_setting)
    tables = {}
    for title, by in by_setting.items():
        table = pd.DataFrame({label: by[label][column]["mean"] for label in by}).T
        classes = table.columns.astype(int).tolist()
        table.columns = pd.Index(style.of_labels(classes, known[title]))
        tables[title] = 100 * table.reindex(labels)
    note = panels.means_note((n for frame in frames for n in frame["n"]), unit)
    rows = {
        title: {str(label): row for label, row in list(table.dropna(how="all").iterrows())[:SPOKEN]}
        for title, table in tables.items()
    }
    told = panels.told_by_label(
        rows,
        lambda row: f" from {row.min():.0f} ({row.idxmin()}) to {row.max():.0f} ({row.idxmax()})",
    )
    figure = _maps(tables, labels, say(f"{key}.axis"), least)
    return panels.drawing(key, figure, note=note, told=told)


def _maps(tables: Mapping[str, pd.DataFrame], labels: list[str], axis: str, least: int) -> Figure:
    widest = max(table.shape[1] for table in tables.values())
    texts = max((sum(map(len, map(style.short, t.columns))) for t in tables.values()), default=0)
    with style.look():
        columns = 1 if widest > PRINTED or texts > 40 else 2
        fig, places = panels.method_rows(list(tables), labels, "Class", columns)
        for axes, table in zip(places, tables.values(), strict=True):
            image = _cells(axes, table.to_numpy(dtype=np.float64), least)
            _class_ticks(axes, list(table.columns), 75 if columns == 1 else 34)
        places[0].set_ylim(len(labels) - 0.5, -0.5)
        bar = fig.colorbar(image, ax=places, pad=0.015, label=axis)
        bar.outline.set_visible(False)
    return fig


def _cells(axes: Axes, values: Matrix, least: int, size: float = 9.5) -> QuadMesh:
    """Coloured cells of per cent (rows, columns), with numbers if there are few columns."""
    dark = least + 0.6 * (100 - least)
    texts = {
        place: (f"{value:.0f}", bool(value > dark))
        for place, value in np.ndenumerate(values)
        if values.shape[1] <= PRINTED and math.isfinite(value)
    }
    return panels.heat_cells(axes, values, texts, size, vmin=least, vmax=100, linewidth=0.8)


def _class_ticks(axes: Axes, known: Sequence[str], room: int, y: bool = False) -> None:
    """Names the classes on the horizontal axis, and on the vertical one.

    ``room`` is how many characters fit side by side; longer names are slanted.
    """
    step = -(-len(known) // NAMED)
    places, texts = range(0, len(known), step), [style.short(name) for name in known[::step]]
    slanted = sum(len(text) + 1 for text in texts) > room
    axes.set_xticks(
        places, texts, rotation=40 if slanted else 0, ha="right" if slanted else "center",
        rotation_mode="anchor" if slanted else "default",
    )  # fmt: skip
    if y:
        axes.set_yticks(places, texts)


def confusion(facets: Facets) -> Drawing | Absent:
    """A matrix per method and setting: rows are classes, columns predictions, means over units."""
    matrices: dict[str, tuple[Matrix, list[str]]] = {}
    counts: list[float] = []
    for setting, groups in facets.items():
        values = series.values(groups, "confusion", ["count"], ("label", "prediction"), take="last")
        known = class_names(first_run(groups))
        for label, frame in values.items():
            matrix, count = _matrix(frame["count"], len(known or ()))
            counts.append(count)
            title = "; ".join(filter(None, (style.title(label), setting)))
            matrices[title] = matrix, style.of_labels(list(range(len(matrix))), known)
    if not matrices:
        return panels.absent("confusion")
    shown = dict(list(matrices.items())[:MOST])
    more = ""
    if len(matrices) > MOST:
        more = " " + say("confusion.more", shown=MOST, all=len(matrices))
    note = panels.means_note(counts, unit_of(facets))
    told = _told(shown)
    return panels.drawing("confusion", _matrices(shown), note=note, more=more, told=told)


def _matrix(counts: pd.Series[float], size: int) -> tuple[Matrix, int]:
    """Shares (C, C) in per cent of each class, mean over units, and the number of units.

    ``counts`` are indexed by (unit, label, prediction); rows of classes without samples are NaN.
    """
    label, prediction = (
        counts.index.get_level_values(name).astype(int) for name in ("label", "prediction")
    )
    size = max(size, label.max() + 1, prediction.max() + 1)
    unit, unique = pd.factorize(counts.index.get_level_values(series.UNIT))
    whole = np.zeros((len(unique), size, size))
    whole[unit, label, prediction] = counts.to_numpy(float)
    total = whole.sum(axis=2, keepdims=True)
    shares = np.full_like(whole, math.nan)
    np.divide(100 * whole, total, out=shares, where=total > 0)
    return shares.mean(axis=0), len(unique)


def _matrices(matrices: Mapping[str, tuple[Matrix, list[str]]]) -> Figure:
    widest = max(len(matrix) for matrix, _ in matrices.values())
    columns = min(len(matrices), 3 if widest <= 6 and len(matrices) != 4 else 2)
    rows = math.ceil(len(matrices) / columns)
    side = 0.92 * panels.WIDTH / max(columns, 2)
    with style.look():
        fig = Figure(figsize=(max(side * columns + 0.7, 5.5), 0.95 * side * rows + 0.3))
        places = fig.subplots(rows, columns, squeeze=False).ravel()
        for index, (title, (matrix, known)) in enumerate(matrices.items()):
            axes = places[index]
            image = _cells(axes, matrix, 0, 9.5 if len(matrix) <= 8 else 8)
            _class_ticks(axes, known, 60 // columns, y=True)
            axes.set_ylim(len(matrix) - 0.5, -0.5)
            axes.set_aspect("equal")
            axes.set_title(title, loc="left")
            if index % columns == 0:
                axes.set_ylabel("Class")
            if index + columns >= len(matrices):
                axes.set_xlabel("Predicted class")
        for axes in places[len(matrices) :]:
            axes.set_visible(False)
        bar = fig.colorbar(
            image, ax=list(places), pad=0.015, label="Share of the class (%)",
            aspect=20 * rows, anchor=(0, 1), shrink=1 / rows if rows > 1 else 0.9,
        )  # fmt: skip
        bar.outline.set_visible(False)
    return fig


def _told(matrices: Mapping[str, tuple[Matrix, list[str]]]) -> str:
    said = []
    for title, (matrix, known) in list(matrices.items())[:SPOKEN]:
        wrong = np.nan_to_num(matrix * (1 - np.eye(len(matrix))))
        row, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
        text = f"{title}: mean of the diagonal {np.nanmean(np.diag(matrix)):.0f} %"
        if wrong[row, column] > 0:
            text += f", most often confused: {known[row]} as {known[column]} "
            text += f"({wrong[row, column]:.0f} %)"
        said.append(text)
    return "; ".join(said)
