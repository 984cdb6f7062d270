"""Rows of tables for a trained model: read, and prepared by what its run keeps for them."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.core.errors import DataError, nearest
from fedsim.core.tables import Table, joined, read_table
from fedsim.core.text import few
from fedsim.core.types import Array
from fedsim.data.table_features import BadCell, encoded, prepared, present

logger = logging.getLogger("fedsim")
OF_FILE = "(file)"
"""The column of sites where these are the names of the files, without their endings."""


def read(
    files: Sequence[Path], known: Mapping[str, Any], client: str | None
) -> tuple[Table, dict[str, Any], Array]:
    """The rows, their sites and patients where known, and their features (n, d) float32."""
    columns = [feature["column"] for feature in known["features"]]
    table = read_files(files, columns, files[0])
    if needed := needed_cells(known):
        table, remarks = complete(table, needed)
        for remark in remarks:
            logger.warning("%s: %s", files[0], remark)
    sites = sites_of(table, known, client)
    x = new_features(table, sites, known)
    if not (finite := np.isfinite(x).all(axis=1)).all():
        raise DataError(f"{table.where(int(finite.argmin()))}: a feature is not finite")
    about: dict[str, Any] = {"site": sites} if any(sites) else {}
    for role in ("site", "patient"):
        column = next((name for name in (known[role], role) if name in table.columns), None)
        if column is not None and column not in columns:
            about[role] = list(table.columns[column])
    return table, about, x


def read_files(files: Sequence[Path], needed: Sequence[str], place: Path) -> Table:
    """The rows of CSV files with the same columns; ``place`` is the folder or list of files, or the
    one file itself, whose table has no ``files``."""
    tables = [read_table(file, needed) for file in files]
    return tables[0] if [*files] == [place] else joined(tables, place)


def complete(table: Table, columns: Sequence[str]) -> tuple[Table, tuple[str, ...]]:
    """The rows without a missing value, and a remark on the others."""
    cells = zip(*(table.columns[name] for name in columns), strict=True)
    kept = [i for i, row in enumerate(cells) if all(map(present, row))]
    if not kept:
        raise DataError(f"{table.file}: csv.missing=drop leaves no row, each has a missing value")
    if len(kept) == len(table):
        return table, ()
    remark = f"{len(table) - len(kept)} of {len(table)} rows have a missing value and were left out"
    return table.rows(kept), (remark,)


def needed_cells(known: Mapping[str, Any]) -> list[str]:
    """The columns in which a model whose run left out rows with gaps needs a value."""
    if known["missing"] != "drop":
        return []
    return [f["column"] for f in known["features"] if "" not in f.get("categories", ())]


def new_features(table: Table, sites: Sequence[str], known: Mapping[str, Any]) -> Array:
    """(n, d) float32: what the model takes of the rows, by the numbers of each row's site (n,)."""
    try:
        x: Array = prepared(encoded(table.columns, known["features"]), sites, known)
    except BadCell as error:
        place = f"{table.where(error.row)}, column {error.column}"
        raise DataError(f"{place}: {error.why}") from None
    return x


def sites_of(table: Table, known: Mapping[str, Any], client: str | None = None) -> list[str]:
    """The site of each row, "" for none, as far as the model has other numbers for each: that of
    the run's column of sites, or the name of the file where that was so in the run, else that of
    the ``client``; a DataError where it is not known to the run, or needed and not known at all."""
    column, names = known["site"], known["sites"]
    if not names:
        return [""] * len(table)
    column = "site" if column == OF_FILE and "site" in table.columns else column
    listed = f"sites of the run: {few(list(names), 6)}"
    if column in table.columns:
        sites = [cell if present(cell) else "" for cell in table.columns[column]]
        for row, site in enumerate(sites):
            if site and site not in names:
                raise DataError(
                    f"{table.where(row)}, column {column}: {site!r} is no site of the run"
                    f"{nearest(site, names)}; {listed}; a row without one is prepared by the "
                    "numbers of all training rows"
                )
        return sites
    stems = [file.stem for file in table.files or [table.file] * len(table)]
    if column == OF_FILE and names.keys() >= {*stems}:
        return stems
    if client in names:
        return [str(client)] * len(table)
    numbers = [f["column"] for f in known["features"] if "categories" not in f]
    gaps = any(not present(cell) for name in numbers for cell in table.columns[name])
    if known["scaling"] == "site" or gaps:
        what = "scales the rows of each site" if known["scaling"] == "site" else "fills gaps"
        raise DataError(
            f"{table.file}: the model {what} by the numbers of their site, which is not known: add "
            f"a column {'site' if column == OF_FILE else column!r}, or give --client NAME; {listed}"
        )
    return [""] * len(table)
