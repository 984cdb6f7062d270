"""What a report is about: one value per run and approach, from which its first screen follows.

The first screen, its figure, the statistics below and the table of means read the same values.
Where runs have scores by site and their own local models, these are the sites' scores on their own
test samples, as in :mod:`analysis.tables.sites`; else the score of the common test part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from ..facets import Facets, labels_of, unit_of
from ..labels import title_of
from ..paired import T
from ..scores import ALL, Score, by_run, counts, heading
from ..stats import FEWEST, cells, ranked
from ..tables.captions import comparisons, interval_words, signs, unit_words
from ..tables.clients import last_scores
from ..tables.layout import Table, detailed
from ..tables.sites import BY_SITE, COMMON, FIRST, OWN, TUNED, Sites
from ..units import ExperimentalUnit
from ..words import listed, say


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The values that a report compares.

    Args:
        facets: the groups by setting.
        wanted: the score that was asked for.
        score: the score of the values, a key of :data:`analysis.scores.ALL`.
        by_site: whether a value is the mean over the sites, each on its own test samples; else it
            is that of the common test part.
        values: by setting and label one value per run.
        collapsed: by setting and label the number of runs whose final model collapsed.
        sites: by setting, the scores by site.
    """

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
        return ALL[self.score]

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
            heading=heading(self.score, "final"),
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

    def tables(self, baseline: str | None) -> dict[str, Table]:
        """By setting the means over the sites, and differences from a baseline: local training.

        Over training seeds nothing is bold, and nothing compared with local training.
        """
        made, several = {}, self.unit == "partition"
        for number, (setting, values) in enumerate(self.values.items(), 1):
            base = baseline or (self.sites[setting].reference if several else None)
            shown, lowest = cells({"": values}, base), self.shown.lowest
            texts = [unit_words(self.unit), interval_words(self.unit)]
            texts.append(say("sites.too_few", fewest=FEWEST))
            if several:
                collapsed = {("", label): n for label, n in self.collapsed[setting].items()}
                shown = ranked(shown, {"": values}, lowest=lowest, collapsed=collapsed)
                texts = [signs(shown, T, lowest=lowest)]
            caption = say("answer.caption", score=self.shown.title, signs=" ".join(texts))
            made[setting] = detailed(
                "sites_mean" if len(self.values) == 1 else f"sites_mean_{number}",
                f"{self.title} ({setting})" if setting else self.title,
                caption + comparisons(shown, base, T, self.shown.unit, details=True),
                shown, self.shown.unit, self.shown.title[0].upper() + self.shown.title[1:],
            )  # fmt: skip
        return made


def outcome(facets: Facets, score: str, sites: Mapping[str, Sites]) -> Outcome:
    """The values of a score, by site where all settings have local models to compare with.

    ``sites`` are of :func:`analysis.tables.sites.by_setting`, of the score where it is one of
    :data:`analysis.tables.sites.BY_SITE`, else of accuracy.
    """
    collapsed = {setting: counts(groups) for setting, groups in facets.items()}
    pooled = Outcome(
        facets=facets, wanted=score, score=score, by_site=False, collapsed=collapsed, sites=sites,
        values={setting: by_run(groups, score, "final") for setting, groups in facets.items()},
    )  # fmt: skip
    if sites.keys() != facets.keys() or not all(map(_comparable, sites.values())):
        return pooled
    by_site = Outcome(
        facets=facets, wanted=score, score=score if score in BY_SITE else "accuracy", by_site=True,
        values={setting: of.means() for setting, of in sites.items()}, collapsed=collapsed,
        sites=sites,
    )  # fmt: skip
    return by_site if all(by_site.federated(setting) for setting in facets) else pooled


def _comparable(sites: Sites) -> bool:
    """Whether sites have scores on samples of their own by what they could do alone, or after."""
    alone = sites.reference is not None
    return sites.part == OWN and (alone or any(label.endswith(TUNED) for label in sites.labels))


def names(labels: Sequence[str]) -> str:
    """``FedAvg and Local``; ``FedAvg; FedAvg, fine-tuned``, where a name has a comma."""
    titles = [title_of(label) for label in labels]
    return "; ".join(titles) if any(", " in name for name in titles) else listed(titles, 8)
