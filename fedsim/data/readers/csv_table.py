"""Reader of a table of numbers and categories: a CSV file with a header, ``-d csv:FILE``.

Which column is what follows from ``data.columns`` (target, site, patient, split); all others are
features, numbers or one-hot coded categories. Scaling and the values put in for missing ones are
those of the training rows, so that they are computed once the parts are known, and again where a
split file gives other ones.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np

from fedsim.core.errors import ConfigError, DataError, nearest
from fedsim.core.settings import Names, listed
from fedsim.core.tables import TableRow, read_table, records
from fedsim.core.types import F64, I64, Array
from fedsim.data.dataset import OWN_TEST, SCOPE, TEST, TRAIN, VAL, DatasetInfo, Parts, Raw, Request
from fedsim.data.readers.folder import check_patients, coded, odd_labels

USUAL = ("target", "site", "patient", "split")
"""What a column may be beside a feature, and its name where ``data.columns`` gives none."""
PARTS = {"train": TRAIN, "val": VAL, "test": TEST, "own_test": OWN_TEST}
MISSING = frozenset(("", "?", "na", "n/a", "nan", "null"))
"""Cells without a value, in small letters."""
NO_SITE = "(none)"
"""The site of rows for validation and test that belong to no site."""
_MOST_CLASSES = 10_000
_MOST_LEVELS = 1_000
_COMPARED = 200
"""The most names of classes among which typing errors are looked for."""
_FEW = 10
"""So many whole numbers, or fewer, may be the codes of categories."""
_EXACT = 2.0**53
"""Below it whole numbers are exact as floats."""
_SMALL = 1e-9
"""Added to a standard deviation."""


def table(
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
    file = request.own_folder
    columns, rows, named = _read(request)
    chosen = [_known(name, columns, "csv.features") for name in listed(features)]
    for name in chosen:
        if name in named.values() or chosen.count(name) > 1:
            why = "is no feature (data.columns)" if chosen.count(name) == 1 else "is given twice"
            raise ConfigError(f"csv.features: {name!r} {why}")
    chosen = chosen or [name for name in columns if name not in named.values()]
    if not chosen:
        raise DataError(f"{file}: no column is left as a feature")
    dropped = _dropped(categorical, columns)
    for name in dropped:
        if name not in chosen:
            raise ConfigError(f"csv.categorical: {name!r} is no feature")
    kept = [row for row in rows if missing != "drop" or _complete(row, (*chosen, named["target"]))]
    if not kept:
        raise DataError(f"{file}: csv.missing=drop leaves no row, each has a missing value")
    classes, y = _target(kept, named["target"])
    meant = len(classes) > _COMPARED or all(_number(name) is not None for name in classes)
    remarks = odd_labels(kept, classes, y, named=meant, thing="row")
    if len(kept) < len(rows):
        left = len(rows) - len(kept)
        remarks += (f"{left} of {len(rows)} rows have a missing value and were left out",)
    parts = _parts(kept, named["split"]) if "split" in named else None
    sites, site = _sites(kept, named["site"], parts) if "site" in named else ((), None)
    patients, patient = coded(kept, named.get("patient", ""))
    if parts is not None and patient is not None:
        common = np.where(parts == OWN_TEST, TEST, parts).astype(np.int8)
        check_patients(kept, common, named)
    coded_or_not = [
        _categories(kept, name, dropped[name]) if name in dropped else _numbers(kept, name, missing)
        for name in chosen
    ]
    x = np.column_stack(coded_or_not)
    names = [name for name, c in zip(chosen, coded_or_not, strict=True) for _ in range(c.shape[1])]
    if not x.shape[1]:
        raise DataError(f"{file}: csv.categorical leaves out the only value of each feature")
    code = np.zeros(len(x), np.int64) if site is None else site
    none = sites.index(NO_SITE) if NO_SITE in sites else -1
    return Raw(
        source=file,
        x=x,
        y=y,
        class_names=classes,
        parts=parts,
        prepare=partial(_prepared, str(file), names, x, code, none, scaling, missing),
        site=site,
        site_names=sites,
        patient=patient,
        patient_names=patients,
        remarks=remarks + _filled_codes(chosen, coded_or_not, missing),
    )


def _read(request: Request) -> tuple[list[str], list[TableRow], dict[str, str]]:
    """The names of the columns, in small letters, the rows, and columns by what they are."""
    file = request.own_folder
    if file.is_dir():
        raise ConfigError(f"data.dir {file}: a folder given; data set csv is one file, csv:FILE")
    target = request.columns.get("target", "target").lower()
    try:
        rows = read_table(file, (target,))
    except DataError as error:
        if "is given twice" in str(error) or "needed are the columns" not in str(error):
            raise
        said = "" if "target" in request.columns else "data.columns.target names the classes; "
        raise DataError(f"{error}; {said}{SCOPE}") from None
    columns = list(rows[0].values)
    named = {what: what for what in USUAL if what in columns}
    for what, name in request.columns.items():
        named[what] = _known(name, columns, f"data.columns.{what}")
    twice = [what for what, name in named.items() if list(named.values()).count(name) > 1]
    if twice:
        raise ConfigError(
            f"data.columns: {named[twice[0]]!r} is {' and '.join(twice)}, one column can be one"
        )
    if "" in columns:
        number, _ = next(records(file))
        raise DataError(f"{file}, row {number}: column {columns.index('') + 1} has no name")
    return columns, rows, named


def _known(name: str, columns: Sequence[str], key: str) -> str:
    """The column's name as the table has it, in small letters."""
    if name.lower() not in columns:
        raise ConfigError(
            f"{key}: there is no column {name!r}{nearest(name.lower(), columns)}; columns are "
            f"{', '.join(columns)}"
        )
    return name.lower()


