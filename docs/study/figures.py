"""The figures of RESULTS.md: comparisons, terms of Fig. 2, mean ranks, budgets."""

from __future__ import annotations

from pathlib import Path

import check
import descriptions
import numpy as np
import pandas as pd
import searches
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from stored import FAMILIES, HERE, Study

from analysis.figures import grid, style
from analysis.figures import ranks as rank_figure
from analysis.stats import estimate

LOOKS = {"accuracy": (style.ORANGE, 0.17), "balanced_accuracy": (style.BLUE, -0.17)}
"""Colour and height of a metric's marks."""
WORN = {
    check.CONFIRMED: "o", check.REFUTED: "X", check.EQUAL: "s", check.OPEN: "d", check.DESIGN: "|",
}  # fmt: skip
"""Marks by verdict for these images."""
SIZES = {"markersize": 7, "markeredgewidth": 1.6}
TITLES = 7.5
"""Width in inches of all titles of the headline."""
PAPER = (
    "FedAvg", "FedProx", "FedGH", "FedBN", "FedPAC", "SCAFFOLD", "FedDyn", "Principal", "Margin",
    "FedLD",
)  # fmt: skip
"""Methods in the figure of budgets; the table has all."""
FIG2 = {
    "abs_shift_loss": "|shift|",
    "abs_aggregation_loss": "|aggregation|",
    "global_loss": "global",
}


