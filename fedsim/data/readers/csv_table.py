"""Reader of a table of numbers and categories: a CSV file with a header, ``-d csv:FILE``.

Which column is what follows from ``data.columns``; all others are features. Scaling and the values
put in for missing ones are those of the training rows, and follow these where a split file gives
other ones.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from fedsim.core.errors import ConfigError, DataError, nearest
from fedsim.core.settings import Names, listed
from fedsim.core.tables import Table, read_table
from fedsim.core.types import F64, I64, Array
from fedsim.data.dataset import OWN_TEST, TRAIN, DatasetInfo, Parts, Raw, Request
from fedsim.data.readers.folder import odd_labels
from fedsim.data.readers.tables import PARTS, Coded, coded, coded_column, parts_of_rows, people

USUAL = ("target", "site", "patient", "split")
"""What a column may be beside a feature, and its name where ``data.columns`` gives none."""
MISSING = frozenset(("", "?", "na", "n/a", "nan", "null"))
"""Cells without a value, in small letters."""
NO_SITE = "(none)"
"""The site of rows for validation and test that belong to no site."""
_COMPARED = 200
"""The most names of classes among which typing errors are looked for."""


def read_csv(
    request: Request,
    *,
    features: Names = "",
    categorical: Names = "",
    scaling: Literal["site", "all", "none"] = "site",
    missing: Literal["refuse", "drop", "mean", "median"] = "refuse",
) -> Raw:
    """A row per sample; see ``docs/how-to/csv.md``.

    Args:
        request: ``columns`` names columns by what they are; ``folder`` is the file.
        features: columns that the model sees, in this order, separated by commas, a name that holds
            one in quotes; empty: all that are nothing else, in the order of the table.
        categorical: columns with categories, in the same way, as in cp=1,restecg: a column for each
            value in ascending order, but for the one after the equals sign.
        scaling: (x - mean) / (sd + 1e-9), sd with n - 1, from the training rows of the row's site,
            or from all training rows (also for sites without any); none leaves numbers as they are.
        missing: what becomes of rows with a missing value; mean, median: that of the training rows
            of the site is put in, or of all training rows where a site has none.
    """
    table, roles = _read(request)
    kinds = _features(table, roles, features, categorical)
    remarks: tuple[str, ...] = ()
    if missing == "drop":
        table, remarks = _complete(table, (*kinds, roles["target"]))
    classes, y = _target(table, roles["target"])
    meant = len(classes) > _COMPARED or all(_number(name) is not None for name in classes)
    parts = parts_of_rows(table, roles.get("split", ""), tuple(PARTS))
    sites: Coded = _sites(table, roles["site"], parts) if "site" in roles else ((), None)
    names, site = sites
    patients = coded_column(table, roles.get("patient", ""))
    blocks = {
        name: _numbers(table, name, missing) if level == "" else _categories(table, name, level)
        for name, level in kinds.items()
    }
    x = np.column_stack(list(blocks.values()))
    prepare = partial(
        prepared,
        file=table.file,
        names=[name for name, block in blocks.items() for _ in range(block.shape[1])],
        x=x,
        site=np.zeros(len(x), np.int64) if site is None else site,
        no_site=names.index(NO_SITE) if NO_SITE in names else -1,
        scaling=scaling,
        missing=missing,
    )
    return Raw(
        source=table.file,
        x=x,
        y=y,
        class_names=classes,
        parts=parts,
        prepare=prepare,
        remarks=odd_labels(table, classes, y, named=meant, thing="row") + remarks,
        **people(sites, patients, parts, table.where),
    )


def _read(request: Request) -> tuple[Table, dict[str, str]]:
    """The table, and its columns by what they are."""
    file = request.own_folder
    if file.is_dir():
        raise ConfigError(f"data.dir {file}: a folder given; data set csv is one file, csv:FILE")
    target = request.columns.get("target", "target").lower()
    try:
        table = read_table(file, (target,))
    except DataError as error:
        if "needed are the columns" not in str(error):
            raise
        raise DataError(f"{error}; data.columns.target names the classes") from None
    roles = {role: role for role in USUAL if role in table.columns}
    for role, name in request.columns.items():
        roles[role] = _column(table, name, f"data.columns.{role}")
    twice = [role for role, name in roles.items() if list(roles.values()).count(name) > 1]
    if twice:
        raise ConfigError(
            f"data.columns: {roles[twice[0]]!r} is {' and '.join(twice)}, one column can be one"
        )
    if "" in table.columns:
        number = list(table.columns).index("") + 1
        raise DataError(f"{file}: column {number} of the header has no name")
    return table, roles


def _column(table: Table, name: str, key: str) -> str:
    """The column's name as the table has it, in small letters."""
    if name.lower() not in table.columns:
        raise ConfigError(
            f"{key}: there is no column {name!r}{nearest(name.lower(), table.columns)}; columns "
            f"are {', '.join(table.columns)}"
        )
    return name.lower()


