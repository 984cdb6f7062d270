"""What every site gains: accuracy of each client by name and approach, against its own local model.

The accuracy of a client is that of the final model on the client's own test part where the run has
it (final_clients.csv), else that of the last evaluation by client (evaluations.csv).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from . import AnalysisError, series, style
from .captions import interval_words, unit_words
from .clients import last_accuracies
from .files import client_names
from .layout import COLLAPSE, EMPTY, PERCENT, Table, data, interval_head, spread, unit_of
from .paired import SIGNIFICANT, T, Test
from .panels import Facets
from .runs import Group, first_run
from .scores import counts
from .stats import FEWEST, Cell, Comparison, holm, of_runs, paired
from .words import listed, say, sentences

LOCAL = "local"
"""The algorithm in which each client trains a model of its own."""
FIRST = (LOCAL, "centralized")
"""The approaches without federation are the first columns."""
TUNED = ", fine-tuned"
"""End of the label of a method whose final model each client has fine-tuned."""
SAMPLES = {"train_samples": "Training samples", "test_samples": "Test samples"}
"""Columns of partition.csv and their headings."""
Verdict = Literal["helps", "does not help", "cannot be told"]


@dataclass(frozen=True, kw_only=True)
class Sites:
    """The accuracies of the clients under one setting.

    Args:
        names: of the clients by id.
        samples: by client id, columns train_samples and, where known, test_samples.
        labels: of the approaches: methods, and methods with fine-tuning.
        cells: one per client and approach, the column being the client's name.
        reference: the label that the others are compared with; None for no comparison.
        without: labels of methods that have no accuracies by client.
    """

    names: Mapping[int, str]
    samples: pd.DataFrame
    labels: Sequence[str]
    cells: Sequence[Cell]
    reference: str | None
    without: Sequence[str]

    def of(self, label: str) -> dict[str, Cell]:
        """The cells of an approach by the client's name."""
        return {cell.column: cell for cell in self.cells if cell.row == label}


def verdict(cell: Cell) -> Verdict:
    """Whether an approach helps a site, by the paired test over common seeds or partitions.

    It helps, or does not, where it is significantly above or below; with fewer than
    :data:`analysis.stats.FEWEST` common units nothing can be told.
    """
    other = cell.comparison
    if other is None or other.difference.n < FEWEST or not cell.adjusted < SIGNIFICANT:
        return "cannot be told"
    return "helps" if other.sign > 0 else "does not help" if other.sign < 0 else "cannot be told"


def gather(groups: Sequence[Group], baseline: str | None = None, test: Test = T) -> Sites | None:
    """The accuracies by client of methods under one setting; None if no run has any.

    ``baseline`` is the label to compare with; None for that of the runs of :data:`LOCAL`.

    Raises:
        AnalysisError: clients that are not the same in all runs, or no such baseline.
    """
    by_label, without = _accuracies(groups)
    if not by_label:
        return None
    names, samples = _clients(groups)
    ids = sorted({client for own in by_label.values() for client in own})
    names = _distinct({client: names.get(client, f"client {client}") for client in ids})
    own = [one.label for one in groups if set(one.runs["algorithm"]) == {LOCAL}]
    reference = next((label for label in own if label in by_label), None)
    if baseline is not None:
        baseline = style.meant(baseline, by_label)
        if baseline not in by_label:
            raise AnalysisError(
                f"baseline {baseline}: no accuracies by client; those that have them are "
                f"{'; '.join(by_label)}"
            )
        reference = baseline
    return Sites(
        names=names, samples=samples.reindex(ids), labels=list(by_label), reference=reference,
        without=without, cells=_cells(by_label, names, reference, counts(groups), test),
    )  # fmt: skip


def _cells(
    by_label: Mapping[str, Mapping[int, pd.Series[float]]], names: Mapping[int, str],
    reference: str | None, collapsed: Mapping[str, int], test: Test,
) -> list[Cell]:  # fmt: skip
    """One cell per approach and client; p values are corrected over the clients of an approach."""
    cells = []
    theirs = {} if reference is None else by_label[reference]
    for client, name in names.items():
        for label, values in by_label.items():
            if client not in values:
                continue
            other = None
            if label != reference and client in theirs:
                other = paired(values[client], theirs[client], test)
            cells.append(
                Cell(
                    row=label, column=name, estimate=of_runs(values[client]), comparison=other,
                    collapsed=collapsed.get(label, 0),
                )
            )  # fmt: skip
    made = []
    for label in by_label:
        own = [cell for cell in cells if cell.row == label]
        adjusted = holm([cell.comparison.p if cell.comparison else math.nan for cell in own])
        made += [replace(cell, adjusted=p) for cell, p in zip(own, adjusted, strict=True)]
    return made


