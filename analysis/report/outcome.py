"""What a report is about: one value per run and approach, from which its first screen follows.

The first screen, its figure, the statistics below and the table of means read the same values.
Where runs have scores by site and their own local models, these are the sites' scores on their own
test samples, as in :mod:`analysis.tables.sites`; else the score of the common test part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from ..figures import style
from ..figures.grid import Facets, labels_of, unit_of
from ..paired import T
from ..scores import ALL, Score, by_run, counts, heading
from ..stats import FEWEST, cells, ranked
from ..tables.captions import comparisons, interval_words, signs, unit_words
from ..tables.clients import last_scores
from ..tables.layout import Table, detailed
from ..tables.sites import BY_SITE, COMMON, FIRST, OWN, TUNED, Sites
from ..units import ExperimentalUnit
from ..words import listed, say, sentences


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
        if not self.by_site:
            return heading(self.score, "final")
        return say("outcome.title", score=self.shown.title)

    @property
    def part(self) -> str:
        """What the values are scores on, in words."""
        if self.by_site:
            return say("outcome.by_site")
        return say("outcome.pooled", personal=self.personal)

    @property
    def personal(self) -> str:
        """Whose score of the common test part is a mean over the sites' own models, in words."""
        scored = [last_scores(groups)[COMMON] for groups in self.facets.values()]
        labels = dict.fromkeys(label for by_label in scored for label in by_label)
        return say("outcome.personal", names=named([*labels])) if labels else ""

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
            shown = cells({"": values}, base)
            collapsed = {("", label): n for label, n in self.collapsed[setting].items()}
            if several:
                lowest = self.shown.lowest
                shown = ranked(shown, {"": values}, lowest=lowest, collapsed=collapsed)
            caption = sentences(
                say("outcome.caption", score=self.shown.title),
                *(
                    [signs(shown, T, lowest=self.shown.lowest)]
                    if several
                    else [
                        unit_words(self.unit),
                        interval_words(self.unit),
                        say("sites.too_few", fewest=FEWEST),
                    ]
                ),
            ) + comparisons(shown, base, T, self.shown.unit, details=True)
            where = f" ({setting})" * bool(setting)
            made[setting] = detailed(
                "sites_mean" + f"_{number}" * (len(self.values) > 1), self.title + where, caption,
                shown, self.shown.unit, self.shown.title[0].upper() + self.shown.title[1:],
            )  # fmt: skip
        return made


def outcome(facets: Facets, score: str, sites: Mapping[str, Sites]) -> Outcome:
    """The values of a score, by site where all settings have local models to compare with.

    ``sites`` are of :func:`analysis.tables.sites.gathered`, of the score where it is one of
    :data:`analysis.tables.sites.BY_SITE`, else of accuracy.
    """
    collapsed = {setting: counts(groups) for setting, groups in facets.items()}
    values = {setting: by_run(groups, score, "final") for setting, groups in facets.items()}
    found = Outcome(
        facets=facets, wanted=score, score=score, by_site=False, values=values,
        collapsed=collapsed, sites=sites,
    )  # fmt: skip
    if sites.keys() != facets.keys() or not all(map(_asks, sites.values())):
        return found
    own = Outcome(
        facets=facets, wanted=score, score=score if score in BY_SITE else "accuracy", by_site=True,
        values={setting: of.means() for setting, of in sites.items()}, collapsed=collapsed,
        sites=sites,
    )  # fmt: skip
    return own if all(own.federated(setting) for setting in facets) else found


def _asks(sites: Sites) -> bool:
    """Whether sites have scores on samples of their own by what they could do alone, or after."""
    alone = sites.reference is not None
    return sites.part == OWN and (alone or any(label.endswith(TUNED) for label in sites.labels))


def named(labels: Sequence[str]) -> str:
    """``FedAvg and Local``; ``FedAvg; FedAvg, fine-tuned``, where a name has a comma."""
    titles = [style.title(label) for label in labels]
    return "; ".join(titles) if any(", " in title for title in titles) else listed(titles, 8)
