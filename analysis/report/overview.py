"""What was run, in words and tables."""

from collections.abc import Mapping, Sequence

import pandas as pd

from ..labels import HALVES, METHOD, text, title_of
from ..runs import Group, differing, shared
from ..tables.layout import EMPTY, Table
from ..units import PARTITION
from ..words import say

Descriptions = Mapping[str, str]
"""A line on each method and setting, by label or column of summary.csv; fedsim provides them."""
MAIN = ("dataset", "model", "num_clients", "sample_rate", "alpha", "rounds", "train.lr")
"""The settings that come first in the table."""
FACTS = {
    "model": "network {}", "num_clients": "{} clients",
    "sample_rate": "{:.4g} % of the clients in each round", "rounds": "{} communication rounds",
}  # fmt: skip
"""Settings that the first paragraph names where all runs share them."""


def heading(groups: Sequence[Group]) -> str:
    """A heading for the page: the data set, and how many methods."""
    names = {str(name) for group in groups for name in group.runs["dataset"].dropna()}
    rows = (group.runs.iloc[0] for group in groups)
    methods = {tuple(text(row.get(column)) for column in METHOD) for row in rows}
    count = "one method" if len(methods) == 1 else f"{len(methods)} methods"
    return f"Federated learning on {', '.join(sorted(names))}: {count}"


def lead(groups: Sequence[Group], baseline: str | None) -> str:
    """The first paragraph: numbers of runs, clients, rounds and seeds."""
    common = shared(groups)
    facts = [
        form.format(100 * float(common[key]) if key == "sample_rate" else common[key])
        for key, form in FACTS.items()
        if key in common
    ]
    seeds, partitions = _numbers(groups, "seed"), _partitions(groups)
    return say(
        "lead", runs=sum(len(group.runs) for group in groups), groups=len(groups), facts=facts,
        seeds=len(seeds), numbers=_ranges(seeds), partitions=len(partitions),
        partition_numbers=_ranges(partitions), baseline=title_of(baseline) if baseline else "",
        one_partition=len(seeds) > 1 and all(PARTITION in group.runs for group in groups),
    )  # fmt: skip


def _numbers(groups: Sequence[Group], column: str) -> list[int]:
    return sorted({int(number) for group in groups for number in group.runs[column]})


def _partitions(groups: Sequence[Group]) -> list[int]:
    """The seeds of the partitions, if they are the unit."""
    return [] if groups[0].unit == "seed" else _numbers(groups, PARTITION)


def methods(groups: Sequence[Group], descriptions: Descriptions) -> Table:
    """One row per group: what it is and the settings that distinguish it."""
    meanings = {**descriptions, **{half: meaning for half, (_, meaning) in HALVES.items()}}
    settings = differing(groups)
    rows = []
    for group in groups:
        name = title_of(group.label)
        values = {str(c): v for c, v in settings.loc[group.label].items() if v != "unset"}
        further = ", ".join(
            f"{c} = {values[c]}"
            for c in sorted(values, key=lambda c: c not in METHOD)
            if c != "algorithm" and f"{c}={values[c]}" not in name.split(", ")
        )
        row = {"Group": name, "What it is": _meaning(group.label, meanings)}
        row["Further settings that differ"] = further or EMPTY
        if group.unit == "partition":
            row["Partitions"] = _ranges(_partitions([group]))
        rows.append(
            row | {"Seeds": _ranges(_numbers([group], "seed")), "Runs": str(len(group.runs))}
        )
    return Table(
        name="groups_of_runs", title="Methods", caption=say("groups_of_runs.caption"),
        head=list(rows[0]), rows=[list(row.values()) for row in rows], words=3,
        data=pd.DataFrame(rows),
    )  # fmt: skip


def settings(groups: Sequence[Group], descriptions: Descriptions) -> Table:
    """The settings that all runs share."""
    common = shared(groups)
    order = [*(key for key in MAIN if key in common), *(key for key in common if key not in MAIN)]
    return Table(
        name="settings", title="Settings of all runs", caption=say("settings.caption"),
        head=["Setting", "Value", "Meaning"], words=3,
        rows=[[f"`{key}`", common[key], descriptions.get(key, "")] for key in order],
        data=pd.DataFrame({"setting": order, "value": [common[key] for key in order]}),
    )  # fmt: skip


def _meaning(label: str, meanings: Mapping[str, str]) -> str:
    """That of the method in a label, alone or with settings, or with another server rule."""
    for name, meaning in meanings.items():
        rest = f"{label}, ".removeprefix(f"{name}, ")
        if rest != f"{label}, " and not rest.startswith(("server=", "margin=")):
            return meaning
    method, _, rest = label.partition(", server=")
    server = title_of(rest.partition(", ")[0])
    return f"{title_of(method)}'s clients, aggregated as {server} does" if server else ""


def _ranges(numbers: Sequence[int]) -> str:
    """``0-4, 7`` for 0, 1, 2, 3, 4, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    dash = "\N{EN DASH}"
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}{dash}{r[-1]}" for r in runs)
