"""Digests of the tables that grow: whether the rows before a checkpoint are still what was written.

A checkpoint holds the SHA-256 of the first bytes of each table with results. A run is resumed only
if they are the same: else it would go on from results that nobody computed. Every byte is hashed
once, when it is written, so that a round costs the same however many came before.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsim.core import files
from fedsim.core.errors import DataError

BLOCK = 1 << 20
"""Bytes that are read at a time."""


class TableDigest:
    """The digest of a table's content, continued with every row."""

    def __init__(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()

    def add_file(self, path: Path) -> None:
        """Takes in what a table has already."""
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                self.add(block)

    def add(self, data: bytes) -> None:
        """Takes in what was appended to the table."""
        self._sha256.update(data)
        self.size += len(data)

    def record(self) -> dict[str, Any]:
        """Size and digest so far, for the record of a checkpoint."""
        return {"size": self.size, "sha256": self._sha256.hexdigest()}


def changed(run: Path, digests: Mapping[str, Mapping[str, Any]]) -> Iterator[Path]:
    """The tables of a run whose first bytes are not those that were written.

    Args:
        run: the run directory.
        digests: by table what :meth:`TableDigest.record` gave.

    Raises:
        StoreError: a table cannot be read.
    """
    for table, entry in digests.items():
        with files.reading(run / f"{table}.csv") as path:
            if _sha256(path, entry["size"]) != entry["sha256"]:
                yield path


def check(run: Path, folder: Path, digests: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuses tables whose first bytes are not those that were written.

    Args:
        run: the run directory.
        folder: of the checkpoints.
        digests: as for :func:`changed`.

    Raises:
        DataError: a row was changed; names the file.
        StoreError: a table cannot be read.
    """
    for path in changed(run, digests):
        raise DataError(
            f"{path}: not what fedsim wrote; put that back, since a run does not go on from "
            f"changed results, or remove {folder} to start again from round 1"
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
