"""Rows of a run's tables as they were written, beside those of rounds that are done again."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path

from fedsim.audit.rounding import Rounding
from fedsim.core.rows import TABLES, Row
from fedsim.core.types import Vector
from fedsim.storage.run_dir import DIAGNOSTIC, GROWING, cell
from fedsim.training.round import model_sha256
from fedsim.training.rows import RoundLog

SHA256 = re.compile("[0-9a-f]{64}")
LONGEST = 2**20
"""Characters of a line of a table."""
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

    def of_round(self, number: int) -> Mapping[str, str]:
        """The cells of the first row of a round, by column; none where there is none."""
        rows = self.rows.get(number, ())
        return dict(zip(self.header, rows[0][1], strict=False)) if rows else {}

    def names_model(self, rounds: int, params: Vector) -> bool:
        """Of models.csv: whether a model is the one that it names after so many rounds, if any."""
        return all(cells[1] == model_sha256(params) for _, cells in self.rows.get(rounds, ()))


@dataclass(kw_only=True)
class Comparison:
    """Compares the rows of rounds that are done again, and counts.

    Args:
        rows: how many rows of tables were compared.
        models: how many models have the SHA-256 that models.csv names.
        others: processor or versions that are not those of the run, else empty. Numbers may then
            differ as :class:`~fedsim.audit.rounding.Rounding` allows.
        cells: how many cells were compared.
        equal: how many of them are the same, byte for byte.
        largest: difference of two numbers that was tolerated, relative to the larger one.
        flips: the most predictions of a row that were tolerated to be others.
        supports: by part, ``val`` and ``test``, the number of samples of each class that has any.
    """

    rows: int = 0
    models: int = 0
    others: str = ""
    cells: int = 0
    equal: int = 0
    largest: float = 0.0
    flips: int = 0
    supports: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def compare(self, tables: Mapping[str, Recorded], log: RoundLog) -> None:
        """The rows of a round, cell by cell.

        Raises:
            Difference: the first one.
        """
        losses = tables.get("rounds", Recorded()).of_round(log.round)
        rounding = Rounding(log, losses, self.supports) if self.others else None
        for table, recorded in tables.items():
            rows = log.tables.get(table, [])
            if not recorded.header:
                if rows:
                    raise Difference(f"{table}.csv", "is missing")
                continue
            if table == "confusion" and rounding is not None:
                self._compare_counts(rows, recorded, log.round, rounding)
                continue
            for row, own in zip_longest(rows, recorded.rows.get(log.round, ())):
                if own is None:
                    raise Difference(f"{table}.csv, round {log.round}", "a row is missing")
                line, cells = own
                place = f"{table}.csv, line {line}, round {log.round}"
                if row is None:
                    raise Difference(place, "there is a row too many")
                if len(cells) != len(recorded.header):
                    raise Difference(place, f"not {len(recorded.header)} fields as in the header")
                by_column = dict(zip(recorded.header, cells, strict=True))
                self.compare_row(place, table, by_column, row, rounding)
                self.models += table == "models" and by_column["sha256"] == row["sha256"]
                self.rows += 1

    def compare_row(
        self,
        place: str,
        table: str,
        cells: Mapping[str, str],
        row: Row,
        rounding: Rounding | None,
    ) -> None:
        """The cells of a row by column with what the round gives."""
        for column in row.columns():
            if column not in cells and (row[column] is not None or column not in row.optional()):
                raise Difference(place, f"there is no column {column!r}")
        for column, text in cells.items():
            if column not in row.columns():
                raise Difference(place, f"fedsim writes no column {column!r}")
            expected = cell(row[column])
            self.cells += 1
            if text == expected:
                self.equal += 1
                continue
            if column == "sha256" and rounding is not None and SHA256.fullmatch(text):
                continue  # of a model, whose numbers are compared where it is there
            most, flip = (0.0, 0.0) if rounding is None else rounding.of(table, column, cells, row)
            apart = gap(text, expected)
            if rounding is None or not apart <= most:
                raise Difference(f"{place}, column {column}", text or "empty", expected or "empty")
            if flip:
                self.flips = max(self.flips, math.ceil(apart / flip - 1e-6))
            else:
                self.largest = max(self.largest, relative(text, expected))

    def _compare_counts(
        self, rows: Sequence[Row], recorded: Recorded, number: int, rounding: Rounding
    ) -> None:
        """The counts of confusion.csv, which has no row of a count of 0."""
        ours = {(row["label"], row["prediction"]): row["count"] for row in rows}
        lines = recorded.rows.get(number, ())
        theirs = {(int(cells[1]), int(cells[2])): int(cells[3]) for _, cells in lines}
        both = sorted(ours.keys() | theirs.keys())
        moved = sum(abs(ours.get(key, 0) - theirs.get(key, 0)) for key in both)
        self.rows, self.cells = self.rows + len(both), self.cells + len(both)
        self.equal += sum(ours.get(key) == theirs.get(key) for key in both)
        total = sum(ours.values())
        if len(lines) != len(theirs) or moved > 2 * rounding.moved_of(total):
            place = f"confusion.csv, round {number}"
            raise Difference(place, f"{moved / 2:g} of {total} predictions are others")
        self.flips = max(self.flips, math.ceil(moved / 2))


def gap(text: str, expected: str) -> float:
    """The difference of the numbers in two cells; infinite where a cell holds none."""
    try:
        apart = abs(float(text) - float(expected))
    except ValueError:
        return math.inf
    return apart if math.isfinite(apart) else math.inf


def relative(text: str, expected: str) -> float:
    """The difference of the numbers in two cells, relative to the larger one."""
    apart = gap(text, expected)
    return apart / max(abs(float(text)), abs(float(expected))) if 0 < apart < math.inf else apart


def distance(text: str, expected: str) -> float:
    """The same, relative to the larger one where that is above 1."""
    apart = gap(text, expected)
    return apart / max(1.0, abs(float(text)), abs(float(expected))) if apart < math.inf else apart


def check_form(run: Path, done: int, *, finished: bool) -> None:
    """Whether each table that grows is one that fedsim writes, whatever its numbers are.

    Its rows lie in the order of the rounds. A finished run has no row of any later round, one that
    is not may have those of the next, and of a finished one all lines end.

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
        _check_header(path, header, table)
        _check_rounds(path.name, lines, table, len(header), done, finished=finished)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of each line of a table that is whole."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = iter(partial(file.readline, LONGEST), "")
        reader = csv.reader(line for line in lines if line.endswith(("\n", "\r")))
        for cells in reader:
            yield reader.line_num, cells


def _is_whole(path: Path) -> bool:
    """Whether the last line of a file has its end."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read() in (b"", b"\n")


def _check_header(path: Path, header: Sequence[str], table: str) -> None:
    columns, optional = TABLES[table].columns(), TABLES[table].optional()
    known = [c for c in columns if c not in optional or c in header]
    if list(header) != known:
        raise Difference(f"{path.name}, line 1", ",".join(header) or "empty", ",".join(known))


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
        if number < before or (single and number != before + 1):
            raise Difference(place, f"round {number} follows round {before}")
        if number > (done if finished else done + 1):
            raise Difference(place, f"round {number}, but rounds.csv ends with round {done}")
        before = number
    if finished and single and before != done:
        raise Difference(name, f"ends with round {before}, rounds.csv with round {done}")
