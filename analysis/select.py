"""A hyperparameter chosen by validation accuracy, with the test accuracy beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from . import AnalysisError, series, style
from .layout import PERCENT, Table
from .runs import Group, expanded, group, label, text
from .stats import Estimate, estimate

CHOSEN = "chosen"


def choose(table: pd.DataFrame, by: Sequence[str], within: Sequence[str]) -> Table:
    """The value with the highest mean validation accuracy, for each of the methods.

    A run's validation accuracy is the last one in its rounds.csv. Of equal means the first is
    chosen. Methods without the setting are left out.

    Args:
        table: from :func:`analysis.runs.summaries`.
        by: columns of it whose combination is chosen.
        within: columns of it; one choice for each combination of their values.

    Returns:
        One row per value; the last column of its data is ``chosen``.

    Raises:
        AnalysisError: a run without a validation part, no run with the setting, or see
            :func:`analysis.runs.group`.
    """
    methods: dict[str, list[Group]] = {}
    columns = [column for column in expanded(table, within) if column not in by]
    for one in group(table, (*columns, *by)):
        methods.setdefault(label(one.runs[columns].iloc[0]), []).append(one)
    having = {
        name: groups
        for name, groups in methods.items()
        if not all(one.runs[list(by)].isna().all(axis=None) for one in groups)
    }
    if not having:
        raise AnalysisError(f"no run has a value of {', '.join(by)} to choose")
    data = pd.concat([_candidates(name, groups, by) for name, groups in having.items()])
    return shown(data)


def shown(data: pd.DataFrame) -> Table:
    """The candidates as a table: ``method``, the settings to choose, ``n``, then the numbers."""
    columns = list(data.columns)
    by = columns[columns.index("method") + 1 : columns.index("n")]
    rows = [_row(record, by) for record in data.to_dict("records")]
    head = ["Method", *by, "Seeds", "Validation (%)", "95 % interval", "Test (%)", "95 % interval"]
    caption = (
        "Chosen by the highest mean validation accuracy over the seeds, at the last round that has "
        "one; test accuracy, after the last round, was not looked at. Mean ± standard deviation "
        "and 95 % t interval."
    )
    if data["n"].nunique() > 1:
        caption += " The values have different numbers of seeds."
    return Table("selection", f"Choice of {', '.join(by)}", caption, [*head, ""], rows,
                 1 + len(by), data)  # fmt: skip


def chosen(selection: Table) -> pd.DataFrame:
    """The rows of the chosen values, one per method."""
    return selection.data[selection.data[CHOSEN]].drop(columns=CHOSEN)


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


def _row(record: Mapping[Any, Any], by: Sequence[str]) -> list[str]:
    cells = [style.title(record["method"]), *(record[column] for column in by), str(record["n"])]
    for part in ("val", "test"):
        mean, half = record[f"{part}_mean"], record[f"{part}_high"] - record[f"{part}_mean"]
        found = Estimate(mean, record[f"{part}_std"], record["n"], half)
        cells += [PERCENT.spread(found), PERCENT.interval(found)]
    if not record[CHOSEN]:
        return [*cells, ""]
    return [
        *(f"**{cell}**" if 0 < place <= len(by) else cell for place, cell in enumerate(cells)),
        CHOSEN,
    ]
