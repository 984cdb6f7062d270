"""The tables of RESULTS.md without verdicts: scores, ranks, cost, tails of clients, losses."""

from __future__ import annotations

import math
from collections.abc import Callable

import check
import numpy as np
import pandas as pd
from searches import plus_minus
from stored import Block, Study, folded, markdown

from analysis import ranks
from analysis.scores import SCORES
from analysis.stats import Estimate, estimate
from analysis.tables.layout import EMPTY, p_value

SHOWN = {"balanced_accuracy": "Balanced accuracy", "accuracy": "Accuracy", "auc": "AUC"}
NONE = "No such block is stored yet."
SHARES = {"1/4": 0.25, "1/2": 0.5, "all": 1.0}
"""Parts of FedAvg's bytes and seconds."""
CLIENTS = {"client_mean": "Mean", "client_p10": "10th percentile", "client_worst": "Worst client"}
TERMS = {
    "abs_shift_loss": "\\|shift\\|", "abs_aggregation_loss": "\\|aggregation\\|",
    "shift_loss": "shift", "aggregation_loss": "aggregation", "local_loss": "local",
    "global_loss": "global",
}  # fmt: skip


def values(block: Block, metric: str, method: str) -> pd.Series:
    """The value of a method by partition, empty where a planned run is missing.

    A diverged run counts as a guess: 1 / classes, in AUC one half.
    """
    runs = block.runs.assign(classes=2) if metric == "auc" else block.runs
    return check.values(runs, metric, method, len(block.partitions), len(block.seeds))


def shown(found: Estimate) -> str:
    """``62.1 ± 2.0`` of shares."""
    return plus_minus(found.mean, found.high if math.isfinite(found.half) else math.nan)


def scores(study: Study) -> str:
    """Mean and interval of each score by block and method."""
    parts = []
    for block in study.of("HWR"):
        body = [
            [method, *(shown(estimate(values(block, score, method).tolist())) for score in SHOWN)]
            for method in block.methods
        ]
        parts.append(folded(block.title, markdown(["Method", *SHOWN.values()], body)))
    return "\n\n".join(parts) or NONE


def ranked(study: Study, metric: str, *, partitions: bool) -> ranks.Ranks:
    """Ranks of the methods of the heads over settings, or over the partitions within them."""
    rows: dict[str, dict[str, float]] = {}
    for block in study.of("HR"):
        for method in block.methods:
            own = values(block, metric, method)
            if not partitions:
                rows.setdefault(block.code, {})[method] = own.mean()
                continue
            for partition in block.partitions:
                place = f"{block.code}, partition {partition}"
                rows.setdefault(place, {})[method] = own.get(partition, math.nan)
    table = pd.DataFrame.from_dict(rows, orient="index", dtype=float)
    made = pd.DataFrame(ranks.ranked(table.to_numpy(float)), table.index, table.columns)
    best = sorted(table, key=lambda method: made[method].mean())
    score = SCORES[metric]
    return ranks.Ranks(
        values=table[best], ranks=made[best], score=score, title=score.title,
        unit="partition" if partitions else "seed",
    )  # fmt: skip


def mean_ranks(study: Study) -> str:
    """The mean ranks in both metrics, over settings and over partitions within settings."""
    if len(study.of("HR")) < 2:
        return "Ranks over settings need two blocks of heads."
    columns, tests = {}, []
    for metric in ("balanced_accuracy", "accuracy"):
        for partitions in (False, True):
            made = ranked(study, metric, partitions=partitions)
            blocks = f"{len(made.ranks)} {'partitions' if partitions else 'settings'}"
            name = f"{made.title}, {blocks}"
            columns[name] = made.means
            letters = dict(zip(made.labels, ranks.letters(made), strict=True))
            columns[f"{name}: group"] = pd.Series(letters)
            f, p = ranks.iman_davenport(made.ranks.to_numpy(float))
            tests.append(
                f"{name[0].upper()}{name[1:]}: F = {f:.2f} (Iman and Davenport, p {p_value(p)}), "
                f"critical difference {made.difference:.2f}."
            )
    names = [name for name in columns if not name.endswith("group")]
    order = columns[names[0]].sort_values().index
    body = [
        [str(m), *(f"{columns[n][m]:.2f} {columns[f'{n}: group'][m]}" for n in names)]
        for m in order
    ]
    return f"{markdown(['Method', *names], body)}\n\n{' '.join(tests)}"


