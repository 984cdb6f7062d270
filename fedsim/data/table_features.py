"""Cells of a table as the features of a model, with the numbers that its training rows gave.

NumPy and the standard library alone: ``fedsim export`` puts this file beside a model, as
preprocess.py. Its ``preprocessing`` is what preprocessing.json of the model holds.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MISSING = frozenset(("", "?", "na", "n/a", "nan", "null"))
"""Cells without a value, in small letters."""
NO_CATEGORY = ""
"""Among the categories of a column: the one of missing cells."""
LARGEST = 3.4028234663852886e38
"""The largest number of float32."""


class BadCell(ValueError):
    """A cell that the model cannot use: its row, from 0, its column, and why."""

    def __init__(self, row: int, column: str, why: str) -> None:
        super().__init__(f"row {row}, column {column}: {why}")
        self.row, self.column, self.why = row, column, why


def features(
    rows: Sequence[Mapping[str, str]],
    preprocessing: Mapping[str, Any],
    sites: Sequence[str] | None = None,
) -> Any:
    """(n, d) float32: what the model takes for rows of texts by column name, as of csv.DictReader.

    ``sites`` are the rows' sites; None, or an empty one, stands for the numbers of all training
    rows. A BadCell where a cell cannot be used, a KeyError for a site that the model does not know.
    """
    cells = [{name.strip().lower(): cell.strip() for name, cell in row.items()} for row in rows]
    columns = [feature["column"] for feature in preprocessing["features"]]
    table = {column: [row[column] for row in cells] for column in columns}
    x = encoded(table, preprocessing["features"])
    return prepared(x, [""] * len(rows) if sites is None else sites, preprocessing)


def present(cell: str) -> bool:
    """Whether a cell has a value."""
    return cell.lower() not in MISSING


def number(cell: str) -> float | None:
    """The cell as a finite number, of float32, else None; Python's 1_000 is a text."""
    try:
        value = float(cell.replace("_", "x"))
    except ValueError:
        return None
    return value if abs(value) <= LARGEST else None


def level(cell: str) -> str:
    """A category as a text: 1, 1.0 and +1 are the same, but not floats from 2^53 on."""
    value = number(cell)
    if value is None or abs(value) >= 2.0**53:
        return cell
    return str(int(value)) if value.is_integer() else repr(value)


def encoded(table: Mapping[str, Sequence[str]], features: Sequence[Mapping[str, Any]]) -> Any:
    """(n, d) float64: numbers, NaN where one is missing, and for each category of a column but its
    reference a column of 0 and 1; ``table`` has the cells (n,) by the name of the column."""
    blocks = []
    for feature in features:
        column = feature["column"]
        cells, categories = table[column], feature.get("categories")
        if categories is None:
            numbers = [number(cell) if present(cell) else math.nan for cell in cells]
            if None in numbers:
                row = numbers.index(None)
                raise BadCell(row, column, f"{cells[row]!r} is no finite number")
            blocks.append(np.array(numbers, dtype=np.float64)[:, None])
            continue
        known = {*categories} | ({feature["reference"]} if "reference" in feature else set())
        levels = [level(cell) if present(cell) else NO_CATEGORY for cell in cells]
        for row, name in enumerate(levels):
            if name not in known:
                why = f"the category is missing ({cells[row]!r})"
                if name != NO_CATEGORY:
                    listed = ", ".join(sorted(known - {NO_CATEGORY})[:20])
                    why = f"{name!r} is no category that the model knows; it knows {listed}"
                raise BadCell(row, column, why)
        kept = np.array(categories, dtype=object)
        blocks.append((np.array(levels, dtype=object)[:, None] == kept).astype(np.float64))
    return np.column_stack(blocks)


def prepared(x: Any, sites: Sequence[str], preprocessing: Mapping[str, Any]) -> Any:
    """(n, d) float32: ``x`` of :func:`encoded` without gaps and scaled, by the numbers of each
    row's site (n,), or of all training rows for the site ""."""
    out = x.copy()
    names = [name for feature in preprocessing["features"] for name in inputs(feature)]
    for site, rows in rows_by_site(sites).items():
        numbers = preprocessing["sites"][site] if site else preprocessing["all"]
        values, gaps = x[rows], np.isnan(x[rows])
        if gaps.any():
            row, column = np.argwhere(gaps)[0].tolist()
            if numbers["fill"] is None:
                why = "the value is missing, and the model has none to put in"
                raise BadCell(rows[row], names[column], why)
            values = np.where(gaps, np.array(numbers["fill"]), values)
        if numbers["mean"] is not None:
            values = (values - np.array(numbers["mean"])) / np.array(numbers["scale"])
        out[rows] = values
    with np.errstate(over="ignore"):  # what does not fit is not finite
        return out.astype(np.float32)


def rows_by_site(sites: Sequence[str]) -> dict[str, list[int]]:
    """The rows of each site, ascending."""
    rows: dict[str, list[int]] = {}
    for row, site in enumerate(sites):
        rows.setdefault(site, []).append(row)
    return rows


def inputs(feature: Mapping[str, Any]) -> list[str]:
    """The names of the numbers that the model gets of a column."""
    name, categories = feature["column"], feature.get("categories")
    if categories is None:
        return [name]
    return [f"{name}={category or '(missing)'}" for category in categories]
