"""What PROTOCOL.md plans, and what of it docs/results.zip holds.

The blocks with their order and files are read from the tables of PROTOCOL.md and the files beside
it, so that the page has no second list of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import archive
import check
import pandas as pd
import yaml

HERE = Path(__file__).resolve().parent
FAMILIES = pd.read_csv(HERE / "families.csv")
SCOPES = {"these images": False, "new images": True}
"""Whether the corrected resampled t test takes the place of the paired one."""
TEXTS = dict.fromkeys(("method", "path", "commit", "state", "at_edge"), str)
"""Columns that are no numbers, whatever they look like (a commit such as 604e12)."""
TAILS = "tails_"
"""The tables of block T are called so, before the name of the block that it trains again."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of the study; tables that are not stored are empty.

    Args:
        code: as in PROTOCOL.md, such as H1.
        name: of its file and its tables.
        settings: the file.
        runs: a row per run of the comparison.
        trials: a row per candidate of the search that counts, the last one.
        curves: a row per evaluated round.
        tails: runs of block T, with scores of clients.
        searches: how many searches were done, 2 after a widening.
    """

    code: str
    name: str
    settings: dict[str, Any]
    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    trials: pd.DataFrame = field(default_factory=pd.DataFrame)
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)
    tails: pd.DataFrame = field(default_factory=pd.DataFrame)
    searches: int = 0

    @property
    def title(self) -> str:
        """``H1, head on fundus images, one client per site``."""
        about = str(self.settings["about"])
        about = about if about.startswith("Fig") else about[0].lower() + about[1:]
        return f"{self.code}, {about}"

    @property
    def methods(self) -> list[str]:
        """Its methods, or the rows of Fig. 2, in the order of the file."""
        given = self.settings.get("methods") or {
            name: own for row in self.settings["grid"]["run"] for name, own in row.items()
        }
        return list(given)

    @property
    def partitions(self) -> list[int]:
        """``data.seed`` of its partitions."""
        return list(self.settings.get("partitions") or self.settings["grid"]["data.seed"])

    @property
    def seeds(self) -> list[int]:
        """Training seeds of the comparison."""
        return list(self.settings.get("seeds") or self.settings["grid"]["seed"])

    @property
    def planned(self) -> pd.DataFrame:
        """A row per planned run: the columns that tell it from others."""
        axes: dict[str, list[Any]] = {"method": self.methods}
        grid = self.settings["grid"]
        if "data.alpha" in grid:
            axes |= {"alpha": list(map(float, grid["data.alpha"])), "lr": grid["train.lr"]}
        axes |= {"data_seed": self.partitions, "seed": self.seeds}
        product = pd.MultiIndex.from_product(list(axes.values()), names=list(axes))
        return product.to_frame(index=False)


@dataclass(frozen=True, kw_only=True)
class Study:
    """All blocks in the order of PROTOCOL.md, and its table of deviations."""

    blocks: list[Block]
    deviations: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def runs(self) -> dict[str, pd.DataFrame]:
        """The runs of the blocks that are stored, by name, as check.py wants them."""
        return {block.name: block.runs for block in self.blocks if not block.runs.empty}

    @cached_property
    def compared(self) -> dict[str, pd.DataFrame]:
        """Every comparison of families.csv with its word by check.py, for each scope."""
        return {
            scope: check.compared(FAMILIES, self.runs, ratio) for scope, ratio in SCOPES.items()
        }

    def of(self, kinds: str, *, searched: bool = False) -> list[Block]:
        """The stored blocks whose code begins with one of these letters."""
        return [
            block
            for block in self.blocks
            if block.code[0] in kinds and not (block.trials if searched else block.runs).empty
        ]


def rows(*first: str) -> list[list[str]]:
    """The rows of the table of PROTOCOL.md whose head begins so."""
    lines = (HERE / "PROTOCOL.md").read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| " + " | ".join(first)))
    body = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        body.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return body


def study() -> Study:
    """The study as the archive holds it."""
    there = set(archive.names())

    def table(name: str) -> pd.DataFrame:
        member = f"protocol/{name}.csv"
        return archive.table(member, dtype=TEXTS) if member in there else pd.DataFrame()

    blocks = []
    for _, code, link, *_ in rows("Order", "Block"):
        file = re.search(r"\((\w+)\.yaml\)", link)
        if file is None:  # block T has the files of others
            continue
        name, trials = file[1], table(f"{file[1]}_trials")
        searches = 0 if trials.empty else int(trials["search"].max())
        blocks.append(
            Block(
                code=code, name=name, runs=table(name), searches=searches,
                settings=yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8")),
                trials=trials if trials.empty else trials[trials["search"] == searches],
                curves=table(f"{name}_curves"), tails=table(TAILS + name),
            )
        )  # fmt: skip
    return Study(blocks=blocks, deviations=table("deviations"))


def markdown(head: list[str], body: list[list[str]], words: int = 1) -> str:
    """A table in Markdown, of which the first ``words`` columns are text."""
    dashes = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, dashes, *body))


def folded(title: str, text: str) -> str:
    """A text that a click opens, on GitHub and on the site."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>'
