"""What a report says: the values that it compares, and what they mean, in words.

The values are the sites' scores on their own test samples where runs have these and local models,
else those of the common test part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from .. import stats, units
from ..facets import Facets, groups_in, labels_of, unit_of
from ..files import client_names
from ..formats import NumberFormat
from ..labels import title_of
from ..paired import SIGNIFICANT, T
from ..runs import first_run
from ..scores import COLLAPSED, Score, by_run, counts, heading, measure_of, measures_of
from ..stats import FEWEST, cells, ranked
from ..tables.captions import comparisons, interval_words, power_words, signs
from ..tables.clients import last_scores
from ..tables.layout import Table, detailed
from ..tables.sites import COMMON, FIRST, OWN, TUNED, Sites
from ..units import PARTITION, ExperimentalUnit
from ..words import listed, say

MOST, FINDINGS = 3, 6
"""At most this many settings have a sentence in plain words, and one of statistics."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The values that a report compares: by setting and label one per run of the groups."""

    facets: Facets
    wanted: str
    score: str
    by_site: bool
    values: Mapping[str, Mapping[str, pd.Series[float]]]
    collapsed: Mapping[str, Mapping[str, int]]
    sites: Mapping[str, Sites]

    @property
    def shown(self) -> Score:
        """The score of the values."""
        if self.by_site:
            return next(iter(self.sites.values())).shown
        return measure_of(groups_in(self.facets), self.score)

    @property
    def unit(self) -> ExperimentalUnit:
        """What is repeated."""
        return unit_of(self.facets)

    @property
    def labels(self) -> list[str]:
        """The approaches, in the order of their first setting."""
        return labels_of(self.values)

    @property
    def title(self) -> str:
        """``Final test accuracy``."""
        return say(
            "answer.title", by_site=self.by_site, score=self.shown.title,
            heading=heading(self.score, "final", self.shown),
        )  # fmt: skip

    @property
    def part(self) -> str:
        """What the values are scores on, in words."""
        return say("answer.part", by_site=self.by_site, personal=self.personal)

    @property
    def personal(self) -> str:
        """Whose score of the common test part is a mean over the sites' own models."""
        scores = [last_scores(groups)[COMMON] for groups in self.facets.values()]
        labels = dict.fromkeys(label for by_label in scores for label in by_label)
        return names(list(labels)) if labels else ""

    def federated(self, setting: str) -> list[str]:
        """The approaches under a setting in which sites do not train alone, nor pool their data."""
        alone = [
            one.label for one in self.facets[setting] if set(one.runs["algorithm"]) <= set(FIRST)
        ]
        alone += [f"{label}{TUNED}" for label in alone]
        return [label for label in self.values[setting] if label not in alone]

    def best(self, setting: str) -> list[str]:
        """The federated approaches under a setting, the best mean first."""
        values = self.values[setting]
        means = {label: units.means(values[label]).mean() for label in self.federated(setting)}
        return sorted(means, key=lambda label: means[label], reverse=not self.shown.lowest)

    def tables(self, baseline: str | None) -> dict[str, Table]:
        """By setting the means over the sites; over partitions against local training too."""
        made, several = {}, self.unit == "partition"
        for number, (setting, values) in enumerate(self.values.items(), 1):
            base = baseline or (self.sites[setting].reference if several else None)
            shown, lowest = cells({"": values}, base), self.shown.lowest
            texts = [say(f"units.{self.unit}"), interval_words(self.unit)]
            texts.append(say("sites.too_few", fewest=FEWEST))
            if several:
                collapsed = {("", label): n for label, n in self.collapsed[setting].items()}
                shown = ranked(shown, {"": values}, lowest=lowest, collapsed=collapsed)
                classes = measures_of(groups_in(self.facets)).of_classes
                texts = [signs(shown, T, lowest=lowest, classes=classes)]
            caption = say("answer.caption", score=self.shown.title, signs=" ".join(texts))
            made[setting] = detailed(
                "sites_mean" if len(self.values) == 1 else f"sites_mean_{number}",
                f"{self.title} ({setting})" if setting else self.title,
                caption + comparisons(shown, base, T, self.shown.unit, details=True),
                shown, self.shown.unit, self.shown.name,
            )  # fmt: skip
        return made


