"""Makes docs/RESULTS.md, its tables in TABLES.md and its figures from docs/results.zip.

    python docs/study/make.py

What stands in the pages between ``<!-- table NAME -->`` or ``<!-- figure NAME -->`` and
``<!-- end -->`` follows from the tables that part 9 of PROTOCOL.md describes; the rest is prose.
Blocks of the study that the archive lacks are *not run*, so that the pages can be made at any time.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent
sys.path[:0] = [str(HERE), str(DOCS), str(DOCS.parent)]

import comparisons  # noqa: E402
import descriptions  # noqa: E402
import figures  # noqa: E402
import records  # noqa: E402
import searches  # noqa: E402
import stored  # noqa: E402
from stored import Study  # noqa: E402

PAGES = (DOCS / "RESULTS.md", HERE / "TABLES.md")
BLOCK = re.compile(r"(<!-- (table|figure) (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
TABLES: dict[str, Callable[[Study], str]] = {
    "power": comparisons.power,
    "summary": comparisons.summary,
    "headline": comparisons.family("headline"),
    "whole": comparisons.family("whole"),
    "fig2_absolute": comparisons.family("fig2 absolute"),
    "fig2_signed": comparisons.family("fig2 signed"),
    "retina": comparisons.family("retina"),
    "candidates": searches.candidates,
    "by_accuracy": searches.by_accuracy,
    "budget": searches.budget_tables,
    **descriptions.TABLES,
    **records.TABLES,
}


def rendered(text: str, of: Study) -> str:
    """The page with every table and figure as it follows from what is stored."""

    def block(match: re.Match[str]) -> str:
        begin, kind, name, end = match.groups()
        body = TABLES[name](of) if kind == "table" else figures.link(of, name)
        return f"{begin}\n{body}\n\n{end}"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    study = stored.study()
    figures.write(study)
    for page in PAGES:
        page.write_text(rendered(page.read_text(encoding="utf-8"), study), encoding="utf-8")
