"""Tables in CSV files that users wrote, read by the rules of CSV."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsim.core.errors import DataError, nearest
from fedsim.core.types import I64

SEPARATORS = (",", ";", "\t")
"""What may stand between the values of a CSV file; Excel writes semicolons in many countries."""


class TableRow(NamedTuple):
    """One row of a CSV file: values by column name, and "file, row n" for messages."""

    values: Mapping[str, str]
    where: str


@dataclass(frozen=True)
class Table:
    """The cells of a CSV file with a header, as stripped texts, by the name of the column in small
    letters, and the numbers of the rows as an editor shows them; of several files also the file of
    each row.
    """

    file: Path
    columns: Mapping[str, Sequence[str]]
    numbers: Sequence[int]
    files: Sequence[Path] = ()

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[TableRow]:
        for i, cells in enumerate(zip(*self.columns.values(), strict=True)):
            yield TableRow(dict(zip(self.columns, cells, strict=True)), self.where(i))

    def where(self, row: int) -> str:
        """What messages about a row, which counts from 0 here, begin with."""
        return f"{self.files[row] if self.files else self.file}, row {self.numbers[row]}"

    def line(self, row: int) -> str:
        """The number of a row, with its file where there are several."""
        return f"{self.numbers[row]}{f' of {self.files[row].name}' if self.files else ''}"

    def whole(self, column: str, empty: int | None = None) -> I64:
        """(n,) the whole numbers of a column; an empty cell is ``empty``, where that is given."""
        pairs = zip(self.columns[column], range(len(self)), strict=True)
        values = [
            empty
            if empty is not None and not text
            else whole_number(text, f"{self.where(row)}: {column}")
            for text, row in pairs
        ]
        return np.array(values, np.int64)

    def cells(self, column: str, allowed: Callable[[str], bool], message: str) -> Sequence[str]:
        """The cells of a column; the message names the first that is not allowed for ``{}``."""
        for row, cell in enumerate(self.columns[column]):
            if not allowed(cell):
                why = message.replace("{}", repr(cell))
                raise DataError(f"{self.where(row)}, column {column}: {why}")
        return self.columns[column]

    def rows(self, kept: Sequence[int]) -> "Table":
        """The table of some of its rows."""
        columns = {name: [cells[i] for i in kept] for name, cells in self.columns.items()}
        files = [self.files[i] for i in kept] if self.files else ()
        return Table(self.file, columns, [self.numbers[i] for i in kept], files)

    def with_column(self, name: str, cells: Sequence[str]) -> "Table":
        """The table with one more column."""
        return replace(self, columns={**self.columns, name: cells})


def joined(tables: Sequence[Table], source: Path) -> Table:
    """The rows of several files one after the other; a DataError where their columns differ."""
    first = tables[0]
    for table in tables:
        for one, other in ((first, table), (table, first)):
            for name in one.columns:
                if name not in other.columns:
                    near = nearest(name, set(other.columns).difference(one.columns))
                    raise DataError(
                        f"{other.file}: there is no column {name!r}, as in {one.file}{near}"
                    )
    return Table(
        source,
        {name: [c for table in tables for c in table.columns[name]] for name in first.columns},
        [number for table in tables for number in table.numbers],
        [table.file for table in tables for _ in range(len(table))],
    )


def whole_number(text: str, where: str) -> int:
    """``text`` as an integer ("3.0" is one, as in the published label files), or a DataError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.5
    if not value.is_integer() or abs(value) >= 2**53:
        raise DataError(f"{where} {text!r} is not a whole number")
    return int(value)


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Row number (from 1) and stripped text of all lines that are not blank."""
    lines = enumerate(_text(path).split("\n"), 1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Number of the last line and stripped values of the rows of a CSV file that are not blank."""
    return _records(path, _text(path), SEPARATORS[0])


def read_table(
    path: Path, required: Sequence[str], aliases: Mapping[str, str] | None = None
) -> Table:
    """A CSV file with a header; columns may stand under aliases; commas, semicolons or tabs."""
    text, twice = _text(path), ""
    for separator in SEPARATORS:
        parsed = _records(path, text, separator)
        try:
            _, first = next(parsed, (0, []))
        except DataError:  # values in quotes with another separator between
            continue
        names = [name.lower() for name in first]
        renamed = {name: new for name, new in (aliases or {}).items() if new not in names}
        header = [renamed.get(name, name) for name in names]
        if set(required) <= set(header):
            several = [name for name in header if header.count(name) > 1]
            if not several:
                break
            twice = f"; {several[0]!r} is given twice"
    else:
        line = text.strip().partition("\n")[0].strip()
        raise DataError(
            f"{path}: the header is {line}, needed are the columns {', '.join(required)}, "
            f"each once, separated by commas, semicolons or tabs{twice}"
        )
    rows = list(parsed)
    for number, values in rows:
        if len(values) != len(header):
            raise DataError(
                f"{path}, row {number}: {len(values)} values, the header has {len(header)}"
            )
    if not rows:
        raise DataError(f"{path}: no rows below the header")
    numbers, cells = zip(*rows, strict=True)
    return Table(path, dict(zip(header, zip(*cells, strict=True), strict=True)), numbers)


def _text(path: Path) -> str:
    """The content of a text file, with "\\n" at line ends."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        hint = "; a spreadsheet saves one as 'CSV UTF-8'" if path.suffix.lower() == ".csv" else ""
        raise DataError(f"{path}: not a readable UTF-8 text file ({error}){hint}") from error
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    return text


def _records(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    lines = (f"{line}\n" for line in text.split("\n"))
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
    begin = 1
    try:
        for values in reader:
            if any(value.strip() for value in values) or len(values) > 1:
                yield reader.line_num, [value.strip() for value in values]
            begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, row {begin}: a quote is not closed ({error})") from None
