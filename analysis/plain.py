"""The first screen of a report: what was compared, what came out, for whom, and what is not known.

For readers without statistics; the sentences of :mod:`analysis.headline` are folded below them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from . import stats, style, units
from .panels import Facets, labels_in, unit_of
from .runs import Group
from .scores import ALL, by_run, counts
from .sites import FIRST, TUNED, Sites, verdict
from .stats import FEWEST
from .words import listed, say, sentences

MOST = 3
"""At most this many settings have a sentence of their own."""


def summary(facets: Facets, score: str, found: Mapping[str, Sites]) -> list[str]:
    """Three sentences or short paragraphs; ``found`` are the sites by setting."""
    return [_compared(facets), _result(facets, score), _whom(facets, score, found)]


def _compared(facets: Facets) -> str:
    groups = [group for inside in facets.values() for group in inside]
    rows = [row for group in groups for row in group.runs.to_dict("records")]
    clients = {row.get("num_clients") for row in rows}
    (count,) = clients if len(clients) == 1 else (None,)
    key = "plain.compared_at" if isinstance(count, int) else "plain.compared"
    repeats = sorted({len(group.runs) for group in groups})
    times = str(repeats[0]) if len(repeats) == 1 else f"{repeats[0]} to {repeats[-1]}"
    return say(
        key, names=listed([*map(style.title, labels_in(facets))], 8), clients=count,
        data=listed(sorted({str(row["dataset"]) for row in rows})), times=times, runs=len(rows),
        settings=f" under {len(facets)} settings" * (len(facets) > 1),
    )  # fmt: skip


def _result(facets: Facets, score: str) -> str:
    told = [_best(setting, groups, score) for setting, groups in list(facets.items())[:MOST]]
    more = len(facets) - len(told)
    return sentences(*told, say("plain.more", count=more) if more else "")


def _best(setting: str, groups: Sequence[Group], score: str) -> str:
    """The best method under a setting, and whether chance can have made it so."""
    shown = ALL[score]
    values = by_run(groups, score, "final")
    order = stats.ranking(values, lowest=shown.lowest)
    where = f"{setting}: " * bool(setting)
    if order is None or order.leader is None:
        return say("plain.no_result", where=where, score=shown.title)
    mean = float(units.means(units.finite(values[order.leader])).mean())
    texts = {
        "where": where, "name": style.title(order.leader), "score": shown.title,
        "best": "lowest" if shown.lowest else "best",
        "number": f"{shown.unit.factor * mean:.3g} {shown.unit.name}",
    }  # fmt: skip
    others = [label for label in order.adjusted if label not in order.differing(1)]
    if not order.adjusted:
        return say("plain.alone", **texts)
    if min(len(units.means(of.dropna())) for of in values.values()) < FEWEST:
        return say("plain.too_few", **texts)
    if order.leads and not counts(groups).get(order.leader):
        return say("plain.leads", **texts)
    names = "others" if len(others) == len(order.adjusted) else listed([*map(style.title, others)])
    return say("plain.chance", names=names, **texts)


def _whom(facets: Facets, score: str, found: Mapping[str, Sites]) -> str:
    """Which sites the best federated method helps."""
    told = []
    for setting, sites in list(found.items())[:MOST]:
        label = _federated(facets[setting], score, sites)
        if sites.reference is None or label is None:
            continue
        by: dict[str, list[str]] = {}
        for name, cell in sites.of(label).items():
            by.setdefault(verdict(cell), []).append(name)
        parts = [
            say(f"plain.{key}", names=listed(by[told_as]))
            for key, told_as in (
                ("helps", "helps"), ("harms", "does not help"), ("open", "cannot be told"),
            )
            if told_as in by
        ]  # fmt: skip
        where = f"{setting}: " * bool(setting)
        texts = {"where": where, "name": style.title(label)}
        if set(by) == {"cannot be told"}:
            told.append(say("plain.all_open", names=listed(by["cannot be told"]), **texts))
            continue
        told.append(say("plain.whom", parts="; ".join(parts), **texts))
    if told:
        return sentences(*told)
    unscored = [name for sites in found.values() for name in sites.without]
    if any(sites.reference is not None for sites in found.values()) and unscored:
        return say(
            "plain.whom_unscored", names=listed([*map(style.title, dict.fromkeys(unscored))])
        )
    return say("plain.whom_unknown")


def _federated(groups: Sequence[Group], score: str, sites: Sites) -> str | None:
    """The best method of those with federation that have accuracies by site."""
    alone = {one.label for one in groups if set(one.runs["algorithm"]) <= set(FIRST)}
    labels = {label for label in sites.labels if not label.endswith(TUNED)} - alone
    values = {label: of for label, of in by_run(groups, score, "final").items() if label in labels}
    order = stats.ranking(values, lowest=ALL[score].lowest)
    return None if order is None else order.leader


def unknown(facets: Facets, unfinished: Sequence[Path]) -> list[str]:
    """What the runs cannot say."""
    groups = [group for inside in facets.values() for group in inside]
    fallen = {
        style.title(label): None
        for inside in facets.values()
        for label, count in counts(inside).items()
        if count
    }
    one_partition = unit_of(facets) == "seed"
    fewest = min(len(group.runs) for group in groups)
    told = [
        say("plain.simulation"),
        say("plain.one_partition") if one_partition else "",
        say("plain.few", count=fewest) if fewest < FEWEST else "",
        say("plain.collapsed", names=listed([*fallen])) if fallen else "",
        say("plain.unfinished", count=len(unfinished)) if unfinished else "",
    ]
    return [text for text in told if text]
