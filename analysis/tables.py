"""Tables over seeds: accuracies, groups of test images, loss terms, and the choice of a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from . import AnalysisError, pairs, series, style
from .layout import (
    NONE,
    PERCENT,
    PLAIN,
    Table,
    comparisons,
    crossed,
    detailed,
    with_seeds,
)  # fmt: skip
from .runs import Group, conditions, expanded, group, known, label_of, order, text
from .stats import Cell, Estimate, Test, cells, estimate


@dataclass(frozen=True)
class Metric:
    """An accuracy of summary.csv: its column, title, and meaning in a sentence."""

    column: str
    title: str
    meaning: str


METRICS: Mapping[str, Metric] = {
    "final": Metric("final_test_accuracy", "Final test accuracy", "after the last round"),
    "best": Metric("best_test_accuracy", "Best test accuracy", "at the best round, chosen on the"),
    "last10": Metric(
        "last10_test_accuracy", "Test accuracy of the last 10 rounds",
        "mean over the evaluated rounds among the last ten",
    ),
}  # fmt: skip
TERMS: Mapping[str, str] = {
    "local_loss": "Local", "shift_loss": "Shift", "aggregation_loss": "Aggregation",
    "global_loss": "Global",
}  # fmt: skip
"""Columns of decomposition.csv; the first three add up to the last."""
CHOSEN = "chosen"
"""Column of a selection: whether the value is chosen."""
NAMES = (*METRICS, "pairs", "target", "groups", "decomposition")
"""The tables by name."""
FILES: Mapping[str, str] = {"groups": "evaluations", "decomposition": "decomposition"}
"""The file behind each table that is not made from summary.csv."""


def make(
    name: str, runs: pd.DataFrame, by: Sequence[str] = ("algorithm",), columns: str | None = None,
    baseline: str | None = None, test: Test = "t",
) -> list[Table]:  # fmt: skip
    """The tables of a name, as ``fedsim table --metric NAME`` shows them.

    ``name`` is one of :data:`NAMES`; ``by`` are the columns of summary.csv that distinguish
    methods, and the values of ``columns`` become columns of the table.

    Raises:
        AnalysisError: an option that the table does not have, or nothing to show.
    """
    if name in METRICS and columns is None:
        return [accuracy(group(runs, by), name, baseline, test)]
    if name in METRICS and columns is not None:
        return [crossed_accuracy(runs, by, columns, name, baseline, test)]
    if name == "target":
        return [pairs.reached(runs, by, columns)]
    if name == "pairs" and baseline is not None:
        raise AnalysisError(
            f"--baseline {baseline}: the table {name} compares each method with its own clients "
            "under their own server rule; leave it out"
        )
    if name == "pairs":
        return [pairs.accuracies(runs, by, columns, test)]
    if columns is not None:
        raise AnalysisError(
            f"--columns {columns}: the table {name} has columns of its own; --columns goes with "
            f"{', '.join((*METRICS, 'pairs', 'target'))}"
        )
    if name == "groups":
        made = image_groups(group(runs, by), baseline, test)
        missing = "evaluations.csv has rows of groups; data sets with groups write them"
    else:
        made = decomposition(group(runs, by), baseline, test)
        missing = "decomposition.csv has rows; evaluation.decompose_every above 0 writes them"
    if not made:
        raise AnalysisError(f"in no run {missing}")
    return made


def runs_without(name: str, runs: pd.DataFrame, by: Sequence[str]) -> list[Path]:
    """The runs that a table leaves out because they lack its file or rows in it."""
    return series.absent(group(runs, by), FILES[name]) if name in FILES else []


def accuracy(
    groups: Sequence[Group], metric: str, baseline: str | None = None, test: Test = "t"
) -> Table:
    """An accuracy with one row per method: intervals and the comparison with a baseline."""
    found = cells({"": _results(groups, metric)}, baseline, test)
    caption = f"{_meaning(groups, metric)} {_reading(found, baseline, test)}"
    return detailed(f"accuracy_{metric}", METRICS[metric].title, caption, found, PERCENT)


def crossed_accuracy(
    runs: pd.DataFrame, by: Sequence[str], columns: str, metric: str,
    baseline: str | None = None, test: Test = "t",
) -> Table:  # fmt: skip
    """An accuracy with one column per value of a setting; comparisons are within a column."""
    known(runs, [columns])
    rows = [column for column in by if column != columns]
    of = runs[columns].map(text)
    blocks = {value: group(runs[of == value], rows) for value in sorted(of.unique(), key=order)}
    found = cells({c: _results(groups, metric) for c, groups in blocks.items()}, baseline, test)
    everyone = [one for groups in blocks.values() for one in groups]
    caption = f"{_meaning(everyone, metric)} {_reading(found, baseline, test, details=False)}"
    shown, seeds = with_seeds(found, PERCENT)
    title = f"{METRICS[metric].title} (%) by {columns}"
    heads = {column: f"{columns}={column}" for column in blocks}
    return crossed(f"accuracy_{metric}_by_{columns}", title, caption + seeds, shown, heads)


def image_groups(
    groups: Sequence[Group], baseline: str | None = None, test: Test = "t"
) -> list[Table]:
    """Accuracy by group of test images in the last evaluation of it; [] if no run has groups."""
    where = {"split": "test"}
    found = series.values(groups, "evaluations", ["accuracy"], "group", where, take="last")
    values = {name: of["accuracy"] for (name,), of in _by_key(found, ["group"]).items()}
    if not values:
        return []
    statistics = cells(values, baseline, test)
    caption = (
        "Accuracy in per cent on groups of the test images, at the last round in which they were "
        f"evaluated. {_reading(statistics, baseline, test)}"
    )
    title = "Accuracy by group of test images"
    return [detailed("groups", title, caption, statistics, PERCENT)]


def decomposition(
    groups: Sequence[Group], baseline: str | None = None, test: Test = "t"
) -> list[Table]:
    """The terms of the loss per method, by split and scope; [] if no run was decomposed.

    There are two tables each: the mean over a run's decomposed rounds, and the last of them.
    """
    keys = ["split", "scope"]
    rounds = series.values(groups, "decomposition", [*TERMS], ["round", *keys])
    by = {label: f.sort_index().groupby(level=["seed", *keys]) for label, f in rounds.items()}
    spans = {
        "mean": ("mean over the decomposed rounds", {label: of.mean() for label, of in by.items()}),
        "last": ("last decomposed round", {label: of.last() for label, of in by.items()}),
    }
    tables = []
    for span, (words, found) in spans.items():
        for (split, scope), values in sorted(_by_key(found, keys).items()):
            caption = (
                f"Cross-entropy in nats, {split} data, clients: {scope}; {words}. Mean and 95 % t "
                "interval over the seeds. Local + shift + aggregation = global; a negative term "
                "lowers the global loss."
            )
            name = f"decomposition_{span}_{split}_{scope}"
            title = f"Terms of the loss ({split}, {scope}), {words}"
            statistics = cells(values, baseline, test)
            caption += comparisons(statistics, baseline, test)
            shown = {cell: with_interval(cell) for cell in statistics}
            tables.append(crossed(name, title, caption, shown, TERMS))
    return tables


def _by_key(
    found: Mapping[str, pd.DataFrame], keys: list[str]
) -> dict[tuple[str, ...], dict[str, dict[str, pd.Series[float]]]]:
    """Rearranges :func:`analysis.series.values`: each seed's value by key, column and label."""
    result: dict[tuple[str, ...], dict[str, dict[str, pd.Series[float]]]] = {}
    for label, frame in found.items():
        for key, part in frame.reset_index(keys).groupby(keys):
            of = result.setdefault(tuple(map(str, key)), {})
            for column in part.columns.difference(keys, sort=False):
                of.setdefault(column, {})[label] = part[column]
    return result


