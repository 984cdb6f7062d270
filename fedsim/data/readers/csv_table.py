"""Reader of tables of numbers and categories: CSV files with a header, ``-d csv:FILE``.

Which column is what follows from ``data.columns``; all others are features. Scaling and the values
put in for missing ones are those of the training rows, and follow these where a split file gives
other ones; a run keeps them for new rows (:mod:`fedsim.data.new_rows`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedsim.core.errors import ConfigError, DataError, nearest
from fedsim.core.settings import Names, listed
from fedsim.core.tables import Table
from fedsim.core.types import F64, I64, Array
from fedsim.data import table_features
from fedsim.data.dataset import OWN_TEST, TEST, TRAIN, DatasetInfo, Parts, Raw, Request
from fedsim.data.files import listed_files
from fedsim.data.new_rows import OF_FILE, complete, needed_cells, new_features, read_files, sites_of
from fedsim.data.readers import tables
from fedsim.data.readers.folder import odd_labels
from fedsim.data.table_features import NO_CATEGORY, encoded, level, number, present, rows_by_site
from fedsim.tasks import find

USUAL = ("target", "site", "patient", "split")
"""What a column may be beside a feature, and its name where ``data.columns`` gives none."""
NO_SITE = "(none)"
"""The site of rows for validation and test that belong to no site."""
NUMBERS = "(numbers)"
"""The kind of a feature that holds no categories."""
_COMPARED = 200
"""The most names of classes among which typing errors are looked for."""
_CODES = 10
"""A column of so few different whole numbers, but more than two, may hold codes."""


def read_csv(
    request: Request,
    *,
    features: Names = "",
    categorical: Names = "",
    scaling: Literal["site", "all", "none"] = "site",
    missing: Literal["refuse", "drop", "mean", "median"] = "refuse",
    missing_categories: Literal["refuse", "own"] = "refuse",
) -> Raw:
    """A row per sample; see ``docs/how-to/csv.md``.

    Args:
        request: ``folder`` is the file, several with commas between, or a folder of them, where
            each file is a site unless a column says it.
        features: columns that the model sees, in this order; empty: all that are nothing else.
        categorical: columns with categories, as in cp=1,restecg: a column for each value in
            ascending order, but for the one after the equals sign.
        scaling: (x - mean) / (sd + 1e-9), sd with n - 1, from the training rows of the row's site,
            or from all training rows (also for sites without any); none leaves numbers as they are.
        missing: what becomes of rows with a missing value; mean, median: that of the training rows
            of the site is put in, or of all training rows where a site has none.
        missing_categories: own: a missing category is one more category of its column.
    """
    table, roles = _read(request)
    of_target = {role: roles[role] for role in tables.names_of(request)}
    known, own = request.preprocessing, missing_categories == "own"
    kinds = _features(table, roles, features, categorical) if known is None else {}
    remarks: tuple[str, ...] = ()
    if missing == "drop":
        needed = [name for name, kind in kinds.items() if kind == NUMBERS or not own]
        needed += needed_cells(known) if known is not None else []
        table, remarks = complete(table, (*needed, *of_target.values()))
    classes, y = tables.targets(
        table, of_target, request, () if known is None else known["classes"]
    )
    survival = "time" in of_target and request.task is None
    by_class = request.target == "class" and not survival
    meant = len(classes) > _COMPARED or all(number(name) is not None for name in classes)
    odd = odd_labels(table, classes, y, named=meant, thing="row") if by_class else ()
    parts = tables.parts_of_rows(table, roles.get("split", ""), tuple(tables.PARTS))
    parts = parts if known is None else np.full(len(table), TEST, np.int8)  # a site need not be
    names, site = _sites(table, roles["site"], parts) if "site" in roles else ((), None)
    patients = tables.coded_column(table, roles.get("patient", ""))
    if known is None:
        settled = [_settled(table, name, kind, missing, own) for name, kind in kinds.items()]
        remarks += _codes(table, kinds, missing)
        settings: dict[str, Any] = {"classes": classes}
        settings |= {role: roles.get(role) for role in ("site", "patient")}
        settings |= {"missing": missing, "scaling": scaling, "features": settled}
        of_row = [""] * len(table) if site is None else [names[code] for code in site]
        of_row = ["" if name == NO_SITE else name for name in of_row]
        x: Array = encoded(table.columns, settled)
        prepare = Prepare(file=table.file, x=x, sites=of_row, settings=settings)
    else:
        x, prepare = new_features(table, sites_of(table, known), known), None
    return Raw(
        source=table.file,
        x=x,
        y=y,
        class_names=classes,
        parts=parts,
        prepare=prepare,
        remarks=odd + remarks,
        task=find("survival") if survival else None,
        **tables.people((names, site), patients, parts, table.where),
    )


def _read(request: Request) -> tuple[Table, dict[str, str]]:
    """The rows of all files, and the columns by what they are."""
    named, place = request.columns, request.own_folder
    files, of_target = listed_files(place), tables.names_of(request)
    wanted = [name.lower() for name in of_target.values()]
    if request.preprocessing is not None:
        wanted += [feature["column"] for feature in request.preprocessing["features"]]
    try:
        table = read_files(files, wanted, place)
    except DataError as error:
        if "needed are the columns" not in str(error):
            raise
        keys = ", ".join(f"data.columns.{role}" for role in of_target if " " not in role)
        raise DataError(f"{error}; {keys} {'say' if ',' in keys else 'says'} which") from None
    roles = {role: role for role in USUAL if role in table.columns}
    for role, name in {**named, **of_target}.items():
        roles[role] = _column(table, name, f"data.columns.{role}")
    twice = [role for role, name in roles.items() if list(roles.values()).count(name) > 1]
    if twice:
        raise ConfigError(
            f"data.columns: {roles[twice[0]]!r} is {' and '.join(twice)}, one column can be one"
        )
    if "" in table.columns:
        place_of = list(table.columns).index("") + 1
        raise DataError(f"{table.file}: column {place_of} of the header has no name")
    if table.files and "site" not in roles:
        names = [file.stem for file in files]
        if several := [name for name in names if names.count(name) > 1]:
            raise ConfigError(
                f"data.dir {place}: two files are called {several[0]!r}, and each is a site; name "
                "a column of sites in data.columns.site"
            )
        table = table.with_column(OF_FILE, [file.stem for file in table.files])
        roles["site"] = OF_FILE
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
    """By feature the category without a column; None where each has one; NUMBERS."""
    chosen, taken = [_column(table, c, "csv.features") for c in listed(features)], roles.values()
    for name in chosen:
        if [*chosen, *taken].count(name) > 1:
            raise ConfigError(f"csv.features: {name!r} is given twice, here or in data.columns")
    chosen = chosen or [name for name in table.columns if name not in taken]
    if not chosen:
        raise DataError(f"{table.file}: no column is left as a feature")
    kinds: dict[str, str | None] = dict.fromkeys(chosen, NUMBERS)
    for cell in listed(categorical):
        whole = cell.lower() in table.columns or "=" not in cell
        name, _, category = (cell, "", "") if whole else cell.rpartition("=")
        name = _column(table, name.strip(), "csv.categorical")
        if kinds.get(name) != NUMBERS:
            raise ConfigError(f"csv.categorical: {name!r} is no feature, or is given twice")
        kinds[name] = None if whole else level(category.strip())
    return kinds


def _settled(
    table: Table, column: str, kind: str | None, missing: str, own: bool
) -> dict[str, object]:
    """A feature as :func:`fedsim.data.table_features.encoded` takes it, once its cells are checked;
    ``own``: a missing category is one."""
    if kind == NUMBERS:
        if missing == "refuse":
            how = "the value is missing ({}); csv.missing says what to do: drop, mean or median"
            table.cells(column, present, how)
        odd = (
            "{} is no finite number; name the column in csv.categorical if it holds categories, or "
            "leave it out of csv.features"
        )
        table.cells(column, lambda cell: not present(cell) or number(cell) is not None, odd)
        return {"column": column}
    if not own:
        how = "the category is missing ({}); fill it in, csv.missing_categories=own, or csv.missing"
        table.cells(column, present, f"{how}=drop")
    levels = tables.ordered({level(cell) for cell in table.columns[column] if present(cell)})
    if kind is not None and kind not in levels:
        raise ConfigError(
            f"csv.categorical: {column}={kind} given, but no row has it; values are "
            f"{', '.join(levels[:20])}"
        )
    left_out = {} if kind is None else {"reference": kind}
    levels += [] if all(map(present, table.columns[column])) else [NO_CATEGORY]
    return {"column": column, "categories": [name for name in levels if name != kind], **left_out}


def _codes(table: Table, kinds: Mapping[str, str | None], missing: str) -> tuple[str, ...]:
    """A remark on columns of numbers with gaps that may hold codes of categories."""
    if missing not in ("mean", "median"):
        return ()
    columns = []
    for name in (name for name, kind in kinds.items() if kind == NUMBERS):
        values = {level(cell) for cell in table.columns[name] if present(cell)}
        whole = all((number(value) or 0.0).is_integer() for value in values)
        if whole and 2 < len(values) <= _CODES and not all(map(present, table.columns[name])):
            columns.append(f"{name} ({', '.join(tables.ordered(values))})")
    remark = (
        f"csv.missing={missing} fills columns of few whole numbers: {'; '.join(columns)}; where "
        "these are codes, name the column in csv.categorical"
    )
    return (remark,) if columns else ()


def _sites(table: Table, column: str, parts: Parts | None) -> tuple[tuple[str, ...], I64]:
    """The names of the sites, and that of each row; rows of common parts need none."""
    needed = np.ones(len(table), bool) if parts is None else np.isin(parts, (TRAIN, OWN_TEST))
    names = [cell if present(cell) else NO_SITE for cell in table.columns[column]]
    for row in np.flatnonzero(needed).tolist():
        if names[row] == NO_SITE:
            raise DataError(f"{table.where(row)}, column {column}: the site is missing")
    return tables.coded(names, table.where, column)


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """The features of all rows, once it is known which of these are for training."""

    file: Path  # for messages
    x: F64  # (n, d) NaN where a value is missing
    sites: Sequence[str]  # (n,) the names of the rows' sites, "" for none
    settings: Mapping[str, Any]  # what a run keeps beside the numbers of `record`

    def __call__(self, training: I64, /) -> Array:
        """(n, d) float32: without gaps and scaled, by the numbers of the training rows."""
        known = self.record(training)
        sites = [site if site in known["sites"] else "" for site in self.sites]
        features: Array = table_features.prepared(self.x, sites, known)
        return features

    def record(self, training: I64, /) -> dict[str, Any]:
        """What new rows are prepared by: ``settings``, and the numbers of all training rows and of
        those of each site."""
        scaling, missing = self.settings["scaling"], self.settings["missing"]
        train, gaps = np.isin(np.arange(len(self.x)), training), np.isnan(self.x)
        if not train.any() and (scaling != "none" or gaps.any()):
            key = f"missing={missing}" if scaling == "none" else f"scaling={scaling}"
            raise DataError(
                f"{self.file}: csv.{key} needs training rows; a column split has to mark them "
                "(train)"
            )
        rows = {"": list(range(len(self.x)))}
        if scaling == "site" or missing in ("mean", "median"):
            rows = rows_by_site(self.sites) | rows
        own = {site: np.array(rows[site]) for site in sorted(rows)}  # "" first
        x, numbers = self.x.copy(), {site: dict.fromkeys(_NUMBERS) for site in own}
        if missing in ("mean", "median") and train.any():
            for site, index in own.items():
                fill = self._fill(index[train[index]], numbers[""]["fill"])
                numbers[site]["fill"] = fill.tolist()
                x[index] = np.where(gaps[index], fill, self.x[index])
        of_all = _statistics(x[train]) if scaling != "none" else {}
        for site, index in own.items():
            local = scaling == "site" and site and train[index].any()
            numbers[site] |= _statistics(x[index[train[index]]]) if local else of_all
        return {**self.settings, "all": numbers.pop(""), "sites": numbers}

    def _fill(self, training: I64, default: Sequence[float] | None) -> F64:
        """(d,) the mean or median of those training rows that have a value, else the default."""
        centre = np.mean if self.settings["missing"] == "mean" else np.median
        fill = np.full(self.x.shape[1], np.nan) if default is None else np.array(default)
        for column, cells in enumerate(self.x[training].T):
            if len(there := cells[~np.isnan(cells)]):
                fill[column] = centre(there)
        if np.isnan(fill).any():
            names = [name for f in self.settings["features"] for name in table_features.inputs(f)]
            empty = names[int(np.isnan(fill).argmax())]
            raise DataError(f"{self.file}: no training row has a value in column {empty}")
        return fill


_NUMBERS = ("fill", "mean", "scale")
"""What is known of each input by site, None where it is not needed."""


def _statistics(training: F64) -> dict[str, list[float]]:
    """What ``(x - mean) / (sd + 1e-9)`` takes; a column that is constant is not divided."""
    sd = training.std(axis=0, ddof=1) if len(training) > 1 else np.zeros(training.shape[1])
    constant = np.ptp(training, axis=0) == 0
    scale = np.where(constant, 1.0, sd + 1e-9)
    return {"mean": training.mean(axis=0).tolist(), "scale": scale.tolist()}


DATASETS = (
    DatasetInfo(
        "csv", "tables of numbers and categories, for classes or another task", read_csv,
        default_model="logistic", needs_folder=True, prepared=True,
        columns=(*USUAL, *tables.SURVIVAL),
        source="a CSV file with a header, or several, as -d csv:FILE, csv:FILE,FILE or csv:DIR",
    ),
)  # fmt: skip
