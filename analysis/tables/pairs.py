"""FedGH's tables: methods with and without another server rule, and rounds to a target accuracy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product

import pandas as pd

from .. import AnalysisError
from ..formats import NumberFormat
from ..labels import LABEL, computed, labels, text, title_of
from ..paired import SIGNIFICANT, T, Test
from ..runs import Group, check_columns, expanded, group, order
from ..scores import completed, counts, measures_of, primary_of
from ..stats import Cell, cells, compared, missing, ranked
from ..units import ExperimentalUnit
from ..words import say
from .captions import comparisons, interval_words, signs
from .layout import EMPTY, Table, crossed, interval_heads, spread

EXPERIMENT = ("dataset", "alpha", "num_clients", "sample_rate", "train.local_epochs")
"""Columns of summary.csv that define an experiment, the outermost first."""
TARGET = "target_accuracy"
"""Column of summary.csv: the accuracy (0..1) whose first round is recorded."""
LOCAL = "client_test_accuracy"
"""The mean accuracy over the clients' own test parts."""
MEASURES: Mapping[str, str] = {
    "rounds_to_target": "rounds", "seconds_to_target": "seconds",
    "simulated_seconds_to_target": "simulated seconds",
}  # fmt: skip
"""Columns of summary.csv and their units."""
ONE = NumberFormat(digits=1)


def accuracies(
    table: pd.DataFrame, by: Sequence[str] = (LABEL,), columns: str | None = None,
    test: Test = T, unit: ExperimentalUnit = "seed",
) -> Table:  # fmt: skip
    """FedGH's Tables II, IV and V: final accuracies on pooled (Acc_g) and own data (Acc_l); of
    other tasks the primary measure on pooled data."""
    values: dict[str, dict[str, pd.Series[float]]] = {}
    collapsed: dict[tuple[str, str], int] = {}
    measures, (_, score) = measures_of(table), primary_of(table)
    table = completed(table, ())
    for title, groups in experiments(table, by, differing(table, columns), unit).items():
        local, pooled = (_by_run(groups, c) for c in (LOCAL, measures.column("test", "final")))
        parts = {f"{title} Acc_l": local, f"{title} Acc_g": pooled} if local else {title: pooled}
        for head, series in parts.items():
            values[head.strip()] = series
            collapsed |= {(head.strip(), row): count for row, count in counts(groups).items()}
    made, lowest = compared(values, base, test), score.lowest
    statistics = ranked(made, values, test, lowest=lowest, collapsed=collapsed)
    meant = signs(statistics, test, lowest=lowest, classes=measures.of_classes)
    caption = say("pairs.caption", signs=meant, score=score.name, percent=score.unit.name == "%")
    if any(title.endswith("Acc_l") for title in values):
        caption += " " + say("pairs.own")
    if any(cell.comparison for cell in statistics):
        caption += comparisons(statistics, say("pairs.baseline"), test, score.unit)
    heads = {title: title or score.axis for title in values}
    rows = titles(dict.fromkeys(cell.row for cell in statistics))
    title = say("pairs.title", score=score.unit.head(f"Final test {score.title}"))
    return crossed("pairs", title, caption, statistics, heads, score.unit, rows=rows)


def experiments(
    table: pd.DataFrame, by: Sequence[str], keys: Sequence[str], unit: ExperimentalUnit = "seed"
) -> dict[str, list[Group]]:
    """The groups of each experiment, by the heading of its column: its values of ``keys``."""
    check_columns(table, keys)
    columns = [column for column in by if column not in keys] or [LABEL]
    rows = expanded(table, by_method(table, columns))
    one_each = bool((computed(table).groupby(table[LABEL]).nunique() <= 1).all())
    heads = table[list(keys)].apply(_head, axis=1) if keys else pd.Series("", index=table.index)
    names = labels(table, rows)
    return {
        head: [
            replace(one, label=names[one.runs.index[0]])
            for one in group(table[heads == head], columns if one_each else rows, unit)
        ]
        for head in sorted(heads.unique(), key=order)
    }


def by_method(table: pd.DataFrame, by: Sequence[str]) -> list[str]:
    """``by``, with the columns of the method for names that stand for one method each."""
    alone = bool((table.groupby(computed(table))[LABEL].nunique() <= 1).all())
    return ["algorithm" if column == LABEL and alone else column for column in by]


def has_pairs(table: pd.DataFrame, by: Sequence[str]) -> bool:
    """Whether a method is there with and without another server rule."""
    names = set(labels(table, expanded(table, by_method(table, by))))
    return any(base(label, names) for label in names)


