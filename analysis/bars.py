"""Panels with a row per method: the frame of the figures that compare values, not curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import style

ROW = 0.34
"""Inches of a row."""


def frame(
    titles: Sequence[str], labels: Sequence[str], x: str, columns: int = 3
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel per title, methods from top to bottom in each.

    Must be called, and its axes drawn on, within :func:`analysis.style.look`.

    Args:
        titles: of the panels.
        labels: of the groups; row i is at height i.
        x: the horizontal axes.
        columns: panels in a row, at most.
    """
    columns = min(columns, len(titles))
    rows = math.ceil(len(titles) / columns)
    height = 0.8 + ROW * max(3, len(labels))
    fig = Figure(figsize=(8.8, 0.5 + height * rows))
    places = fig.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for index, (axes, title) in enumerate(zip(places, titles, strict=False)):
        axes.set_title(title, loc="left")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8 // columns + 1))
        axes.tick_params(left=False, labelbottom=True)
        axes.grid(visible=False, axis="y")
        if index + columns >= len(titles):
            axes.set_xlabel(x)
    for axes in places[len(titles) :]:
        axes.set_visible(False)
    places[0].set_yticks(range(len(labels)), [style.title(label) for label in labels])
    places[0].set_ylim(len(labels) - 0.4, -0.6)
    return fig, list(places[: len(titles)])
