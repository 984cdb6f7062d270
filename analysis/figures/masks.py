"""Test images with the outlines of their masks, true and predicted, by method and site."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..facets import Facets
from ..labels import title_of
from ..runs import first_run
from . import grid, style
from .grid import Drawing

METHODS, COLUMNS, EACH = 6, 8, 2
"""At most so many rows and columns, and images of a site."""
TRUE, PREDICTED = "#00C8FF", style.ORANGE
Arrays = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


def read(run: Path) -> Arrays | None:
    """The arrays of a run's examples.npz; None where it has none that can be read."""
    try:
        with np.load(run / "examples.npz", allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, zipfile.BadZipFile):
        return None


def drawings(facets: Facets) -> Iterator[Drawing]:
    """A figure for each setting of runs with masks: a row for each method's first run."""
    for number, (setting, groups) in enumerate(facets.items(), 1):
        rows = {one.label: read(first_run([one])) for one in groups[:METHODS]}
        found = {label: arrays for label, arrays in rows.items() if arrays is not None}
        if not found:
            continue
        name = "masks" if len(facets) == 1 else f"masks_{number}"
        yield grid.drawing(
            "masks", _figure(found), name=name, setting=setting if len(facets) > 1 else "",
            without="; ".join(title_of(one.label) for one in groups if one.label not in found),
        )  # fmt: skip


def _chosen(clients: np.ndarray[Any, np.dtype[Any]]) -> list[int]:
    """The first images of each site."""
    names = clients.tolist()
    each = EACH if len(set(names)) > 1 else COLUMNS
    return [i for i, name in enumerate(names) if names[:i].count(name) < each][:COLUMNS]


def _figure(rows: Mapping[str, Arrays]) -> Figure:
    width = max(len(_chosen(arrays["clients"])) for arrays in rows.values())
    with style.look():
        side = grid.WIDTH / max(width, 4)
        fig = Figure(figsize=(grid.WIDTH, (side + 0.25) * len(rows) + 0.5))
        places = fig.subplots(len(rows), width, squeeze=False)
        for axes_row, (label, arrays) in zip(places, rows.items(), strict=True):
            chosen = _chosen(arrays["clients"])
            for axes in axes_row:
                axes.set_axis_off()
            for axes, i in zip(axes_row, chosen, strict=False):
                image = np.moveaxis(arrays["images"][i], 0, -1)
                axes.imshow(image if image.shape[-1] == 3 else image[..., 0], cmap="gray")
                _outlines(axes, arrays["masks"][i], TRUE, "-")
                _outlines(axes, arrays["predictions"][i], PREDICTED, "--")
                axes.set_title(style.short(str(arrays["clients"][i]), 14))
            axes_row[0].text(
                -0.06, 0.5, style.short(title_of(label), 24), rotation=90, ha="right",
                va="center", transform=axes_row[0].transAxes,
            )  # fmt: skip
        handles = [Line2D([], [], color=c, ls=ls) for c, ls in ((TRUE, "-"), (PREDICTED, "--"))]
        grid.legend(fig, handles, ["true", "predicted"], "")
    return fig


def _outlines(axes: Any, mask: np.ndarray[Any, np.dtype[Any]], colour: str, line: str) -> None:
    """The outline of each class but the background; pixels of 255 count nowhere."""
    for k in np.unique(mask[(mask > 0) & (mask < 255)]).tolist():
        if not (mask == k).all():
            look: dict[str, Any] = {"colors": [colour], "linestyles": [line], "linewidths": 1.2}
            axes.contour(mask == k, levels=[0.5], **look)
