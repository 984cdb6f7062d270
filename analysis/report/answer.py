"""The answer of a report in words: what came out, for whom, what is significant or unknown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from .. import stats, units
from ..files import client_names
from ..formats import NumberFormat
from ..labels import title_of
from ..paired import SIGNIFICANT
from ..runs import Group, first_run
from ..scores import ALL, COLLAPSED
from ..stats import FEWEST
from ..tables.captions import power_words
from ..tables.layout import Table
from ..tables.sites import COMMON
from ..units import PARTITION
from ..words import say
from .outcome import Outcome, names

MOST, FINDINGS = 3, 6
"""At most this many settings have a sentence in plain words, and one of statistics."""


def _groups(of: Outcome) -> list[Group]:
    return [group for inside in of.facets.values() for group in inside]


def standing(setting: str, of: Outcome) -> dict[str, Any]:
    """What sentences say of the best approach under a setting, and of those that it differs from.

    ``leader`` is None where there is none.
    """
    shown, values = of.shown, of.values[setting]
    order = stats.ranking(values, lowest=shown.lowest)
    facts: dict[str, Any] = {
        "setting": setting, "title": of.title[0].lower() + of.title[1:], "score": shown.title,
        "lowest": shown.lowest, "unit": of.unit, "by_site": of.by_site, "fewest": FEWEST,
        "any": order is not None, "leader": None, "n": 0, "mean": "", "spread": "",
        "incomplete": False,
    }  # fmt: skip
    if order is None or order.leader is None:
        return facts
    best, others = stats.of_runs(values[order.leader]), list(order.adjusted)
    means = {label: units.means(values[label]).mean() for label in others}
    near = stats.EQUAL * abs(best.mean)
    complete = [label for label in others if label not in order.missing]
    above, below = order.differing(1), order.differing(-1)
    chance = [label for label in others if label not in above]
    return facts | {
        "leader": title_of(order.leader), "others": len(others), "leads": order.leads,
        "mean": f"{shown.unit.number(best.mean)} {shown.unit.name}".strip(), "n": best.n,
        "spread": f"{shown.unit.spread(best)} {shown.unit.name}".strip(), "runs": best.runs,
        "tied": [
            title_of(order.leader),
            *(title_of(label) for label in complete if abs(means[label] - best.mean) <= near),
        ],
        "incomplete": len(complete) < len(others),
        "fallen": of.collapsed[setting].get(order.leader, 0),
        "few": min(len(units.means(series.dropna())) for series in values.values()) < FEWEST,
        "untested": all(map(math.isnan, order.adjusted.values())),
        "above": names(above), "below": names(below),
        "equal": names([label for label in others if label not in (*above, *below)]),
        "chance": "others" if len(chance) == len(others) else names(chance),
    }  # fmt: skip


def summary(of: Outcome) -> list[str]:
    """What was compared, what came out, and for whom: short paragraphs for any reader."""
    settings, groups = list(of.values), _groups(of)
    runs = pd.concat([group.runs for group in groups])
    clients = set(runs["num_clients"]) if "num_clients" in runs else set()
    compared = say(
        "answer.compared", names=names(of.labels), settings=len(of.facets), runs=len(runs),
        data=sorted(set(map(str, runs["dataset"]))), clients=clients,
        times=sorted(len(group.runs) for group in groups),
        divisions=runs[PARTITION].nunique() if of.unit == "partition" else 0,
    )  # fmt: skip
    without = dict.fromkeys(name for sites in of.sites.values() for name in sites.without)
    result = [say("answer.best", **standing(setting, of)) for setting in settings[:MOST]]
    more = say(
        "answer.more", without=names([*without]) if of.by_site and without else "",
        score=of.shown.title, wanted=ALL[of.wanted].title, more=len(settings) - MOST,
    )  # fmt: skip
    return [text.strip() for text in (compared, " ".join([*result, more]), _whom(of)) if text]


def _whom(of: Outcome) -> str:
    """Which sites the federated approaches help and harm, or why that is not known."""
    sites, groups = list(of.sites.values()), _groups(of)
    if of.by_site and all(one.reference is not None for one in sites):
        return " ".join(_of_sites(setting, of) for setting in list(of.sites)[:MOST])
    if any("attack.name" in one.runs and one.runs["attack.name"].notna().any() for one in groups):
        return ""  # such a study asks another question
    if any(one.reference is not None for one in sites):
        common = any(one.part == COMMON for one in sites)
        unscored = dict.fromkeys(name for one in sites for name in one.without)
        if not common and not unscored:
            return ""  # only some settings have results by site, which are in their tables
        return say("answer.whom_unknown", common=common, names=names([*unscored]))
    nested = of.unit == "partition" and not client_names(first_run(groups))
    return "" if nested else say("answer.whom_unknown", common=False, names="")


def _of_sites(setting: str, of: Outcome) -> str:
    """Whom the approaches help and harm under a setting, the best approach first."""
    sites, values = of.sites[setting], of.values[setting]
    means = {label: units.means(values[label]).mean() for label in of.federated(setting)}
    best = sorted(means, key=lambda label: means[label], reverse=not of.shown.lowest)
    cells = {
        label: [cell for cell in sites.of(label).values() if cell.comparison] for label in best
    }
    approaches = []
    for label in best[:MOST]:
        verdicts: dict[str, list[str]] = {}
        for cell in cells[label]:
            verdicts.setdefault(sites.verdict(cell), []).append(cell.column)
        if verdicts:
            approaches.append((title_of(label), verdicts, any(map(sites.few, cells[label]))))
    every = [cell for label in best for cell in cells[label]]
    return say(
        "answer.whom", setting=setting, approaches=approaches, more=len(best) - MOST,
        undecided=len(best) > 1 and all(sites.verdict(cell) == "cannot be told" for cell in every),
        names=list(dict.fromkeys(cell.column for cell in every)), few=any(map(sites.few, every)),
    )  # fmt: skip


def unknown(of: Outcome, unfinished: Sequence[Path]) -> list[str]:
    """What the runs cannot say."""
    runs = [group.runs for group in _groups(of)]
    fewest = min(r[PARTITION].nunique() if of.unit == "partition" else len(r) for r in runs)
    collapsed = [label for inside in of.collapsed.values() for label, n in inside.items() if n]
    texts = [say("unknown.simulation")]
    if of.unit == "seed":
        texts.append(say("unknown.one_partition"))
    if fewest < FEWEST:
        texts.append(say("unknown.few", number=fewest, unit=of.unit))
    if collapsed:
        texts.append(say("unknown.collapsed", names=[*dict.fromkeys(map(title_of, collapsed))]))
    if unfinished:
        texts.append(say("unknown.unfinished", number=len(unfinished)))
    return texts


def findings(of: Outcome, baseline: str | None, compared: Mapping[str, Table]) -> list[str]:
    """Sentences: the best method of each setting, the comparisons with the baseline, collapses.

    ``compared`` are tables of the values that the outcome has, by setting.
    """
    settings = list(of.values)
    texts = [say("finding.best", **standing(setting, of)) for setting in settings[:FINDINGS]]
    if len(settings) > FINDINGS:
        texts.append(say("finding.others", number=len(settings) - FINDINGS))
    if baseline is not None:
        texts += [
            _against(setting, baseline, table.data, of.shown.unit)
            for setting, table in list(compared.items())[:FINDINGS]
        ]
    if incomplete := lacking(of):
        texts.append(say("finding.incomplete", names=incomplete))
    fallen = [
        _some(group.label, number, len(group.runs), setting)
        for setting, groups in of.facets.items()
        for group in groups
        if (number := of.collapsed[setting].get(group.label, 0))
    ]
    complete = all(COLLAPSED in g.runs and g.runs[COLLAPSED].notna().all() for g in _groups(of))
    texts.append(say("finding.collapsed", names=fallen, known=complete))
    return [text for text in texts if text]


def _against(setting: str, baseline: str, data: pd.DataFrame, unit: NumberFormat) -> str:
    """Which groups differ significantly from the baseline, and what could be detected."""
    tested = data[data["p_holm"].notna()]
    different = [
        f"{row['method']} ({unit.number(row['difference'], '+')} {unit.of_differences}, "
        f"p {row['p_holm']:.2g})"
        for row in tested[tested["p_holm"] < SIGNIFICANT].to_dict("records")
    ]
    return say(
        "finding.against", setting=setting, baseline=title_of(baseline), tests=len(tested),
        names=different, fewest=FEWEST, unit=data["unit"].iloc[0], power=power_words(data, unit),
    )  # fmt: skip


def lacking(of: Outcome) -> list[str]:
    """The groups that lack runs which others have: ``FedLD (2 of 3 runs)``."""
    return [
        _some(label, runs, runs + count, setting)
        for setting, values in of.values.items()
        for label, count in stats.missing(values).items()
        for runs in [stats.of_runs(values[label]).runs]
        if count
    ]


def _some(label: str, number: int, runs: int, setting: str) -> str:
    """``FedLD (2 of 3 runs, alpha = 0.1)``."""
    suffix = f", {setting}" if setting else ""
    return f"{title_of(label)} ({number} of {runs} run{'' if runs == 1 else 's'}{suffix})"
