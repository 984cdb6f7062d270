"""Tables in CSV files: users' are read by the rules of CSV, and texts are written so that no
spreadsheet computes them."""

import csv
import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fedsim.core.errors import DataError

logger = logging.getLogger("fedsim")

_FORMULA = ("=", "+", "-", "@", "\t")


def csv_safe(text: str) -> str:
    """A text for a CSV cell, after an apostrophe where a spreadsheet would run it as a formula.

    Numbers stay as they are; a carriage return, which would end the row, is a blank.
    :func:`csv_plain` is the inverse.
    """
    text = text.replace("\r", " ")
    if text[:1] not in ("'", *_FORMULA) or not text.lstrip("'").startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def csv_plain(text: str) -> str:
    """The text that :func:`csv_safe` was given."""
    return text[1:] if text.startswith("'") and csv_safe(text[1:]) == text else text


SEPARATORS = (",", ";", "\t")
"""What may stand between the values of a CSV file; Excel writes semicolons in many countries."""


class TableRow(NamedTuple):
    """One row of a CSV file: values by column name, and "file, row n" for messages."""

    values: Mapping[str, str]
    where: str


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Row number (from 1) and stripped text of all lines that are not blank.

    Raises:
        DataError: missing, not readable, not UTF-8, with a NUL character, or without any line.
    """
    lines = enumerate(_text(path).split("\n"), 1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Row number and stripped values of the rows of a CSV file that are not blank.

    A value in quotes may hold separators and line breaks. Numbers are those of lines, from 1; that
    of a row is its last line's.

    Raises:
        DataError: as :func:`read_lines`, a value of more than 131,072 characters, a quote that is
            not closed.
    """
    return _records(path, _text(path), SEPARATORS[0])


def read_table(
    path: Path, required: Sequence[str], aliases: Mapping[str, str] | None = None
) -> list[TableRow]:
    """The rows of a CSV file with a header; values are stripped.

    Values are separated by commas, or by semicolons or tabs where the header has its columns so.

    Args:
        path: the file.
        required: columns that must be there.
        aliases: other names that a header may use, by the name that stands for them here. They
            are columns of no meaning beside a column of that name.

    Raises:
        DataError: as :func:`records`, a missing column, a column given twice, a row of another
            length.
    """
    text, twice = _text(path), ""
    for separator in SEPARATORS:
        parsed = _records(path, text, separator)
        _, first = next(parsed)
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
    rows = []
    for number, values in parsed:
        place = f"{path}, row {number}"
        if len(values) != len(header):
            raise DataError(f"{place}: {len(values)} values, the header has {len(header)}")
        rows.append(TableRow(dict(zip(header, values, strict=True)), place))
    if not rows:
        raise DataError(f"{path}: no rows below the header")
    return rows


def _text(path: Path) -> str:
    """The content of a text file, with "\\n" at line ends; errors as :func:`read_lines`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        hint = "; a spreadsheet saves one as 'CSV UTF-8'" if path.suffix.lower() == ".csv" else ""
        raise DataError(f"{path}: not a readable UTF-8 text file ({error}){hint}") from error
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    before, nul, _ = text.partition(_END)
    if nul:
        number = before.count("\n") + 1
        raise DataError(f"{path}, row {number}: holds a NUL character")
    return text


_END = "\0"
"""In no text; as the last line of CSV it is a row of its own, unless a quote is open before it."""


def _records(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    lines = text.split("\n")
    reader = csv.reader(
        chain((f"{line}\n" for line in lines), [_END]), delimiter=separator, skipinitialspace=True
    )
    begin = 0
    try:
        for values in reader:
            end = reader.line_num
            if values == [_END]:
                return
            if end > len(lines):
                raise DataError(f"{path}, row {begin + 1}: a quote is not closed")
            if any(line.strip() for line in lines[begin:end]):
                yield end, [value.strip() for value in values]
            begin = end
    except csv.Error:
        raise DataError(
            f"{path}, row {begin + 1}: a cell has more than {csv.field_size_limit():,} characters; "
            "is a quote not closed?"
        ) from None
