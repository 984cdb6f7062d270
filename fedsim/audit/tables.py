"""Rows of a run's tables as they were written, beside those of rounds that are done again."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from fedsim.core.rows import TABLES, Row
from fedsim.storage import tables
from fedsim.storage.run_dir import DIAGNOSTIC, GROWING
from fedsim.storage.tables import Cells, cell
from fedsim.training.rows import RoundLog

COMPARED = tuple(table for table in GROWING if table not in DIAGNOSTIC)
"""The tables whose rows are compared."""
Recorded = Mapping[str, Mapping[int, list[tuple[int, Cells]]]]
"""By table and round the line and the cells of each row of a run; tables that are there."""
TOLERANCE, OF_A_SCORE = 0.02, 0.03
"""On another processor: the most by which a number may differ, relative to its size, and a score,
since a few samples are predicted in another way."""
SCORES = (
    *("accuracy", "macro_f1", "auc", "ece", "success_rate", "conflict_ratio", "cosine", "share"),
    *("shift_loss", "aggregation_loss", "_spread", "value"),
)
"""Ends of the columns of scores, and of what may cancel to almost nothing."""
EXCLUDED = ("classes", "confusion")
"""Tables whose scores of single classes a few other predictions change too much to compare."""


class Difference(Exception):
    """A place where a run is not what its settings give: file, and of a table row and column."""

    def __init__(self, place: str, recorded: str, expected: str = "") -> None:
        super().__init__(f"{place}: {recorded}" + (expected and f", not {expected}"))
        self.place = place


def recorded(run: Path) -> dict[str, dict[int, list[tuple[int, Cells]]]]:
    """The rows of a run; a line that is still being written does not count."""
    rows_of: dict[str, dict[int, list[tuple[int, Cells]]]] = {}
    for path in (run / f"{table}.csv" for table in COMPARED):
        if not path.exists():
            continue
        by_round: dict[int, list[tuple[int, Cells]]] = rows_of.setdefault(path.stem, {})
        of_table = TABLES[path.stem]
        columns, optional = of_table.columns(), of_table.optional()
        try:
            rows = tables.read(path)
            header = [*(rows[0] if rows else columns)]
            known = [c for c in columns if c not in optional or c in header]
            further = header[len(known) :] if of_table.measured() else []
            if header != [*known, *further]:
                raise ValueError("its columns are not those that fedsim writes")
            for line, row in enumerate(rows, 2):
                by_round.setdefault(int(row["round"]), []).append((line, row))
        except (ValueError, csv.Error) as error:
            raise Difference(path.name, str(error)) from error
    return rows_of


@dataclass(kw_only=True)
class Comparison:
    """Compares the rows of rounds that are done again, and counts.

    Every cell must be the same, byte for byte, unless ``others`` says that processor or versions
    are not those of the run.
    """

    others: str = ""
    rows: int = 0
    models: int = 0  # whose SHA-256 is that of models.csv
    cells: int = 0
    equal: int = 0  # of the cells
    largest: float = 0.0  # difference of numbers that was tolerated, relative to their size
    scores: float = 0.0  # the same of scores

    def compare(self, run: Recorded, log: RoundLog) -> None:
        """The rows of a round, cell by cell."""
        for table in COMPARED:
            rows, there = log.tables.get(table, []), run.get(table)
            if there is None and rows:
                raise Difference(f"{table}.csv", "is missing")
            if there is None or (self.others and table in EXCLUDED):
                continue
            for row, entry in zip_longest(rows, there.get(log.round, ())):
                if entry is None:
                    raise Difference(f"{table}.csv, round {log.round}", "a row is missing")
                line, cells = entry
                place = f"{table}.csv, line {line}, round {log.round}"
                if row is None:
                    raise Difference(place, "there is a row too many")
                self.compare_row(place, cells, row)
                self.models += table == "models" and cells["sha256"] == row["sha256"]
                self.rows += 1

    def compare_row(self, place: str, cells: Cells, row: Row) -> None:
        """The cells of a row by column with what the round gives."""
        for column in dict.fromkeys((*row, *cells)):
            written, expected = cells.get(column, ""), cell(row.get(column))
            self.cells += column in cells or expected != ""
            if written == expected:
                self.equal += column in cells
            elif not (self.others and (column == "sha256" or self._tolerated(column, cells, row))):
                raise Difference(
                    f"{place}, column {column}", written or "empty", expected or "empty"
                )

    def _tolerated(self, column: str, cells: Cells, row: Row) -> bool:
        """Whether rounding explains two numbers; counts are the same on every processor."""
        if not isinstance(row[column], float | np.floating) or not cells.get(column):
            return False
        apart, size = abs(float(cells[column]) - row[column]), abs(float(row[column]))
        if column.endswith(SCORES) or column in row.further:
            self.scores = max(self.scores, apart)
            return bool(apart <= OF_A_SCORE * max(1.0, size))
        self.largest = max(self.largest, apart / size if size else math.inf)
        return bool(apart <= TOLERANCE * size)


def is_close(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether two tensors of one kind of number differ as on two processors."""
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, two))
    size, apart = (float(np.linalg.norm(a.astype(np.float64))) for a in (one, one - two))
    return apart <= 1e-3 * size + 1e-4 * math.sqrt(one.size)


def is_rounded(text: str, expected: str) -> bool:
    """Whether two cells, computed from the same rows, are the same but for the last digits."""
    try:
        return text == expected or math.isclose(
            float(text), float(expected), rel_tol=1e-9, abs_tol=1e-9
        )
    except ValueError:
        return False