def _distinct(names: Mapping[int, str]) -> dict[int, str]:
    """The names, with the client's number where several clients have the same."""
    often = Counter(names.values())
    return {
        client: name if often[name] == 1 else f"{name} (client {client})"
        for client, name in names.items()
    }


def _accuracies(
    groups: Sequence[Group],
) -> tuple[dict[str, dict[int, pd.Series[float]]], list[str]]:
    """By approach and client the accuracy of each run; and the methods that have none."""
    final = series.by_run(
        groups, "final_clients", ["accuracy", "finetuned_accuracy"], "client_id",
        {"split": "own_test"},
    )  # fmt: skip
    last = last_accuracies(groups)
    part = "own_test" if final or last["own_test"] else "test"
    found: dict[str, dict[int, pd.Series[float]]] = {}
    tuned: dict[str, dict[int, pd.Series[float]]] = {}
    for one in groups:
        of = final.get(one.label, last[part].get(one.label))
        if of is not None:
            found[one.label] = _by_client(of["accuracy"])
        if one.label in final and final[one.label]["finetuned_accuracy"].notna().any():
            tuned[f"{one.label}{TUNED}"] = _by_client(final[one.label]["finetuned_accuracy"])
    first = [one.label for name in FIRST for one in groups if name in set(one.runs["algorithm"])]
    ordered = {label: found[label] for label in (*first, *found) if label in found}
    return ordered | tuned, [one.label for one in groups if one.label not in found]


def _by_client(values: pd.Series[float]) -> dict[int, pd.Series[float]]:
    there = values.dropna()
    clients = there.index.get_level_values("client_id").astype(int)
    return {client: there[clients == client].droplevel("client_id") for client in clients.unique()}


def _clients(groups: Sequence[Group]) -> tuple[Mapping[int, str], pd.DataFrame]:
    """The clients' names by id, which are those of all methods, and their numbers of samples.

    Raises:
        AnalysisError: names differ, or the clients are other ones on each partition.
    """
    paths = [first_run([one]) for one in groups]
    known = {path: names for path in paths if (names := client_names(path))}
    first, names = next(iter(known.items()), (paths[0], {}))
    for path, others in known.items():
        if others != names:
            raise AnalysisError(
                f"{first} and {path}: their partition.csv do not name the same clients; "
                "compare sites in runs on the same partition"
            )
    if groups[0].unit == "partition" and not names:
        raise AnalysisError(
            f"{first}/partition.csv: clients without names are other ones on each partition; "
            "compare them on one partition, without --unit partition"
        )
    columns = ["train_samples", "test_samples"]
    counted = series.by_run(groups[:1], "partition", columns, "client_id", reduced="sum")
    if not counted:
        return names, pd.DataFrame(columns=columns, dtype=float)
    return names, counted[groups[0].label].groupby(level="client_id").mean()


def gathered(facets: Facets, baseline: str | None = None, test: Test = T) -> dict[str, Sites]:
    """:func:`gather` for each setting that has accuracies by client.

    Raises:
        AnalysisError: see :func:`gather`.
    """
    found = {setting: gather(groups, baseline, test) for setting, groups in facets.items()}
    return {setting: of for setting, of in found.items() if of is not None}


def made(found: Mapping[str, Sites], test: Test = T) -> list[Table]:
    """Accuracy by site and approach, and differences from the local model, for each setting.

    Raises:
        AnalysisError: there are none.
    """
    if not found:
        raise AnalysisError(say("sites.absent"))
    tables = []
    for number, (setting, of) in enumerate(found.items(), 1):
        end = f"_{number}" if len(found) > 1 else ""
        where = f" ({setting})" if setting else ""
        tables.append(_levels(of, end, where))
        if of.reference is not None and len(of.labels) > 1:
            tables.append(_differences(of, end, where, test))
    return tables


