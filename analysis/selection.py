"""The choice of a hyperparameter by the validation part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from . import AnalysisError, scores, series, style
from .captions import interval_words, unit_words
from .labels import LABEL, label_of, short_names, text
from .layout import COLLAPSE, Table
from .runs import Group, expanded, group, known, unit_among
from .scores import SCORES, completed
from .stats import Estimate, of_runs
from .units import COLUMNS, ExperimentalUnit, complete, finite
from .words import say, sentences

CHOSEN = "chosen"
"""Column of a selection: whether the value is chosen."""
EVERY = "all"
"""Method of a selection among all runs: what ``within`` distinguishes is itself chosen."""
METRICS: Mapping[str, str] = {f"val_{name}": name for name in SCORES}
"""Columns of rounds.csv to choose by, and the score that each is on the test part."""


def choose(
    table: pd.DataFrame, by: Sequence[str], within: Sequence[str], metric: str = "val_accuracy",
    unit: ExperimentalUnit | None = None,
) -> Table:  # fmt: skip
    """The value with the best mean on the validation part, for each of the methods.

    A run's validation score is the last one in its rounds.csv. Of equal means the first is
    chosen. A value that lacks a run which another one of its method has, or whose score is not
    finite in a run, is not chosen (:func:`analysis.units.complete`). Methods without the setting
    are left out.

    The columns ``by`` of summary.csv are chosen together, once for each combination of the values
    of ``within``; ``label`` stands for the algorithm where each label has one value only.
    ``metric`` is one of :data:`METRICS`, ``unit`` what the runs repeat; partitions where there are
    several, see :func:`analysis.runs.unit_among`.

    Returns:
        One row per value; the last column of its data is ``chosen``.

    Raises:
        AnalysisError: a run without the metric, no run with the setting, no value with all runs,
            or see :func:`analysis.runs.group`.
    """
    table = completed(table, [METRICS[metric]])
    by = expanded(table, by)
    methods: dict[str, list[Group]] = {}
    known(table, by)
    if (table.groupby(LABEL)[by].nunique() <= 1).all(axis=None):  # the names say what is chosen
        within = ["algorithm" if column == LABEL else column for column in within]
    columns = [column for column in expanded(table, within) if column not in by]
    unit = unit_among(table, (*columns, *by), unit)
    for one in group(table, (*columns, *by), unit):
        name = label_of(one.runs[columns].iloc[0], short_names(table)) if columns else EVERY
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
    fewer = [
        f"{style.title(row['method'])}, " * (data["method"].nunique() > 1)
        + ", ".join(f"{column}={row[column]}" for column in by)
        + f" ({row['missing']})"
        for row in data.to_dict("records")
        if row.get("missing")
    ]
    best = "lowest" if score.lowest else "highest"
    collapsed = "collapsed" in data and data["collapsed"].any()
    caption = sentences(
        say("selection.caption", best=best, score=score.title, unit=over),
        unit_words(over),
        interval_words(over) if ci else "",
        say("selection.different", unit=over) if data["n"].nunique() > 1 else "",
        say("selection.missing", names="; ".join(fewer)) if fewer else "",
        say("selection.collapsed", sign=COLLAPSE) if collapsed else "",
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
        row: dict[str, object] = {"method": name}
        row |= {column: text(one.runs[column].iloc[0]) for column in by}
        own = values[one.label]
        chosen_by = of_runs(own)
        row["n"] = chosen_by.n
        row |= _numbers("val", chosen_by)
        row |= _numbers("test", of_runs(one.by_run(scores.column(METRICS[metric], "final"))))
        row |= {"metric": metric, "collapsed": collapsed.get(one.label, 0)}
        if chosen_by.levels is not None:
            row["seeds"] = chosen_by.levels.seeds
        rows.append(row | {"missing": len(runs) - len(finite(own).dropna())})
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
    last = series.by_run([one], "rounds", [metric], (), take="last").get(one.label)
    values = None if last is None else last[metric].droplevel(series.WHOLE)
    runs = one.runs.set_index(list(COLUMNS[one.unit]))["path"]
    without = runs if values is None else runs[~runs.index.isin(values.index)]
    if values is None or len(without):
        raise AnalysisError(
            f"{Path(without.iloc[0]) / 'rounds.csv'}: no {metric}; a choice needs a "
            "validation part (data.val_fraction above 0)"
        )
    return values


def _numbers(part: str, score: Estimate) -> dict[str, float]:
    return {f"{part}_{name}": getattr(score, name) for name in ("mean", "std", "low", "high")}


def _row(record: Mapping[Any, Any], by: Sequence[str]) -> list[str]:
    unit = SCORES[METRICS[record.get("metric", "val_accuracy")]].unit
    cells = [style.title(record["method"]), *(record[column] for column in by), str(record["n"])]
    cells += [record["seeds"]] if "seeds" in record else []
    for part in ("val", "test"):
        mean, half = record[f"{part}_mean"], record[f"{part}_high"] - record[f"{part}_mean"]
        score = Estimate(mean=mean, std=record[f"{part}_std"], n=record["n"], half=half)
        fallen = part == "test" and bool(record.get("collapsed", 0))
        cells.append(unit.spread(score) + f" {COLLAPSE}" * fallen)
    if not record[CHOSEN]:
        return [*cells, ""]
    return [
        *(f"**{cell}**" if 0 < place <= len(by) else cell for place, cell in enumerate(cells)),
        CHOSEN,
    ]