def _results(groups: Sequence[Group], metric: str) -> dict[str, pd.Series[float]]:
    column = METRICS[metric].column
    return {one.label: one.runs.set_index("seed")[column].astype(float) for one in groups}


def _meaning(groups: Sequence[Group], metric: str) -> str:
    meaning = METRICS[metric].meaning
    if metric == "best":
        parts = {str(part) for one in groups for part in one.runs["best_by"]}
        names = {"val": "validation part", "test": "test part itself"}
        meaning += f" {' or '.join(names.get(part, part) for part in sorted(parts))}"
    return f"Accuracy in per cent, {meaning}."


def _reading(
    found: Sequence[Cell], baseline: str | None, test: Test, *, details: bool = True
) -> str:
    """The caption's sentences on numbers and signs."""
    first = "Mean ± standard deviation over the seeds, the best mean in bold"
    if len({conditions(cell.row) for cell in found}) > 1:
        first += " for each setting of data and rounds"
    more = ", and 95 % t interval of the mean." if details else "."
    return f"{first}{more}{comparisons(found, baseline, test, details=details)}"


def with_interval(cell: Cell) -> str:
    """``0.4500 [0.3661, 0.5339] *``: the mean, its 95 % interval and the star."""
    mean, interval = PLAIN.number(cell.estimate.mean), PLAIN.interval(cell.estimate)
    return mean + f" {interval}" * (interval != NONE) + cell.mark