def _features(
    table: Table, roles: Mapping[str, str], features: str, categorical: str
) -> dict[str, str | None]:
    """By feature the category without a column; None where each has one, "" for numbers."""
    chosen, taken = (
        [_column(table, name, "csv.features") for name in listed(features)],
        roles.values(),
    )
    for name in chosen:
        if [*chosen, *taken].count(name) > 1:
            raise ConfigError(f"csv.features: {name!r} is given twice, here or in data.columns")
    chosen = chosen or [name for name in table.columns if name not in taken]
    if not chosen:
        raise DataError(f"{table.file}: no column is left as a feature")
    kinds: dict[str, str | None] = dict.fromkeys(chosen, "")
    for cell in listed(categorical):
        whole = cell.lower() in table.columns or "=" not in cell
        name, _, level = (cell, "", "") if whole else cell.rpartition("=")
        name = _column(table, name.strip(), "csv.categorical")
        if kinds.get(name) != "":
            raise ConfigError(f"csv.categorical: {name!r} is no feature, or is given twice")
        kinds[name] = None if whole else _level(level.strip())
    return kinds


def _present(cell: str) -> bool:
    return cell.lower() not in MISSING


def _complete(table: Table, columns: Sequence[str]) -> tuple[Table, tuple[str, ...]]:
    """The rows without a missing value, and a remark on the others."""
    cells = zip(*(table.columns[name] for name in columns), strict=True)
    kept = [i for i, row in enumerate(cells) if all(map(_present, row))]
    if not kept:
        raise DataError(f"{table.file}: csv.missing=drop leaves no row, each has a missing value")
    if len(kept) == len(table):
        return table, ()
    remark = f"{len(table) - len(kept)} of {len(table)} rows have a missing value and were left out"
    return table.rows(kept), (remark,)


def _number(cell: str) -> float | None:
    """The cell as a finite number, of float32, else None; Python's 1_000 is a text."""
    try:
        value = float(cell.replace("_", "x"))
    except ValueError:
        return None
    return value if abs(value) <= float(np.finfo(np.float32).max) else None


def _level(cell: str) -> str:
    """A category as a text: 1, 1.0 and +1 are the same, but not floats from 2^53 on."""
    value = _number(cell)
    if value is None or abs(value) >= 2.0**53:
        return cell
    return str(int(value)) if value.is_integer() else repr(value)


def _ordered(levels: set[str]) -> list[str]:
    """Numbers ascending, where all are numbers, else texts in the order of their characters."""
    numbers = {level: _number(level) for level in levels}
    if None in numbers.values():
        return sorted(levels)
    return sorted(levels, key=lambda level: (numbers[level] or 0.0, level))


def _target(table: Table, column: str) -> tuple[tuple[str, ...], I64]:
    """The names of the classes, and the class of each row."""
    table.cells(column, _present, "the class is missing")
    odd = "{} is no class; classes are whole numbers or names"
    cells = table.cells(column, lambda cell: (_number(cell) or 0.0).is_integer(), odd)
    levels = [_level(cell) for cell in cells]
    classes = _ordered(set(levels))
    if len(classes) < 2:
        raise DataError(f"{table.file}, column {column}: one class, needed are two")
    number = {name: i for i, name in enumerate(classes)}
    return tuple(classes), np.array([number[level] for level in levels], dtype=np.int64)


