"""The tables of RESULTS.md with verdicts: the claims in short, and every comparison.

Differences, p values and words are those of check.py; here they are only arranged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import check
import numpy as np
import pandas as pd
from searches import at_edges
from stored import FAMILIES, Block, Study, folded, markdown, rows

from analysis import paired, units
from analysis.tables.layout import EMPTY, p_value

METRICS = {
    "accuracy": "accuracy", "balanced_accuracy": "balanced accuracy",
    "abs_shift_loss": "|shift|", "abs_aggregation_loss": "|aggregation|",
    "shift_loss": "shift, signed", "aggregation_loss": "aggregation, signed",
    "global_loss": "global loss",
}  # fmt: skip
COLUMNS = {
    "abs_shift_loss": "\\|term\\|", "abs_aggregation_loss": "\\|term\\|",
    "shift_loss": "signed term", "aggregation_loss": "signed term",
}  # fmt: skip
"""Columns of the summary that are not called as the metric."""
SUMMARY = {
    "headline": "Head, H1 to H4", "whole": "Whole network, W1 and W2",
    "fig2": "Fig. 2, F1 to F4, by alpha", "retina": "Head, RetinaMNIST, R1 and R2",
}  # fmt: skip
"""Families in the summary; those of Fig. 2 are one there."""
POWERED = {
    "headline": "Heads (points)", "whole": "Whole networks (points)",
    "fig2 absolute": "Fig. 2, absolute terms (nats)",
    "fig2 signed": "Fig. 2, signed terms and global loss (nats)",
}  # fmt: skip
"""Families in the table of what would have been found."""
CONTROLS = {"C1": ("C6", "equal weights in both"), "C3": ("C7", "a server learning rate in both")}
EDGE = "\N{DOUBLE DAGGER}"
"""Marks verdicts of a block of which more than one choice in ten lies at an edge."""


def summary(study: Study) -> str:
    """The claims by family: words counted over the blocks that were run, by metric and scope."""
    said = {row[0]: row for row in rows("Claim", "What")}
    parts, sure, told = [], [], set[str]()
    for family, title in SUMMARY.items():
        own = FAMILIES[FAMILIES["family"].str.startswith(family)]
        blocks = {block.name: block for block in study.blocks if block.name in set(own["block"])}
        codes = {name: block.code for name, block in blocks.items() if not block.runs.empty}
        if not codes:
            continue
        lacking = [block.code for block in blocks.values() if block.runs.empty]
        heading = f"**{title}**" + f" (not run: {', '.join(lacking)})" * bool(lacking)
        own = own[own["block"].isin(codes)]
        head, body = [], []
        for claim in sorted(own["claim_id"].unique(), key=lambda name: int(name[1:])):
            cells, words = {}, set()
            metrics = own.loc[own["claim_id"] == claim, "metric"].unique()
            for metric in sorted(metrics, key=list(METRICS).index):
                members = own[(own["claim_id"] == claim) & (own["metric"] == metric)].index
                for scope, table in study.compared.items():
                    each = by_block(table.loc[members])
                    words |= {word for _, word, _ in each}
                    column = f"{COLUMNS.get(metric, METRICS[metric])}, {scope}"
                    text = counted([(codes[name], *rest) for name, *rest in each])
                    cells[column] = text + control(claim, family, metric, table, each)
            head = ["Claim", *cells, "Confirmed"]
            yes = words == {check.CONFIRMED} and not lacking
            if yes:
                sure.append(f"{claim} ({title})")
            text, comparison = said[claim][1], said[claim][5]
            name = f"**{claim}.** " + f"{text}: " * (claim not in told) + f"*{comparison}*"
            told.add(claim)
            body.append([name, *cells.values(), "yes" if yes else "no"])
        parts.append(f"{heading}\n\n{markdown(head, body, len(head))}")
    sentence = f"Confirmed without a qualifier: {', '.join(sure) if sure else 'no claim'}."
    return "\n\n".join([sentence, *parts])


def counted(words: Sequence[tuple[str, str, bool]]) -> str:
    """Words of (block, word, whether models collapsed) as by ``check.phrase``, with where they are.

    ``confirmed in 8 of 20 (F1, F2; 6 on collapsed models), not decidable in 12 of 20``
    """
    parts = []
    for part in check.phrase([word for _, word, _ in words]).split(", "):
        own = [each for each in words if each[1] == part.partition(" in ")[0]]
        down = sum(fallen for *_, fallen in own)
        notes = [", ".join(dict.fromkeys(code for code, *_ in own))]
        notes += [f"{down} on collapsed models"] * bool(down)
        parts.append(part if part.startswith(check.OPEN) else f"{part} ({'; '.join(notes)})")
    return ", ".join(parts)


def by_block(members: pd.DataFrame) -> list[tuple[str, str, bool]]:
    """Block, word and whether it rests on collapsed models; of Fig. 2 one for each alpha."""
    down = members[["collapsed_first", "collapsed_second"]].max(axis=1)
    fallen = down > check.FEW * members["runs"]
    if members["alpha"].notna().any():
        return list(zip(members["block"], members["verdict"], fallen, strict=True))
    return [
        (str(block), check.together(own["verdict"].to_list()), bool(fallen[own.index].any()))
        for block, own in members.groupby("block", sort=False)
    ]


def power(study: Study) -> str:
    """The differences that comparisons would have found with probability 0.8, by family."""
    body = []
    for family, title in POWERED.items():
        size = int((FAMILIES["family"] == family).sum())
        cells: list[str] = []
        for table in study.compared.values():
            own = table[(table["family"] == family) & table["mean"].notna()]
            unit = 1 if own["metric"].str.endswith("loss").any() else 100
            found = [least(row, size) for _, row in own.iterrows()]
            ends = [f"{number(np.quantile(found, q), unit)}" for q in (0, 0.5, 1)] if found else []
            cells += [" / ".join(ends) or EMPTY]
            if unit == 100 and found:
                lead = sum(each <= check.LEAD for each in found)
                cells += [f"{lead} of {len(found)}"]
            else:
                cells += [EMPTY]
        body.append([title, str(size), *cells])
    least_lead = f"find {100 * check.LEAD:g} points"
    head = ["Family", "Comparisons", "These images", least_lead, "New images", least_lead]
    return markdown(head, body)


def control(
    claim: str,
    family: str,
    metric: str,
    table: pd.DataFrame,
    words: Sequence[tuple[str, str, bool]],
) -> str:
    """What else may explain that C1 or C3 is confirmed, where C6 or C7 is not (PROTOCOL part 6)."""
    sure = [block for block, word, _ in words if word == check.CONFIRMED]
    if claim not in CONTROLS or not sure:
        return ""
    other, what = CONTROLS[claim]
    own = table[(table["claim_id"] == other) & (table["metric"] == metric)]
    own = own[(own["family"] == family) & own["block"].isin(sure)]
    given = [word for _, word, _ in by_block(own)]
    if not given or set(given) == {check.CONFIRMED}:
        return ""
    cause = "weights" if claim == "C1" else "step length"
    return (
        f"; of the confirmed, with {what} ({other}) {check.phrase(given)}, so that {cause} may be "
        "the reason"
    )


def family(name: str) -> Callable[[Study], str]:
    """The table of a family, a part for each block."""

    def table(study: Study) -> str:
        tables = study.compared
        size = len(FAMILIES[FAMILIES["family"] == name])
        parts = []
        for block in study.blocks:
            own = FAMILIES[(FAMILIES["family"] == name) & (FAMILIES["block"] == block.name)]
            if own.empty:
                continue
            order = ["claim_id", "alpha", "first", "second", "metric"]
            own = own.sort_values(order, key=in_order, kind="stable")
            if block.runs.empty:
                parts.append(
                    f"**{block.title}**: not run, so that its {len(own)} comparisons count with "
                    f"p = 1 and are *{check.OPEN}*."
                )
                continue
            made = of_block(block, {scope: t.loc[own.index] for scope, t in tables.items()}, size)
            loud = name == "headline"
            parts.append(f"**{block.title}**\n\n{made}" if loud else folded(block.title, made))
        return "\n\n".join(parts)

    return table


def in_order(column: pd.Series) -> pd.Series:
    """Metrics as in METRICS, large alphas first, the rest as it comes in families.csv."""
    if column.name == "metric":
        return column.map(list(METRICS).index)
    if column.name == "alpha":
        return -column
    return column.map(list(dict.fromkeys(FAMILIES[column.name])).index)


def of_block(block: Block, tables: dict[str, pd.DataFrame], size: int) -> str:
    """The comparisons of a family in a block: a row each, with both scopes."""
    these, new = tables.values()
    edge = f" {EDGE}" * bool(at_edges(block))
    fig2 = bool(these["alpha"].notna().any())
    head = ["Claim", *["alpha"] * fig2, "First minus second", "Measure", "d [95 %]", "p"]
    head += ["These images", "New [95 %]", "New p", "New images", "P lower / equal / higher"]
    body = []
    for (_, row), (_, other) in zip(these.iterrows(), new.iterrows(), strict=True):
        unit = 1 if row["metric"].endswith("loss") else 100
        fixed = math.isnan(other["mean"]) and not math.isnan(row["mean"])
        body.append(
            [
                row["claim_id"], *[f"{row['alpha']:g}"] * fig2,
                difference(row["first"], row["second"]),
                METRICS[row["metric"]].replace("|", "\\|"),
                interval(row, unit, mean=True), p_values(row), word(row, unit, size) + edge,
                interval(other, unit), p_values(other),
                word(other, unit, size, "one test part" if fixed else "runs missing") + edge,
                chances(row, block),
            ]
        )  # fmt: skip
    return markdown(head, body, 3 + fig2)


def difference(first: str, second: str) -> str:
    """First minus second, which a narrow column breaks after the sign alone."""
    kept = [part.replace(" ", "\N{NO-BREAK SPACE}") for part in (f"{first} \N{MINUS SIGN}", second)]
    return " ".join(kept)


def number(value: float, unit: int, sign: str = "") -> str:
    """Points with one digit, nats with three."""
    digits = 1 if unit == 100 else 3
    return f"{round(unit * value, digits) + 0.0:{sign}.{digits}f}"


def interval(row: pd.Series, unit: int, *, mean: bool = False) -> str:
    """``+2.3 [-0.4, 5.0]``, or the interval alone."""
    if math.isnan(row["mean"]):
        return EMPTY
    ends = [number(row["mean"] + way * row["half"], unit) for way in (-1, 1)]
    return f"{number(row['mean'], unit, '+')} " * mean + f"[{', '.join(ends)}]"


def p_values(row: pd.Series) -> str:
    """Holm's p, then that of TOST."""
    equal = EMPTY if math.isnan(row["p_equal"]) else p_value(row["p_equal"])
    return f"{p_value(row['p_holm'])} / {equal}"


