"""Digests of the tables that grow: whether the rows before a checkpoint are still what was written.

A checkpoint holds the SHA-256 of the first bytes of each table with results. A run is resumed only
if they are the same: else it would go on from results that nobody computed. Every byte is hashed
once, when it is written, so that a round costs the same however many came before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsim.core import files


class TableDigest:
    """The digest of a table's content, continued with every row.

    Args:
        path: of the table, which may not be there yet.
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
            if files.sha256(path, entry["size"]) != entry["sha256"]:
                yield path
