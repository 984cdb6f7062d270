"""Who helped and who hurt: the clients' influence by client and round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .figures import style
from .words import say

HELPED, HURT = style.BLUE, style.RED
ABSENT = "#E6E6E6"
DIVERGING = LinearSegmentedColormap.from_list("influence", (HURT, "#FFFFFF", HELPED)).with_extremes(
    bad=ABSENT
)
LONG = 24  # longer names are shortened
UNITS: Mapping[str, str] = {"step": "way along the rounds' steps"}
"""What is summed, by metric; of a score of the model it is the gain in it."""


def summed(frame: pd.DataFrame) -> pd.DataFrame:
    """Over the rounds of :func:`fedsim.influence`, a row per client, who helped most first."""
    grouped = frame.assign(shapley_error=frame["shapley_error"].pow(2)).groupby(
        ["client_id", "name"], sort=True
    )
    sums = grouped[["leave_one_out", "shapley", "shapley_error"]].sum(min_count=1)
    sums["shapley_error"] = sums["shapley_error"].pow(0.5)
    sums.insert(0, "rounds", grouped.size())
    return sums.reset_index().sort_values(
        _column(frame), ascending=False, kind="stable", ignore_index=True
    )


def _column(frame: pd.DataFrame) -> str:
    """The column that is shown: Shapley values where there are any."""
    return "shapley" if frame["shapley"].notna().any() else "leave_one_out"


def draw(frame: pd.DataFrame, out: Path) -> None:
    """Draws the rows of :func:`fedsim.influence` to a file; see :func:`figure`."""
    style.save(figure(frame), out)


def figure(frame: pd.DataFrame) -> Figure:
    """Bars of the clients' sums, and beside them their values round by round."""
    sums, column = summed(frame), _column(frame)
    attackers = set(frame["client_id"][frame["attacker"] == 1]) if "attacker" in frame else set()
    labels = [
        style.short(name or f"client {client}", LONG) + " (attacker)" * (client in attackers)
        for client, name in zip(sums["client_id"], sums["name"], strict=True)
    ]
    several = frame["round"].nunique() > 1
    with style.look():
        fig = Figure(figsize=(8.0, 1.75 + 0.27 * len(sums)))
        if several:
            bars, by_round = fig.subplots(1, 2, sharey=True, width_ratios=(1, 1.15))
            _by_round(fig, by_round, frame, sums, column)
        else:
            bars = fig.subplots()
        _bars(bars, sums, column, labels)
        metric = str(frame["metric"].iloc[0])
        bars.set_xlabel(say("influence.sum", unit=UNITS.get(metric, f"gain in {metric}")))
        title = say("influence.title", rounds=frame["round"].nunique())
        fig.suptitle(title, x=0.01, ha="left", fontsize=12)
        entries = list(zip(*bars.get_legend_handles_labels(), strict=True))
        entries.sort(key=lambda entry: not isinstance(entry[0], BarContainer))
        handles, texts = zip(*entries, strict=True)
        fig.legend(handles, texts, loc="outside lower left", ncols=len(texts))
    return fig


def _bars(axes: Axes, sums: pd.DataFrame, column: str, labels: list[str]) -> None:
    """A bar per client, the first on top; dots are leave-one-out where the bars are Shapley."""
    places = np.arange(len(sums))
    value, error = sums[column].to_numpy(), sums["shapley_error"].fillna(0).to_numpy()
    kind = say(f"influence.{column}")
    for helped, colour in ((True, HELPED), (False, HURT)):
        some = (value >= 0) == helped
        if some.any():
            label = say("influence.helped" if helped else "influence.hurt", kind=kind)
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
    axes.set_yticks(places, labels)
    axes.set_ylim(len(sums) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _by_round(
    fig: Figure, axes: Axes, frame: pd.DataFrame, sums: pd.DataFrame, column: str
) -> None:
    """The values of each client and round as colours, grey where it took no part."""
    numbers = np.arange(int(frame["round"].min()), int(frame["round"].max()) + 1)
    values = frame.pivot_table(index="client_id", columns="round", values=column, aggfunc="sum")
    values = values.reindex(index=sums["client_id"], columns=numbers)
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
