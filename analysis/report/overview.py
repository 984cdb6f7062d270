"""What was run, in words and tables, and the glossary."""

from collections.abc import Mapping, Sequence

import pandas as pd

from ..figures import style
from ..labels import METHOD, text
from ..runs import Group, differing, shared
from ..tables.layout import EMPTY, Table
from ..units import PARTITION
from ..words import say, section, sentences

Descriptions = Mapping[str, str]
"""A line on each method and setting, by label or column of summary.csv; fedsim provides them."""
MAIN = ("dataset", "model", "num_clients", "sample_rate", "alpha", "rounds", "train.lr")
"""The settings that come first in the table."""
TERMS: Mapping[str, str] = section("terms")
"""The report's glossary."""


def title(groups: Sequence[Group]) -> str:
    """A heading for the page: the data set, and how many methods."""
    names = {str(name) for group in groups for name in group.runs["dataset"].dropna()}
    rows = (group.runs.iloc[0] for group in groups)
    methods = {tuple(text(row.get(column)) for column in METHOD) for row in rows}
    count = "one method" if len(methods) == 1 else f"{len(methods)} methods"
    return f"Federated learning on {', '.join(sorted(names))}: {count}"


def lead(groups: Sequence[Group], baseline: str | None) -> str:
    """The first paragraph: numbers of runs, clients, rounds and seeds."""
    common = shared(groups)
    count = sum(len(group.runs) for group in groups)
    seeds = sorted({int(seed) for group in groups for seed in group.runs["seed"]})
    partitions = _partitions(groups)
    facts = []
    if "model" in common:
        facts.append(say("lead.network", model=common["model"]))
    if "num_clients" in common:
        facts.append(say("lead.clients", count=common["num_clients"]))
    if "sample_rate" in common:
        of = "of them" if "num_clients" in common else "of the clients"
        facts.append(say("lead.rate", percent=100 * float(common["sample_rate"]), of=of))
    if "rounds" in common:
        facts.append(say("lead.rounds", count=common["rounds"]))
    of_one = len(seeds) > 1 and all("data.seed" in group.runs for group in groups)
    return sentences(
        say(
            "lead.partitions" if partitions else "lead.seeds", runs=count, groups=len(groups),
            seeds=len(seeds), numbers=_ranges(seeds), partitions=len(partitions),
            partition_numbers=_ranges(partitions),
        ),
        say("lead.shared", facts=", ".join(facts)) if facts else "",
        say("lead.differ_in_partition" if partitions else "lead.differ_in_seed"),
        say("lead.one_partition") if of_one and not partitions else "",
        say("lead.baseline", baseline=style.title(baseline)) if baseline else "",
    )  # fmt: skip


def _partitions(groups: Sequence[Group]) -> list[int]:
    """The seeds of the partitions, if they are the unit."""
    if groups[0].unit == "seed":
        return []
    return sorted({int(seed) for group in groups for seed in group.runs[PARTITION]})


def methods(groups: Sequence[Group], descriptions: Descriptions) -> Table:
    """One row per group: what it is and the settings that distinguish it."""
    known = {**descriptions, **{name: half.meaning for name, half in style.VARIANTS.items()}}
    apart = differing(groups)
    rows = []
    for group in groups:
        said = style.title(group.label).split(", ")
        given = {str(c): v for c, v in apart.loc[group.label].items() if v != "unset"}
        own = ", ".join(
            f"{c} = {given[c]}"
            for c in sorted(given, key=lambda c: c not in METHOD)
            if c != "algorithm" and f"{c}={given[c]}" not in said
        )
        seeds = sorted({int(seed) for seed in group.runs["seed"]})
        partitions = [_ranges(_partitions([group]))] * (group.unit == "partition")
        told = (m for name, m in known.items() if _is(group.label, name))
        meaning = next(told, _composed(group.label))
        rows.append(
            [
                *(style.title(group.label), meaning, own or EMPTY, *partitions),
                *(_ranges(seeds), str(len(group.runs))),
            ]
        )
    nested = groups[0].unit == "partition"
    head = ["Group", "What it is", "Further settings that differ", *["Partitions"] * nested]
    head += ["Seeds", "Runs"]
    names = ["group", "meaning", "settings", *["partitions"] * nested, "seeds", "runs"]
    data = pd.DataFrame(rows, columns=names)
    return Table(
        name="groups_of_runs",
        title=say("groups_of_runs.title"),
        caption=say("groups_of_runs.caption"),
        head=head, rows=rows, words=3, data=data,
    )  # fmt: skip


def settings(groups: Sequence[Group], descriptions: Descriptions) -> Table:
    """The settings that all runs share."""
    common = shared(groups)
    order = [*(key for key in MAIN if key in common), *(key for key in common if key not in MAIN)]
    rows = [[f"`{key}`", common[key], descriptions.get(key, "")] for key in order]
    data = pd.DataFrame({"setting": order, "value": [common[key] for key in order]})
    return Table(
        name="settings", title=say("settings.title"), caption=say("settings.caption"),
        head=["Setting", "Value", "Meaning"], rows=rows, words=3, data=data,
    )  # fmt: skip


def _is(label: str, name: str) -> bool:
    """Whether a label is the method ``name``, alone or with settings of the experiment."""
    rest = f"{label}, ".removeprefix(f"{name}, ")
    return rest != f"{label}, " and not rest.startswith(("server=", "margin="))


def _composed(label: str) -> str:
    """The meaning of a method with another server rule; empty for others."""
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
