"""Accuracies per method over seeds, from summary.csv: Markdown, CSV or LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import style
from analysis.runs import RESULTS, Group

_HEADS = ("Final", "Best", "Last 10")


def summarise(groups: Sequence[Group]) -> pd.DataFrame:
    """A row per group: method, seeds, and mean and std (ddof 1, empty for one seed) of RESULTS.

    Returns:
        Columns method, seeds, <result>_mean, <result>_std; accuracies in 0..1.
    """
    rows: list[dict[str, object]] = []
    for group in groups:
        row: dict[str, object] = {"method": style.title(group.label), "seeds": len(group.runs)}
        for result in RESULTS:
            row[f"{result}_mean"] = group.runs[result].mean()
            row[f"{result}_std"] = group.runs[result].std(ddof=1)
        rows.append(row)
    return pd.DataFrame(rows)


def csv(table: pd.DataFrame) -> str:
    """The table of :func:`summarise` at full precision."""
    return table.to_csv(index=False, lineterminator="\n")


def markdown(table: pd.DataFrame) -> str:
    """Per cent, mean ± std over seeds, the largest mean of a column in bold."""
    cells = _cells(table, "{:.2f}", " ± {:.2f}", "**{}**")
    heads = ["Method", "Seeds", *(f"{head} (%)" for head in _HEADS)]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(table: pd.DataFrame) -> str:
    r"""The same as a booktabs tabular; needs ``\usepackage{booktabs}``."""
    cells = _cells(table, "{:.2f}", r" $\pm$ {:.2f}", r"\textbf{{{}}}")
    heads = ["Method", "Seeds", *(rf"{head} (\%)" for head in _HEADS)]
    rows = [[_escape(line[0]), *line[1:]] for line in cells]
    body = [" & ".join(line) + r" \\" for line in rows]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"\toprule",
            " & ".join(heads) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


FORMATS = {".md": markdown, ".csv": csv, ".tex": latex}
"""The writer for each suffix."""


def _cells(table: pd.DataFrame, mean: str, std: str, bold: str) -> list[list[str]]:
    columns: list[list[str]] = [table["method"].tolist(), [str(n) for n in table["seeds"]]]
    for result in RESULTS:
        means = [mean.format(100 * value) for value in table[f"{result}_mean"]]
        best = max(means, key=float)
        columns.append(
            [
                (bold.format(text) if text == best and len(means) > 1 else text)
                + ("" if pd.isna(spread) else std.format(100 * spread))
                for text, spread in zip(means, table[f"{result}_std"], strict=True)
            ]
        )
    return [list(row) for row in zip(*columns, strict=True)]


def _escape(text: str) -> str:
    for special in "&%$#_{}":
        text = text.replace(special, rf"\{special}")
    return text
