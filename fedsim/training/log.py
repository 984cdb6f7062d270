"""What a round writes down, before it goes to the run directory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fedsim.storage.run_dir import Row


@dataclass
class RoundLog:
    """The rows that a round adds to the tables."""

    round: int
    tables: dict[str, list[Row]] = field(default_factory=dict)

    def add(self, table: str, **values: object) -> None:
        """Adds a row; the round is filled in."""
        self.tables.setdefault(table, []).append({"round": self.round, **values})

    @contextmanager
    def timed(self, phase: str) -> Iterator[dict[str, int]]:
        """Times a phase; the block may set ``bytes``."""
        begun, extra = time.perf_counter(), {"bytes": 0}
        yield extra
        self.add("timings", phase=phase, seconds=time.perf_counter() - begun, **extra)