def choose(table: pd.DataFrame, by: Sequence[str], within: Sequence[str]) -> Table:
    """The value with the highest mean validation accuracy, for each of the methods.

    A run's validation accuracy is the last one in its rounds.csv. Of equal means the first is
    chosen. Methods without the setting are left out.

    The columns ``by`` of summary.csv are chosen together, once for each combination of the values
    of ``within``.

    Returns:
        One row per value; the last column of its data is ``chosen``.

    Raises:
        AnalysisError: a run without a validation part, no run with the setting, or see
            :func:`analysis.runs.group`.
    """
    methods: dict[str, list[Group]] = {}
    columns = [column for column in expanded(table, within) if column not in by]
    for one in group(table, (*columns, *by)):
        methods.setdefault(label_of(one.runs[columns].iloc[0]), []).append(one)
    having = {
        name: groups
        for name, groups in methods.items()
        if not all(one.runs[list(by)].isna().all(axis=None) for one in groups)
    }
    if not having:
        raise AnalysisError(f"no run has a value of {', '.join(by)} to choose")
    return selection(pd.concat([_candidates(name, g, by) for name, g in having.items()]))


def selection(data: pd.DataFrame) -> Table:
    """The candidates as a table: ``method``, the settings to choose, ``n``, then the numbers."""
    columns = list(data.columns)
    by = columns[columns.index("method") + 1 : columns.index("n")]
    rows = [_selection_row(record, by) for record in data.to_dict("records")]
    head = ["Method", *by, "Seeds", "Validation (%)", "95 % interval", "Test (%)", "95 % interval"]
    caption = (
        "Chosen by the highest mean validation accuracy over the seeds, at the last round that has "
        "one; test accuracy, after the last round, was not looked at. Mean ± standard deviation "
        "and 95 % t interval."
    )
    if data["n"].nunique() > 1:
        caption += " The values have different numbers of seeds."
    return Table(
        name="selection", title=f"Choice of {', '.join(by)}", caption=caption, head=[*head, ""],
        rows=rows, words=1 + len(by), data=data,
    )  # fmt: skip


def _candidates(name: str, groups: Sequence[Group], by: Sequence[str]) -> pd.DataFrame:
    rows = []
    for one in groups:
        row = {"method": name} | {column: text(one.runs[column].iloc[0]) for column in by}
        tested = estimate(one.runs["final_test_accuracy"].astype(float).tolist())
        rows.append(row | {"n": tested.n} | _numbers("val", _validation(one)))
        rows[-1] |= _numbers("test", tested)
    data = pd.DataFrame(rows)
    return data.assign(chosen=data.index == data["val_mean"].idxmax())


def _validation(one: Group) -> Estimate:
    found = series.values([one], "rounds", ["val_accuracy"], (), take="last").get(one.label)
    seeds = set() if found is None else set(found.index.unique("seed"))
    without = one.runs[~one.runs["seed"].isin(seeds)]
    if found is None or len(without):
        raise AnalysisError(
            f"{Path(without['path'].iloc[0]) / 'rounds.csv'}: no val_accuracy; a choice needs a "
            "validation part (data.val_fraction above 0)"
        )
    return estimate(found["val_accuracy"].tolist())


def _numbers(part: str, found: Estimate) -> dict[str, float]:
    low, high = f"{part}_low", f"{part}_high"
    return {f"{part}_mean": found.mean, f"{part}_std": found.std, low: found.low, high: found.high}


def _selection_row(record: Mapping[Any, Any], by: Sequence[str]) -> list[str]:
    cells = [style.title(record["method"]), *(record[column] for column in by), str(record["n"])]
    for part in ("val", "test"):
        mean, half = record[f"{part}_mean"], record[f"{part}_high"] - record[f"{part}_mean"]
        found = Estimate(mean=mean, std=record[f"{part}_std"], n=record["n"], half=half)
        cells += [PERCENT.spread(found), PERCENT.interval(found)]
    if not record[CHOSEN]:
        return [*cells, ""]
    return [
        *(f"**{cell}**" if 0 < place <= len(by) else cell for place, cell in enumerate(cells)),
        CHOSEN,
    ]