def headline(study: Study) -> Figure:
    """Every comparison of the headline with its intervals, a panel for each block in one row."""
    blocks = study.of("H")
    these, new = study.compared.values()
    own = FAMILIES[FAMILIES["family"] == "headline"]
    names = list(dict.fromkeys(zip(own["claim_id"], own["first"], own["second"], strict=True)))
    with style.look():
        figure = Figure(figsize=(grid.WIDTH, 5.2))
        places = figure.subplots(1, len(blocks), squeeze=False, sharex=True, sharey=True).ravel()
        for axes, block in zip(places, blocks, strict=True):
            for index, row in own[own["block"] == block.name].iterrows():
                key = (row["claim_id"], row["first"], row["second"])
                colour, up = LOOKS[row["metric"]]
                y, (mean, half) = names.index(key) - up, 100 * these.loc[index, ["mean", "half"]]
                if np.isnan(mean):
                    axes.text(0.2, y, "runs missing", color=colour, fontsize=8, va="center")
                    continue
                wide = 100 * new.loc[index, "half"]
                axes.plot([mean - wide, mean + wide], [y, y], color=colour, linewidth=0.8)
                axes.plot([mean - half, mean + half], [y, y], color=colour, linewidth=3, alpha=0.55)
                sign = WORN[these.loc[index, "verdict"]]
                axes.plot([mean], [y], sign, color=colour, **SIZES)
            axes.axvspan(-1, 1, color="#EEEEEE", zorder=0)
            axes.axvline(0, color="black", linewidth=0.8)
            axes.set_title(style.wrapped(block.title, TITLES / len(blocks)), loc="left", fontsize=9)
            axes.tick_params(labelsize=9)
            axes.xaxis.set_major_locator(MaxNLocator(3 + 8 // len(blocks), steps=[1, 2, 5, 10]))
            axes.grid(axis="y", visible=False)
        labels = [f"{c}  {a}\n\N{MINUS SIGN} {b}" for c, a, b in names]
        places[0].set_yticks(range(len(names)), labels)
        places[0].set_ylim(len(names) - 0.5, -0.5)
        marks = [Line2D([], [], color=c, linewidth=3, alpha=0.55) for c, _ in LOOKS.values()]
        said = set(these.loc[own.index[own["block"].isin([b.name for b in blocks])], "verdict"])
        worn = {word: mark for word, mark in WORN.items() if word in said}
        marks += [Line2D([], [], color="#555555", marker=m, ls="", **SIZES) for m in worn.values()]
        note = (
            "First minus second (points). Thick: 95 % interval for these images, thin: for new "
            "ones; grey: within one point"
        )
        grid.legend(figure, marks, ["accuracy", "balanced accuracy", *worn], note)
    return figure


def fig2(study: Study) -> Figure:
    """The terms of Fig. 2 by alpha at the primary rate, a row for each block."""
    shown = []
    for block in study.of("F"):
        runs = block.runs[block.runs["lr"] == check.FIG2_RATE]
        for term, title in FIG2.items():
            curves = {}
            for method in block.methods:
                bands = {}
                for alpha in sorted(runs["alpha"].unique(), reverse=True):
                    own = runs[runs["alpha"] == alpha]
                    of = check.values(own, term, method, len(block.partitions), len(block.seeds))
                    bands[alpha] = estimate(of.tolist())
                curves[method] = pd.DataFrame(
                    {
                        "mean": [b.mean for b in bands.values()],
                        "low": [b.low for b in bands.values()],
                        "high": [b.high for b in bands.values()],
                        "n": [b.n for b in bands.values()],
                    },
                    index=pd.Index(list(bands), name="alpha"),
                ).dropna(subset="mean")
            kept = {method: curve for method, curve in curves.items() if len(curve)}
            if kept:
                shown.append(
                    grid.Panel(
                        label=f"{block.code} (nats)", title=title, curves=kept,
                        x="alpha", log=True, unit="partition", zero=True,
                    )
                )  # fmt: skip
    note = f"Learning rate {check.FIG2_RATE:g}; mean, band: 95 % t interval over partitions"
    return grid.curves_figure(shown, note)


def ranks(study: Study) -> Figure:
    """Mean ranks over settings, with the critical difference."""
    return rank_figure.figure(descriptions.ranked(study, "balanced_accuracy", partitions=False))


def partition_ranks(study: Study) -> Figure:
    """The same over partitions within settings."""
    return rank_figure.figure(descriptions.ranked(study, "balanced_accuracy", partitions=True))


def budgets(study: Study) -> Figure:
    """Expected test score by number of candidates, a panel for each block."""
    shown = []
    for block in study.of("HWR", searched=True):
        curves = {
            method: curve[["mean", "low", "high"]].mul(100).assign(n=curve["n"], low=np.nan)
            for method, curve in searches.expected(block).items()
            if method in PAPER
        }
        shown.append(
            grid.Panel(
                label="Balanced accuracy (%)", title=block.code, curves=curves, x="Candidates",
                unit="partition",
            )
        )  # fmt: skip
    note = "Expected test score of the best of so many candidates, mean over partitions"
    return grid.curves_figure(shown, note, style.lines(list(PAPER)))


FIGURES = {
    "headline": (headline, "H", 1, "Differences of the headline with their intervals, by block"),
    "fig2": (fig2, "F", 1, "Terms of the loss after one round, by alpha"),
    "ranks": (ranks, "HR", 2, "Mean ranks over settings, with the critical difference"),
    "partition_ranks": (
        partition_ranks,
        "HR",
        1,
        "Mean ranks over partitions, with the critical difference",
    ),
    "budgets": (budgets, "HWR", 1, "Expected test score by number of candidates"),
}
"""What draws each figure, how many blocks of which kinds it needs, and its alternative text."""


def ready(study: Study, name: str) -> bool:
    """Whether enough blocks are stored."""
    _, kinds, least, _ = FIGURES[name]
    return len(study.of(kinds, searched=name == "budgets")) >= least


def file(name: str) -> Path:
    """Where a figure is written."""
    return HERE / f"{name}.png"


def link(study: Study, name: str) -> str:
    """The figure in the page."""
    return f"![{FIGURES[name][3]}](study/{name}.png)" if ready(study, name) else "No figure yet."


def write(study: Study) -> None:
    """Draws the figures whose blocks are stored, and removes the others."""
    for name, (draw, *_) in FIGURES.items():
        if ready(study, name):
            style.save(draw(study), file(name))
        else:
            file(name).unlink(missing_ok=True)
