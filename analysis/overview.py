"""What was run, in words and tables."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import style, words
from analysis.layout import EMPTY, Table
from analysis.runs import METHOD, Group, differing, shared, text

MAIN = ("dataset", "model", "num_clients", "sample_rate", "alpha", "rounds", "train.lr")
"""The settings that come first, by column of summary.csv."""


def title(groups: Sequence[Group]) -> str:
    """A heading for the page: the data set, and how many methods."""
    names = {str(name) for group in groups for name in group.runs["dataset"].dropna()}
    rows = (group.runs.iloc[0] for group in groups)
    methods = {tuple(text(row.get(column)) for column in METHOD) for row in rows}
    count = "one method" if len(methods) == 1 else f"{len(methods)} methods"
    return f"Federated learning on {', '.join(sorted(names))}: {count}"


def lead(groups: Sequence[Group], baseline: str | None) -> str:
    """The first paragraph: runs, methods, clients, rounds, seeds."""
    common = shared(groups)
    count = sum(len(group.runs) for group in groups)
    seeds = sorted({int(seed) for group in groups for seed in group.runs["seed"]})
    facts = [
        f"{common[key]} {unit}"
        for key, unit in (("num_clients", "clients"), ("rounds", "communication rounds"))
        if key in common
    ]
    if "sample_rate" in common:
        of = "of them" if "num_clients" in common else "of the clients"
        share = f"{100 * float(common['sample_rate']):g} % {of} in each round"
        facts.insert(int("num_clients" in common), share)
    if "model" in common:
        facts.insert(0, f"network {common['model']}")
    told = f"{count} finished run{'s' * (count != 1)} in {len(groups)} group"
    told += f"{'s' * (len(groups) != 1)} over {len(seeds)} seed{'s' * (len(seeds) != 1)} "
    told += f"({_ranges(seeds)}). "
    told += f"The same in all: {', '.join(facts)}. " if facts else ""
    told += "Runs of a group differ in the seed alone."
    if len(seeds) > 1 and all("data.seed" in group.runs for group in groups):
        told += (
            " They share one split and partition of the data, drawn by data.seed: intervals and "
        )
        told += "tests are about the randomness of training on it, not about other partitions."
    return told + (f" The others are compared with {style.title(baseline)}." if baseline else "")


def methods(groups: Sequence[Group]) -> Table:
    """A row per group: what it is and what tells it apart."""
    apart = differing(groups)
    rows = []
    for group in groups:
        said = style.title(group.label).split(", ")
        known = {str(c): v for c, v in apart.loc[group.label].items() if v != "unset"}
        own = ", ".join(
            f"{c} = {known[c]}"
            for c in sorted(known, key=lambda c: c not in METHOD)
            if c != "algorithm" and f"{c}={known[c]}" not in said
        )
        seeds = sorted(int(seed) for seed in group.runs["seed"])
        told = (m for name, m in words.METHODS.items() if _is(group.label, name))
        meaning = next(told, _composed(group.label))
        rows.append(
            [style.title(group.label), meaning, own or EMPTY, _ranges(seeds), str(len(seeds))]
        )
    head = ["Group", "What it is", "Further settings that differ", "Seeds", "Runs"]
    data = pd.DataFrame(rows, columns=["group", "meaning", "settings", "seeds", "runs"])
    return Table(
        "groups_of_runs", "Methods",
        "The groups of runs that this report compares. Settings are named as in `fedsim run --set` "
        "and in summary.csv; those that a method does not have are left out.",
        head, rows, 3, data,
    )  # fmt: skip


def settings(groups: Sequence[Group]) -> Table:
    """The settings that all runs share."""
    common = shared(groups)
    order = [*(key for key in MAIN if key in common), *(key for key in common if key not in MAIN)]
    rows = [[f"`{key}`", common[key], words.SETTINGS.get(key, "")] for key in order]
    data = pd.DataFrame({"setting": order, "value": [common[key] for key in order]})
    return Table(
        "settings", "Settings of all runs",
        "What is the same in all runs. A run's `config.yaml` holds every setting.",
        ["Setting", "Value", "Meaning"], rows, 3, data,
    )  # fmt: skip


def _is(label: str, name: str) -> bool:
    """Whether a label is of the method ``name``: it alone, or with settings that are no method."""
    rest = f"{label}, ".removeprefix(f"{name}, ")
    return rest != f"{label}, " and not rest.startswith(("server=", "margin="))


def _composed(label: str) -> str:
    """What a method under the server rule of another one is; empty for others."""
    method, _, rest = label.partition(", server=")
    server = style.title(rest.partition(", ")[0])
    return f"{style.title(method)}'s clients, aggregated as {server} does" if server else ""


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
