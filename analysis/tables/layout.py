"""Tables as text: units and rows from statistics, and Markdown, LaTeX or CSV of them."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from ..files import csv_text
from ..formats import NONE, NumberFormat, p_value
from ..labels import title_of
from ..stats import NOTHING, Cell, Estimate
from ..units import ExperimentalUnit
from ..words import say, sentences

COLLAPSE = "\N{DAGGER}"  # sign of a method with a run whose final model has collapsed
EMPTY = "\N{EN DASH}"  # shown in a cell that has no value, such as the comparison of the baseline
WORST = "worst"  # heading of the column with the worst cell of each row
VARIANCES = (
    "label", "method", "column", "n", "runs", "seeds", "var_between", "var_within", "pairs",
    "pair_seeds", "difference_var_between", "difference_var_within",
)  # fmt: skip
"""Columns of the data of a table that are also those of its variances."""

PAGE, MOST_COLUMNS = 116, 9
"""Characters of a row, two between the columns, and columns that fit a page."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text and the numbers behind it."""

    name: str  # for files: ``accuracy_final``
    title: str  # a few words
    caption: str  # sentences that explain every number and sign in the table
    head: Sequence[str]  # names of the columns
    rows: Sequence[Sequence[str]]  # of as many cells; ``**x**`` is bold
    words: int  # number of leading columns that are text
    data: pd.DataFrame  # all numbers at full precision, in the units of the run directories
    cells: Sequence[Cell] = ()  # the statistics that it shows, if it is made of them

    @property
    def wide(self) -> bool:
        """Whether it does not fit a page with a line for each row; its cells are then broken."""
        columns = zip(*self.rows, strict=True) if self.rows else ()
        longest = [max(map(len, column)) for column in columns]
        words = [max(map(len, head.split()), default=0) for head in self.head]
        widths = (2 + max(pair) for pair in zip(longest, words, strict=False))
        return len(self.head) > MOST_COLUMNS or sum(widths) > PAGE


def spread(cell: Cell, unit: NumberFormat) -> str:
    """``**84.00** ± 9.94``: the mean and its interval, bold, with a dagger where it collapsed."""
    mean, plus, rest = unit.spread(cell.estimate).partition(" ± ")
    bold = f"**{mean}**" if cell.leads else mean
    return bold + COLLAPSE * bool(cell.collapsed) + plus + rest


def interval_head(cells: Iterable[Cell]) -> str:
    """What ± means, for the heading of a column; empty if no cell has an interval."""
    return " ± 95 % CI" * any(cell.estimate.n > 1 for cell in cells)


def unit_of(cells: Sequence[Cell]) -> ExperimentalUnit:
    """The unit of all cells."""
    return cells[0].estimate.unit if cells else "seed"


def detailed(
    name: str, title: str, caption: str, cells: Sequence[Cell], unit: NumberFormat, what: str
) -> Table:
    """One row per cell: estimate (headed ``what``), interval, comparison with the baseline."""
    compared = any(cell.comparison for cell in cells)
    power = any(not math.isnan(cell.detectable) for cell in cells)
    bayes = any(cell.comparison and cell.comparison.chances for cell in cells)
    ci = interval_head(cells)
    heads = [unit.head("Difference", True) + ci]
    heads += ["P lower", "P equal", "P higher"] if bayes else ["p", "p (Holm)"]
    heads += ["Verdict"] * any(cell.verdict for cell in cells)
    rows = []
    for cell in cells:
        row = first_columns(cell, cells) | {
            unit.head(what) + ci: spread(cell, unit),
            unit.head("Std", True): unit.number(cell.estimate.std),
        }
        if compared:
            row |= dict(zip(heads, _comparison(cell, unit, len(heads)), strict=True))
        if power:
            row[unit.head("Detectable", True)] = _detectable(cell, unit)
        rows.append(row)
    return replace(of_rows(name, title, caption, rows, data(cells), cells), cells=cells)


def of_rows(
    name: str, title: str, caption: str, rows: Sequence[Mapping[str, str]], data: pd.DataFrame,
    cells: Sequence[Cell],
) -> Table:  # fmt: skip
    """A table of rows, one a cell, by their headings."""
    return Table(
        name=name, title=title, caption=caption, head=list(rows[0]) if rows else [],
        rows=[list(row.values()) for row in rows], words=1 + any(cell.column for cell in cells),
        data=data,
    )  # fmt: skip


