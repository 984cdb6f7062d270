"""The tables of RESULTS.md on the runs: what was run, what failed, collapsed or departed."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from stored import Block, Study, folded, markdown

from analysis.tables.layout import EMPTY

RUN = ["method", "alpha", "lr", "data_seed", "seed"]


def blocks(study: Study) -> str:
    """By block the runs that are stored, what became of them, and the commits of their code."""
    head = ["Block", "Finished", "Diverged", "Collapsed", "Missing or failed", "Commits"]
    body = []
    for block in study.blocks:
        every = len(block.planned)
        if block.runs.empty:
            body.append([block.title, "not run", *[EMPTY] * 4])
            continue
        status = block.runs["status"]
        commits = sorted({str(commit)[:9] for commit in block.runs["commit"].dropna()})
        body.append(
            [
                block.title, f"{int((status == 'finished').sum())} of {every}",
                str(len(diverged(block))), str(len(collapsed(block))), str(len(missing(block))),
                ", ".join(f"`{commit}`" for commit in commits) or EMPTY,
            ]
        )  # fmt: skip
    tails = [block.code for block in study.blocks if not block.tails.empty]
    body.append(["T, tails of clients", " ".join(tails) or "not run", *[EMPTY] * 4])
    return markdown(head, body)


def diverged(block: Block) -> pd.DataFrame:
    """Runs with a loss or weight that is not finite."""
    return block.runs[block.runs["status"] == "diverged"]


def collapsed(block: Block) -> pd.DataFrame:
    """Runs that finished with a balanced accuracy of at most 1 / classes."""
    own = block.runs[block.runs["status"] == "finished"]
    return own[own["collapsed"].astype(str).isin({"1", "1.0", "True"})]


def missing(block: Block) -> pd.DataFrame:
    """Planned runs that are not there or failed."""
    on = [key for key in RUN if key in block.planned]
    there = block.runs[block.runs["status"] != "failed"][on]
    both = block.planned.merge(there, on=on, how="left", indicator=True)
    return both[both["_merge"] == "left_only"]


def named(study: Study) -> str:
    """The runs that diverged, collapsed or are missing, by method, as partition/seed."""
    kinds = {"Diverged": diverged, "Collapsed": collapsed, "Missing or failed": missing}
    parts = []
    for block in study.of("HWFR"):
        lines = []
        for kind, of in kinds.items():
            for method, own in of(block).groupby("method", sort=False):
                lines.append(f"- {kind}: {method}, {len(own)}: {'; '.join(places(own))}")
        if lines:
            parts.append(folded(f"{block.title}: {len(lines)} rows", "\n".join(lines)))
    return "\n\n".join(parts) or "No stored run diverged, collapsed or is missing."


def places(runs: pd.DataFrame) -> list[str]:
    """``20/1``, partition and training seed, of Fig. 2 by alpha and rate."""
    fig2 = "alpha" in runs and runs["alpha"].notna().any()
    found: dict[str, list[str]] = {}
    for row in runs.to_dict("records"):
        where = f"alpha {row['alpha']:g}, rate {row['lr']:g}: " if fig2 else ""
        found.setdefault(where, []).append(f"{row['data_seed']}/{row['seed']}")
    return [where + ", ".join(own) for where, own in found.items()]


def left_out(study: Study) -> str:
    """The blocks of which nothing is stored."""
    codes = [block.code for block in study.blocks if block.runs.empty]
    if not any(not block.tails.empty for block in study.blocks):
        codes.append("T")
    if not codes:
        return "Every block of the protocol was run."
    return f"**Not run: {', '.join(codes)}.** Their comparisons count with p = 1 in their families."


def deviations(study: Study) -> str:
    """The table of departures from the protocol."""
    table = study.deviations
    if table.empty:
        return "None is stored."
    cells = table.fillna(EMPTY).astype(str).replace(r"\|", r"\\|", regex=True)
    return markdown(list(cells.columns), cells.to_numpy().tolist(), len(cells.columns))


TABLES: dict[str, Callable[[Study], str]] = {
    "blocks": blocks, "named": named, "left_out": left_out, "deviations": deviations,
}  # fmt: skip
