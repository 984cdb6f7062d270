"""Rows of a run's tables as they were written, beside those of rounds that are done again."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from fedsim.core.reading import regular
from fedsim.core.types import Vector
from fedsim.storage.rows import TABLES, Row
from fedsim.storage.run_dir import DIAGNOSTIC, GROWING, cell
from fedsim.training.log import RoundLog
from fedsim.training.round import model_sha256

TOLERANCE = 0.02
"""On another kind of processor, or with other versions: the most by which a number may differ,
relative to its size where that is above 1. docs/how-to/verify.md has what was measured."""
ROUNDING = 1e-9
"""The same where a number is computed from the same rows, as in summary.csv."""
COARSE = frozenset({"models", "classes", "confusion", "evaluations"})
"""Tables that are not compared there: digests, and shares that one other prediction moves far."""
EXACT = frozenset({"round", "client_id", "num_samples"})
"""Columns that no processor changes."""
COMPARED = tuple(table for table in GROWING if table not in DIAGNOSTIC)
"""The tables whose rows are compared."""


class Difference(Exception):
    """A place where a run is not what its settings give.

    Args:
        place: file, and where it is a table row and column.
        recorded: what stands there.
        expected: what the round gives now.
    """

    def __init__(self, place: str, recorded: str, expected: str = "") -> None:
        super().__init__(f"{place}: {recorded}" + (expected and f", not {expected}"))
        self.place, self.recorded, self.expected = place, recorded, expected


@dataclass(frozen=True)
class Recorded:
    """Rows of a table as the run has them.

    Args:
        header: the columns; none where there is no such table.
        rows: by round the line number and the cells of each row.
    """

    header: Sequence[str] = ()
    rows: Mapping[int, Sequence[tuple[int, Sequence[str]]]] = field(default_factory=dict)

    @classmethod
    def read(cls, run: Path, table: str, first: int, last: int) -> Recorded:
        """The rows of rounds ``first`` to ``last``; a line that is being written does not count."""
        path = run / f"{table}.csv"
        if not path.exists():
            return cls()
        rows: dict[int, list[tuple[int, Sequence[str]]]] = {}
        lines = _lines(path)
        _, header = next(lines, (1, []))
        for line, cells in lines:
            if cells and first <= int(cells[0]) <= last:
                rows.setdefault(int(cells[0]), []).append((line, cells))
        return cls(header, rows)

    def names_model(self, rounds: int, params: Vector) -> bool:
        """Of models.csv: whether a model is the one that it names after so many rounds, if any."""
        return all(cells[1] == model_sha256(params) for _, cells in self.rows.get(rounds, ()))


@dataclass(kw_only=True)
class Comparison:
    """Compares the rows of rounds that are done again, and counts.

    Args:
        rows: how many rows of tables were compared.
        models: how many models were compared by their SHA-256.
        others: processor or versions that are not those of the run, else empty.
        largest: difference of two numbers that was tolerated, as :data:`TOLERANCE` counts it.
    """

    rows: int = 0
    models: int = 0
    others: str = ""
    largest: float = 0.0

    def compare(self, tables: Mapping[str, Recorded], log: RoundLog) -> None:
        """The rows of a round, cell by cell.

        Raises:
            Difference: the first one.
        """
        for table, recorded in tables.items():
            rows = log.tables.get(table, [])
            if not recorded.header:
                if rows and table != "models":  # which runs of earlier versions lack
                    raise Difference(f"{table}.csv", "is missing")
                continue
            if table in COARSE and self.others:
                continue
            for row, own in zip_longest(rows, recorded.rows.get(log.round, ())):
                if own is None:
                    if table == "models":  # whose first rounds an earlier version did
                        continue
                    raise Difference(f"{table}.csv, round {log.round}", "a row is missing")
                line, cells = own
                place = f"{table}.csv, line {line}, round {log.round}"
                if row is None:
                    raise Difference(place, "there is a row too many")
                if len(cells) != len(recorded.header):
                    raise Difference(place, f"not {len(recorded.header)} fields as in the header")
                self._compare_row(place, dict(zip(recorded.header, cells, strict=True)), row)
                self.models += table == "models"
                self.rows += 1

    def _compare_row(self, place: str, cells: Mapping[str, str], row: Row) -> None:
        """The cells of a row by column with what the round gives."""
        for column, text in cells.items():
            if column not in row.columns():
                raise Difference(place, f"fedsim writes no column {column!r}")
            expected = cell(row[column])
            if text in (expected, cell(row[column], safe=False)):
                continue
            tolerated = self.others and column not in EXACT
            apart = distance(text, expected) if tolerated else math.inf
            if not apart <= TOLERANCE:
                raise Difference(f"{place}, column {column}", text or "empty", expected or "empty")
            self.largest = max(self.largest, apart)


def distance(text: str, expected: str) -> float:
    """The difference of the numbers in two cells, relative to the larger one where that is above
    1; infinite where a cell holds none."""
    try:
        a, b = float(text), float(expected)
    except ValueError:
        return math.inf
    return abs(a - b) / max(1.0, abs(a), abs(b))


def check_form(run: Path, done: int, *, finished: bool) -> None:
    """Whether each table that grows is one that fedsim writes, whatever its numbers are.

    Its columns are those of today or, as an earlier version wrote it, the first of these; its rows
    lie in the order of the rounds. A finished run has no row of any later round, and all lines end.

    Raises:
        Difference: the first line that is not so.
    """
    for table in COMPARED:
        path = run / f"{table}.csv"
        if not path.exists():
            continue
        if finished and not _is_whole(path):
            raise Difference(path.name, "its last line has no end")
        lines = _lines(path)
        _, header = next(lines, (1, []))
        _check_header(path.name, header, table)
        _check_rounds(path.name, lines, table, len(header), done, finished=finished)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of each line of a table that is whole."""
    with regular(path).open(encoding="utf-8", newline="") as file:
        reader = csv.reader(line for line in file if line.endswith(("\n", "\r")))
        for cells in reader:
            yield reader.line_num, cells


def _is_whole(path: Path) -> bool:
    """Whether the last line of a file has its end."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read() in (b"", b"\n")


def _check_header(name: str, header: Sequence[str], table: str) -> None:
    columns, optional = TABLES[table].columns(), TABLES[table].optional()
    known = [c for c in columns if c not in optional or c in header]
    if not header or list(header) != known[: len(header)]:
        raise Difference(f"{name}, line 1", ",".join(header) or "empty", ",".join(known))


def _check_rounds(
    name: str,
    lines: Iterable[tuple[int, Sequence[str]]],
    table: str,
    columns: int,
    done: int,
    *,
    finished: bool,
) -> None:
    """Rounds in their order; of rounds.csv and models.csv one row each, up to the last."""
    single, before = table in ("rounds", "models"), 0
    for line, cells in lines:
        place = f"{name}, line {line}"
        text = cells[0] if cells else ""
        if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
            raise Difference(place, f"{text!r} is no number of a round")
        if len(cells) != columns:
            raise Difference(place, f"{len(cells)} fields, the header has {columns}")
        number = int(text)
        gap = single and number != before + 1 and (table == "rounds" or before > 0)
        if number < before or gap:
            raise Difference(place, f"round {number} follows round {before}")
        if finished and number > done:
            raise Difference(place, f"round {number}, but rounds.csv ends with round {done}")
        before = number
    if finished and single and before != done:
        raise Difference(name, f"ends with round {before}, rounds.csv with round {done}")
