"""What becomes of each class after a run's last evaluation: recall, AUC and confusion."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from numpy.typing import NDArray

from . import names, panels, series, style
from .panels import Absent, Drawing, Facets, unit_of
from .units import ExperimentalUnit

PRINTED = 12
"""Numbers are printed in panels of at most this many classes."""
NAMED = 24
"""Axes show the names of at most this many classes."""
MOST = 24
"""A figure has at most this many confusion matrices."""
CONFUSION = "Confusion matrices"
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Kind:
    """A column of classes.csv: its figure's name, title, axis, and what caption and reading say."""

    name: str
    title: str
    axis: str
    caption: str
    reading: str
    missing: str


KINDS: Mapping[str, Kind] = {
    "recall": Kind(
        "classes", "Recall by class", "Recall (%)",
        "Share of each class's test samples that are recognised after the last round",
        "A light cell in a dark row is a class that the method gives up; a row with one dark cell "
        "predicts one class only. Rows that are even treat the classes alike.",
        "no recall in classes.csv; every `fedsim run` that tests writes it",
    ),
    "auc": Kind(
        "class_auc", "AUC by class", "AUC (%)",
        "Area under the ROC curve of each class against the rest on the test part, after the last "
        "round",
        "50 is guessing, and 100 puts all samples of the class first. A class with a high AUC and "
        "a low recall is ranked well, but seldom the most probable one.",
        "no auc in classes.csv; runs of earlier versions do not have it",
    ),
}  # fmt: skip


Found = dict[str, Mapping[str, pd.DataFrame]]
"""By setting and label: aggregated columns of classes.csv by class."""


def by_class(facets: Facets) -> Iterator[Drawing | Absent]:
    """Recall and AUC, each as a heat map of methods by classes per setting, means over units."""
    found: dict[str, Found] = {column: {} for column in KINDS}
    for title, groups in facets.items():
        every = list(KINDS)
        together = [every] if not series.absent(groups, "classes", every) else [[c] for c in every]
        for columns in together:
            part = series.aggregated(groups, "classes", columns, "label", take="last")
            for column in columns:
                found[column][title] = part
    known = {title: names.classes(names.first_run(groups)) for title, groups in facets.items()}
    for column, parts in found.items():
        yield _heat_map(column, parts, known, unit_of(facets))


def _heat_map(
    column: str, found: Found, known: Mapping[str, Sequence[str] | None], unit: ExperimentalUnit
) -> Drawing | Absent:
    """The heat map of a key of :data:`KINDS`."""
    kind = KINDS[column]
    frames = [frame[column] for part in found.values() for frame in part.values()]
    if not frames:
        return Absent(kind.title, kind.missing)
    labels = list(dict.fromkeys(label for part in found.values() for label in part))
    tables = {}
    for title, part in found.items():
        table = pd.DataFrame({label: part[label][column]["mean"] for label in part}).T
        classes = table.columns.astype(int).tolist()
        table.columns = pd.Index(names.of_labels(classes, known[title]))
        tables[title] = 100 * table.reindex(labels)
    note = panels.means_note((n for frame in frames for n in frame["n"]), unit)
    return Drawing(
        name=kind.name,
        title=kind.title,
        caption=f"{kind.caption}; {note}. Classes without test samples are white.",
        reading=kind.reading,
        figure=_maps(tables, labels, kind.axis, 50 if column == "auc" else 0),
        alt=_told_classes(tables, kind.axis),
    )


def _told_classes(tables: Mapping[str, pd.DataFrame], axis: str) -> str:
    said = []
    for title, table in tables.items():
        for label, row in list(table.dropna(how="all").iterrows())[: panels.SPOKEN]:
            name = style.title(str(label)) + f" ({title})" * bool(title)
            said.append(
                f"{name} from {row.min():.0f} ({row.idxmin()}) to {row.max():.0f} ({row.idxmax()})"
            )
    return f"Heat map. {axis}, lowest and highest class: {'; '.join(said)}."


def _maps(tables: Mapping[str, pd.DataFrame], labels: list[str], axis: str, least: int) -> Figure:
    widest = max(table.shape[1] for table in tables.values())
    texts = max((sum(map(len, map(names.short, t.columns))) for t in tables.values()), default=0)
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
    rows, columns = values.shape
    image = axes.pcolormesh(
        np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5, values,
        cmap="Blues", vmin=least, vmax=100, edgecolors="white", linewidth=0.8,
    )  # fmt: skip
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    dark = least + 0.6 * (100 - least)
    for (row, column), value in np.ndenumerate(values) if columns <= PRINTED else ():
        if math.isfinite(value):
            axes.text(
                column, row, f"{value:.0f}", ha="center", va="center", fontsize=size,
                color="white" if value > dark else "black",
            )  # fmt: skip
    return image