def _dropped(categorical: str, columns: Sequence[str]) -> dict[str, str | None]:
    """By categorical column the value without a column of its own, None where each has one."""
    dropped: dict[str, str | None] = {}
    for cell in listed(categorical):
        equals = [i for i, letter in enumerate(cell) if letter == "="]
        pairs = [(cell[:i].strip(), _level(cell[i + 1 :].strip())) for i in equals]
        ways = sorted(  # a name may hold equals signs: the one in quotes, else the shortest
            [*pairs, (cell, None)], key=lambda way: _in_quotes(way[0]) not in categorical
        )
        name, level = next((way for way in ways if way[0].lower() in columns), ways[0])
        name = _known(name, columns, "csv.categorical")
        if name in dropped:
            raise ConfigError(f"csv.categorical: {name!r} is given twice")
        dropped[name] = level
    return dropped


def _in_quotes(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _is_missing(cell: str) -> bool:
    return cell.lower() in MISSING


def _complete(row: TableRow, columns: Sequence[str]) -> bool:
    return not any(_is_missing(row.values[name]) for name in columns)


def _number(cell: str) -> float | None:
    """The cell as a finite number, of float32, else None; Python's 1_000 is a text."""
    if "_" in cell:
        return None
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if abs(value) <= float(np.finfo(np.float32).max) else None


def _level(cell: str) -> str:
    """A category as a text: 1, 1.0 and +1 are the same, -0 is 0.

    Whole numbers from 2^53 on stay as they are written: as floats several would be one.
    """
    value = _number(cell)
    if value is None or abs(value) >= _EXACT:
        return cell
    return str(int(value)) if value.is_integer() else repr(value)


def _ordered(levels: set[str]) -> list[str]:
    """Numbers ascending, where all are numbers, else texts in the order of their characters."""
    numbers = {level: _number(level) for level in levels}
    if None in numbers.values():
        return sorted(levels)
    return sorted(levels, key=lambda level: (numbers[level] or 0.0, level))


def _target(rows: Sequence[TableRow], column: str) -> tuple[tuple[str, ...], I64]:
    """The names of the classes, and the class of each row."""
    levels = []
    for row in rows:
        cell = row.values[column]
        if _is_missing(cell):
            raise DataError(f"{row.where}, column {column}: the class is missing")
        level = _level(cell)
        value = _number(level)
        if value is not None and not value.is_integer():
            raise DataError(
                f"{row.where}, column {column}: {cell!r} is no class; classes are whole numbers "
                f"or names ({SCOPE})"
            )
        levels.append(level)
    classes = _ordered(set(levels))
    if not 2 <= len(classes) <= _MOST_CLASSES:
        raise DataError(
            f"{rows[0].where.rpartition(', ')[0]}, column {column}: {len(classes)} classes, needed "
            f"are 2 to {_MOST_CLASSES:,} ({SCOPE})"
        )
    number = {name: i for i, name in enumerate(classes)}
    return tuple(classes), np.array([number[level] for level in levels], dtype=np.int64)


def _parts(rows: Sequence[TableRow], column: str) -> Parts:
    for row in rows:
        if row.values[column] not in PARTS:
            raise DataError(
                f"{row.where}, column {column}: {row.values[column]!r} is unknown; known are "
                f"{', '.join(PARTS)}"
            )
    return np.array([PARTS[row.values[column]] for row in rows], dtype=np.int8)


def _sites(
    rows: Sequence[TableRow], column: str, parts: Parts | None
) -> tuple[tuple[str, ...], I64]:
    """The names of the sites, and that of each row; rows of common parts need none."""
    named = []
    for i, row in enumerate(rows):
        name = row.values[column]
        name = "" if _is_missing(name) else name
        if name == NO_SITE:
            raise DataError(f"{row.where}, column {column}: {name!r} stands for rows of no site")
        if not name and (parts is None or parts[i] in (TRAIN, OWN_TEST)):
            raise DataError(f"{row.where}, column {column}: the site is missing")
        named.append(name or NO_SITE)
    names, codes = np.unique(named, return_inverse=True)
    return tuple(map(str, names)), codes.astype(np.int64)


def _numbers(rows: Sequence[TableRow], column: str, missing: str) -> F64:
    """(n, 1) a column of numbers, NaN where one is missing."""
    values = []
    for row in rows:
        cell = row.values[column]
        value = math.nan if _is_missing(cell) else _number(cell)
        if value is None:
            raise DataError(
                f"{row.where}, column {column}: {cell!r} is no finite number; name the column in "
                "csv.categorical if it holds categories, or leave it out of csv.features"
            )
        if math.isnan(value) and missing == "refuse":
            raise DataError(
                f"{row.where}, column {column}: the value is missing ({cell!r}); csv.missing says "
                "what to do: drop, mean or median"
            )
        values.append(value)
    return np.array(values)[:, None]


def _categories(rows: Sequence[TableRow], column: str, out: str | None) -> F64:
    """(n, k) one column for each category but ``out``: 1 where the cell has it, else 0."""
    cells = []
    for row in rows:
        if _is_missing(row.values[column]):
            raise DataError(
                f"{row.where}, column {column}: the category is missing "
                f"({row.values[column]!r}); fill it in, or csv.missing=drop"
            )
        cells.append(_level(row.values[column]))
    levels = _ordered(set(cells))
    if out is not None and out not in levels:
        raise ConfigError(
            f"csv.categorical: {column}={out} given, but no row has it; values are "
            f"{', '.join(levels[:20])}"
        )
    if len(levels) > _MOST_LEVELS:
        raise ConfigError(
            f"csv.categorical: {column} has {len(levels):,} values, at most {_MOST_LEVELS:,} are "
            "coded"
        )
    kept = np.array([level for level in levels if level != out], dtype=object)
    return (np.array(cells, dtype=object)[:, None] == kept).astype(np.float64)


def _filled_codes(names: Sequence[str], columns: Sequence[F64], missing: str) -> tuple[str, ...]:
    """A remark on columns of few whole numbers whose gaps are filled: they may be codes."""
    few = [
        name
        for name, x in zip(names, columns, strict=True)
        if np.isnan(x).any()
        and len(levels := np.unique(x[~np.isnan(x)])) <= _FEW
        and (levels % 1 == 0).all()
    ]
    what = f"csv.missing={missing} fills gaps between few whole numbers: {', '.join(few)}"
    return (f"{what} (categories belong into csv.categorical)",) if few else ()


def _prepared(
    file: str,
    names: Sequence[str],
    x: F64,
    site: I64,
    none: int,
    scaling: str,
    missing: str,
    training: I64,
) -> Array:
    """(n, d) float32: without gaps, and scaled, by the training rows.

    Args:
        file: that was read, for messages.
        names: the column of each of the d features.
        x: (n, d), NaN where a value is missing.
        site: (n,) of each row.
        none: the number of the site that stands for no site.
        scaling: ``site``, ``all`` or ``none``.
        missing: ``mean`` or ``median`` where there are gaps.
        training: (m,) the numbers of the training rows.
    """
    train = np.zeros(len(x), dtype=bool)
    train[training] = True
    gaps = np.isnan(x)
    if not train.any() and (scaling != "none" or gaps.any()):
        what = f"csv.scaling={scaling}" if scaling != "none" else f"csv.missing={missing}"
        raise DataError(
            f"{file}: {what} needs training rows; a column split has to mark them (train)"
        )
    x = x.copy()
    every = [s for s in np.unique(site) if s != none]
    if gaps.any():
        centre = np.nanmean if missing == "mean" else np.nanmedian
        for column in np.flatnonzero(gaps.any(axis=0)).tolist():
            known = train & ~gaps[:, column]
            if not known.any():
                raise DataError(f"{file}: no training row has a value in column {names[column]}")
            filled = np.full(len(x), centre(x[known, column]))
            for s in every:
                if (own := known & (site == s)).any():
                    filled[site == s] = centre(x[own, column])
            x[gaps[:, column], column] = filled[gaps[:, column]]
    if scaling != "none":
        scaled = _scaled(x, x[train])
        for s in every if scaling == "site" else ():
            if (own := train & (site == s)).any():
                scaled[site == s] = _scaled(x[site == s], x[own])
        x = scaled
    with np.errstate(over="ignore"):  # what does not fit is refused as not finite
        return x.astype(np.float32)


def _scaled(x: F64, training: F64) -> F64:
    """``(x - mean) / (sd + 1e-9)``; a column that is constant in training is not divided."""
    sd = training.std(axis=0, ddof=1) if len(training) > 1 else np.zeros(x.shape[1])
    constant = np.ptp(training, axis=0) == 0
    scaled: F64 = (x - training.mean(axis=0)) / np.where(constant, 1.0, sd + _SMALL)
    return scaled


DATASETS = (
    DatasetInfo(
        name="csv",
        title="a table of numbers and categories with a column of classes",
        read=table,
        default_model="logistic",
        source="a CSV file with a header, as -d csv:FILE",
        needs_folder=True,
        patients=True,
        columns=USUAL,
        prepared=True,
    ),
)