def first_columns(cell: Cell, cells: Sequence[Cell]) -> dict[str, str]:
    """Method, column where a table of the cells has some, and the numbers of repetitions."""
    group = {"Group": cell.column} if any(one.column for one in cells) else {}
    row = {"Method": title_of(cell.row), **group}
    if unit_of(cells) == "seed":
        return row | {"Seeds": str(cell.estimate.n)}
    levels = cell.estimate.levels
    return row | {"Partitions": str(cell.estimate.n), "Seeds": levels.seeds if levels else NONE}


def _comparison(cell: Cell, unit: NumberFormat, heads: int) -> list[str]:
    """The difference, and what the test says of it, under so many headings."""
    other = cell.comparison
    if other is None:
        return [EMPTY] * heads
    told = [p_value(other.p), p_value(cell.adjusted) + cell.mark]
    if other.chances is not None:
        told = [f"{chance:.3f}" for chance in other.chances]
    shown = [unit.spread(other.difference, "+"), *told, *[cell.verdict] * bool(cell.verdict)]
    return shown + [NONE] * (heads - len(shown))


def _detectable(cell: Cell, unit: NumberFormat) -> str:
    """The detectable difference, or why there is none."""
    if cell.comparison is None:
        return EMPTY
    few = unit.too_few(cell.comparison.difference.n, cell.detectable)
    if few and not math.isnan(cell.detectable):
        return f"too few {cell.estimate.unit}s"
    return unit.number(cell.detectable)


def crossed(
    name: str, title: str, caption: str, cells: Sequence[Cell], heads: Mapping[str, str],
    unit: NumberFormat | None = None, texts: Sequence[str] = (),
    rows: Mapping[str, str] | None = None,
) -> Table:  # fmt: skip
    """One row per method and one column per column of the cells, under ``heads``."""
    if unit is not None:
        texts, seeds = _with_seeds(cells, unit)
        caption += seeds
        heads = interval_heads(cells, heads)
    at = {(cell.row, cell.column): text for cell, text in zip(cells, texts, strict=True)}
    titles = rows or {row: title_of(row) for row in dict.fromkeys(c.row for c in cells)}
    lines = [[title, *(at.get((row, c), EMPTY) for c in heads)] for row, title in titles.items()]
    return Table(
        name=name, title=title, caption=caption, head=["Method", *heads.values()], rows=lines,
        words=1, data=data(cells), cells=cells,
    )  # fmt: skip


def with_worst(table: Table, lowest: bool) -> Table:
    """A crossed table with the worst cell of each row in a last column."""
    means, rows = means_of(table), []
    for texts, (_, values), least in zip(
        table.rows, means.iterrows(), worst(means, lowest), strict=True
    ):
        places = [place for place, value in enumerate(values, 1) if value == least]
        rows.append([*texts, texts[places[0]].replace("**", "") if places else EMPTY])
    caption = f"{table.caption} {say('tables.worst')}"
    return replace(table, head=[*table.head, WORST], rows=rows, caption=caption)


def worst(means: pd.DataFrame, lowest: bool) -> "pd.Series[float]":
    """The worst of each row of :func:`means_of`; NaN where a mean is missing that others have."""
    present = means.dropna(axis="columns", how="all")
    return present.max(axis=1, skipna=False) if lowest else present.min(axis=1, skipna=False)


def means_of(table: Table) -> pd.DataFrame:
    """The means of a crossed table by title and column, NaN where there is no cell."""
    columns = list(dict.fromkeys(cell.column for cell in table.cells))
    means = {(title_of(c.row), c.column): c.estimate.mean for c in table.cells}
    rows = [[means.get((row[0], c), math.nan) for c in columns] for row in table.rows]
    return pd.DataFrame(rows, index=[row[0] for row in table.rows], columns=columns, dtype=float)


