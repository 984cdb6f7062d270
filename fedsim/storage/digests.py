"""Digests of the tables that grow: whether the rows before a checkpoint are still what was written.

A checkpoint holds the SHA-256 of the first bytes of each table with results. A run is resumed only
if they are the same: else it would go on from results that nobody computed. Beside the checkpoints
``TABLE.lines`` has the CRC-32 of each line, four bytes each, which names the line that changed.
Every byte is hashed once, when it is written, and every checksum is saved once, so that a round
costs the same however many came before.
"""

from __future__ import annotations

import csv
import hashlib
import io
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.core import files
from fedsim.core.errors import DataError

BLOCK = 1 << 20
"""Bytes that are read at a time."""


class TableDigest:
    """The digest of a table's content, continued with every row.

    Args:
        name: of the table.
    """

    def __init__(self, name: str) -> None:
        self.name, self.size = name, 0
        self._sha256 = hashlib.sha256()
        self._lines = array("I")  # CRC-32 of each line
        self._saved = 0  # of these

    def add_file(self, path: Path) -> None:
        """Takes in what a table has already, a block of whole lines at a time."""
        with path.open("rb") as file:
            while lines := file.readlines(BLOCK):
                self.add(b"".join(lines))

    def add(self, data: bytes) -> None:
        """Takes in whole lines that were appended to the table."""
        self._sha256.update(data)
        self.size += len(data)
        self._lines.extend(map(zlib.crc32, data.split(b"\n")[:-1]))

    def prefix(self) -> Prefix:
        """The digest so far, as a value."""
        return Prefix(self.size, self._sha256.hexdigest(), self)

    def save_lines(self, folder: Path) -> None:
        """Writes the checksums of the lines since the last call; one thread may add meanwhile.

        Raises:
            StoreError: they cannot be written.
        """
        path, count = folder / f"{self.name}.lines", len(self._lines)
        data = np.array(self._lines[self._saved : count], "<u4").tobytes()
        if self._saved == 0:  # another process may have left some of rows that are cut off now
            files.write(path, data)
        else:
            with files.writing(path), path.open("r+b") as file:
                file.seek(4 * self._saved)
                file.write(data)
        self._saved = count


@dataclass(frozen=True)
class Prefix:
    """The first bytes of a table: how many, their SHA-256, and the table that they are of."""

    size: int
    sha256: str
    table: TableDigest = field(repr=False, compare=False)

    def record(self) -> dict[str, Any]:
        """For the record of a checkpoint."""
        return {"size": self.size, "sha256": self.sha256}


def check(run: Path, folder: Path, digests: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuses tables whose first bytes are not those that were written.

    Args:
        run: the run directory.
        folder: of the checkpoints.
        digests: by table what :meth:`Prefix.record` gave.

    Raises:
        DataError: a row was changed; names file and line.
        StoreError: a table cannot be read.
    """
    for table, entry in digests.items():
        with files.reading(run / f"{table}.csv") as path:
            if _sha256(path, entry["size"]) != entry["sha256"]:
                line = first_changed(path, folder / f"{table}.lines")
                raise DataError(
                    f"{path}{'' if line is None else f', line {line}'}: not what fedsim wrote; put "
                    "that back, since a run does not go on from changed results, or remove "
                    f"{folder} to start again from round 1"
                )


def check_form(path: Path, size: int, columns: Sequence[str]) -> None:
    """Refuses the first ``size`` bytes of a table without digest if a row is no row of it.

    Rows that are missing do not matter.

    Raises:
        DataError: names file and line.
        StoreError: the table cannot be read.
    """
    with files.reading(path):
        data = path.read_bytes()[:size] if path.exists() else b""
    if len(data) < size:
        data = data[: data.rfind(b"\n") + 1]  # it lost its end, which does not matter
    misshapen = _misshapen(data, columns)
    if misshapen is not None:
        line, reason = misshapen
        raise DataError(
            f"{path}, line {line}: {reason}; put back what fedsim wrote, or remove the file, which "
            "holds no results"
        )


def _misshapen(data: bytes, columns: Sequence[str]) -> tuple[int, str] | None:
    """The first line of a table that is none of its rows, and why; None where all are."""
    text = data.decode(errors="surrogateescape")
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        header = next(rows, [])
        if header != list(columns[: len(header)]):
            return 1, f"the header is {','.join(header)!r}, expected {','.join(columns)!r}"
        for row in rows:
            if len(row) != len(header):
                return rows.line_num, f"{len(row)} fields, the header has {len(header)}"
            for column, cell in zip(header, row, strict=True):
                if column in ("round", "seconds") and not _is_number(cell):
                    return rows.line_num, f"{column} is {cell!r}, not a number"
    except csv.Error as error:
        return rows.line_num, f"cannot be read as CSV ({error})"
    return None if text.endswith("\n") or not text else (rows.line_num, "the row has no end")


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False


def _sha256(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size and (block := file.read(min(size, BLOCK))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def first_changed(path: Path, checksums: Path) -> int | None:
    """The number of the first line with another checksum, None where that cannot be told."""
    if not checksums.is_file():
        return None
    with path.open("rb") as file:
        for number, wanted in enumerate(np.fromfile(checksums, "<u4").tolist(), start=1):
            if zlib.crc32(file.readline().removesuffix(b"\n")) != wanted:
                return number
    return None
