"""The tables of a sweep: a row per run, and mean, spread and interval over seeds or partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from fedsim.core import files
from fedsim.core.analysis import analysis
from fedsim.core.rows import METRICS, WHEN, metric_column
from fedsim.training.summary import CLIENT_COLUMNS, FINAL_CLIENTS, FIRST, GINI, LAST, UNDER_ATTACK

AVERAGED = (
    *(metric_column("test", metric, when) for metric in FIRST for when in WHEN),
    *CLIENT_COLUMNS,
)
"""Columns of summary.csv whose mean over the seeds or partitions is in aggregate.csv."""
WHERE_ANY = tuple(f"{n}_{s}" for n in FINAL_CLIENTS for s in ("mean", "std", "p10", "worst"))
"""More such columns, which aggregate.csv has where any run does."""
LATER = (
    *(metric_column("test", m, when) for m in LAST for when in WHEN),
    *(GINI, *(f"{when}_{m}" for m in UNDER_ATTACK for when in METRICS[m].takes)),
)
"""The same, after these."""


def write(runs: Mapping[str, str], out: Path) -> pd.DataFrame:
    """Writes OUT/summary.csv and OUT/aggregate.csv of finished runs (name and group), if any;
    returns the latter."""
    if not runs:
        return pd.DataFrame()
    summary = summarise(runs, out)
    aggregated = aggregate(summary, runs)
    for name, frame in (("summary.csv", summary), ("aggregate.csv", aggregated)):
        files.write(out / name, frame.to_csv(index=False, lineterminator="\n").encode())
    return aggregated


def summarise(runs: Iterable[str], out: Path) -> pd.DataFrame:
    """The rows of the summary.csv of all runs in OUT, after ``run`` and before ``label``."""
    frames = []
    for run in runs:
        frame = pd.read_csv(out / run / "summary.csv", dtype={"label": "str"})
        frame.insert(0, "run", run)
        frames.append(frame)
    columns = dict.fromkeys(column for frame in frames for column in frame.columns)
    present = [frame.dropna(axis="columns", how="all") for frame in frames]
    summary = pd.concat(present, ignore_index=True).reindex(columns=list(columns))
    return analysis("labels").with_labels(summary)


def aggregate(summary: pd.DataFrame, groups: Mapping[str, str]) -> pd.DataFrame:
    """Per group: n, and mean, std (ddof 1) and half width of the 95 % t-interval over the units.

    The units are the partitions, each with the mean over its training seeds, where any group has
    several of them, and the training seeds otherwise; they are those of ``fedsim table``, see
    ``analysis/units.py``. ``collapsed`` is the number of runs that did.
    """
    rows = []
    units, own = analysis("units"), measured(summary)
    of = summary["run"].map(groups)
    partitions = summary.get(units.PARTITION, pd.Series(dtype=float, index=summary.index))
    unit = "partition" if units.repeats_partitions(partitions, of) else "seed"
    for group, frame in summary.groupby(of, sort=False):
        first = frame.iloc[0]
        row: dict[str, object] = {"configuration": group}
        row |= {key: first[key] for key in ("algorithm", "dataset", "alpha")}
        row["n"] = frame[units.PARTITION].nunique() if unit == "partition" else len(frame)
        present = frame.reindex(columns=[*AVERAGED, *WHERE_ANY, *LATER, *own, "collapsed"])
        present.index = pd.MultiIndex.from_frame(frame[list(units.COLUMNS[unit])])
        row |= _spreads(present, AVERAGED, units.means)
        row["collapsed"] = present["collapsed"].astype(float).sum(min_count=len(frame))
        for more in (WHERE_ANY, LATER, own):
            row |= _spreads(present, summary.columns.intersection(list(more)), units.means)
        row |= {"unit": unit, "runs": len(frame), "label": first.get("label")}
        rows.append(row)
    return pd.DataFrame(rows).astype({"collapsed": "Int64"})


def measured(summary: pd.DataFrame) -> list[str]:
    """The columns of summary.csv for measures that not every task has."""
    takes = tuple(f"{when}_test_" for when in WHEN)
    known = {*AVERAGED, *LATER}
    return [c for c in map(str, summary.columns) if c.startswith(takes) and c not in known]


def _spreads(
    runs: pd.DataFrame,
    columns: Iterable[str],
    means: Callable[[pd.Series[float]], pd.Series[float]],
) -> dict[str, float]:
    """:func:`spread` of the columns over the units, whose ``means`` are taken first; NaN where a
    run lacks the number."""
    cells = {}
    for column in columns:
        by_run = runs[column].astype(float)
        values = means(by_run) if by_run.notna().all() else by_run
        for name, value in spread(values).items():
            cells[f"{column}_{name}"] = value
    return cells


def spread(numbers: ArrayLike) -> dict[str, float]:
    """mean, std and half width of the 95 % t-interval of numbers (n,); NaN where n is 1."""
    values = np.asarray(numbers, dtype=np.float64)
    n = len(values)
    if n < 2:
        return {"mean": float(values.mean()), "std": np.nan, "ci95": np.nan}
    std = float(values.std(ddof=1))
    half = float(stats.t.ppf(0.975, n - 1)) * std / np.sqrt(n)
    return {"mean": float(values.mean()), "std": std, "ci95": half}
