"""Rows of a run's tables as they were written, beside those of rounds that are done again."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from fedsim.audit.rounding import Rounding
from fedsim.core.rows import TABLES, Row
from fedsim.core.types import Vector
from fedsim.storage.run_dir import DIAGNOSTIC, GROWING, cell
from fedsim.training.round import model_sha256
from fedsim.training.rows import RoundLog

SHA256 = re.compile("[0-9a-f]{64}")
ROUNDING = 1e-9
"""On another processor: the most by which a number may differ, relative to its size, where it is
computed from the same rows, as in summary.csv."""
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


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of each line of a table that is whole."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(line for line in file if line.endswith(("\n", "\r")))
        for cells in reader:
            yield reader.line_num, cells


@dataclass(kw_only=True)
class Comparison:
    """Compares the rows of rounds that are done again, and counts.

    Args:
        rounding: how far numbers may be apart, where processor or versions are not those of the
            run; None: every cell must be the same, byte for byte.
        rows: how many rows of tables were compared.
        models: how many models have the SHA-256 that models.csv names.
        cells: how many cells were compared.
        equal: how many of them are the same, byte for byte.
        largest: difference of two numbers that was tolerated, relative to the larger one.
        scores: difference of two scores that was tolerated.
    """

    rounding: Rounding | None = None
    rows: int = 0
    models: int = 0
    cells: int = 0
    equal: int = 0
    largest: float = 0.0
    scores: float = 0.0

    def compare(self, tables: Mapping[str, Recorded], log: RoundLog) -> None:
        """The rows of a round, cell by cell.

        Raises:
            Difference: the first one.
        """
        for table, recorded in tables.items():
            rows = log.tables.get(table, [])
            if not recorded.header and rows:
                raise Difference(f"{table}.csv", "is missing")
            if self.rounding is not None and table in self.rounding.EXCLUDED:
                continue
            for row, entry in zip_longest(rows, recorded.rows.get(log.round, ())):
                if entry is None:
                    raise Difference(f"{table}.csv, round {log.round}", "a row is missing")
                line, cells = entry
                place = f"{table}.csv, line {line}, round {log.round}"
                if row is None:
                    raise Difference(place, "there is a row too many")
                by_column = dict(zip(recorded.header, cells, strict=False))
                self.compare_row(place, table, by_column, row)
                self.models += table == "models" and by_column["sha256"] == row["sha256"]
                self.rows += 1

    def compare_row(self, place: str, table: str, cells: Mapping[str, str], row: Row) -> None:
        """The cells of a row by column with what the round gives."""
        for column in row.columns():
            if column not in cells:
                if row[column] is not None:
                    raise Difference(place, f"there is no column {column!r}")
                continue
            recorded, expected = cells[column], cell(row[column])
            self.cells += 1
            if recorded == expected:
                self.equal += 1
                continue
            if column == "sha256" and self.rounding is not None:
                continue  # of a model, whose numbers are compared where it is there
            most = 0.0 if self.rounding is None else self.rounding.most(table, column, row)
            apart = gap(recorded, expected)
            if not 0 < apart <= most:
                place = f"{place}, column {column}"
                raise Difference(place, recorded or "empty", expected or "empty")
            if self.rounding is not None and self.rounding.is_score(column):
                self.scores = max(self.scores, apart)
            else:
                largest = max(abs(float(recorded)), abs(float(expected)))
                self.largest = max(self.largest, apart / largest)


def gap(text: str, expected: str) -> float:
    """The difference of the numbers in two cells; infinite where a cell holds none."""
    try:
        apart = abs(float(text) - float(expected))
    except ValueError:
        return math.inf
    return apart if math.isfinite(apart) else math.inf


def is_rounded(text: str, expected: str) -> bool:
    """Whether two numbers computed from the same rows differ as on another processor."""
    apart = gap(text, expected)
    return apart < math.inf and apart <= ROUNDING * max(1.0, abs(float(expected)))


def check_form(run: Path, done: int, *, finished: bool) -> None:
    """Whether each table that grows is one that fedsim writes, whatever its numbers are.

    Its rows lie in the order of the rounds, of rounds.csv and models.csv one for each. A finished
    run has no row of any later round, one that is not may have those of the next, and of a finished
    one all lines end.

    Raises:
        Difference: the first line that is not so.
    """
    for path in (run / f"{table}.csv" for table in COMPARED):
        if not path.exists():
            continue
        if finished and not _is_whole(path):
            raise Difference(path.name, "its last line has no end")
        columns, optional = TABLES[path.stem].columns(), TABLES[path.stem].optional()
        lines = _lines(path)
        _, header = next(lines, (1, []))
        expected = [c for c in columns if c not in optional or c in header]
        if header != expected:
            raise Difference(
                f"{path.name}, line 1", ",".join(header) or "empty", ",".join(expected)
            )
        single, before = path.stem in ("rounds", "models"), 0
        for line, cells in lines:
            number = int(cells[0]) if cells and re.fullmatch("[1-9][0-9]{0,8}", cells[0]) else 0
            follows = number == before + 1 if single else before <= number
            if not follows or not 1 <= number <= (done if finished else done + 1):
                place = f"{path.name}, line {line}"
                raise Difference(place, f"no row that follows round {before} of {done}")
            if len(cells) != len(header):
                raise Difference(f"{path.name}, line {line}", f"not {len(header)} fields")
            if path.stem == "models" and not SHA256.fullmatch(cells[1]):
                raise Difference(f"{path.name}, line {line}", "no SHA-256")
            before = number
        if finished and single and before != done:
            raise Difference(path.name, f"ends with round {before} of {done}")


def _is_whole(path: Path) -> bool:
    """Whether the last line of a file has its end."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read() in (b"", b"\n")
