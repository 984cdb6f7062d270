"""Which client has which samples: a heat map."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..files import class_names, read_partition
from ..labels import text
from ..runs import Group
from ..words import say
from . import grid, style
from .grid import Absent, Drawing

BAR = "#4292C6"
LABELLED = 16
"""The axis shows the names of at most this many clients."""
LONGEST = 40
"""Longer names of clients are shortened."""
MOST = 4
"""A report shows at most this many partitions."""
NAMED = ("dataset", "data.partition", "alpha", "data.seed", "seed")
"""Columns of summary.csv that identify a partition."""


def matrix(frame: pd.DataFrame) -> pd.DataFrame:
    """Number of training samples, (classes, clients)."""
    return frame.pivot_table(
        index="label", columns="client_id", values="train_samples", aggfunc="sum", fill_value=0
    ).astype(int)


def figure(frame: pd.DataFrame, class_names: Sequence[str] = ()) -> Figure:
    """Heat map of training samples by class and client, with each client's total above.

    The colour scales with the square root of the count, so that small counts stay visible; the
    counts are printed if the cells are wide enough.

    ``frame`` has columns client_id, label, train_samples, and ``name`` if clients have names;
    ``class_names`` are by label, none: the labels' numbers.
    """
    counts = matrix(frame)
    total, clients = int(counts.to_numpy().sum()), counts.shape[1]
    with style.look():
        fig = Figure(figsize=(grid.WIDTH, _height(counts)))
        title = f"{clients:,} client{'' if clients == 1 else 's'}, {total:,} training samples"
        _heat_map(fig, frame, counts, class_names, title)
    return fig


def _height(counts: pd.DataFrame) -> float:
    """Inches of a heat map."""
    return 2.5 + min(0.34 * max(len(counts), 3), 8)


def _heat_map(
    fig: Figure, frame: pd.DataFrame, counts: pd.DataFrame,
    class_names: Sequence[str], title: str,
) -> None:  # fmt: skip
    rows = 0.34 * max(len(counts), 3)
    top, middle = fig.subplots(
        2, 1, sharex=True, height_ratios=(1.15, rows), gridspec_kw={"hspace": 0.0}
    )
    _totals(top, counts)
    _cells(fig, middle, counts, class_names)
    middle.set_xlabel("Client")
    ticks(middle, frame, counts)
    fig.align_ylabels((top, middle))
    top.set_title(title, loc="left")


def _totals(axes: Axes, counts: pd.DataFrame) -> None:
    totals = counts.sum(axis=0)
    bars = axes.bar(np.arange(counts.shape[1]), totals, width=0.8, color=BAR)
    if _fits(totals.to_numpy()):
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=9.5, padding=1)
        axes.margins(y=0.2)
        axes.grid(visible=False)
    axes.set_ylabel("Samples")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.grid(visible=False, axis="x")
    axes.tick_params(bottom=False, labelbottom=False)


def _cells(fig: Figure, axes: Axes, counts: pd.DataFrame, class_names: Sequence[str]) -> None:
    values = counts.to_numpy()
    num_classes, num_clients = values.shape
    norm = PowerNorm(0.5, vmin=0, vmax=max(1, values.max()))
    texts = {
        place: (f"{count:,}", norm(count) > 0.55)
        for place, count in np.ndenumerate(values)
        if _fits(values)
    }
    edge = 0.8 if num_clients <= 100 else 0
    image = grid.heat_cells(axes, values, texts, norm=norm, linewidth=edge)
    axes.set_ylabel("Class")
    step = steps(num_classes)
    names = style.of_labels(counts.index.astype(int).tolist()[::step], class_names)
    axes.set_yticks(np.arange(0, num_classes, step), [style.short(name, 16) for name in names])
    axes.invert_yaxis()
    aspect = min(max(8, 1.7 * num_classes), 40)
    bar = fig.colorbar(image, ax=axes, pad=0.015, aspect=aspect, label="Samples")
    bar.outline.set_visible(False)


def _fits(counts: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> bool:
    """Whether the largest of the counts (..., K) can be printed within a client's width."""
    return counts.shape[-1] <= LABELLED and len(f"{counts.max():,}") * counts.shape[-1] <= 70


def ticks(axes: Axes, frame: pd.DataFrame, counts: pd.DataFrame) -> None:
    """Labels the axis with the clients' names, or with numbers if there are many.

    Client i of ``counts``, the :func:`matrix` of ``frame``, is at x = i.
    """
    num_clients = counts.shape[1]
    named = "name" in frame.columns and bool(frame["name"].notna().all())
    if named and num_clients <= LABELLED:
        names = frame.drop_duplicates("client_id").set_index("client_id")["name"]
        texts = [style.short(str(names[client]), LONGEST) for client in counts.columns]
        crowded = sum(map(len, texts)) > 70
        axes.set_xticks(
            np.arange(num_clients), texts, rotation=30 if crowded else 0,
            ha="right" if crowded else "center",
        )  # fmt: skip
        return
    step = steps(num_clients)
    axes.set_xticks(np.arange(0, num_clients, step), [str(c) for c in counts.columns[::step]])


def steps(count: int) -> int:
    """The distance between axis labels of ``count`` cells: at most 25 labels."""
    every = (1, 5, 10, 50, 100, 500, 1000, 5000)
    return next((step for step in every if count <= 25 * step), count)


def drawings(groups: Sequence[Group]) -> Iterator[Drawing | Absent]:
    """One heat map for each distinct partition.csv, at most :data:`MOST`."""
    first: dict[bytes, tuple[Path, str]] = {}
    for run in (run for group in groups for run in group.runs.to_dict("records")):
        file = Path(run["path"]) / "partition.csv"
        if file.is_file():
            digest = hashlib.sha256(file.read_bytes()).digest()
            settings = {c: text(run.get(c)) for c in NAMED}
            words = ", ".join(f"{c} {value}" for c, value in settings.items() if value != "unset")
            first.setdefault(digest, (file, words))
    if not first:
        yield grid.absent("partition")
    for index, (file, words) in enumerate(list(first.values())[:MOST], start=1):
        frame = read_partition(file).dropna(axis="columns", how="all")
        counts = matrix(frame)
        totals, classes = counts.sum(axis=0), (counts > 0).sum(axis=0)
        yield grid.drawing(
            "partition", figure(frame, class_names(file.parent) or ()), name=f"partition_{index}",
            title=say("partition.one_of", index=index, all=len(first)) if len(first) > 1 else "",
            words=words, all=len(first), shown=MOST, clients=counts.shape[1],
            classes=counts.shape[0], fewest=totals.min(), most=totals.max(), least=classes.min(),
            widest=classes.max(),
        )  # fmt: skip
