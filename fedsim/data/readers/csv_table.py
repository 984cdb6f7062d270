"""Reader of a table of numbers and categories: a CSV file with a header, ``-d csv:FILE``.

Which column is what follows from ``data.columns`` (target, site, patient, split); all others are
features, numbers or one-hot coded categories. Scaling and the values put in for missing ones are
those of the training rows, so that they are computed once the parts are known, and again where a
split file gives other ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.core.errors import ConfigError, DataError, nearest
from fedsim.core.settings import Names, listed
from fedsim.core.tables import Table, read_table
from fedsim.core.types import F64, I64, Array
from fedsim.data.dataset import OWN_TEST, SCOPE, TRAIN, DatasetInfo, Parts, Raw, Request
from fedsim.data.readers.folder import odd_labels
from fedsim.data.readers.tables import PARTS, check_patients, coded, coded_column, parts_of_rows

Mask = NDArray[np.bool_]

USUAL = ("target", "site", "patient", "split")
"""What a column may be beside a feature, and its name where ``data.columns`` gives none."""
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
    file = request.own_folder
    table, named = _read(request)
    kinds = _features(table, named, features, categorical)
    remarks: tuple[str, ...] = ()
    if missing == "drop":
        table, remarks = _complete(table, (*kinds, named["target"]))
    classes, y = _target(table, named["target"])
    meant = len(classes) > _COMPARED or all(_number(name) is not None for name in classes)
    remarks = odd_labels(table, classes, y, named=meant, thing="row") + remarks
    parts = parts_of_rows(table, named.get("split", ""), tuple(PARTS))
    sites, site = _sites(table, named["site"], parts) if "site" in named else ((), None)
    patients, patient = coded_column(table, named.get("patient", ""))
    check_patients(patient, site, parts, patients, table.where)
    blocks = {
        name: _numbers(table, name, missing) if level == "" else _categories(table, name, level)
        for name, level in kinds.items()
    }
    x = np.column_stack(list(blocks.values()))
    if not x.shape[1]:
        raise DataError(f"{file}: csv.categorical leaves out the only value of each feature")
    prepare = _Prepared(
        file=file,
        names=[name for name, block in blocks.items() for _ in range(block.shape[1])],
        x=x,
        site=np.zeros(len(x), np.int64) if site is None else site,
        no_site=sites.index(NO_SITE) if NO_SITE in sites else -1,
        scaling=scaling,
        missing=missing,
    )
    return Raw(
        source=file,
        x=x,
        y=y,
        class_names=classes,
        parts=parts,
        prepare=prepare,
        site=site,
        site_names=sites,
        patient=patient,
        patient_names=patients,
        remarks=remarks + _filled_codes(blocks, missing),
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
        if "is given twice" in str(error) or "needed are the columns" not in str(error):
            raise
        said = "" if "target" in request.columns else "data.columns.target names the classes; "
        raise DataError(f"{error}; {said}{SCOPE}") from None
    columns = list(table.columns)
    named = {role: role for role in USUAL if role in columns}
    for role, name in request.columns.items():
        named[role] = _find_column(name, columns, f"data.columns.{role}")
    twice = [role for role, name in named.items() if list(named.values()).count(name) > 1]
    if twice:
        raise ConfigError(
            f"data.columns: {named[twice[0]]!r} is {' and '.join(twice)}, one column can be one"
        )
    if "" in columns:
        raise DataError(f"{file}: column {columns.index('') + 1} of the header has no name")
    return table, named


def _find_column(name: str, columns: Sequence[str], key: str) -> str:
    """The column's name as the table has it, in small letters."""
    if name.lower() not in columns:
        raise ConfigError(
            f"{key}: there is no column {name!r}{nearest(name.lower(), columns)}; columns are "
            f"{', '.join(columns)}"
        )
    return name.lower()


