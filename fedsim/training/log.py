"""The rows that a round adds to the tables, before they go to the run directory."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fedsim.core.rows import ErrorRow, Row, TimingRow
from fedsim.engine.base import Incident


@dataclass
class RoundLog:
    """The rows that a round adds to the tables; ``round`` counts from 1."""

    round: int
    tables: dict[str, list[Row]] = field(default_factory=dict)

    def add(self, *rows: Row) -> None:
        """Adds rows to their tables."""
        for row in rows:
            self.tables.setdefault(row.table, []).append(row)

    def begin(self, table: type[Row]) -> None:
        """Has the table's file written, header alone, even if it gets no rows."""
        self.tables.setdefault(table.table, [])

    def error(self, client_id: int | None, error: str, *, attempt: int, node: str = "") -> None:
        """Adds a row of errors.csv."""
        row = ErrorRow(
            round=self.round, client_id=client_id, attempt=attempt, node=node, error=error
        )
        self.add(row)

    def incidents(self, lost: Iterable[Incident]) -> None:
        """Adds a row of errors.csv for each piece of work that an executor lost."""
        for i in lost:
            self.error(i.client_id, i.error, attempt=i.attempt, node=i.node)

    @contextmanager
    def timed(self, phase: str) -> Iterator[dict[str, int]]:
        """Times a phase; the block may set ``bytes``."""
        begun, extra = time.perf_counter(), {"bytes": 0}
        yield extra
        seconds = time.perf_counter() - begun
        self.add(TimingRow(round=self.round, phase=phase, seconds=seconds, **extra))
