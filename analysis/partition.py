"""Who owns what: the training samples of each client by class, from partition.csv."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import style
from analysis.errors import AnalysisError
from analysis.runs import read

BAR = "#4292C6"
NAMED = 16
"""Up to so many clients the axis shows their names."""


def load(path: Path) -> pd.DataFrame:
    """The rows of a partition.csv, given as the file or as the run directory that holds it.

    Raises:
        AnalysisError: the file or a column is missing, or it has no row.
    """
    file = path / "partition.csv" if path.is_dir() else path
    frame = read(file, numbers=("client_id", "label", "train_samples"))
    if frame.empty:
        raise AnalysisError(f"{file}: no rows, a partition has one per client and label")
    return frame


def matrix(frame: pd.DataFrame) -> pd.DataFrame:
    """Training samples as (classes, clients); zero where the file has no row."""
    return frame.pivot_table(
        index="label", columns="client_id", values="train_samples", aggfunc="sum", fill_value=0
    ).astype(int)


def figure(frame: pd.DataFrame) -> Figure:
    """Heat map of training samples by class and client, with each client's total above.

    The colour follows the square root of the count, so that small counts stay visible; the counts
    are printed where the cells have room for them.

    Args:
        frame: columns client_id, label, train_samples, and ``name`` where clients have names.
    """
    counts = matrix(frame)
    num_classes, num_clients = counts.shape
    with style.look():
        fig = Figure(figsize=(8.8, 2.5 + min(0.34 * max(num_classes, 3), 8)))
        top, middle = fig.subplots(
            2, 1, sharex=True, height_ratios=(1.15, 0.34 * max(num_classes, 3)),
            gridspec_kw={"hspace": 0.0},
        )  # fmt: skip
        _totals(top, counts)
        _cells(fig, middle, counts)
        middle.set_xlabel("Client")
        ticks(middle, frame, counts)
        total = int(counts.to_numpy().sum())
        clients = "1 client" if num_clients == 1 else f"{num_clients:,} clients"
        fig.align_ylabels((top, middle))
        top.set_title(f"{clients}, {total:,} training samples", loc="left")
    return fig


def _totals(axes: Axes, counts: pd.DataFrame) -> None:
    totals = counts.sum(axis=0)
    bars = axes.bar(np.arange(counts.shape[1]), totals, width=0.8, color=BAR)
    if _roomy(totals.to_numpy()):
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=9.5, padding=1)
        axes.margins(y=0.2)
        axes.grid(visible=False)
    axes.set_ylabel("Samples")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.grid(visible=False, axis="x")
    axes.tick_params(bottom=False, labelbottom=False)


def _cells(fig: Figure, axes: Axes, counts: pd.DataFrame) -> None:
    values = counts.to_numpy()
    num_classes, num_clients = values.shape
    norm = PowerNorm(0.5, vmin=0, vmax=max(1, values.max()))
    image = axes.pcolormesh(
        np.arange(num_clients + 1) - 0.5, np.arange(num_classes + 1) - 0.5, values,
        cmap="Blues", norm=norm, edgecolors="white", linewidth=0.8 if num_clients <= 100 else 0,
    )  # fmt: skip
    axes.set_ylabel("Class")
    step = steps(num_classes)
    axes.set_yticks(np.arange(0, num_classes, step), [str(c) for c in counts.index[::step]])
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    aspect = min(max(8, 1.7 * num_classes), 40)
    bar = fig.colorbar(image, ax=axes, pad=0.015, aspect=aspect, label="Samples")
    bar.outline.set_visible(False)
    if _roomy(values):
        for (row, column), count in np.ndenumerate(values):
            dark = norm(count) > 0.55
            axes.text(
                column, row, f"{count:,}", ha="center", va="center", fontsize=9.5,
                color="white" if dark else "black",
            )  # fmt: skip


def _roomy(counts: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> bool:
    """Whether the largest of the counts (..., K) can be printed within a client's width."""
    return counts.shape[-1] <= NAMED and len(f"{counts.max():,}") * counts.shape[-1] <= 70


def ticks(axes: Axes, frame: pd.DataFrame, counts: pd.DataFrame) -> None:
    """Puts the clients' numbers, or the names of a few, below the axis.

    Args:
        axes: client i of ``counts`` is at x = i.
        frame: of :func:`figure`.
        counts: of :func:`matrix`.
    """
    num_clients = counts.shape[1]
    named = "name" in frame.columns and bool(frame["name"].notna().all())
    if named and num_clients <= NAMED:
        names = frame.drop_duplicates("client_id").set_index("client_id")["name"]
        texts = [str(names[client]) for client in counts.columns]
        crowded = sum(map(len, texts)) > 70
        axes.set_xticks(
            np.arange(num_clients), texts, rotation=30 if crowded else 0,
            ha="right" if crowded else "center",
        )  # fmt: skip
        return
    step = steps(num_clients)
    axes.set_xticks(np.arange(0, num_clients, step), [str(c) for c in counts.columns[::step]])


def steps(count: int) -> int:
    """Every how many of ``count`` cells an axis has a number: at most 25 numbers."""
    every = (1, 5, 10, 50, 100, 500, 1000, 5000)
    return next((step for step in every if count <= 25 * step), count)
