"""Who owns what, as a picture to look at: bubbles by class and client, and some of the images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray

from analysis import style
from analysis.partition import BAR, matrix, steps, ticks

CLIENTS, IMAGES = 10, 8
"""At most so many clients are shown, and so many images of each."""
_WIDTH = 8.8
_LONG = 12
_INCHES = 0.94
_POINTS_ACROSS = 510
"""Width of the bubbles' axes in points, about."""


@dataclass(frozen=True)
class Row:
    """Some images of one client.

    Args:
        title: of the row.
        images: (n, channels, H, W) uint8, one channel or three.
        labels: n names of classes.
    """

    title: str
    images: NDArray[np.uint8]
    labels: Sequence[str]


def spread(count: int, most: int) -> NDArray[np.int64]:
    """At most ``most`` of 0..count-1, the first and the last one among them, evenly apart."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def in_proportion(labels: NDArray[np.int64], most: int = IMAGES) -> NDArray[np.int64]:
    """Positions of at most ``most`` samples in the order of their classes, by the classes' shares.

    Args:
        labels: (n,) classes of a client's samples.
        most: how many at most.
    """
    by_class = np.argsort(labels, kind="stable")
    count = min(most, len(labels))
    return by_class[((np.arange(count) + 0.5) * len(labels) / max(1, count)).astype(np.int64)]


def figure(
    frame: pd.DataFrame,
    title: str,
    class_names: Sequence[str],
    rows: Sequence[Row],
    note: str,
) -> Figure:
    """Bubbles of training samples by class and client, and below them the rows of images.

    Args:
        frame: columns client_id, label, train_samples, and ``name`` where clients have names.
        title: of the whole.
        class_names: by label.
        rows: the clients whose images are shown.
        note: title of the images.
    """
    counts = matrix(frame)
    upper = 1.7 + min(0.3 * max(3, len(counts)), 6)
    lower = 0.55 + _INCHES * len(rows) if rows else 0.0
    with style.look():
        fig = Figure(figsize=(_WIDTH, upper + lower))
        fig.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03, wspace=0.01, hspace=0.01)
        heights = (upper, lower) if rows else (upper,)
        halves = fig.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        _bubbles(halves[0], frame, counts, class_names)
        halves[0].suptitle(title, x=0.01, ha="left", fontsize=12)
        for below in halves[1:]:
            _grid(below, rows)
            below.suptitle(note, x=0.01, ha="left", fontsize=12)
    return fig


def _bubbles(
    fig: SubFigure, frame: pd.DataFrame, counts: pd.DataFrame, class_names: Sequence[str]
) -> None:
    """A bubble per class and client, its area the number of samples."""
    axes = fig.subplots()
    values = counts.to_numpy()
    num_classes, num_clients = values.shape
    largest = max(1, int(values.max()))
    cell = min(max(9.0, 1.5 * _POINTS_ACROSS / num_clients), 72 * 0.3, 72 * 6 / num_classes)
    scale = cell**2 / largest
    y, x = np.nonzero(values)
    axes.scatter(x, y, s=scale * values[y, x], color=BAR, edgecolors="white", linewidths=cell / 50)
    axes.set_xlim(-0.6, num_clients - 0.4)
    axes.set_ylim(num_classes - 0.4, -0.6)
    axes.set_xlabel("Client")
    axes.set_ylabel("Class")
    step = steps(num_classes)
    axes.set_yticks(
        np.arange(0, num_classes, step), [_short(class_names[c]) for c in counts.index[::step]]
    )
    ticks(axes, frame, counts)
    for size in _round_sizes(largest):
        axes.scatter(
            [],
            [],
            s=scale * size,
            color=BAR,
            edgecolors="white",
            linewidths=cell / 50,
            label=f"{size:,}",
        )
    axes.legend(
        title="Training\nsamples", loc="center left", bbox_to_anchor=(1.0, 0.5), labelspacing=0.9
    )


def _round_sizes(largest: int) -> list[int]:
    """About a tenth, a third and all of the largest count, as numbers of one digit and zeros."""
    wanted = (largest, largest / 3, largest / 10)
    digits = [10 ** int(np.log10(max(1, value))) for value in wanted]
    found = {int(value // digit) * digit for value, digit in zip(wanted, digits, strict=True)}
    return sorted(found - {0}, reverse=True)


def _grid(fig: SubFigure, rows: Sequence[Row]) -> None:
    """Images with their classes above, a client per row."""
    columns = max(len(row.labels) for row in rows)
    grid = fig.subplots(len(rows), columns, squeeze=False)
    for line, row in zip(grid, rows, strict=True):
        for axes in line:
            axes.set_axis_off()
        for axes, image, label in zip(line, row.images, row.labels, strict=False):
            _show(axes, image, label)
        line[0].text(
            -0.12, 0.5, row.title, transform=line[0].transAxes, ha="right", va="center", fontsize=10
        )


def _show(axes: Axes, image: NDArray[np.uint8], label: str) -> None:
    grey = image.shape[0] == 1
    pixels = image[0] if grey else np.moveaxis(image, 0, -1)
    axes.imshow(pixels, cmap="gray" if grey else None, vmin=0, vmax=255, interpolation="nearest")
    axes.set_title(_short(label), fontsize=9, pad=2)


def _short(name: str) -> str:
    return name if len(name) <= _LONG else name[: _LONG - 1] + "…"