def _with_seeds(cells: Sequence[Cell], unit: NumberFormat) -> tuple[list[str], str]:
    """The cells' :func:`spread`, with n where it differs, and a sentence on the units."""
    numbers = {cell.estimate.n for cell in cells}
    over, alike = unit_of(cells), len(numbers) == 1
    per = {cell.estimate.levels.seeds for cell in cells if cell.estimate.levels}
    of = f", of {' or '.join(sorted(per))} training seed{'s' * (per != {'1'})}" * bool(per)
    texts = [
        spread(cell, unit) + f" (n={cell.estimate.n})" * (not alike) + cell.mark for cell in cells
    ]
    shown = f" {over.title()}s: {max(numbers)} each" if alike else f" n: the number of {over}s"
    return texts, f"{shown}{of}."


def interval_heads(cells: Sequence[Cell], heads: Mapping[str, str]) -> dict[str, str]:
    """The headings by column, with what ± means in it: ``alpha=0.5 (± 95 % CI)``."""
    shown = {}
    for column, head in heads.items():
        ci = interval_head(cell for cell in cells if cell.column == column).strip()
        ci = f"({ci})" if ci and not head.endswith(")") else ci
        shown[column] = f"{head} {ci}".strip()
    return shown


def with_variances(made: Iterable[Table], unit: NumberFormat) -> list[Table]:
    """The tables; each over partitions is followed by that of its variances, in their unit."""
    return [each for table in made for each in (table, *_variances(table, unit))]


def _variances(table: Table, unit: NumberFormat) -> Iterator[Table]:
    """The variances of both levels behind a table, and those of the differences if it has any."""
    cells = table.cells
    if unit_of(cells) == "seed":
        return
    compared = any(cell.comparison for cell in cells)
    rows, truncated, inseparable = [], [], False
    for cell in cells:
        row, name = first_columns(cell, cells), title_of(cell.row)
        name += f" ({cell.column})" * bool(cell.column)
        parts: dict[str, Estimate | None] = {"": cell.estimate}
        if compared:
            parts["Difference: "] = cell.comparison.difference if cell.comparison else None
        for prefix, estimate in parts.items():
            row |= _shown(prefix, estimate, unit)
            if estimate is not None and estimate.levels is not None:
                of = "difference of " * bool(prefix)
                truncated += [of + name] * estimate.levels.truncated
                inseparable |= math.isnan(estimate.levels.between)
        rows.append(row)
    caption = sentences(
        say("variance.caption"),
        say("variance.differences") if compared else "",
        say("variance.truncated", names="; ".join(truncated)) if truncated else "",
        say("variance.inseparable", missing=NONE) if inseparable else "",
    )
    numbers = table.data[[column for column in VARIANCES if column in table.data]]
    title = say("variance.title", title=table.title)
    yield of_rows(f"{table.name}_variance", title, caption, rows, numbers, cells)


def _shown(prefix: str, estimate: Estimate | None, unit: NumberFormat) -> dict[str, str]:
    """Both standard deviations, and the share of partitions in the variance in per cent."""
    shown = [EMPTY if estimate is None else NONE] * 3
    if estimate is not None and (levels := estimate.levels) is not None:
        share = NONE if math.isnan(levels.share) else f"{100 * levels.share:.0f}"
        shown = [*(unit.number(math.sqrt(v)) for v in (levels.between, levels.within)), share]
    heads = [unit.head(f"Std, {level}", True) for level in ("partitions", "seeds")]
    heads = [f"{prefix}{head[0].lower()}{head[1:]}" if prefix else head for head in heads]
    return dict(zip([*heads, f"{prefix}{'share' if prefix else 'Share'} (%)"], shown, strict=True))


def with_differences(made: Iterable[Table], unit: NumberFormat) -> list[Table]:
    """The tables; each with comparisons is followed by that of its differences, in their unit."""
    return [each for table in made for each in (table, *_differences(table, unit))]