def _features(
    table: Table, named: Mapping[str, str], features: str, categorical: str
) -> dict[str, str | None]:
    """By feature the category without a column of its own; None where each has one, "" for numbers.

    A name may hold an equals sign: the category begins after the last one.
    """
    columns = list(table.columns)
    chosen = [_find_column(name, columns, "csv.features") for name in listed(features)]
    for name in chosen:
        if name in named.values() or chosen.count(name) > 1:
            why = "is no feature (data.columns)" if chosen.count(name) == 1 else "is given twice"
            raise ConfigError(f"csv.features: {name!r} {why}")
    chosen = chosen or [name for name in columns if name not in named.values()]
    if not chosen:
        raise DataError(f"{table.file}: no column is left as a feature")
    kinds: dict[str, str | None] = dict.fromkeys(chosen, "")
    for cell in listed(categorical):
        whole = cell.lower() in columns or "=" not in cell
        name, _, level = (cell, "", "") if whole else cell.rpartition("=")
        name = _find_column(name.strip(), columns, "csv.categorical")
        if kinds.get(name) != "":
            why = "is given twice" if name in kinds else "is no feature"
            raise ConfigError(f"csv.categorical: {name!r} {why}")
        kinds[name] = None if whole else _level(level.strip())
    return kinds


def _is_given(cell: str) -> bool:
    return cell.lower() not in MISSING


def _complete(table: Table, columns: Sequence[str]) -> tuple[Table, tuple[str, ...]]:
    """The rows without a missing value, and a remark on the others."""
    cells = zip(*(table.columns[name] for name in columns), strict=True)
    kept = [i for i, row in enumerate(cells) if all(map(_is_given, row))]
    if not kept:
        raise DataError(f"{table.file}: csv.missing=drop leaves no row, each has a missing value")
    if len(kept) == len(table):
        return table, ()
    remark = f"{len(table) - len(kept)} of {len(table)} rows have a missing value and were left out"
    return table.rows(kept), (remark,)


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


def _target(table: Table, column: str) -> tuple[tuple[str, ...], I64]:
    """The names of the classes, and the class of each row."""
    table.cells(column, _is_given, "the class is missing")
    odd = f"{{}} is no class; classes are whole numbers or names ({SCOPE})"
    cells = table.cells(column, lambda cell: (_number(cell) or 0.0).is_integer(), odd)
    levels = [_level(cell) for cell in cells]
    classes = _ordered(set(levels))
    if not 2 <= len(classes) <= _MOST_CLASSES:
        raise DataError(
            f"{table.file}, column {column}: {len(classes)} classes, needed are 2 to "
            f"{_MOST_CLASSES:,} ({SCOPE})"
        )
    number = {name: i for i, name in enumerate(classes)}
    return tuple(classes), np.array([number[level] for level in levels], dtype=np.int64)


def _sites(table: Table, column: str, parts: Parts | None) -> tuple[tuple[str, ...], I64]:
    """The names of the sites, and that of each row; rows of common parts need none."""
    names = []
    for row, cell in enumerate(table.columns[column]):
        where = f"{table.where(row)}, column {column}"
        name = cell if _is_given(cell) else ""
        if name == NO_SITE:
            raise DataError(f"{where}: {name!r} stands for rows of no site")
        if not name and (parts is None or parts[row] in (TRAIN, OWN_TEST)):
            raise DataError(f"{where}: the site is missing")
        names.append(name or NO_SITE)
    return coded(names, table.where, column)


def _numbers(table: Table, column: str, missing: str) -> F64:
    """(n, 1) a column of numbers, NaN where one is missing."""
    if missing == "refuse":
        how = "the value is missing ({}); csv.missing says what to do: drop, mean or median"
        table.cells(column, _is_given, how)
    odd = (
        "{} is no finite number; name the column in csv.categorical if it holds categories, or "
        "leave it out of csv.features"
    )
    cells = table.cells(column, lambda cell: not _is_given(cell) or _number(cell) is not None, odd)
    return np.array([_number(c) if _is_given(c) else np.nan for c in cells], np.float64)[:, None]