def word(row: pd.Series, unit: int, size: int, lacking: str = "runs missing") -> str:
    """The verdict, with what would have been found or what lacks, and how many runs collapsed."""
    said, notes = str(row["verdict"]), []
    undecided = said.startswith(check.OPEN)
    if math.isnan(row["mean"]):
        notes.append(lacking)
    elif undecided:
        notes.append(number(least(row, size), unit))
    if row["collapsed_first"] or row["collapsed_second"]:
        notes.append(
            f"collapsed {row['collapsed_first']} and {row['collapsed_second']} of {row['runs']}"
        )
    shown = said if undecided else f"**{said}**"
    return shown + f" ({'; '.join(notes)})" * bool(notes)


def least(row: pd.Series, size: int) -> float:
    """The smallest true difference that a comparison of a family finds with probability 0.8."""
    n = int(row["n"])
    return float(row["scale"] * math.sqrt(n) * detectable(n, size))


@cache
def detectable(n: int, size: int) -> float:
    """The smallest true difference, over its standard deviation, that n units find."""
    return units.detectable(1.0, n, check.LEVEL / size)


def chances(row: pd.Series, block: Block) -> str:
    """The probabilities of the Bayesian signed-rank test, which decide nothing."""
    d, _ = check.differences(row, block.runs)
    if d.empty:
        return EMPTY
    array = np.asarray(d, dtype=np.float64)
    found = paired.chances(array, 1e-12, check.margin_of(row["metric"]))
    return " / ".join(f"{each:.2f}" for each in found)
