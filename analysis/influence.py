"""Who helped and who hurt: the clients' influence by client and round, from an influence.csv."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from . import AnalysisError
from .figures import style
from .files import read_table
from .words import say, sentences

HELPED, HURT = style.BLUE, style.RED
ABSENT = "#E6E6E6"
DIVERGING = LinearSegmentedColormap.from_list("influence", (HURT, "#FFFFFF", HELPED)).with_extremes(
    bad=ABSENT
)
MOST = 40  # of more clients the first and the last ones are drawn
LONG = 24  # longer names are shortened
NUMBERS = ("round", "client_id", "total", "leave_one_out")
UNITS: Mapping[str, str] = {"step": "way along the rounds' steps"}
"""What is summed, by metric; of a score of the model it is the gain in it."""


def read(path: Path) -> pd.DataFrame:
    """The rows of an influence.csv."""
    optional = ("shapley", "shapley_error", "attacker")
    frame = read_table(path, NUMBERS, ("metric",), optional, ("name",))
    if frame["metric"].nunique() != 1:
        found = ", ".join(frame["metric"].unique())
        raise AnalysisError(f"{path}: has to have one metric, not {found or 'none'}")
    return frame


def draw(source: Path, out: Path) -> None:
    """Draws an influence.csv to a file; see :func:`figure`."""
    style.save(figure(read(source)), out)


def clients(frame: pd.DataFrame) -> pd.DataFrame:
    """Sums over the rounds by client, who helped most first.

    Columns: ``label``, ``value`` (Shapley, else leave-one-out), ``error`` (the root of the sum of
    squares, 0 where exact), ``leave_one_out`` and ``attacker``.
    """
    optional = {"shapley_error": 0.0, "attacker": 0, "name": None}
    filled = frame.assign(**{key: frame.get(key, value) for key, value in optional.items()})
    filled["error"] = filled["shapley_error"].fillna(0.0).pow(2)
    grouped = filled.groupby("client_id")
    sums = grouped[[_column(frame), "leave_one_out", "error"]].sum()
    sums = sums.set_axis(["value", "leave_one_out", "error"], axis="columns")
    sums["error"] = sums["error"].pow(0.5)
    sums["attacker"] = grouped["attacker"].max().fillna(0)
    sums["label"] = [
        style.short(f"client {client}" if pd.isna(name) else str(name), LONG)
        + " (attacker)" * bool(attacker)
        for client, name, attacker in zip(
            sums.index, grouped["name"].first(), sums["attacker"], strict=True
        )
    ]
    return sums.sort_values("value", ascending=False, kind="stable")


def _column(frame: pd.DataFrame) -> str:
    """The column that is drawn: Shapley values where there are any."""
    there = "shapley" in frame.columns and frame["shapley"].notna().any()
    return "shapley" if there else "leave_one_out"


def figure(frame: pd.DataFrame) -> Figure:
    """Bars of the clients' sums, and beside them their values round by round, of :func:`read`."""
    sums, column, metric = clients(frame), _column(frame), str(frame["metric"].iloc[0])
    left_out = max(0, len(sums) - MOST)
    if left_out:
        sums = pd.concat([sums.iloc[: MOST // 2], sums.iloc[-(MOST // 2) :]])
    several = frame["round"].nunique() > 1
    with style.look():
        fig = Figure(figsize=(8.0, 1.75 + 0.27 * len(sums)))
        ratios = (1, 1.15)[: 1 + several]
        bars, *more = fig.subplots(
            1, 1 + several, sharey=True, width_ratios=ratios, squeeze=False
        ).ravel()
        for axes in more:
            _by_round(fig, axes, frame, sums, column)
        _bars(bars, sums, column)
        bars.set_xlabel(say("influence.sum", unit=UNITS.get(metric, f"gain in {metric}")))
        title = sentences(
            say("influence.title", rounds=frame["round"].nunique()),
            say("influence.more", count=left_out) if left_out else "",
        )
        fig.suptitle(title, x=0.01, ha="left", fontsize=12)
        handles, labels = bars.get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower left", ncols=len(labels))
    return fig


def _bars(axes: Axes, sums: pd.DataFrame, column: str) -> None:
    """A bar per client, the first on top; dots are leave-one-out where the bars are Shapley."""
    places = np.arange(len(sums))
    value, error = sums["value"].to_numpy(), sums["error"].to_numpy()
    kind = say(f"influence.{column}")
    for word, colour, some in (("helped", HELPED, value >= 0), ("hurt", HURT, value < 0)):
        if some.any():
            label = say(f"influence.{word}", kind=kind)
            axes.barh(places[some], value[some], color=colour, height=0.68, label=label)
    if error.any():
        axes.errorbar(
            value, places, xerr=error, fmt="none", ecolor=style.BLACK, elinewidth=1.1, capsize=2.5,
            label=say("influence.error"),
        )  # fmt: skip
    if column == "shapley":
        axes.plot(
            sums["leave_one_out"], places, "o", mfc="white", mec=style.BLACK, ms=5.5, mew=1.1,
            label=say("influence.leave_one_out"),
        )  # fmt: skip
    axes.axvline(0, color=style.BLACK, linewidth=0.8)
    axes.set_yticks(places, list(sums["label"]))
    axes.set_ylim(len(sums) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _by_round(
    fig: Figure, axes: Axes, frame: pd.DataFrame, sums: pd.DataFrame, column: str
) -> None:
    """The values of each client and round as colours, grey where it took no part."""
    numbers = np.arange(int(frame["round"].min()), int(frame["round"].max()) + 1)
    values = frame.pivot_table(index="client_id", columns="round", values=column, aggfunc="sum")
    values = values.reindex(index=sums.index, columns=numbers)
    most = float(np.nanmax(np.abs(values.to_numpy()), initial=0.0)) or 1.0
    mesh = axes.pcolormesh(
        np.append(numbers, numbers[-1] + 1) - 0.5, np.arange(len(sums) + 1) - 0.5,
        np.ma.masked_invalid(values.to_numpy()), cmap=DIVERGING, vmin=-most, vmax=most,
        edgecolors="white", linewidth=0.4 if len(numbers) <= 40 else 0, rasterized=True,
    )  # fmt: skip
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xlabel(say("influence.by_round"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    fig.colorbar(mesh, ax=axes, pad=0.02, fraction=0.06, aspect=25)