def _differences(table: Table, unit: NumberFormat) -> Iterator[Table]:
    """Difference, interval and p value, or probabilities, of each cell that is compared."""
    compared = [(cell, cell.comparison) for cell in table.cells if cell.comparison is not None]
    cells = [cell for cell, _ in compared]
    if not cells:
        return
    texts, bayes = [], False
    for cell, other in compared:
        told = p_value(cell.adjusted)
        if other.chances is not None:
            told, bayes = " / ".join(f"{chance:.2f}" for chance in other.chances), True
        verdict = f", {cell.verdict}" * bool(cell.verdict)
        text = f"{unit.spread(other.difference, '+')} ({told}){verdict}{cell.mark}"
        texts.append(text if other.difference.n else EMPTY)
    words = f"Difference{interval_head(cells)} ({'P' if bayes else 'p'})"
    heads = {cell.column: f"{cell.column}: {words}" if cell.column else words for cell in cells}
    caption = say(
        f"differences.{'bayes' if bayes else 'caption'}",
        unit=f" in {unit.of_differences}" * bool(unit.of_differences),
    )
    title = say("differences.title", title=table.title)
    made = crossed(f"{table.name}_difference", title, caption, cells, heads, texts=texts)
    yield replace(made, data=table.data[table.data["pairs"] > 0], cells=())


def data(cells: Sequence[Cell]) -> pd.DataFrame:
    """All numbers of the cells, unrounded; NaN if not available."""
    verdicts = any(cell.verdict for cell in cells)
    rows = []
    for cell in cells:
        estimate, other = cell.estimate, cell.comparison or NOTHING
        difference = other.difference
        row: dict[str, object] = {
            "label": cell.row, "method": title_of(cell.row), "column": cell.column,
            "n": estimate.n, "mean": estimate.mean, "std": estimate.std, "low": estimate.low,
            "high": estimate.high, "pairs": difference.n, "difference": difference.mean,
            "difference_low": difference.low, "difference_high": difference.high, "p": other.p,
            "p_holm": cell.adjusted, "leads": cell.leads, "collapsed": cell.collapsed,
            "unit": estimate.unit, "detectable": cell.detectable, "level": cell.level,
        }  # fmt: skip
        if (levels := estimate.levels) is not None:
            pairs = difference.levels
            row |= {
                "runs": estimate.runs, "seeds": levels.seeds, "var_between": levels.between,
                "var_within": levels.within,
                "difference_var_between": math.nan if pairs is None else pairs.between,
                "difference_var_within": math.nan if pairs is None else pairs.within,
                "pair_seeds": "" if pairs is None else pairs.seeds,
            }  # fmt: skip
        row["missing"] = cell.missing
        if verdicts:
            lower, within, higher = other.chances or [math.nan] * 3
            row |= {"p_equal": other.equal, "p_lower": lower, "p_within": within,
                    "p_higher": higher, "verdict": cell.verdict}  # fmt: skip
        rows.append(row)
    return pd.DataFrame(rows)


EXPLANATIONS = ("Unit", "±", "Inference", "Bold", "Difference", "Compared", "P", "Verdict")
"""What sentences begin with, before a colon, that say what the signs of a table mean."""


def explained_once(tables: Sequence[Table]) -> tuple[list[Table], dict[str, str]]:
    """The tables without the explanations that several captions share, and these by their sign."""
    texts = [re.split(r"(?<=\.) (?=[A-Z±])", table.caption) for table in tables]
    every = (sentence for sentences in texts for sentence in dict.fromkeys(sentences))
    times = Counter(every)
    shared: dict[str, str] = {}
    for sentence, count in times.items():
        sign, _, meaning = sentence.partition(": ")
        if count > 1 and sign in EXPLANATIONS:
            shared[sign] = f"{shared[sign]} Or: {meaning}" if sign in shared else meaning
        else:
            times[sentence] = 1
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
    r"""A ``table`` environment per table; needs ``\usepackage{booktabs}``."""
    several, texts = len(tables) > 1, []
    for table in tables:
        words, name = f"{table.title}. {table.caption}", f"tab:{table.name}"
        if caption is not None:
            words = f"{caption} ({table.title})" if several else caption
        if label is not None:
            name = f"{label}-{table.name}" if several else label
        columns = "l" * table.words + "r" * (len(table.head) - table.words)
        head, *rows = map(_latex_row, (table.head, *table.rows))
        lines = [
            *(r"\begin{table}", r"\centering", rf"\caption{{{_escape(words)}}}"),
            rf"\label{{{re.sub(r'[^A-Za-z0-9:._-]', '-', name)}}}",
            *(rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *rows),
            *(r"\bottomrule", r"\end{tabular}", r"\end{table}"),
        ]
        texts.append("\n".join(lines) + "\n")
    return "\n".join(texts)


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
