"""What runs are called: by the name that the user gave them, else by method and server rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

METHOD = ("algorithm", "server", "margin")
"""Columns that define a method: its clients, and what replaces its server rule or margin."""
LABEL = "label"
"""The column with the names of runs."""
NAMES = {
    "alpha": "\N{GREEK SMALL LETTER ALPHA}", "num_clients": "clients",
    "sample_rate": "sampling rate", "dataset": "data", "data.partition": "partition",
}  # fmt: skip
"""How figures call columns."""


def with_labels(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of summary.csv whose last column is ``label``; it is computed where no name was given.

    A computed label is that of the columns :data:`METHOD`, such as ``fedprox, server=fedgh``.
    """
    given = table.get(LABEL, pd.Series(index=table.index, dtype=object))
    own = given.astype(object).where(given.notna(), computed(table))
    return pd.concat([table.drop(columns=LABEL, errors="ignore"), own.rename(LABEL)], axis=1)


def computed(table: pd.DataFrame) -> pd.Series[str]:
    """The label that each run has without a name."""
    return labels(table, [column for column in METHOD if column in table.columns])


def labels(table: pd.DataFrame, by: Sequence[str]) -> pd.Series[str]:
    """The label of each run, grouped by columns; see :func:`label_of`."""
    names = short_names(table)
    return table[list(by)].apply(label_of, axis=1, names=names)


def label_of(row: pd.Series[Any], names: Mapping[str, str] | None = None) -> str:
    """``fedld, margin=none``, without settings that the run does not have.

    ``names`` are those of :func:`short_names`.
    """
    known = names or {}
    parts = []
    for column, value in row.dropna().items():
        shown = text(value)
        if column in METHOD:
            shown = ",".join(known.get(name, name) for name in shown.split(","))
        section, dot, leaf = str(column).rpartition(".")
        name = f"{known.get(section, section)}{dot}{leaf}"
        parts.append(shown if column in ("algorithm", LABEL) else f"{name}={shown}")
    return ", ".join(parts) or f"no {row.index[0]}"


def short_names(table: pd.DataFrame) -> dict[str, str]:
    """By ``module:function`` the function's name, or the module's where it is called ``build``.

    Functions whose short name is also that of another method of the table are left out.
    """
    columns = (table[column] for column in METHOD[:2] if column in table.columns)
    cells = {str(cell) for column in columns for cell in column.dropna().unique()}
    short = {name: _short(name) for cell in cells for name in cell.split(",")}
    taken = [*short.values()]
    return {name: own for name, own in short.items() if own != name and taken.count(own) == 1}


def _short(name: str) -> str:
    module, _, function = name.rpartition(":")
    if not module or function != "build":
        return function
    return module.replace("\\", "/").rpartition("/")[2].removesuffix(".py").rpartition(".")[2]


def text(value: object) -> str:
    """A setting as text: ``0.5``, ``none``, or ``unset`` if the run does not have it."""
    if pd.isna(value):  # type: ignore[call-overload]
        return "unset"
    return repr(float(value)).removesuffix(".0") if isinstance(value, float) else str(value)
