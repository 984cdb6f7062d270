"""FedGH's tables: each method and, below it, the same clients under another server rule.

A column per experiment: the settings of :data:`EXPERIMENT` in which the runs differ.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from analysis import style
from analysis.baseline import compared
from analysis.captions import comparisons
from analysis.layout import PERCENT, Table, crossed, with_seeds
from analysis.runs import Group, group, known, order, text
from analysis.stats import Test

EXPERIMENT = ("dataset", "alpha", "num_clients", "sample_rate", "train.local_epochs")
"""Columns of summary.csv that make the columns of a table, the outermost first."""
TARGET = "target_accuracy"
"""Column of summary.csv with the accuracy (0..1) that a run is timed to."""
GLOBAL, LOCAL = "final_test_accuracy", "client_test_accuracy"
"""Accuracy on the pooled test data, and the mean over the clients of that on their own."""


def accuracies(
    table: pd.DataFrame, by: Sequence[str] = ("algorithm",), columns: str | None = None,
    test: Test = "t",
) -> Table:  # fmt: skip
    """Final accuracies as in FedGH's Tables II, IV and V.

    Where the clients own the test data there are two columns: Acc_l is the mean over clients of
    the accuracy on their own, Acc_g that on the pooled data.

    Args:
        table: from :func:`analysis.runs.summaries`.
        by: columns of it that tell the rows apart, as for :func:`analysis.runs.group`.
        columns: the column of it whose values become columns; None for those of
            :data:`EXPERIMENT` that tell the runs apart.
        test: the paired test of a method against the same clients under their own server rule.

    Raises:
        AnalysisError: see :func:`analysis.runs.group`.
    """
    values: dict[str, dict[str, pd.Series[float]]] = {}
    for title, groups in experiments(table, by, telling(table, columns)).items():
        local, pooled = _of(groups, LOCAL), _of(groups, GLOBAL)
        if local:
            values[f"{title} Acc_l".strip()] = local
            values[f"{title} Acc_g".strip()] = pooled
        else:
            values[title] = pooled
    found = compared(values, base, test)
    shown, seeds = with_seeds(found, PERCENT)
    caption = (
        "Accuracy in per cent, after the last round. Mean ± standard deviation over the seeds, the "
        "best mean of a column in bold. A row that begins with + is the method above it with its "
        "updates aggregated as that one does."
    )
    if any(title.endswith("Acc_l") for title in values):
        caption += (
            " Acc_l: the unweighted mean over the clients of the accuracy on their own test data; "
            "Acc_g: on the test data of all of them together."
        )
    if any(cell.comparison for cell in found):
        caption += comparisons(found, "the same clients under their own server rule", test)
    heads = {title: title or PERCENT.head("Accuracy") for title in values}
    rows = titles({cell.row for cell in found})
    title = "Final test accuracy (%), with and without another server rule"
    return crossed("pairs", title, caption + seeds, shown, heads, rows)


def experiments(
    table: pd.DataFrame, by: Sequence[str], keys: Sequence[str]
) -> dict[str, list[Group]]:
    """The groups of each experiment, by the heading of its column: its values of ``keys``.

    Raises:
        AnalysisError: see :func:`analysis.runs.group`.
    """
    known(table, keys)
    rows = [column for column in by if column not in keys] or ["algorithm"]
    heads = table[list(keys)].apply(_head, axis=1) if keys else pd.Series("", index=table.index)
    return {head: group(table[heads == head], rows) for head in sorted(heads.unique(), key=order)}


def base(label: str, labels: Collection[str]) -> str | None:
    """The label of the same clients under their own server rule; None where there is none."""
    without = _without_server(label)
    return without if without != label and without in labels else None


def titles(labels: Collection[str]) -> Mapping[str, str]:
    """The title of each row, in order: ``FedAvg``, then ``+ FedGH`` for its other servers."""
    ordered = sorted(labels, key=lambda label: (order(_without_server(label)), order(label)))
    return {
        label: style.title(label) if base(label, labels) is None else _addition(label)
        for label in ordered
    }


def _addition(label: str) -> str:
    server = next(part for part in label.split(", ") if part.startswith("server="))
    return f"+ {style.title(server.removeprefix('server='))}"


def _without_server(label: str) -> str:
    return ", ".join(part for part in label.split(", ") if not part.startswith("server="))


def telling(table: pd.DataFrame, columns: str | None = None) -> list[str]:
    """``columns``; without them those of EXPERIMENT that tell apart what the ones before do not."""
    if columns is not None:
        return [columns]
    found: list[str] = []
    for column in (c for c in EXPERIMENT if c in table.columns):
        values = table[column].map(text)
        parts = values.groupby([table[c].map(text) for c in found]) if found else [("", values)]
        if any(part.nunique() > 1 for _, part in parts):
            found.append(column)
    return found


def _head(row: pd.Series[float]) -> str:
    """``cifar10, alpha=0.1, 60 %``; a setting that a run does not have is left out."""
    return ", ".join(_part(str(column), value) for column, value in row.dropna().items())


def _part(column: str, value: float) -> str:
    if column == TARGET:
        return f"{100 * value:g} %"
    return text(value) if column == "dataset" else f"{column}={text(value)}"


def _of(groups: Sequence[Group], column: str) -> dict[str, pd.Series[float]]:
    """By label the values of a column per seed; without the groups that have none."""
    found = {
        one.label: pd.to_numeric(one.runs.set_index("seed")[column]).astype(float)
        for one in groups
        if column in one.runs
    }
    return {label: values for label, values in found.items() if values.notna().any()}
