"""Writes docs/TABLES.md from the rows of fedsim/storage/rows.py: ``python docs/tables.py``."""

from __future__ import annotations

import inspect
from pathlib import Path

from fedsim.storage.rows import TABLES, Row

PAGE = Path(__file__).resolve().parent / "TABLES.md"
INTRO = """# Tables

The CSV tables of a run directory and their columns, made from `fedsim/storage/rows.py` by
`python docs/tables.py`. An empty cell means "not available". Accuracies lie in 0..1; losses are
mean cross-entropies without regularisers; where every token has a label, losses and accuracies are
means over the tokens that count. All tables but `timings.csv` and `errors.csv` are the same, byte
for byte, whenever one configuration runs on one kind of device. `summary.csv` has one row:
settings, final, best and last-10 accuracy, totals.
"""


def section(table: type[Row]) -> str:
    """A table with its columns."""
    lines = [f"- `{name}`: {text}" for name, text in table.describe().items()]
    return "\n".join([f"## {table.table}.csv", "", str(inspect.getdoc(table)), "", *lines])


def page() -> str:
    """The text of docs/TABLES.md."""
    return "\n\n".join([INTRO.strip(), *map(section, TABLES.values())]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
