"""Which client has which samples: a heat map, and images below it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ..files import class_names, header, read_env, read_partition
from ..labels import text
from ..runs import Group
from ..words import say
from . import grid, style
from .grid import Absent, Drawing

LABELLED = 16  # the axis shows the names of at most this many clients
LONGEST = 40  # longer names of clients are shortened
MOST = 4  # a report shows at most this many partitions
NAMED = ("dataset", "data.partition", "alpha", "data.seed", "seed")
"""Columns of summary.csv that identify a partition."""
CLIENTS, IMAGES = 10, 8
"""Images are shown of at most this many clients, and at most this many of each."""


@dataclass(frozen=True)
class ImageRow:
    """Some images of one client, (n, channels, H, W) uint8 of one channel or three, and classes."""

    title: str
    images: NDArray[np.uint8]
    labels: Sequence[str]


def matrix(frame: pd.DataFrame) -> pd.DataFrame:
    """Number of training samples, (classes, clients)."""
    return frame.pivot_table(
        index="label", columns="client_id", values="train_samples", aggfunc="sum", fill_value=0
    ).astype(int)


def figure(
    frame: pd.DataFrame, class_names: Sequence[str] = (), rows: Sequence[ImageRow] = (),
    held_out: Collection[int] = (),
) -> Figure:  # fmt: skip
    """A heat map of the training samples of each class and client, rows of images below it. The
    clients ``held_out``, which never train, are marked."""
    clients, total = frame["client_id"].nunique(), int(frame["train_samples"].sum())
    title = f"{clients:,} client{'' if clients == 1 else 's'}, {total:,} training samples"
    if not (classes := frame["label"].max() >= 0):  # -1, without classes to count
        class_names = class_names if len(class_names) == 1 else ("samples",)
    frame = frame.assign(label=frame["label"].clip(lower=0))
    counts = matrix(frame)
    cells = 0.34 * max(len(counts), 3)
    heights = [2.5 + min(cells, 8), *([0.55 + 0.94 * len(rows)] if rows else [])]
    with style.look():
        fig = Figure(figsize=(grid.WIDTH, sum(heights)))
        fig.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03, wspace=0.01, hspace=0.01)
        parts = fig.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        top, middle = parts[0].subplots(
            2, 1, sharex=True, height_ratios=(1.15, cells), gridspec_kw={"hspace": 0.0}
        )
        top.set_title(title, loc="left")
        _totals(top, counts)
        _cells(middle, counts, class_names, "Class" if classes else "")
        _clients(middle, frame, counts, held_out)
        parts[0].align_ylabels((top, middle))
        for part in parts[1:]:
            _images(part, rows)
            part.suptitle("Training images", x=0.01, ha="left", fontsize=12)
    return fig


def _totals(axes: Axes, counts: pd.DataFrame) -> None:
    totals = counts.sum(axis=0)
    bars = axes.bar(np.arange(counts.shape[1]), totals, width=0.8, color="#4292C6")
    if _fits(totals.to_numpy()):
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=9.5, padding=1)
        axes.margins(y=0.2)
        axes.grid(visible=False)
    axes.set_ylabel("Samples")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.grid(visible=False, axis="x")
    axes.tick_params(bottom=False, labelbottom=False)


def _cells(axes: Axes, counts: pd.DataFrame, class_names: Sequence[str], axis: str) -> None:
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
    axes.set_ylabel(axis)
    names = style.of_labels(counts.index.astype(int).tolist(), class_names)
    axes.set_yticks(*grid.thinned(names, 16))
    axes.invert_yaxis()
    aspect = min(max(8, 1.7 * num_classes), 40)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.015, aspect=aspect, label="Samples")
    bar.outline.set_visible(False)


def _fits(counts: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> bool:
    """Whether the largest of the counts (..., K) can be printed within a client's width."""
    return counts.shape[-1] <= LABELLED and len(f"{counts.max():,}") * counts.shape[-1] <= 70


def _clients(
    axes: Axes, frame: pd.DataFrame, counts: pd.DataFrame, held_out: Collection[int]
) -> None:
    """Labels the axis with the clients' names, or with numbers if there are many."""
    names = [str(client) for client in counts.columns]
    if len(names) <= LABELLED and "name" in frame and frame["name"].notna().all():
        by_client = frame.drop_duplicates("client_id").set_index("client_id")["name"]
        names = [str(by_client[client]) for client in counts.columns]
    if len(names) <= LABELLED:
        clients = zip(names, map(int, counts.columns), strict=True)
        names = [name + " (held out)" * (client in held_out) for name, client in clients]
    grid.name_ticks(axes, names, 80, LONGEST)
    axes.set_xlabel("Client")


def drawings(groups: Sequence[Group]) -> Iterator[Drawing | Absent]:
    """One heat map for each distinct partition.csv, at most :data:`MOST`."""
    first: dict[tuple[bytes, tuple[int, ...]], tuple[Path, str]] = {}
    for run in (run for group in groups for run in group.runs.to_dict("records")):
        file = Path(run["path"]) / "partition.csv"
        if file.is_file():
            settings = {c: text(run.get(c)) for c in NAMED}
            words = ", ".join(f"{c} {value}" for c, value in settings.items() if value != "unset")
            held_out = tuple(read_env(file.parent).get("heldout_clients", ()))
            content = file.read_bytes()
            if header(file)[-1:] == ["malicious"]:  # a partition is the same with attackers
                content = b"".join(row.rpartition(b",")[0] + b"\n" for row in content.splitlines())
            first.setdefault((content, held_out), (file, words))
    if not first:
        yield grid.absent("partition")
    for index, ((_, held_out), (file, words)) in enumerate(list(first.items())[:MOST], start=1):
        frame = read_partition(file).dropna(axis="columns", how="all")
        yield grid.drawing(
            "partition", figure(frame, class_names(file.parent) or (), held_out=held_out),
            name=f"partition_{index}",
            title=say("partition.one_of", index=index, all=len(first)) if len(first) > 1 else "",
            words=words, all=len(first), shown=MOST, classes=bool((frame["label"] >= 0).any()),
        )  # fmt: skip


def spread(count: int, most: int) -> NDArray[np.int64]:
    """At most ``most`` evenly spaced numbers of 0..count-1, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def in_proportion(labels: NDArray[np.int64], most: int = IMAGES) -> NDArray[np.int64]:
    """Indices of at most ``most`` samples of labels (n,), by class and its share."""
    by_class = np.argsort(labels, kind="stable")
    count = min(most, len(labels))
    return by_class[((np.arange(count) + 0.5) * len(labels) / max(1, count)).astype(np.int64)]


def _images(fig: SubFigure, rows: Sequence[ImageRow]) -> None:
    """Images with their classes above, one row per client."""
    columns = max(len(row.labels) for row in rows)
    places = fig.subplots(len(rows), columns, squeeze=False)
    for line, row in zip(places, rows, strict=True):
        for axes in line:
            axes.set_axis_off()
        for axes, image, label in zip(line, row.images, row.labels, strict=False):
            picture = np.moveaxis(image, 0, -1)
            axes.imshow(picture, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axes.set_title(style.short(label), fontsize=9, pad=2)
        title = "\n".join(style.short(part, LONGEST) for part in row.title.split("\n"))
        line[0].text(
            -0.12, 0.5, title, transform=line[0].transAxes, ha="right", va="center", fontsize=10
        )