def outcome(facets: Facets, score: str, sites: Mapping[str, Sites]) -> Outcome:
    """The values of a score, by site where all settings have local models to compare with."""
    collapsed = {setting: counts(groups) for setting, groups in facets.items()}
    pooled = Outcome(
        facets=facets, wanted=score, score=score, by_site=False, collapsed=collapsed, sites=sites,
        values={setting: by_run(groups, score, "final") for setting, groups in facets.items()},
    )  # fmt: skip
    if sites.keys() != facets.keys() or any(one.part != OWN for one in sites.values()):
        return pooled
    for one in sites.values():  # what sites could do alone, or after
        if one.reference is None and not any(label.endswith(TUNED) for label in one.labels):
            return pooled
    by_site = Outcome(
        facets=facets, wanted=score, score=next(iter(sites.values())).score, by_site=True,
        values={setting: of.means() for setting, of in sites.items()}, collapsed=collapsed,
        sites=sites,
    )  # fmt: skip
    return by_site if all(by_site.federated(setting) for setting in facets) else pooled


def names(labels: Sequence[str]) -> str:
    """``FedAvg and Local``; ``FedAvg; FedAvg, fine-tuned``, where a name has a comma."""
    titles = [title_of(label) for label in labels]
    return "; ".join(titles) if any(", " in name for name in titles) else listed(titles, 8)


def standing(setting: str, of: Outcome) -> dict[str, Any]:
    """What sentences say of the best approach under a setting, and of those it differs from."""
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
    settings, groups = list(of.values), groups_in(of.facets)
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
        score=of.shown.title, wanted=measure_of(groups, of.wanted).title, key=of.wanted,
        other=of.by_site and of.score != of.wanted, more=len(settings) - MOST,
    )  # fmt: skip
    return [text.strip() for text in (compared, " ".join([*result, more]), _whom(of)) if text]


def _whom(of: Outcome) -> str:
    """Which sites the federated approaches help and harm, or why that is not known."""
    sites, groups = list(of.sites.values()), groups_in(of.facets)
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
    sites = of.sites[setting]
    best = of.best(setting)
    shown = {
        label: [cell for cell in sites.of(label).values() if cell.comparison] for label in best
    }
    approaches: list[tuple[str, dict[str, list[str]], bool, list[str]]] = []
    for label in best[:MOST]:
        verdicts: dict[str, list[str]] = {}
        for cell in shown[label]:
            verdicts.setdefault(sites.verdict(cell), []).append(cell.column)
        alike = [others for _, same, _, others in approaches if same == verdicts]
        if alike:
            alike[0].append(label)
        elif verdicts:
            approaches.append((title_of(label), verdicts, any(map(sites.few, shown[label])), []))
    told = [(name, verdicts, few, names(others)) for name, verdicts, few, others in approaches]
    every = [cell for label in best for cell in shown[label]]
    return say(
        "answer.whom", setting=setting, approaches=told, more=len(best) - MOST,
        undecided=len(best) > 1 and all(sites.verdict(cell) == "cannot be told" for cell in every),
        names=list(dict.fromkeys(cell.column for cell in every)), few=any(map(sites.few, every)),
    )  # fmt: skip


def unknown(of: Outcome, unfinished: Sequence[Path]) -> list[str]:
    """What the runs cannot say."""
    runs = [group.runs for group in groups_in(of.facets)]
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
    """Sentences: the best method of each setting, the comparisons with the baseline, collapses."""
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
    complete = all(
        COLLAPSED in g.runs and g.runs[COLLAPSED].notna().all() for g in groups_in(of.facets)
    )
    classes = measures_of(groups_in(of.facets)).of_classes
    texts.append(say("finding.collapsed", names=fallen, known=complete, classes=classes))
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
