"""What was run, in words and tables, and the glossary."""

from collections.abc import Mapping, Sequence

import pandas as pd

from . import style
from .layout import EMPTY, Table
from .runs import METHOD, Group, differing, shared, text
from .units import PARTITION

Descriptions = Mapping[str, str]
"""A line on each method and setting, by label or column of summary.csv; fedsim provides them."""
MAIN = ("dataset", "model", "num_clients", "sample_rate", "alpha", "rounds", "train.lr")
"""The settings that come first in the table."""
TERMS: Mapping[str, str] = {
    "Client, cohort, round": "A client holds data of its own and trains on it alone. In each "
    "communication round a cohort of clients gets the global model, trains it and returns it; the "
    "server aggregates their updates to the next global model.",
    "Seed": "The number that the random choices of training derive from: first weights, cohorts, "
    "order of samples. Split and partition derive from data.seed. Runs that differ in the seed "
    "alone are repetitions of one experiment on one partition, and the same seed means the same "
    "choices for every method, so that methods are compared seed by seed.",
    "Unit": "What intervals and tests are over, and what they say something about: training seeds "
    "on one partition of the data, or partitions (data.seed), each with the mean over its training "
    "seeds. Seeds on one partition say nothing about other partitions.",
    "Detectable, power": "The smallest true difference that the paired t test finds with 80 % "
    "probability, if differences vary as in these runs. A smaller difference may exist where none "
    "is found.",
    "Final, best, last 10": "Test accuracy after the last round; at the best round (chosen on the "
    "validation part where there is one, else on the test part, which is optimistic); mean over "
    "the evaluated rounds among the last ten.",
    "95 % t interval": "Mean ± t · s / √n with the standard deviation s of n units and Student's t "
    "for n minus 1 degrees of freedom: the interval that covers the true mean in 95 of 100 "
    "repetitions of the experiment.",
    "p, Holm": "Probability of a difference at least as large if the methods were equal, from a "
    "paired test over common units; Holm's correction accounts for the number of comparisons.",
    "Alpha (\N{GREEK SMALL LETTER ALPHA})": "Concentration of the Dirichlet distribution that "
    "deals samples to clients: small values give each client few classes, large values all "
    "clients the same mix.",
    "Loss (nats)": "Mean cross-entropy with natural logarithms; 0 is best, ln C is guessing among "
    "C classes.",
    "Local, shift, aggregation loss": "With local models after training: their loss on their own "
    "data; what they lose on everyone's data instead; what the global model loses against their "
    "mean. The three add up to the global model's loss.",
    "Gram matrix, cosine, conflict": "The inner products of all pairs of the clients' updates; "
    "each divided by the two lengths; a pair with a negative one is in conflict.",
    "Gradient diversity": "Weighted mean of the squared lengths of the updates over the squared "
    "length of their weighted mean; 1 where all are equal.",
    "Principal axis": "An eigenvector of the Gram matrix: a direction that the updates share. Its "
    "eigenvalue's share of the trace says how much of them lies along it.",
    "Recall": "Share of a class's test samples that the model recognises.",
    "Balanced accuracy, macro-F1, AUC": "Means over the classes, each of which counts alike "
    "however frequent it is: of the recall; of the harmonic mean of recall and precision; of the "
    "area under the ROC curve of the class against the rest, where 50 % is guessing.",
    "Collapsed": "A final model that predicts one class only, or whose balanced accuracy is at "
    "most that of chance: 1 / number of classes with test samples.",
    "Aligned, conflicting": "Test samples in which a shortcut (a mark that has nothing to do with "
    "the disease) agrees with the label, or contradicts it.",
}
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
    told += f"{'s' * (len(groups) != 1)} over "
    if partitions:
        told += f"{len(partitions)} partitions (data.seed {_ranges(partitions)}) and "
    told += f"{len(seeds)} {'training ' * bool(partitions)}seed{'s' * (len(seeds) != 1)} "
    told += f"({_ranges(seeds)}). "
    told += f"The same in all: {', '.join(facts)}. " if facts else ""
    if partitions:
        told += (
            "Runs of a group differ in partition and training seed alone. The unit is the "
            "partition: its value is the mean over its training seeds, and intervals and tests are "
            "over the partitions."
        )
    else:
        told += "Runs of a group differ in the seed alone."
    if not partitions and len(seeds) > 1 and all("data.seed" in group.runs for group in groups):
        told += (
            " They share one split and partition of the data, drawn by data.seed: intervals and "
        )
        told += "tests are about the randomness of training on it, not about other partitions."
    return told + (f" The others are compared with {style.title(baseline)}." if baseline else "")


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
        name="groups_of_runs", title="Methods",
        caption=(
            "The groups of runs that this report compares. Settings are named as in `fedsim run "
            "--set` and in summary.csv; those that a method does not have are left out."),
        head=head, rows=rows, words=3, data=data,
    )  # fmt: skip


def settings(groups: Sequence[Group], descriptions: Descriptions) -> Table:
    """The settings that all runs share."""
    common = shared(groups)
    order = [*(key for key in MAIN if key in common), *(key for key in common if key not in MAIN)]
    rows = [[f"`{key}`", common[key], descriptions.get(key, "")] for key in order]
    data = pd.DataFrame({"setting": order, "value": [common[key] for key in order]})
    return Table(
        name="settings", title="Settings of all runs",
        caption="What is the same in all runs. A run's `config.yaml` holds every setting.",
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