def _levels(found: Sites, end: str, where: str) -> Table:
    """Accuracies: one row per site, one column per approach."""
    cells = found.cells
    unit = unit_of(cells)
    samples = [
        (head, found.samples[column])
        for column, head in (
            ("train_samples", "Training samples"),
            ("test_samples", "Test samples"),
        )
        if found.samples[column].sum() > 0
    ]
    head = ["Site", *(head for head, _ in samples)]
    head += [
        style.title(label) + interval_head(list(found.of(label).values())) for label in found.labels
    ]
    rows = []
    for client, name in found.names.items():
        texts = {cell.row: spread(cell, PERCENT) for cell in cells if cell.column == name}
        rows.append(
            [
                name,
                *(EMPTY if math.isnan(of[client]) else f"{of[client]:.0f}" for _, of in samples),
                *(texts.get(label, EMPTY) for label in found.labels),
            ]
        )
    several = any(cell.estimate.n > 1 for cell in cells)
    numbers = sorted({cell.estimate.n for cell in cells})
    least = f"{numbers[0]} to " * (len(numbers) > 1)
    collapsed = [
        label for label in found.labels if any(c.collapsed for c in found.of(label).values())
    ]
    caption = sentences(
        say("sites.caption", least=least, most=numbers[-1], unit=unit),
        say("sites.without", names=listed([*map(style.title, found.without)]))
        if found.without else "",
        say("sites.no_local") if found.reference is None else "",
        unit_words(unit),
        interval_words(unit) if several else "",
        say("sites.collapsed", sign=COLLAPSE, names=listed([*map(style.title, collapsed)]))
        if collapsed else "",
    )  # fmt: skip
    columns = ["label", "method", "site", "client_id", "num_samples", "test_samples"]
    columns += ["n", "mean", "std", "low", "high", "collapsed"]
    return Table(
        name=f"sites{end}", title=say("sites.title") + where, caption=caption, head=head, rows=rows,
        words=1, data=_data(found)[columns],
    )  # fmt: skip


def _differences(found: Sites, end: str, where: str, test: Test) -> Table:
    """Differences from the reference: one row per site, one column per other approach."""
    labels = [label for label in found.labels if label != found.reference]
    compared = [(cell, cell.comparison) for cell in found.cells if cell.comparison is not None]
    texts = {(cell.column, cell.row): _difference(cell, other) for cell, other in compared}
    rows = [
        [name, *(texts.get((name, label), EMPTY) for label in labels)]
        for name in found.names.values()
    ]
    reference, unit = style.title(found.reference or ""), unit_of(found.cells)
    caption = sentences(
        say(
            "sites.difference", reference=reference, unit=unit, test=test.title,
            level=SIGNIFICANT, fewest=FEWEST,
        ),
        say("sites.too_few", unit=unit, fewest=FEWEST)
        if all(other.difference.n < FEWEST for _, other in compared) else "",
    )  # fmt: skip
    every = _data(found)
    columns = ["label", "method", "site", "client_id", "num_samples", "pairs", "difference"]
    columns += ["difference_low", "difference_high", "p", "p_holm", "verdict", "unit"]
    return Table(
        name=f"sites_difference{end}",
        title=say("sites.difference_title", reference=reference) + where,
        caption=caption, head=["Site", *map(style.title, labels)], rows=rows, words=1,
        data=every[every["label"] != found.reference][columns],
    )  # fmt: skip


def _difference(cell: Cell, other: Comparison) -> str:
    """``+4.10 [+1.20, +7.00] **helps**``."""
    if math.isnan(other.difference.mean):
        return EMPTY
    half = other.difference.half
    interval = "" if math.isnan(half) else f" {PERCENT.interval(other.difference, '+')}"
    told = verdict(cell)
    said = told if told == "cannot be told" else f"**{told}**"
    return f"{PERCENT.number(other.difference.mean, '+')}{interval} {said}"


def _data(found: Sites) -> pd.DataFrame:
    """All numbers, one row per site and approach."""
    frame = data(found.cells).rename(columns={"column": "site"})
    ids = {name: client for client, name in found.names.items()}
    clients = frame["site"].map(ids)
    samples = {"num_samples": "train_samples", "test_samples": "test_samples"}
    counted = {
        column: clients.map(found.samples[own]).astype("Int64") for column, own in samples.items()
    }
    verdicts = ["" if cell.comparison is None else verdict(cell) for cell in found.cells]
    return frame.assign(client_id=clients, verdict=verdicts, **counted)
