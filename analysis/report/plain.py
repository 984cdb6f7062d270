"""The first screen of a report: what was compared, what came out, for whom, and what is not known.

The sentences of :mod:`analysis.report.headline` are folded below them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .. import stats, units
from ..figures import style
from ..files import client_names
from ..runs import first_run
from ..scores import ALL
from ..stats import FEWEST
from ..tables.sites import COMMON, Sites
from ..units import PARTITION
from ..words import listed, say, sentences
from .outcome import Outcome, named

MOST = 3
"""At most this many settings have a sentence of their own, and approaches one on whom they help."""


def summary(of: Outcome) -> list[str]:
    """A few sentences or short paragraphs."""
    return [text for text in (_compared(of), _result(of), _whom(of)) if text]


def _compared(of: Outcome) -> str:
    groups = [group for inside in of.facets.values() for group in inside]
    rows = [row for group in groups for row in group.runs.to_dict("records")]
    clients = {row.get("num_clients") for row in rows}
    (count,) = clients if len(clients) == 1 else (None,)
    key = "plain.compared_at" if isinstance(count, int) else "plain.compared"
    names = named(of.labels)
    divisions = len({row[PARTITION] for row in rows}) if of.unit == "partition" else 0
    return say(
        key, names=names + ";" * (";" in names), clients=count,
        data=listed(sorted({str(row["dataset"]) for row in rows})),
        times=_range([len(group.runs) for group in groups]), runs=len(rows),
        divisions=say("plain.divisions", count=divisions) if divisions else "",
        settings=f" under {len(of.facets)} settings" * (len(of.facets) > 1),
    )  # fmt: skip


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _result(of: Outcome) -> str:
    told = [_best(setting, of) for setting in list(of.values)[:MOST]]
    more = len(of.values) - len(told)
    without = dict.fromkeys(name for sites in of.sites.values() for name in sites.without)
    return sentences(
        *told,
        say("plain.without", names=named([*without])) if of.by_site and without else "",
        say("plain.by_site", score=of.shown.title, wanted=ALL[of.wanted].title)
        if of.score != of.wanted else "",
        say("plain.more", count=more) if more else "",
    )  # fmt: skip


def _best(setting: str, of: Outcome) -> str:
    """The best approach under a setting, and whether chance can have made it so."""
    values, shown = of.values[setting], of.shown
    order = stats.ranking(values, lowest=shown.lowest)
    where = f"{setting}: " * bool(setting)
    score = say("outcome.plain", score=shown.title) if of.by_site else shown.title
    if order is None or order.leader is None:
        return say("plain.no_result", where=where, score=score)
    mean = float(units.means(units.finite(values[order.leader])).mean())
    texts = {
        "where": where, "name": style.title(order.leader), "score": score,
        "best": "lowest" if shown.lowest else "best",
        "number": f"{shown.unit.number(mean)} {shown.unit.name}"
        + ", mean over the participants" * of.by_site,
    }  # fmt: skip
    others = [label for label in order.adjusted if label not in order.differing(1)]
    if not order.adjusted:
        return say("plain.alone", **texts)
    few = min(len(units.means(own.dropna())) for own in values.values()) < FEWEST
    if of.unit == "seed":
        return say("plain.one_partition_alone", **texts)
    if few:
        return say("plain.too_few", **texts)
    if order.leads and not of.collapsed[setting].get(order.leader):
        return say("plain.leads", **texts)
    names = "others" if len(others) == len(order.adjusted) else named(others)
    return say("plain.chance", names=names, **texts)


def _whom(of: Outcome) -> str:
    """Which sites the federated approaches help and harm, the best approach first."""
    if of.by_site and all(sites.reference is not None for sites in of.sites.values()):
        return sentences(*(_of_sites(setting, of) for setting in list(of.sites)[:MOST]))
    groups = [group for inside in of.facets.values() for group in inside]
    if any("attack.name" in one.runs and one.runs["attack.name"].notna().any() for one in groups):
        return ""  # such a study asks another question
    sites = list(of.sites.values())
    if any(one.reference is not None for one in sites):
        if any(one.part == COMMON for one in sites):
            return say("plain.whom_common")
        unscored = dict.fromkeys(name for one in sites for name in one.without)
        if unscored:
            return say("plain.whom_unscored", names=named([*unscored]))
        return ""  # only some settings have results by site, which are in their tables
    nested = of.unit == "partition" and not client_names(first_run(groups))
    return "" if nested else say("plain.whom_unknown")


def _of_sites(setting: str, of: Outcome) -> str:
    sites, values = of.sites[setting], of.values[setting]
    means = {label: units.means(values[label]).mean() for label in of.federated(setting)}
    best = sorted(means, key=lambda label: means[label], reverse=not of.shown.lowest)
    where = f"{setting}: " * bool(setting)
    cells = [cell for label in best for cell in sites.of(label).values() if cell.comparison]
    if len(best) > 1 and all(sites.verdict(cell) == "cannot be told" for cell in cells):
        names = list(dict.fromkeys(cell.column for cell in cells))
        why = say("plain.few_partitions") if any(map(sites.few, cells)) else ""
        return say("plain.none_told", where=where, names=listed(names), why=why)
    told = [_of_approach(label, sites, where) for label in best[:MOST]]
    more = len(best) - len(told)
    return sentences(*told, say("plain.whom_more", count=more) if more > 0 else "")


def _of_approach(label: str, sites: Sites, where: str) -> str:
    """Whom one approach helps and harms."""
    by: dict[str, list[str]] = {}
    compared = {name: cell for name, cell in sites.of(label).items() if cell.comparison is not None}
    for name, cell in compared.items():
        by.setdefault(sites.verdict(cell), []).append(name)
    texts = {"where": where, "name": style.title(label)}
    if not by:
        return ""
    if set(by) == {"cannot be told"}:
        few = any(map(sites.few, compared.values()))
        return say(
            "plain.all_open", names=listed(by["cannot be told"]),
            why=say("plain.few_partitions") if few else "", **texts,
        )  # fmt: skip
    parts = [
        say(f"plain.{key}", names=listed(by[told_as]))
        for key, told_as in (("helps", "helps"), ("harms", "harms"), ("open", "cannot be told"))
        if told_as in by
    ]
    return say("plain.whom", parts="; ".join(parts), **texts)


def unknown(of: Outcome, unfinished: Sequence[Path]) -> list[str]:
    """What the runs cannot say."""
    groups = [group for inside in of.facets.values() for group in inside]
    fallen = {
        style.title(label): None
        for inside in of.collapsed.values()
        for label, count in inside.items()
        if count
    }
    repeated = [len(group.runs) for group in groups]
    if of.unit == "partition":
        repeated = [group.runs[PARTITION].nunique() for group in groups]
    fewest = min(repeated)
    told = [
        say("plain.simulation"),
        say("plain.one_partition") if of.unit == "seed" else "",
        say("plain.few", count=fewest, unit=of.unit) if fewest < FEWEST else "",
        say("plain.collapsed", names=listed([*fallen])) if fallen else "",
        say("plain.unfinished", count=len(unfinished)) if unfinished else "",
    ]
    return [text for text in told if text]
