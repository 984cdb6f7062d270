"""The tables of a sweep: a row per run, and mean, spread and interval over the seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from fedsim.core import files
from fedsim.training.summary import CLIENT_COLUMNS, FINAL_CLIENTS, METRICS

WHEN = ("final", "best", "last10")
AVERAGED = (*(f"{when}_test_{metric}" for metric in METRICS for when in WHEN), *CLIENT_COLUMNS)
"""Columns of summary.csv whose mean over the seeds is in aggregate.csv."""
WHERE_ANY = tuple(f"{n}_{s}" for n in FINAL_CLIENTS for s in ("mean", "std", "p10", "worst"))
"""More such columns, which aggregate.csv has where any run does."""


def write(runs: Mapping[str, str], out: Path) -> pd.DataFrame:
    """Writes OUT/summary.csv and OUT/aggregate.csv, unless there are no runs.

    Args:
        runs: name and group of the finished runs, in the order of the grid.
        out: the directory of the sweep.

    Returns:
        The rows of aggregate.csv.

    Raises:
        StoreError: a table cannot be written.
    """
    if not runs:
        return pd.DataFrame()
    summary = summarise(runs, out)
    table = aggregate(summary, runs)
    for name, frame in (("summary.csv", summary), ("aggregate.csv", table)):
        files.write(out / name, frame.to_csv(index=False, lineterminator="\n").encode())
    return table


def summarise(runs: Iterable[str], out: Path) -> pd.DataFrame:
    """The rows of the summary.csv of all runs in OUT in their order, after a column ``run``."""
    frames = []
    for run in runs:
        frame = pd.read_csv(out / run / "summary.csv")
        frame.insert(0, "run", run)
        frames.append(frame)
    columns = dict.fromkeys(column for frame in frames for column in frame.columns)
    known = [frame.dropna(axis="columns", how="all") for frame in frames]
    return pd.concat(known, ignore_index=True).reindex(columns=list(columns))


def aggregate(summary: pd.DataFrame, groups: Mapping[str, str]) -> pd.DataFrame:
    """Per group: n, and mean, std (ddof 1), 95 % t-interval of metrics over the seeds.

    ``_ci95`` is the half width of the interval; std and interval are empty for a single run.
    ``collapsed`` is the number of runs that did, see :mod:`fedsim.training.collapse`. Columns that
    a run of an earlier version does not have are empty.
    """
    rows = []
    for group, frame in summary.groupby(summary["run"].map(groups), sort=False):
        first = frame.iloc[0]
        row: dict[str, object] = {"configuration": group}
        row |= {key: first[key] for key in ("algorithm", "dataset", "alpha")}
        row["n"] = len(frame)
        known = frame.reindex(columns=[*AVERAGED, "collapsed"])
        for metric in AVERAGED:
            for name, value in spread(known[metric].to_numpy(dtype=float)).items():
                row[f"{metric}_{name}"] = value
        row["collapsed"] = known["collapsed"].astype(float).sum(min_count=len(frame))
        for metric in summary.columns.intersection(list(WHERE_ANY)):
            for name, value in spread(frame[metric].to_numpy(dtype=float)).items():
                row[f"{metric}_{name}"] = value
        rows.append(row)
    return pd.DataFrame(rows).astype({"collapsed": "Int64"})


def spread(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    """mean, std and half width of the 95 % t-interval of values (n,); NaN where n is 1."""
    n = len(values)
    if n < 2:
        return {"mean": float(values.mean()), "std": np.nan, "ci95": np.nan}
    std = float(values.std(ddof=1))
    half = float(stats.t.ppf(0.975, n - 1)) * std / np.sqrt(n)
    return {"mean": float(values.mean()), "std": std, "ci95": half}