def _categories(table: Table, column: str, left_out: str | None) -> F64:
    """(n, k) one column for each category but one: 1 where the cell has it, else 0."""
    missing = "the category is missing ({}); fill it in, or csv.missing=drop"
    cells = [_level(cell) for cell in table.cells(column, _is_given, missing)]
    levels = _ordered(set(cells))
    if left_out is not None and left_out not in levels:
        raise ConfigError(
            f"csv.categorical: {column}={left_out} given, but no row has it; values are "
            f"{', '.join(levels[:20])}"
        )
    if len(levels) > _MOST_LEVELS:
        raise ConfigError(
            f"csv.categorical: {column} has {len(levels):,} values, at most {_MOST_LEVELS:,} are "
            "coded"
        )
    kept = np.array([level for level in levels if level != left_out], dtype=object)
    return (np.array(cells, dtype=object)[:, None] == kept).astype(np.float64)


def _filled_codes(blocks: Mapping[str, F64], missing: str) -> tuple[str, ...]:
    """A remark on columns of few whole numbers whose gaps are filled: they may be codes."""
    few = [
        name
        for name, x in blocks.items()
        if np.isnan(x).any()
        and len(levels := np.unique(x[~np.isnan(x)])) <= _FEW
        and (levels % 1 == 0).all()
    ]
    what = f"csv.missing={missing} fills gaps between few whole numbers: {', '.join(few)}"
    return (f"{what} (categories belong into csv.categorical)",) if few else ()


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """Makes the features, without gaps and scaled, by the training rows.

    Args:
        file: that was read, for messages.
        names: the column of each of the d features.
        x: (n, d), NaN where a value is missing.
        site: (n,) of each row.
        no_site: the number of the site that stands for no site.
        scaling: ``site``, ``all`` or ``none``.
        missing: ``mean`` or ``median`` where there are gaps.
    """

    file: Path
    names: Sequence[str]
    x: F64
    site: I64
    no_site: int
    scaling: str
    missing: str

    def __call__(self, training: I64) -> Array:
        """(n, d) float32, by the numbers (m,) of the training rows."""
        train = np.zeros(len(self.x), dtype=bool)
        train[training] = True
        gaps = np.isnan(self.x).any()
        if not train.any() and (self.scaling != "none" or gaps):
            key = "missing" if self.scaling == "none" else "scaling"
            raise DataError(
                f"{self.file}: csv.{key}={getattr(self, key)} needs training rows; a column split "
                "has to mark them (train)"
            )
        x = self._filled(train) if gaps else self.x
        if self.scaling != "none":
            scaled = _scaled(x, x[train])
            for at_site, of_site in self._of_sites(train) if self.scaling == "site" else ():
                scaled[at_site] = _scaled(x[at_site], x[of_site])
            x = scaled
        with np.errstate(over="ignore"):  # what does not fit is refused as not finite
            return x.astype(np.float32)

    def _filled(self, train: Mask) -> F64:
        """The features with the mean or median of the site's training rows in the gaps."""
        x, centre = self.x.copy(), np.mean if self.missing == "mean" else np.median
        gaps = np.isnan(x)
        for column in np.flatnonzero(gaps.any(axis=0)).tolist():
            with_value = train & ~gaps[:, column]
            if not with_value.any():
                raise DataError(
                    f"{self.file}: no training row has a value in column {self.names[column]}"
                )
            filled = np.full(len(x), centre(x[with_value, column]))
            for at_site, known_here in self._of_sites(with_value):
                filled[at_site] = centre(x[known_here, column])
            x[gaps[:, column], column] = filled[gaps[:, column]]
        return x

    def _of_sites(self, rows: Mask) -> Iterator[tuple[Mask, Mask]]:
        """Of each site that has some of the rows all of its rows, and those."""
        for site in np.unique(self.site):
            at_site = self.site == site
            if site != self.no_site and (rows & at_site).any():
                yield at_site, rows & at_site


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
        read=read_csv,
        default_model="logistic",
        source="a CSV file with a header, as -d csv:FILE",
        needs_folder=True,
        patients=True,
        columns=USUAL,
        prepared=True,
    ),
)
