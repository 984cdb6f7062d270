"""Mean ranks of methods over blocks, Friedman's test, and the critical difference of Nemenyi.

Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7 (2006), section 3.2.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from . import AnalysisError
from .facets import facets, labels_in, settings_by
from .formats import p_value
from .labels import LABEL, title_of
from .paired import SIGNIFICANT, Floats
from .runs import group, unit_among
from .scores import Score, by_run, completed, counts, heading, measure_of, measures_of
from .stats import EQUAL, missing
from .tables.layout import EMPTY, Table
from .units import PARTITION, ExperimentalUnit
from .words import say, sentences


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Methods ranked within each of N blocks; rank 1 is the best of k."""

    values: (
        pd.DataFrame
    )  # by block and label (N, k), the best mean rank first; NaN for lacking runs
    ranks: pd.DataFrame  # of the same shape
    score: Score  # what is ranked
    title: str  # of the score and the rounds that it is from
    unit: ExperimentalUnit = "seed"  # partitions are blocks of their own, seeds are averaged
    collapsed: Mapping[str, int] = field(default_factory=dict)  # number of runs, where there are
    classes: bool = True  # whether the task is of classes

    @property
    def labels(self) -> list[str]:
        """The methods, the best mean rank first."""
        return list(self.ranks.columns)

    @property
    def means(self) -> pd.Series[float]:
        """The mean rank by label."""
        return self.ranks.mean()

    @property
    def lacking(self) -> dict[str, list[str]]:
        """By label the blocks in which it is ranked last for want of a run, of those with any."""
        blocks = {label: self.values.index[self.values[label].isna()] for label in self.labels}
        return {label: list(of) for label, of in blocks.items() if len(of)}

    @property
    def p(self) -> float:
        """The p value of Iman and Davenport."""
        return iman_davenport(self.ranks.to_numpy(float))[1]

    @property
    def difference(self) -> float:
        """The critical difference."""
        return critical_difference(len(self.labels), len(self.ranks))

    @property
    def cliques(self) -> list[tuple[int, int]]:
        """First and last position of each largest set of methods that do not differ."""
        if not self.p < SIGNIFICANT:
            return [(0, len(self.labels) - 1)]
        return cliques(self.means.tolist(), self.difference)


def gather(
    runs: pd.DataFrame, by: Sequence[str] = (LABEL,), metric: str | None = None,
    take: str = "final", unit: ExperimentalUnit | None = None,
) -> Ranks:  # fmt: skip
    """The ranks of methods over the settings in ``by`` and, as the unit, partitions; by default by
    the primary measure."""
    measures = measures_of(runs)
    metric = metric or measures.primary
    score = measure_of(runs, metric)
    runs = completed(runs, [metric])
    unit = unit_among(runs, by, unit)
    groups = group(runs, by, unit)
    settings = settings_by(by, groups)
    split = facets(groups, settings)
    if settings and list(split) == [""]:
        raise AnalysisError(
            f"--by {' --by '.join(settings)}: each setting has one method alone, and ranks compare "
            "methods under the same settings"
        )
    labels, rows = labels_in(split), dict[str, dict[str, float]]()
    for setting, inside in split.items():
        found = by_run(inside, metric, take)
        empty = next(iter(found.values())).iloc[:0]
        every = {label: found.get(label, empty) for label in labels}
        for title, values in _blocks(setting, every, unit).items():
            lost = missing(values)
            rows[title] = {
                label: math.nan if lost[label] else series.mean()
                for label, series in values.items()
            }
    table = pd.DataFrame.from_dict(rows, orient="index", columns=labels, dtype=float)
    table = table[table.notna().any(axis=1)]
    if len(labels) < 2:
        raise AnalysisError(f"ranks compare methods; the runs are all of {labels[0]}")
    if len(table) < 2:
        raise AnalysisError(
            "ranks are means over blocks, and these runs are one; name a setting in which they "
            "differ with --by, such as --by label --by alpha, or take partitions of the data as "
            "blocks with --unit partition"
        )
    array = ranked(table.to_numpy(float), lowest=score.lowest)
    ranks = pd.DataFrame(array, table.index, table.columns)
    best = sorted(labels, key=lambda label: ranks[label].mean())
    title = heading(metric, take, score)
    fallen = sum((Counter(counts(inside)) for inside in split.values()), Counter[str]())
    return Ranks(
        values=table[best], ranks=ranks[best], score=score, unit=unit,
        title=title[0].lower() + title[1:], collapsed=fallen, classes=measures.of_classes,
    )  # fmt: skip


