"""The choice of a hyperparameter by the validation part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from . import AnalysisError, scores, series, style
from .captions import interval_words, unit_words
from .layout import COLLAPSE, Table
from .runs import Group, expanded, group, label_of, text, unit_among
from .scores import SCORES, completed
from .stats import Estimate, of_runs
from .units import COLUMNS, ExperimentalUnit, complete, finite

CHOSEN = "chosen"
"""Column of a selection: whether the value is chosen."""
EVERY = "all"
"""Method of a selection among all runs: what ``within`` distinguishes is itself chosen."""
METRICS: Mapping[str, str] = {f"val_{name}": name for name in SCORES}
"""Columns of rounds.csv to choose by, and the score that each is on the test part."""


def choose(
    table: pd.DataFrame, by: Sequence[str], within: Sequence[str], metric: str = "val_accuracy",
    unit: ExperimentalUnit = "seed",
) -> Table:  # fmt: skip
    """The value with the best mean on the validation part, for each of the methods.

    A run's validation score is the last one in its rounds.csv. Of equal means the first is
    chosen. A value that lacks a run which another one of its method has, or whose score is not
    finite in a run, is not chosen (:func:`analysis.units.complete`). Methods without the setting
    are left out.

    The columns ``by`` of summary.csv are chosen together, once for each combination of the values
    of ``within``. ``metric`` is one of :data:`METRICS`, ``unit`` what the runs repeat; partitions
    where there are several, see :func:`analysis.runs.unit_among`.

    Returns:
        One row per value; the last column of its data is ``chosen``.

    Raises:
        AnalysisError: a run without the metric, no run with the setting, no value with all runs,
            or see :func:`analysis.runs.group`.
    """
    table = completed(table, [METRICS[metric]])
    by = expanded(table, by)
    methods: dict[str, list[Group]] = {}
    columns = [column for column in expanded(table, within) if column not in by]
    unit = unit_among(table, (*columns, *by), unit)
    for one in group(table, (*columns, *by), unit):
        name = label_of(one.runs[columns].iloc[0]) if columns else EVERY
        methods.setdefault(name, []).append(one)
    having = {
        name: groups
        for name, groups in methods.items()
        if not all(one.runs[list(by)].isna().all(axis=None) for one in groups)
    }
    if not having:
        raise AnalysisError(f"no run has a value of {', '.join(by)} to choose")
    return selection(pd.concat([_candidates(name, g, by, metric) for name, g in having.items()]))


def selection(data: pd.DataFrame) -> Table:
    """The candidates as a table: ``method``, the settings to choose, ``n``, then the numbers."""
    columns = list(data.columns)
    by = columns[columns.index("method") + 1 : columns.index("n")]
    metric = str(data["metric"].iloc[0]) if "metric" in data else "val_accuracy"
    score = SCORES[METRICS[metric]]
    rows = [_row(record, by) for record in data.to_dict("records")]
    ci = " ± 95 % CI" * bool((data["n"] > 1).any())
    over: ExperimentalUnit = "partition" if "seeds" in data else "seed"
    head = ["Method", *by, *(["Seeds"] if over == "seed" else ["Partitions", "Seeds"])]
    head += [score.unit.head(f"{part} {score.title}") + ci for part in ("Validation", "Test")]
    caption = (
        f"Chosen by the {'lowest' if score.lowest else 'highest'} mean validation {score.title} "
        f"over the {over}s, at the last round that has one; test {score.title}, after the last "
        f"round, was not looked at. {unit_words(over)} {interval_words(over) * bool(ci)}"
    ).strip()
    if data["n"].nunique() > 1:
        caption += f" The values have different numbers of {over}s."
    if "missing" in data and data["missing"].any():
        fewer = [
            f"{style.title(row['method'])}, " * (data["method"].nunique() > 1)
            + ", ".join(f"{column}={row[column]}" for column in by)
            + f" ({row['missing']})"
            for row in data.to_dict("records")
            if row["missing"]
        ]
        caption += (
            " Never chosen, as a failed trial of fedsim tune: values that lack runs which others "
            f"have, or whose score is not finite; how many: {'; '.join(fewer)}."
        )
    if "collapsed" in data and data["collapsed"].any():
        caption += (
            f" {COLLAPSE} Collapsed in at least one run: the final model predicts one class only "
            "or its balanced accuracy is at most that of chance."
        )
    return Table(
        name="selection", title=f"Choice of {', '.join(by)}", caption=caption, head=[*head, ""],
        rows=rows, words=1 + len(by), data=data,
    )  # fmt: skip


def _candidates(name: str, groups: Sequence[Group], by: Sequence[str], metric: str) -> pd.DataFrame:
    score = SCORES[METRICS[metric]]
    collapsed = scores.counts(groups)
    values = {one.label: _validation(one, metric) for one in groups}
    runs = set().union(*(own.index for own in values.values()))
    rows = []
    for one in groups:
        row = {"method": name} | {column: text(one.runs[column].iloc[0]) for column in by}
        found = of_runs(one.by_run(scores.column(METRICS[metric], "final")))
        own = values[one.label]
        chosen_by = of_runs(own)
        rows.append(row | {"n": chosen_by.n} | _numbers("val", chosen_by))
        rows[-1] |= _numbers("test", found)
        rows[-1] |= {"metric": metric, "collapsed": collapsed.get(one.label, 0)}
        if chosen_by.levels is not None:
            rows[-1]["seeds"] = chosen_by.levels.seeds
        rows[-1]["missing"] = len(runs) - len(finite(own).dropna())
    data = pd.DataFrame(rows)
    means = data["val_mean"][[complete(values[one.label], runs) for one in groups]]
    if means.empty:
        fewer = [f"{', '.join(str(row[c]) for c in by)}: {row['missing']}" for row in rows]
        of = "" if name == EVERY else f"{name}: "
        raise AnalysisError(
            f"{of}every value of {', '.join(by)} lacks runs that another one has, or their "
            f"{metric} is not finite ({'; '.join(fewer)}), so that none can be chosen; give the "
            "same seeds for each value, all finished"
        )
    return data.assign(chosen=data.index == (means.idxmin() if score.lowest else means.idxmax()))


def _validation(one: Group, metric: str) -> pd.Series[float]:
    """The metric of each run after its last evaluated round."""
    found = series.by_run([one], "rounds", [metric], (), take="last").get(one.label)
    values = None if found is None else found[metric].droplevel(series.WHOLE)
    runs = one.runs.set_index(list(COLUMNS[one.unit]))["path"]
    without = runs if values is None else runs[~runs.index.isin(values.index)]
    if values is None or len(without):
        raise AnalysisError(
            f"{Path(without.iloc[0]) / 'rounds.csv'}: no {metric}; a choice needs a "
            "validation part (data.val_fraction above 0)"
            + "; earlier versions recorded val_accuracy and val_loss alone"
            * (metric not in ("val_accuracy", "val_loss"))
        )
    return values


def _numbers(part: str, found: Estimate) -> dict[str, float]:
    low, high = f"{part}_low", f"{part}_high"
    return {f"{part}_mean": found.mean, f"{part}_std": found.std, low: found.low, high: found.high}


def _row(record: Mapping[Any, Any], by: Sequence[str]) -> list[str]:
    unit = SCORES[METRICS[record.get("metric", "val_accuracy")]].unit
    cells = [style.title(record["method"]), *(record[column] for column in by), str(record["n"])]
    cells += [record["seeds"]] if "seeds" in record else []
    for part in ("val", "test"):
        mean, half = record[f"{part}_mean"], record[f"{part}_high"] - record[f"{part}_mean"]
        found = Estimate(mean=mean, std=record[f"{part}_std"], n=record["n"], half=half)
        cells.append(unit.spread(found) + f" {COLLAPSE}" * (part == "test" and _fallen(record)))
    if not record[CHOSEN]:
        return [*cells, ""]
    return [
        *(f"**{cell}**" if 0 < place <= len(by) else cell for place, cell in enumerate(cells)),
        CHOSEN,
    ]


def _fallen(record: Mapping[Any, Any]) -> bool:
    return bool(record.get("collapsed", 0))
