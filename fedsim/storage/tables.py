"""The CSV tables of a run, written and read, and what its rounds come to.

LF line ends, shortest round-trip floats, empty for "not available". :func:`read` needs no pandas,
:func:`frame` gives a data frame.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.core import files
from fedsim.core.errors import StoreError, one_line
from fedsim.core.measures import Measures
from fedsim.core.types import Array

if TYPE_CHECKING:
    import pandas as pd

Cells = Mapping[str, str]
"""A row as it stands in the file, by column."""


def cell(value: Any) -> str:
    """A CSV cell: shortest text that reads back as the same number, empty for None and NaN.

    A carriage return in a text, which would end the row, is a blank.
    """
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float | np.floating):
        return "" if math.isnan(value) else repr(float(value))
    return str(value).replace("\r", " ")


def rows_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, header: bool) -> str:
    """The text of rows of a CSV file."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(columns)
    writer.writerows([cell(row[column]) for column in columns] for row in rows)
    return text.getvalue()


def csv_text(columns: Mapping[str, Array] | pd.DataFrame) -> str:
    """The text of a CSV file of whole columns, (n,) each, which are numbers or texts."""
    if isinstance(columns, Mapping):
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*map(_cells, columns.values()), strict=True))
        return text.getvalue()
    table = columns.copy()
    for name in table.select_dtypes(exclude="number"):
        table[name] = _cells(table[name].to_numpy())
    return table.to_csv(index=False, lineterminator="\n")


def _cells(column: Array) -> list[Any]:
    """A column's whole numbers as they are, everything else as :func:`cell` writes it."""
    values: list[Any] = column.tolist()
    if column.dtype.kind in "iu":
        return values
    texts = {value: cell(value) for value in dict.fromkeys(values)}  # most occur many times
    return [texts[value] for value in values]


def read(path: Path) -> list[dict[str, str]]:
    """The complete rows of a CSV file; a line that is still being written does not count.

    An OSError where it cannot be read; a ValueError or csv.Error where it is no table of UTF-8.
    """
    text = path.read_text(encoding="utf-8")
    complete = io.StringIO(text[: text.rfind("\n") + 1], newline="")
    header, *rows = list(csv.reader(complete)) or [[]]
    for line, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {line}: {len(row)} fields, the header has {len(header)}"
            )
    return [dict(zip(header, row, strict=True)) for row in rows]


def rounds(run: Path) -> list[dict[str, str]]:
    """The complete rows of a run's rounds.csv, none where there is no such file yet; see
    :func:`read`."""
    path = run / "rounds.csv"
    return read(path) if path.exists() else []


def number(text: str | None) -> float | None:
    """A CSV cell as a finite number, None where it is empty."""
    value = float(text) if text else math.nan
    return value if math.isfinite(value) else None


def frame(path: Path) -> pd.DataFrame:
    """A CSV file as a data frame; a StoreError where there is none, or it is damaged."""
    import pandas as pd  # a third of a second to import, which the first round does without

    if not path.is_file():
        tables = ", ".join(sorted(p.stem for p in path.parent.glob("*.csv")))
        raise StoreError(f"{path} does not exist; the run has {tables or 'no tables'}")
    try:  # as a whole: read in pieces, a column of numbers and names would have two types
        table = pd.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False)
    except (ValueError, OSError) as error:  # pandas' own errors are ValueErrors
        raise StoreError(f"{path}: cannot be read as a table ({one_line(error)})") from error
    return table


class TableDigest:
    """Size and SHA-256 of a table's content, continued with every row: each byte is hashed once.

    A checkpoint holds them, and a run is resumed only from results that somebody computed.
    """

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()
        with files.reading(path):
            for block in files.blocks(path) if path.exists() else ():
                self.add(block)

    def add(self, data: bytes) -> None:
        """Takes in what was appended to the table."""
        self._sha256.update(data)
        self.size += len(data)

    def record(self) -> dict[str, Any]:
        """Size and digest so far, for the record of a checkpoint."""
        return {"size": self.size, "sha256": self._sha256.hexdigest()}


def changed_tables(run: Path, digests: Mapping[str, Mapping[str, Any]]) -> Iterator[Path]:
    """The tables of a run whose first bytes are not those of :meth:`TableDigest.record`."""
    for table, entry in digests.items():
        with files.reading(run / f"{table}.csv") as path:
            if files.sha256(path, entry["size"]) != entry["sha256"]:
                yield path


def curve(rows: Sequence[Cells], column: str) -> dict[int, float]:
    """By round the values of a column of rounds.csv, without those that are empty."""
    pairs = ((int(row["round"]), number(row.get(column))) for row in rows)
    return {round: value for round, value in pairs if value is not None}


def tested(rows: Sequence[Cells], measures: Measures) -> list[Cells]:
    """The evaluated rounds."""
    return [row for row in rows if row.get(measures.column("test")) or row.get("test_loss")]


def best_row(rows: Sequence[Cells], measures: Measures) -> Cells | None:
    """The round by which a run is judged, as summary.csv has it: of the evaluated rounds the one
    with the best primary measure on the validation part or, without one, on the test part."""
    evaluated, val = tested(rows, measures), measures.column("val")
    validated = any(row.get(val) or row.get("val_loss") for row in evaluated)
    by, sign = val if validated else measures.column("test"), -1 if measures.lowest else 1
    scored = [row for row in evaluated if number(row.get(by)) is not None]
    return max(scored, key=lambda row: sign * (number(row[by]) or 0.0), default=None)


@dataclass(frozen=True)
class Outcome:
    """What the rounds of a run come to in one column: the last value, that of the best round, and
    the mean over the evaluated rounds among the last ten; None, or NaN, if not available."""

    final: float | None
    best: float | None
    last10: float | None

    @classmethod
    def of(cls, values: Mapping[Any, float], best: int | None, rounds: int) -> Outcome:
        """That of the values by evaluated round, of a run of so many rounds."""
        recent = np.array([v for round, v in values.items() if round > rounds - 10], np.float64)
        count = int((~np.isnan(recent)).sum())
        return cls(
            final=[*values.values()][-1] if values else None,
            best=None if best is None else values.get(best),
            last10=float(np.nansum(recent) / count) if count else None,
        )