def _blocks(
    setting: str, values: Mapping[str, pd.Series[float]], unit: ExperimentalUnit
) -> dict[str, Mapping[str, pd.Series[float]]]:
    """Values by title and label of each block of a setting."""
    if unit == "seed":
        return {setting: values}
    parts = sorted({p for series in values.values() for p in series.index.unique(PARTITION)})
    return {
        f"{setting}{', ' * bool(setting)}partition {part}": {
            label: series[series.index.get_level_values(PARTITION) == part]
            for label, series in values.items()
        }
        for part in parts
    }


def ranked(values: Floats, *, lowest: bool = False) -> Floats:
    """The ranks (N, k) of values in each row, 1 for the best; ties share a mean, NaN are last."""
    levels = np.full(values.shape, np.inf)
    for row, scores in zip(levels, values, strict=True):
        finite = np.isfinite(scores)
        if finite.any():
            order = np.sort(scores[finite])
            steps = np.cumsum(np.diff(order, prepend=order[0]) > EQUAL * np.abs(order).max())
            position = steps[np.searchsorted(order, scores[finite])]
            row[finite] = position if lowest else -position
    return np.asarray(stats.rankdata(levels, axis=1), dtype=float)


def friedman(ranks: Floats) -> tuple[float, float]:
    """Friedman's chi-squared, corrected for ties, of ranks (N, k), and its p value.

    With R_j the sum of the ranks of method j,
    ``chi2 = (k - 1) sum_j (R_j - N (k + 1) / 2)^2 / (sum_ij r_ij^2 - N k (k + 1)^2 / 4)``.
    NaN where all methods tie in every block.
    """
    n, k = ranks.shape
    spread = float((ranks**2).sum()) - n * k * (k + 1) ** 2 / 4
    if spread < 1e-9:
        return math.nan, math.nan
    chi2 = (k - 1) * float(((ranks.sum(axis=0) - n * (k + 1) / 2) ** 2).sum()) / spread
    return chi2, float(stats.chi2.sf(chi2, k - 1))


def iman_davenport(ranks: Floats) -> tuple[float, float]:
    """``F = (N - 1) chi2 / (N (k - 1) - chi2)`` of ranks (N, k), and its p value."""
    n, k = ranks.shape
    chi2, _ = friedman(ranks)
    if math.isnan(chi2):
        return math.nan, math.nan
    left = n * (k - 1) - chi2
    f = (n - 1) * chi2 / left if left > 1e-9 else math.inf
    return f, float(stats.f.sf(f, k - 1, (k - 1) * (n - 1)))


def critical_difference(k: int, n: int, level: float = SIGNIFICANT) -> float:
    """Nemenyi's ``q sqrt(k (k + 1) / (6 n))``, q the studentized range's over sqrt(2)."""
    q = float(stats.studentized_range.ppf(1 - level, k, np.inf)) / math.sqrt(2)
    return q * math.sqrt(k * (k + 1) / (6 * n))


def cliques(means: Sequence[float], difference: float) -> list[tuple[int, int]]:
    """The largest runs of ascending means whose ends are no more than ``difference`` apart."""
    ends: list[tuple[int, int]] = []
    for first in range(len(means)):
        last = max(i for i, mean in enumerate(means) if mean - means[first] <= difference)
        if last > first and (not ends or last > ends[-1][1]):
            ends.append((first, last))
    return ends


def letters(ranks: Ranks) -> list[str]:
    """By position the letters of a method: those with one in common do not differ."""
    members = ranks.cliques
    inside = {i for first, last in members for i in range(first, last + 1)}
    alone = [(i, i) for i in range(len(ranks.labels)) if i not in inside]
    every = sorted([*members, *alone])
    names = [chr(97 + i) if i < 26 else f"({i + 1})" for i in range(len(every))]
    return [
        "".join(
            name for name, (first, last) in zip(names, every, strict=True) if first <= i <= last
        )
        for i in range(len(ranks.labels))
    ]


