"""Tables as text: units and rows from statistics, and Markdown, LaTeX or CSV of them."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from ..files import csv_text
from ..formats import NONE, NumberFormat, p_value
from ..labels import title_of
from ..runs import order
from ..stats import Cell, Comparison, Estimate
from ..units import ExperimentalUnit
from ..words import say

COLLAPSE = "\N{DAGGER}"
"""Sign of a method with a run whose final model has collapsed."""
EMPTY = "\N{EN DASH}"
"""Shown in a cell that has no value, such as the comparison of the baseline."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text and the numbers behind it.

    Args:
        name: for files: ``accuracy_final``.
        title: a few words.
        caption: sentences that explain every number and sign in the table.
        head: names of the columns.
        rows: of as many cells; ``**x**`` is bold.
        words: number of leading columns that are text.
        data: all numbers at full precision, in the units of the run directories.
        cells: the statistics that it shows, if it is made of them.
    """

    name: str
    title: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int
    data: pd.DataFrame
    cells: Sequence[Cell] = ()


def spread(cell: Cell, unit: NumberFormat) -> str:
    """``**84.00** ± 9.94``: the mean and its interval, with the signs of :func:`signs`."""
    mean, plus, rest = unit.spread(cell.estimate).partition(" ± ")
    bold = f"**{mean}**" if cell.leads else mean
    return bold + COLLAPSE * bool(cell.collapsed) + plus + rest


def interval_head(cells: Sequence[Cell]) -> str:
    """What ± means, for the heading of a column; empty if no cell has an interval."""
    return " ± 95 % CI" * any(cell.estimate.n > 1 for cell in cells)


def detailed(
    name: str, title: str, caption: str, cells: Sequence[Cell], unit: NumberFormat, what: str
) -> Table:
    """A table with one row per cell: estimate, interval, and the comparison with the baseline.

    ``what`` heads the column of estimates.
    """
    compared = any(cell.comparison for cell in cells)
    power = any(not math.isnan(cell.detectable) for cell in cells)
    ci, tests = interval_head(cells), _test_heads(cells)
    rows = []
    for cell in cells:
        row = first_columns(cell, cells) | {
            unit.head(what) + ci: spread(cell, unit),
            unit.head("Std", True): unit.number(cell.estimate.std),
        }
        if compared:
            heads = [unit.head("Difference", True) + ci, *tests]
            row |= dict(zip(heads, _comparison(cell, unit, len(tests)), strict=True))
        if power:
            row[unit.head("Detectable", True)] = _detectable(cell, unit)
        rows.append(row)
    return of_rows(name, title, caption, rows, data(cells), words=words_of(cells), cells=cells)


def of_rows(
    name: str, title: str, caption: str, rows: Sequence[Mapping[str, str]], data: pd.DataFrame, *,
    words: int = 1, cells: Sequence[Cell] = (),
) -> Table:  # fmt: skip
    """A table of rows by their headings, which are those of the first row."""
    return Table(
        name=name, title=title, caption=caption, head=list(rows[0]) if rows else [],
        rows=[list(row.values()) for row in rows], words=words, data=data, cells=cells,
    )  # fmt: skip


def first_columns(cell: Cell, cells: Sequence[Cell]) -> dict[str, str]:
    """Method, column where a table of the cells has some, and the numbers of repetitions."""
    row = {"Method": title_of(cell.row)}
    if words_of(cells) > 1:
        row["Group"] = cell.column
    if unit_of(cells) == "seed":
        return row | {"Seeds": str(cell.estimate.n)}
    levels = cell.estimate.levels
    return row | {"Partitions": str(cell.estimate.n), "Seeds": levels.seeds if levels else NONE}


def words_of(cells: Sequence[Cell]) -> int:
    """The number of :func:`first_columns` that are text."""
    return 1 + any(cell.column for cell in cells)


def _detectable(cell: Cell, unit: NumberFormat) -> str:
    """The detectable difference, or why there is none."""
    if cell.comparison is None:
        return EMPTY
    if math.isnan(cell.detectable):
        return NONE
    few = unit.too_few(cell.comparison.difference.n, cell.detectable)
    return f"too few {cell.estimate.unit}s" if few else unit.number(cell.detectable)


def unit_of(cells: Sequence[Cell]) -> ExperimentalUnit:
    """The unit of all cells."""
    return cells[0].estimate.unit if cells else "seed"


def _test_heads(cells: Sequence[Cell]) -> list[str]:
    """The headings of what a test says of a difference."""
    bayes = any(cell.comparison and cell.comparison.chances for cell in cells)
    heads = ["P lower", "P equal", "P higher"] if bayes else ["p", "p (Holm)"]
    return [*heads, *["Verdict"] * any(cell.verdict for cell in cells)]


def _comparison(cell: Cell, unit: NumberFormat, heads: int) -> list[str]:
    """The difference, and what the test says of it, under so many headings."""
    other = cell.comparison
    if other is None:
        return [EMPTY] * (1 + heads)
    shown = [unit.spread(other.difference, "+")]
    if other.chances is not None:
        shown += [f"{chance:.3f}" for chance in other.chances]
    else:
        shown += [p_value(other.p), p_value(cell.adjusted) + cell.mark]
    shown += [cell.verdict] * bool(cell.verdict)
    return shown + [NONE] * (1 + heads - len(shown))


def with_seeds(cells: Sequence[Cell], unit: NumberFormat) -> tuple[dict[Cell, str], str]:
    """:func:`spread` of the cells with their stars, and a sentence on the number of units.

    If the numbers of units differ, each cell shows its own.
    """
    numbers = {cell.estimate.n for cell in cells}
    over = unit_of(cells)
    per = {cell.estimate.levels.seeds for cell in cells if cell.estimate.levels}
    of = f", of {' or '.join(sorted(per))} training seed{'s' * (per != {'1'})}" * bool(per)
    if len(numbers) == 1:
        shown = {cell: spread(cell, unit) + cell.mark for cell in cells}
        return shown, f" {over.title()}s: {max(numbers)} each{of}."
    shown = {cell: f"{spread(cell, unit)} (n={cell.estimate.n}){cell.mark}" for cell in cells}
    return shown, f" n: the number of {over}s{of}."


def crossed_heads(cells: Iterable[Cell], heads: Mapping[str, str]) -> dict[str, str]:
    """The headings by column, with what ± means in it: ``alpha=0.5 (± 95 % CI)``."""
    cells = list(cells)
    shown = {}
    for column, head in heads.items():
        ci = interval_head([cell for cell in cells if cell.column == column]).strip()
        ci = f"({ci})" if ci and not head.endswith(")") else ci
        shown[column] = f"{head} {ci}".strip()
    return shown


def crossed(
    name: str, title: str, caption: str, shown: Mapping[Cell, str], heads: Mapping[str, str],
    rows: Mapping[str, str] | None = None,
) -> Table:  # fmt: skip
    """A table with one row per method and one column per column of the cells.

    ``heads`` are the headings by column and ``rows`` the titles by label, both in order; None for
    all labels in the papers' order.
    """
    texts = {(cell.row, cell.column): words for cell, words in shown.items()}
    labels = sorted({cell.row for cell in shown}, key=order)
    titles = rows or {label: title_of(label) for label in labels}
    lines = [[title, *(texts.get((row, c), EMPTY) for c in heads)] for row, title in titles.items()]
    return Table(
        name=name, title=title, caption=caption, head=["Method", *heads.values()], rows=lines,
        words=1, data=data(list(shown)), cells=list(shown),
    )  # fmt: skip


def with_differences(made: Iterable[Table], unit: NumberFormat) -> list[Table]:
    """The tables; each of :func:`crossed` with comparisons is followed by that of its differences.

    ``unit`` is that of their numbers.
    """
    tables = []
    for table in made:
        tables.append(table)
        cells = [cell for cell in table.cells if cell.comparison is not None]
        if cells:
            tables.append(_differences(table, cells, unit))
    return tables


def _differences(table: Table, cells: Sequence[Cell], unit: NumberFormat) -> Table:
    """Difference, interval and p value of each cell that is compared."""
    texts = {
        (cell.row, cell.column): f"{unit.spread(cell.comparison.difference, '+')} "
        f"({_told(cell)}){f', {cell.verdict}' * bool(cell.verdict)}{cell.mark}"
        for cell in cells
        if cell.comparison and cell.comparison.difference.n
    }
    columns = [*dict.fromkeys(cell.column for cell in cells)]
    labels = sorted({cell.row for cell in cells}, key=order)
    bayes = any(cell.comparison and cell.comparison.chances for cell in cells)
    words = "Difference" + interval_head(cells) + (" (P)" if bayes else " (p)")
    return Table(
        name=f"{table.name}_difference", title=say("differences.title", title=table.title),
        caption=say(
            f"differences.{'bayes' if bayes else 'caption'}",
            unit=f" in {unit.of_differences}" * bool(unit.of_differences),
        ),
        head=["Method", *(f"{column}: {words}" if column else words for column in columns)],
        rows=[
            [title_of(label), *(texts.get((label, column), EMPTY) for column in columns)]
            for label in labels
        ],
        words=1, data=table.data[table.data["pairs"] > 0],
    )  # fmt: skip


def _told(cell: Cell) -> str:
    """The adjusted p value of a comparison, or its three probabilities."""
    if cell.comparison is None or cell.comparison.chances is None:
        return p_value(cell.adjusted)
    return " / ".join(f"{chance:.2f}" for chance in cell.comparison.chances)


def data(cells: Sequence[Cell]) -> pd.DataFrame:
    """All numbers of the cells, unrounded; NaN if not available."""
    nothing = Estimate(mean=math.nan, std=math.nan, n=0, half=math.nan)
    verdicts = any(cell.verdict for cell in cells)
    rows = []
    for cell in cells:
        estimate = cell.estimate
        other = cell.comparison or Comparison(nothing, math.nan)
        row: dict[str, object] = {"label": cell.row, "method": title_of(cell.row)}
        row |= {"column": cell.column, "n": estimate.n, "mean": estimate.mean, "std": estimate.std}
        row |= {"low": estimate.low, "high": estimate.high, "pairs": other.difference.n}
        row |= {"difference": other.difference.mean, "difference_low": other.difference.low}
        row |= {"difference_high": other.difference.high, "p": other.p, "p_holm": cell.adjusted}
        row |= {"leads": cell.leads, "collapsed": cell.collapsed}
        row |= {"unit": estimate.unit, "detectable": cell.detectable, "level": cell.level}
        if estimate.levels is not None:
            row |= {
                "runs": estimate.runs,
                "seeds": estimate.levels.seeds,
                **_variances("", estimate),
            }
            row |= _variances("difference_", other.difference)
            pairs = other.difference.levels
            row["pair_seeds"] = "" if pairs is None else pairs.seeds
        rows.append(row | {"missing": cell.missing})
        if verdicts:
            lower, equal, higher = other.chances or [math.nan] * 3
            rows[-1] |= {"p_equal": other.equal, "p_lower": lower, "p_within": equal}
            rows[-1] |= {"p_higher": higher, "verdict": cell.verdict}
    return pd.DataFrame(rows)


def _variances(prefix: str, estimate: Estimate) -> dict[str, float]:
    levels = estimate.levels
    return {
        f"{prefix}var_between": math.nan if levels is None else levels.between,
        f"{prefix}var_within": math.nan if levels is None else levels.within,
    }


EXPLANATIONS = ("Unit", "±", "Inference", "Bold", "Difference", "Compared", "P", "Verdict")
"""What sentences begin with, before a colon, that say what the signs of a table mean."""


def explained_once(tables: Sequence[Table]) -> tuple[list[Table], dict[str, str]]:
    """The tables without the explanations that several captions share, and these by their sign."""
    texts = [re.split(r"(?<=\.) (?=[A-Z±])", table.caption) for table in tables]
    times = Counter(
        sentence
        for sentences in texts
        for sentence in dict.fromkeys(sentences)
        if sentence.partition(":")[0] in EXPLANATIONS
    )
    shared: dict[str, str] = {}
    for sentence, count in times.items():
        sign, _, meaning = sentence.partition(": ")
        if count > 1:
            shared[sign] = f"{shared[sign]} Or: {meaning}" if sign in shared else meaning
    single = [
        replace(table, caption=" ".join(s for s in sentences if times[s] < 2))
        for table, sentences in zip(tables, texts, strict=True)
    ]
    return single, shared


def markdown(tables: Sequence[Table]) -> str:
    """Each table under its title, with its caption below; shared explanations stand at the end."""
    single, shared = explained_once(tables)
    notes = "".join(f"- {_starred(sign)}: {_starred(text)}\n" for sign, text in shared.items())
    return "\n".join(map(_markdown, single)) + (f"\n### Signs\n\n{notes}" if shared else "")


def _starred(text: str) -> str:
    return re.sub(r"(?<!\*)\*(?!\*)", r"\\*", text)


def _markdown(table: Table) -> str:
    dashes = ["---"] * table.words + ["---:"] * (len(table.head) - table.words)
    lines = [table.head, dashes, *table.rows]
    cells = [[re.sub(r" \*$", r" \\*", cell.replace("|", r"\|")) for cell in row] for row in lines]
    body = "".join(f"| {' | '.join(row)} |\n" for row in cells)
    return f"### {table.title}\n\n{body}\n{_starred(table.caption)}\n"


def latex(tables: Sequence[Table], caption: str | None = None, label: str | None = None) -> str:
    r"""A ``table`` environment per table; needs ``\usepackage{booktabs}``.

    ``caption`` and ``label`` take the place of the table's own; of several tables each caption then
    ends with the title, each label with the name.
    """
    several = len(tables) > 1
    return "\n".join(
        _latex(
            table,
            f"{table.title}. {table.caption}" if caption is None
            else f"{caption} ({table.title})" if several else caption,
            f"tab:{table.name}" if label is None
            else f"{label}-{table.name}" if several else label,
        )
        for table in tables
    )  # fmt: skip


def _latex(table: Table, caption: str, label: str) -> str:
    body = [_latex_row(row) for row in (table.head, *table.rows)]
    columns = "l" * table.words + "r" * (len(table.head) - table.words)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape(caption)}}}",
        rf"\label{{{re.sub(r'[^A-Za-z0-9:._-]', '-', label)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        *(r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule"),
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    """A row; one that begins with a bracket or star would be an option of the line break above."""
    text = " & ".join(map(_escape, cells)) + r" \\"
    return "{}" * text.startswith(("[", "*")) + text


def csv(tables: Sequence[Table]) -> str:
    """The numbers of all tables at full precision, with the table's name as first column."""
    parts = [table.data.assign(table=table.name) for table in tables]
    data = pd.concat(parts, ignore_index=True)
    columns = ["table", *(column for column in data.columns if column != "table")]
    return csv_text(data[columns])


FORMATS: Mapping[str, Callable[[Sequence[Table]], str]] = {
    ".md": markdown, ".csv": csv, ".tex": latex,
}  # fmt: skip
"""The function that formats tables for each file suffix."""


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$", "λ": r"$\lambda$", "μ": r"$\mu$",
    "√": r"$\surd$", "·": r"$\cdot$", "…": r"\ldots{}", "|": r"\textbar{}", "<": "$<$", ">": "$>$",
    COLLAPSE: r"$^{\dagger}$", EMPTY: "--",
} | {sign: rf"\{sign}" for sign in "&%$#_{}"}  # fmt: skip


def _escape(cell: str) -> str:
    """A cell in LaTeX: special characters, bold, code, minus signs and the star."""
    text = "".join(_LATEX.get(sign, sign) for sign in cell)
    text = re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text)
    text = re.sub(r"`(.+?)`", r"\\texttt{\1}", text)
    text = re.sub(r"(?<![\w.)])-(?=\d)", "$-$", text)
    return re.sub(r" \*$", "$^{*}$", text)