def _class_ticks(axes: Axes, known: Sequence[str], room: int, y: bool = False) -> None:
    """Names the classes on the horizontal axis, and on the vertical one.

    ``room`` is how many characters fit side by side; longer names are slanted.
    """
    step = -(-len(known) // NAMED)
    places, texts = range(0, len(known), step), [names.short(name) for name in known[::step]]
    slanted = sum(len(text) + 1 for text in texts) > room
    axes.set_xticks(
        places, texts, rotation=40 if slanted else 0, ha="right" if slanted else "center",
        rotation_mode="anchor" if slanted else "default",
    )  # fmt: skip
    if y:
        axes.set_yticks(places, texts)


def confusion(facets: Facets) -> Drawing | Absent:
    """A matrix per method and setting: rows are classes, columns predictions, means over units."""
    found: dict[str, tuple[Matrix, list[str]]] = {}
    counts: list[float] = []
    for setting, groups in facets.items():
        values = series.values(groups, "confusion", ["count"], ("label", "prediction"), take="last")
        known = names.classes(names.first_run(groups))
        for label, frame in values.items():
            matrix, count = _matrix(frame["count"], len(known or ()))
            counts.append(count)
            title = "; ".join(filter(None, (style.title(label), setting)))
            found[title] = matrix, names.of_labels(list(range(len(matrix))), known)
    if not found:
        return Absent(
            CONFUSION,
            "no confusion.csv; `fedsim run` writes it where samples have a label each, and earlier "
            "versions did not",
        )
    shown = dict(list(found.items())[:MOST])
    more = f" The first {MOST} of {len(found)} are shown." if len(found) > MOST else ""
    note = panels.means_note(counts, unit_of(facets))
    return Drawing(
        name="confusion",
        title=CONFUSION,
        caption=(
            "Predictions of the final model for the test samples of each class, in per cent of the "
            f"class: every row adds up to 100; {note}.{more}"
        ),
        reading=(
            "The diagonal is what is recognised. A dark column away from it is a class that others "
            "are taken for; a single dark column is a model that predicts one class only."
        ),
        figure=_matrices(shown),
        alt=_told_matrices(shown),
    )


def _matrix(counts: pd.Series[float], size: int) -> tuple[Matrix, int]:
    """Shares (C, C) in per cent of each class, mean over units, and the number of units.

    ``counts`` are indexed by (unit, label, prediction); rows of classes without samples are NaN.
    """
    label, prediction = (
        counts.index.get_level_values(name).astype(int) for name in ("label", "prediction")
    )
    size = max(size, label.max() + 1, prediction.max() + 1)
    unit, found = pd.factorize(counts.index.get_level_values(series.UNIT))
    whole = np.zeros((len(found), size, size))
    whole[unit, label, prediction] = counts.to_numpy(float)
    total = whole.sum(axis=2, keepdims=True)
    shares = np.full_like(whole, math.nan)
    np.divide(100 * whole, total, out=shares, where=total > 0)
    return shares.mean(axis=0), len(found)


def _matrices(found: Mapping[str, tuple[Matrix, list[str]]]) -> Figure:
    widest = max(len(matrix) for matrix, _ in found.values())
    columns = min(len(found), 3 if widest <= 6 and len(found) != 4 else 2)
    rows = math.ceil(len(found) / columns)
    side = 0.92 * panels.WIDTH / max(columns, 2)
    with style.look():
        fig = Figure(figsize=(max(side * columns + 0.7, 5.5), 0.95 * side * rows + 0.3))
        places = fig.subplots(rows, columns, squeeze=False).ravel()
        for index, (title, (matrix, known)) in enumerate(found.items()):
            axes = places[index]
            image = _cells(axes, matrix, 0, 9.5 if len(matrix) <= 8 else 8)
            _class_ticks(axes, known, 60 // columns, y=True)
            axes.set_ylim(len(matrix) - 0.5, -0.5)
            axes.set_aspect("equal")
            axes.set_title(title, loc="left")
            if index % columns == 0:
                axes.set_ylabel("Class")
            if index + columns >= len(found):
                axes.set_xlabel("Predicted class")
        for axes in places[len(found) :]:
            axes.set_visible(False)
        bar = fig.colorbar(
            image, ax=list(places), pad=0.015, label="Share of the class (%)",
            aspect=20 * rows, anchor=(0, 1), shrink=1 / rows if rows > 1 else 0.9,
        )  # fmt: skip
        bar.outline.set_visible(False)
    return fig


def _told_matrices(found: Mapping[str, tuple[Matrix, list[str]]]) -> str:
    said = []
    for title, (matrix, known) in list(found.items())[: panels.SPOKEN]:
        wrong = np.nan_to_num(matrix * (1 - np.eye(len(matrix))))
        row, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
        text = f"{title}: mean of the diagonal {np.nanmean(np.diag(matrix)):.0f} %"
        if wrong[row, column] > 0:
            text += f", most often confused: {known[row]} as {known[column]} "
            text += f"({wrong[row, column]:.0f} %)"
        said.append(text)
    return f"Confusion matrices. {'; '.join(said)}."