def lacking_words(ranks: Ranks) -> str:
    """A sentence on the methods that are ranked last for want of runs; empty if none is."""
    names = [
        f"{title_of(label)} ({', '.join(blocks[:3])}"
        + f" and {len(blocks) - 3} more" * (len(blocks) > 3)
        + ")"
        for label, blocks in ranks.lacking.items()
    ]
    return say("ranks.lacking", names="; ".join(names)) if names else ""


def tables(ranks: Ranks) -> list[Table]:
    """Mean ranks with what does not differ, and the ranks by block."""
    array, labels = ranks.ranks.to_numpy(float), ranks.labels
    n, k = array.shape
    chi2, p_chi2 = friedman(array)
    f, p_f = iman_davenport(array)
    data = pd.DataFrame(
        {
            "label": labels, "method": [*map(title_of, labels)],
            "mean_rank": ranks.means.tolist(), "blocks": n,
            "first": ranks.ranks.eq(ranks.ranks.min(axis=1), axis=0).sum().tolist(),
            "lacking": [len(ranks.lacking.get(label, ())) for label in labels],
            "group": letters(ranks), "chi2": chi2, "p_chi2": p_chi2, "f": f, "p_f": p_f,
            "critical_difference": ranks.difference,
        }
    )  # fmt: skip
    texts = {
        "Method": data["method"], "Mean rank": data["mean_rank"].map("{:.2f}".format),
        "First in": data["first"], "Lacking in": data["lacking"], "Group": data["group"],
    }  # fmt: skip
    if not ranks.lacking:
        del texts["Lacking in"]
    collapsed = [f"{title_of(label)} ({count})" for label, count in ranks.collapsed.items()]
    caption = sentences(
        say(f"ranks.{ranks.unit}", blocks=n, score=ranks.title),
        say("ranks.all_tie") if math.isnan(p_f)
        else say(
            "ranks.tests", f=f"{f:.2f}", p_f=_equals(p_f), chi2=f"{chi2:.2f}",
            p_chi2=_equals(p_chi2), one=k - 1, two=(k - 1) * (n - 1),
        ),
        say(
            "ranks.found" if p_f < SIGNIFICANT else "ranks.none",
            difference=f"{ranks.difference:.2f}", level=SIGNIFICANT,
        ),
        lacking_words(ranks),
        say("ranks.collapsed", names="; ".join(collapsed), classes=ranks.classes)
        if collapsed
        else "",
    )  # fmt: skip
    means = Table(
        name="ranks", title=say("ranks.title", score=ranks.title), caption=caption,
        head=list(texts), rows=pd.DataFrame(texts).astype(str).to_numpy().tolist(), words=1,
        data=data,
    )  # fmt: skip
    return [means, _by_block(ranks)]


def _by_block(ranks: Ranks) -> Table:
    values = ranks.values.rename_axis("block").reset_index().melt("block", var_name="label")
    order = np.arange(len(values)).reshape(len(ranks.labels), -1).T.ravel()
    data = values.iloc[order].assign(
        rank=ranks.ranks.to_numpy(float).ravel(), method=lambda f: f["label"].map(title_of)
    )
    unit = ranks.score.unit
    shown = [
        f"{EMPTY if math.isnan(value) else unit.number(value)} ({rank:g})"
        for value, rank in zip(data["value"], data["rank"], strict=True)
    ]
    k = len(ranks.labels)
    return Table(
        name="ranks_by_block", title=unit.head(say("ranks.by_block", score=ranks.title)),
        caption=say("ranks.block_caption"), head=["Block", *map(title_of, ranks.labels)], words=1,
        rows=[[str(b), *shown[k * i : k * i + k]] for i, b in enumerate(ranks.values.index)],
        data=data[["label", "method", "block", "value", "rank"]].reset_index(drop=True),
    )  # fmt: skip


def _equals(p: float) -> str:
    """``= 0.0123`` or ``< 0.0001``."""
    return f"< {p_value(p)[1:]}" if p < 1e-4 else f"= {p_value(p)}"
