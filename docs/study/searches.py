"""The tables of RESULTS.md on the searches: candidates, edges, another choice, budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from stored import Block, Study, folded, markdown

from analysis import budget
from analysis.scores import SCORES
from analysis.tables.layout import EMPTY

COUNTED = ("train.lr", "fedavgm.eta")
"""Keys whose choices are counted; the ranges of others are those of papers."""
RAN = "complete"
"""State of a candidate that ran to its end."""
SHOWN = (1, 2, 3, 5, 10, 20)
"""Numbers of candidates of a method in the table of budgets."""


def chosen(trials: pd.DataFrame) -> pd.DataFrame:
    """The candidates that were chosen."""
    return trials[trials["chosen"].astype(float) == 1]


def edges(block: Block) -> dict[str, tuple[int, int, int]]:
    """By searched key the choices below and above which no candidate lies, and all choices."""
    found = {}
    for key in (column for column in block.trials if "." in column):
        values = block.trials.groupby(["method", "data_seed"])[key]
        own = chosen(block.trials)[key].dropna()
        low, high = ((own == values.transform(of)[own.index]).sum() for of in ("min", "max"))
        if len(own):
            found[key] = (int(low), int(high), len(own))
    return found


def at_edges(block: Block) -> list[str]:
    """The counted keys of which more choices than twice by chance are at one edge."""
    if block.trials.empty:
        return []
    chance = 1 / block.trials.groupby(["method", "data_seed"]).size().min()
    return [
        key
        for key, (low, high, every) in edges(block).items()
        if key in COUNTED and max(low, high) > 2 * chance * every
    ]


def share(counts: tuple[int, int, int]) -> str:
    """``0 low, 5 high of 130``."""
    return f"{counts[0]} low, {counts[1]} high of {counts[2]}"


def candidates(study: Study) -> str:
    """By block how many candidates each method had, and how many choices are at an edge."""
    blocks = study.of("HWR", searched=True)
    if not blocks:
        return "No search is stored yet."
    head = ["Block", "Methods", "Partitions", "Candidates each", "Without a score", "Searches"]
    head += [*(f"`{key}` at an edge" for key in COUNTED), "Other keys at an edge"]
    body, warned = [], []
    for block in blocks:
        trials = block.trials
        counts = trials.groupby(["method", "data_seed"]).size()
        every = sorted(set(counts))
        equal = str(every[0]) if len(every) == 1 else f"{every[0]} to {every[-1]}"
        at = edges(block)
        others = [f"{key} {share(at[key])}" for key in at if key not in COUNTED]
        body.append(
            [
                block.code, str(trials["method"].nunique()), str(trials["data_seed"].nunique()),
                equal, str(int((trials["state"] != RAN).sum())), str(block.searches),
                *(share(at[key]) if key in at else EMPTY for key in COUNTED),
                "; ".join(others) or EMPTY,
            ]
        )  # fmt: skip
        warned += [f"{block.code} (`{key}` {share(at[key])})" for key in at_edges(block)]
    text = markdown(head, body)
    if warned:
        return (
            f"{text}\n\n**More than twice as many choices as by chance are at an edge** after the "
            f"last search: {', '.join(warned)}. A better value may lie beyond; the verdicts of "
            "these blocks are marked \N{DOUBLE DAGGER}."
        )
    return f"{text}\n\nIn no block are more counted choices at an edge than twice by chance."


def best(trials: pd.DataFrame, by: str) -> pd.DataFrame:
    """By method and partition the candidate with the highest ``by``, of equal ones the first."""
    known = trials[trials[by].notna()].sort_values("trial", kind="stable")
    return known.loc[known.groupby(["method", "data_seed"])[by].idxmax()]


def by_accuracy(study: Study) -> str:
    """Test accuracy of the candidates with the best validation accuracy, by block and method."""
    blocks = study.of("HWR", searched=True)
    if not blocks:
        return "No search is stored yet."
    cells: dict[str, dict[str, str]] = {}
    for block in blocks:
        means = {
            by: best(block.trials, by).groupby("method")["accuracy"].mean()
            for by in ("val_accuracy", "val_balanced_accuracy")
        }
        for method in block.methods:
            value, other = (100 * means[by].get(method, math.nan) for by in means)
            more = round(value - other, 1) + 0.0
            text = EMPTY if math.isnan(value) else f"{value:.1f} ({more:+.1f})"
            cells.setdefault(method, {})[block.code] = text
    codes = [block.code for block in blocks]
    body = [[m, *(own.get(code, EMPTY) for code in codes)] for m, own in cells.items()]
    return markdown(["Method", *codes], body)


def budgets(block: Block) -> budget.Budgets:
    """The searches of a block by partition and method."""
    found: dict[str, dict[str, budget.Candidates]] = {}
    for (method, partition), own in block.trials.groupby(["method", "data_seed"], sort=False):
        value = own["val_balanced_accuracy"].fillna(-math.inf)
        lost = int(own["balanced_accuracy"].isna().sum())
        found.setdefault(str(partition), {})[str(method)] = budget.Candidates(
            validation=value.to_numpy(float), failed=lost, pruned=0, sampler="random",
            test=own["balanced_accuracy"].to_numpy(float),
        )  # fmt: skip
    return budget.Budgets(searches=found, score=SCORES["balanced_accuracy"])


def expected(block: Block) -> dict[str, pd.DataFrame]:
    """By method and k the expected test score with its interval over partitions."""
    curves = budget.curves(budgets(block), "partition")[""]
    return {method: curves[method] for method in block.methods if method in curves}


def budget_tables(study: Study) -> str:
    """The expected test balanced accuracy of the best of k candidates, by block."""
    blocks = study.of("HWR", searched=True)
    if not blocks:
        return "No search is stored yet."
    parts = []
    for block in blocks:
        curves = expected(block)
        most = max(map(len, curves.values()))
        shown = sorted({k for k in SHOWN if k <= most} | {most})
        body = [[method, *spreads(curve, shown)] for method, curve in curves.items()]
        head = ["Method", *(f"k = {k}" for k in shown)]
        parts.append(folded(block.title, markdown(head, body)))
    return "\n\n".join(parts)


def spreads(curve: pd.DataFrame, shown: Sequence[int]) -> list[str]:
    """``62.1 ± 2.0`` at each k."""
    return [plus_minus(curve["mean"].get(k, np.nan), curve["high"].get(k, np.nan)) for k in shown]


def plus_minus(mean: float, high: float) -> str:
    """``62.1 ± 2.0`` of a share and the end of its interval."""
    if math.isnan(mean):
        return EMPTY
    half = "" if math.isnan(high) else f" ± {100 * (high - mean):.1f}"
    return f"{100 * mean:.1f}{half}"