def base(label: str, labels: Collection[str]) -> str | None:
    """The label of the same clients under their own server rule; None if there is none."""
    without = _without_server(label)
    return without if without != label and without in labels else None


def titles(labels: Collection[str]) -> Mapping[str, str]:
    """The title of each row, in order: ``FedAvg``, then ``+ FedGH`` for its other servers."""
    ordered = list(labels)
    if any(base(label, labels) for label in labels):
        ordered.sort(key=lambda label: (order(_without_server(label)), order(label)))
    shown = {}
    for label in ordered:
        server = next((p for p in label.split(", ") if p.startswith("server=")), "")
        added = base(label, labels) is not None
        shown[label] = f"+ {title_of(server.removeprefix('server='))}" if added else title_of(label)
    return shown


def _without_server(label: str) -> str:
    return ", ".join(part for part in label.split(", ") if not part.startswith("server="))


def differing(table: pd.DataFrame, columns: str | None = None) -> list[str]:
    """``[columns]``, or the columns of EXPERIMENT that distinguish runs beyond earlier ones."""
    if columns is not None:
        return [columns]
    telling: list[str] = []
    count = 1
    for column in (c for c in EXPERIMENT if c in table.columns):
        distinct = len(table[[*telling, column]].map(text).drop_duplicates())
        if distinct > count:
            telling.append(column)
            count = distinct
    return telling


def _head(row: pd.Series[float]) -> str:
    """``cifar10, alpha=0.1, 60 %``, without settings that the run does not have."""
    shown = {column: f"{column}={text(value)}" for column, value in row.dropna().items()}
    if "dataset" in shown:
        shown["dataset"] = text(row["dataset"])
    if TARGET in shown:
        shown[TARGET] = f"{100 * row[TARGET]:g} %"
    return ", ".join(shown.values())


def _by_run(groups: Sequence[Group], column: str) -> dict[str, pd.Series[float]]:
    """A column's value per run, by label, without groups that have none."""
    values = {one.label: one.by_run(column) for one in groups if column in one.runs}
    return {label: series for label, series in values.items() if series.notna().any()}


def any_target(table: pd.DataFrame) -> bool:
    """Whether any run of :func:`analysis.runs.summaries` had a target accuracy."""
    return TARGET in table and bool(table[TARGET].notna().any())


def reached(
    table: pd.DataFrame, by: Sequence[str] = (LABEL,), columns: str | None = None,
    unit: ExperimentalUnit = "seed",
) -> Table:  # fmt: skip
    """FedGH's Table III: rounds and seconds to the target accuracy, and how many reached it."""
    if not any_target(table):
        raise AnalysisError(f"in no run summary.csv has {TARGET}; evaluation.{TARGET} gives one")
    shown: list[Cell] = []
    runs: list[int] = []
    table = table[table[TARGET].notna()]
    experiment = experiments(table, by, [*differing(table, columns), TARGET], unit)
    for (title, groups), (column, name) in product(experiment.items(), MEASURES.items()):
        if not _by_run(groups, column):
            continue
        values = {one.label: one.by_run(column) for one in groups if column in one.runs}
        lacking = missing({row: pd.Series(0.0, series.index) for row, series in values.items()})
        whole = {k: v for k, v in values.items() if v.notna().all() and not lacking[k]}
        head = f"{title}: {name}"
        shown += [
            replace(cell, missing=lacking[cell.row])
            for cell in ranked(cells({head: values}), {head: whole}, lowest=True)
        ]
        runs += map(len, values.values())
    texts = [
        (spread(cell, ONE) if cell.estimate.runs else EMPTY)
        + f" ({cell.estimate.runs} of {count})" * (cell.estimate.runs < count)
        for cell, count in zip(shown, runs, strict=True)
    ]
    caption = say(
        "target.caption", unit_words=say(f"units.{unit}"), interval_words=interval_words(unit),
        level=SIGNIFICANT, test=T.title, unit=unit,
        fewer=list(dict.fromkeys(title_of(cell.row) for cell in shown if cell.missing)),
    )  # fmt: skip
    heads = interval_heads(shown, {cell.column: cell.column for cell in shown})
    rows = titles(dict.fromkeys(cell.row for cell in shown))
    made = crossed("target", say("target.title"), caption, shown, heads, texts=texts, rows=rows)
    return replace(made, data=made.data.assign(seeds=runs))