def _sites(table: Table, column: str, parts: Parts | None) -> tuple[tuple[str, ...], I64]:
    """The names of the sites, and that of each row; rows of common parts need none."""
    needed = np.ones(len(table), bool) if parts is None else np.isin(parts, (TRAIN, OWN_TEST))
    names = [cell if _present(cell) else NO_SITE for cell in table.columns[column]]
    for row in np.flatnonzero(needed).tolist():
        if names[row] == NO_SITE:
            raise DataError(f"{table.where(row)}, column {column}: the site is missing")
    return coded(names, table.where, column)


def _numbers(table: Table, column: str, missing: str) -> F64:
    """(n, 1) a column of numbers, NaN where one is missing."""
    if missing == "refuse":
        how = "the value is missing ({}); csv.missing says what to do: drop, mean or median"
        table.cells(column, _present, how)
    odd = (
        "{} is no finite number; name the column in csv.categorical if it holds categories, or "
        "leave it out of csv.features"
    )
    cells = table.cells(column, lambda cell: not _present(cell) or _number(cell) is not None, odd)
    return np.array([_number(c) if _present(c) else np.nan for c in cells], np.float64)[:, None]


def _categories(table: Table, column: str, left_out: str | None) -> F64:
    """(n, k) one column for each category but one: 1 where the cell has it, else 0."""
    missing = "the category is missing ({}); fill it in, or csv.missing=drop"
    cells = [_level(cell) for cell in table.cells(column, _present, missing)]
    levels = _ordered(set(cells))
    if left_out is not None and left_out not in levels:
        raise ConfigError(
            f"csv.categorical: {column}={left_out} given, but no row has it; values are "
            f"{', '.join(levels[:20])}"
        )
    kept = np.array([level for level in levels if level != left_out], dtype=object)
    return (np.array(cells, dtype=object)[:, None] == kept).astype(np.float64)


def prepared(
    training: I64,
    *,
    file: Path,
    names: Sequence[str],
    x: F64,
    site: I64,
    no_site: int,
    scaling: str,
    missing: str,
) -> Array:
    """(n, d) float32: the features without gaps and scaled, by the numbers of the training rows.

    ``x`` (n, d) has NaN where a value is missing, ``names`` are the columns of its features, and
    ``site`` (n,) the rows' sites, of which ``no_site`` stands for none.
    """
    train = np.zeros(len(x), dtype=bool)
    train[training] = True
    gaps = np.isnan(x)
    if not train.any() and (scaling != "none" or gaps.any()):
        key = f"missing={missing}" if scaling == "none" else f"scaling={scaling}"
        raise DataError(
            f"{file}: csv.{key} needs training rows; a column split has to mark them (train)"
        )
    sites = [site == s for s in np.unique(site) if s != no_site]
    x, centre = x.copy(), np.mean if missing == "mean" else np.median
    for column in np.flatnonzero(gaps.any(axis=0)).tolist():
        present = train & ~gaps[:, column]
        if not present.any():
            raise DataError(f"{file}: no training row has a value in column {names[column]}")
        values = np.full(len(x), centre(x[present, column]))
        for rows in (rows for rows in sites if (rows & present).any()):
            values[rows] = centre(x[rows & present, column])
        x[gaps[:, column], column] = values[gaps[:, column]]
    if scaling != "none":
        unscaled, x = x, _scaled(x, x[train])
        for rows in (rows for rows in sites if scaling == "site" and (rows & train).any()):
            x[rows] = _scaled(unscaled[rows], unscaled[rows & train])
    with np.errstate(over="ignore"):  # what does not fit is refused as not finite
        return x.astype(np.float32)


def _scaled(x: F64, training: F64) -> F64:
    """``(x - mean) / (sd + 1e-9)``; a column that is constant in training is not divided."""
    sd = training.std(axis=0, ddof=1) if len(training) > 1 else np.zeros(x.shape[1])
    constant = np.ptp(training, axis=0) == 0
    scaled: F64 = (x - training.mean(axis=0)) / np.where(constant, 1.0, sd + 1e-9)
    return scaled


DATASETS = (
    DatasetInfo(
        name="csv",
        title="a table of numbers and categories with a column of classes",
        read=read_csv,
        default_model="logistic",
        source="a CSV file with a header, as -d csv:FILE",
        needs_folder=True,
        columns=USUAL,
        prepared=True,
    ),
)
