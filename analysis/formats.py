"""Tables of text as Markdown, LaTeX or CSV."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from analysis.layout import EMPTY, Table


def markdown(tables: Sequence[Table]) -> str:
    """Each table under its title, with its caption below."""
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    dashes = ["---"] * table.words + ["---:"] * (len(table.head) - table.words)
    lines = [table.head, dashes, *table.rows]
    body = "".join(f"| {' | '.join(_bars(cell) for cell in line)} |\n" for line in lines)
    return f"### {table.title}\n\n{body}\n{_stars(table.caption)}\n"


def latex(tables: Sequence[Table]) -> str:
    r"""A booktabs tabular each, title and caption as comments; needs ``\usepackage{booktabs}``."""
    return "\n".join(_latex(table) for table in tables)


def _latex(table: Table) -> str:
    body = [" & ".join(map(_escape, row)) + r" \\" for row in (table.head, *table.rows)]
    columns = "l" * table.words + "r" * (len(table.head) - table.words)
    lines = [
        f"% {table.title}",
        f"% {table.caption}",
        rf"\begin{{tabular}}{{{columns}}}",
        *(r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule"),
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def csv(tables: Sequence[Table]) -> str:
    """The numbers of all tables at full precision, the table's name in the first column."""
    parts = [table.data.assign(table=table.name) for table in tables]
    data = pd.concat(parts, ignore_index=True)
    columns = ["table", *(column for column in data.columns if column != "table")]
    return data[columns].to_csv(index=False, lineterminator="\n")


FORMATS: Mapping[str, Callable[[Sequence[Table]], str]] = {
    ".md": markdown,
    ".csv": csv,
    ".tex": latex,
}
"""The writer for each suffix."""


def _bars(cell: str) -> str:
    return re.sub(r" \*$", r" \\*", cell.replace("|", r"\|"))


def _stars(caption: str) -> str:
    return re.sub(r"(?<!\*)\*(?!\*)", r"\\*", caption)


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "λ": r"$\lambda$", "<": "$<$", ">": "$>$", EMPTY: "--",
} | {sign: rf"\{sign}" for sign in "&%$#_{}"}  # fmt: skip


def _escape(cell: str) -> str:
    """A cell for LaTeX: special signs, bold, code, minus signs of numbers and the star."""
    text = "".join(_LATEX.get(sign, sign) for sign in cell)
    text = re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text)
    text = re.sub(r"`(.+?)`", r"\\texttt{\1}", text)
    text = re.sub(r"(?<![\w.)])-(?=\d)", "$-$", text)
    return re.sub(r" \*$", "$^{*}$", text)