def reached(block: Block, share: float, cost: str) -> pd.DataFrame:
    """Balanced accuracy by method and partition at a share of what FedAvg's run costs.

    It is that of the last evaluation by then, the mean over training seeds; NaN where a run has
    none by then. A diverged run counts as a guess.
    """
    own = block.curves.assign(bytes=block.curves["uplink_bytes"] + block.curves["downlink_bytes"])
    index = ["data_seed", "seed"]
    limit = own[own["method"] == "FedAvg"].groupby(index)[cost].max() * share * (1 + 1e-9)
    own = own.join(limit.rename("limit"), on=index)
    within = own[own[cost] <= own["limit"]].sort_values("round")
    runs = block.runs.set_index(["method", *index])
    last = within.groupby(["method", *index])["balanced_accuracy"].last().reindex(runs.index)
    last = last.mask(runs["status"] == "diverged", 1 / runs["classes"])
    return last.groupby(level=["method", "data_seed"]).agg(lambda v: v.mean(skipna=False)).unstack()


def costs(study: Study) -> str:
    """Balanced accuracy at parts of FedAvg's bytes and simulated seconds, by block."""
    parts = []
    for block in study.of("HWR"):
        if block.curves.empty or not (block.curves["method"] == "FedAvg").any():
            continue
        columns = {
            f"{title} of the {name}": reached(block, share, cost)
            for cost, name in (("bytes", "bytes"), ("simulated_seconds", "seconds"))
            for title, share in SHARES.items()
        }
        body = [
            [method, *(over_partitions(column, method) for column in columns.values())]
            for method in block.methods
        ]
        parts.append(folded(block.title, markdown(["Method", *columns], body)))
    return "\n\n".join(parts) or NONE


def over_partitions(table: pd.DataFrame, method: str) -> str:
    """Mean and interval of a row, which has a value by partition; a dash where one is missing."""
    if method not in table.index or table.loc[method].isna().any():
        return EMPTY
    return shown(estimate(table.loc[method].tolist()))


def tails(study: Study) -> str:
    """Accuracy of clients in block T: mean, 10th percentile and worst, by block and method."""
    parts = []
    for block in study.blocks:
        if block.tails.empty:
            continue
        own = block.tails.groupby(["method", "data_seed"])[list(CLIENTS)]
        means = own.agg(lambda v: v.mean(skipna=False))
        body = [
            [method, *(over_partitions(means[name].unstack(), method) for name in CLIENTS)]
            for method in block.methods
        ]
        parts.append(folded(block.title, markdown(["Method", *CLIENTS.values()], body)))
    return "\n\n".join(parts) or NONE


def terms(study: Study) -> str:
    """Means of the terms of Fig. 2, of both rates and lambdas, by block."""
    parts = []
    for block in study.of("F"):
        runs = block.runs.copy()
        for term in ("shift_loss", "aggregation_loss"):
            runs[f"abs_{term}"] = runs[term].abs()
        of = ["lr", "alpha", "method"]
        means = runs.groupby(of)[list(TERMS)].agg(lambda v: v.mean(skipna=False))
        order = sorted(means.index, key=lambda k: (-k[0], -k[1], block.methods.index(k[2])))
        body = [
            [f"{lr:g}", f"{alpha:g}", method, *(nats(v) for v in means.loc[(lr, alpha, method)])]
            for lr, alpha, method in order
        ]
        head = ["Rate", "alpha", "Training and aggregation", *TERMS.values()]
        parts.append(folded(block.title, markdown(head, body, 3)))
    return "\n\n".join(parts) or NONE


def nats(value: float) -> str:
    """Three digits."""
    return EMPTY if not np.isfinite(value) else f"{value:.3f}"


TABLES: dict[str, Callable[[Study], str]] = {
    "scores": scores, "ranks": mean_ranks, "costs": costs, "tails": tails, "terms": terms,
}  # fmt: skip
