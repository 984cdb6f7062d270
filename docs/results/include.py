"""Puts the tables of docs/results into docs/RESULTS.md, between the lines that name their files.

<!-- table FILE.md -->                 the table of a Markdown file
<!-- table FILE.md rows REGEX -->      some of its rows
<!-- differences FILE.csv COLUMN REGEX -->
                                       the paired differences of a column from a CSV file
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "RESULTS.md"
BLOCK = re.compile(r"(<!-- (table|differences) (\S+) ?(.*?) ?-->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = ("| Method | Difference | 95 % interval | p (Holm) |", "| --- | ---: | ---: | ---: |")


def table(name: str, options: str) -> list[str]:
    """The table in a Markdown file; with ``rows REGEX`` only those that match."""
    lines = [line for line in (HERE / name).read_text().splitlines() if line.startswith("|")]
    wanted = options.removeprefix("rows ")
    return lines[:2] + [line for line in lines[2:] if re.search(wanted, line)]


def differences(name: str, options: str) -> list[str]:
    """Method minus baseline over the seeds, of one column and the methods that match."""
    column, _, wanted = options.partition(" ")
    frame = pd.read_csv(HERE / name)
    frame = frame[(frame["column"] == column) & frame["difference"].notna()]
    rows = [
        f"| {r.method} | {r.difference:+.4f} | [{r.difference_low:+.4f}, {r.difference_high:+.4f}] "
        f"| {r.p_holm:.4f} |"
        for r in frame.itertuples()
        if re.search(wanted, str(r.method))
    ]
    return [*HEAD, *rows]


MAKERS = {"table": table, "differences": differences}


def included(text: str) -> str:
    """The page with every table as it is in its file."""

    def block(match: re.Match[str]) -> str:
        begin, kind, name, options, end = match.groups()
        return f"{begin}\n" + "\n".join(MAKERS[kind](name, options)) + f"\n\n{end}"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    PAGE.write_text(included(PAGE.read_text()))
