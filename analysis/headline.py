"""The beginning of a report: what is significant, what collapsed, and one figure of the results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from . import panels, series, stats, style, units
from .captions import power_words
from .layout import COLLAPSE, Table, Unit
from .panels import Drawing, Facets, facet_lines, unit_of
from .runs import Group
from .scores import COLLAPSED, SCORES, TAKES, by_run, counts
from .stats import SIGNIFICANT, TESTS, Estimate, estimate
from .units import ExperimentalUnit

MOST = 6
"""At most this many settings have a sentence of their own."""
GUESS = {
    "accuracy": "always the most frequent class", "balanced_accuracy": "always the same class",
}  # fmt: skip
"""What a score of guessing is, in the legend."""


def findings(facets: Facets, score: str, baseline: str | None, compared: Table) -> list[str]:
    """Sentences: the best method of each setting, the comparisons with the baseline, collapses.

    ``compared`` is the table of the final scores. The runs of the groups are
    :func:`analysis.scores.completed`.
    """
    told = [_leading(title, groups, score) for title, groups in list(facets.items())[:MOST]]
    if len(facets) > MOST:
        told.append(f"The {len(facets) - MOST} other settings are in the tables.")
    if baseline is not None:
        told.append(_against(baseline, compared.data, SCORES[score].unit))
    told.append(_missing(facets, score))
    told.append(_collapsed(facets))
    return [text for text in told if text]


def _leading(setting: str, groups: Sequence[Group], score: str) -> str:
    """The best method under one setting, and which others it differs from."""
    shown = SCORES[score]
    title = TAKES["final"].format(shown.title)
    title = title[0].lower() + title[1:]
    where = f"{setting}: " * bool(setting)
    values = by_run(groups, score, "final")
    found = stats.ranking(values, lowest=shown.lowest)
    if found is None:
        return f"{where}no {title}."
    if found.leader is None:
        return f"{where}no method is ranked by {title}: each lacks runs that others have."
    best = stats.of_runs(values[found.leader])
    name = style.title(found.leader)
    number = f"{shown.unit.spread(best)} {shown.unit.name} ({_over(best)})"
    if not found.adjusted:
        return f"{where}{title} of {name}: {number}."
    kind = "lowest" if shown.lowest else "highest"
    near = stats.EQUAL * abs(best.mean)
    tied = [
        label
        for label in found.adjusted
        if label not in found.missing and abs(units.means(values[label]).mean() - best.mean) <= near
    ]
    if any(label in found.missing for label in found.adjusted):
        title += " of the methods with all runs"
    if tied:
        names = _listed([name, *map(style.title, tied)])
        verb = "have the same" if len(tied) == len(found.adjusted) else f"share the {kind}"
        return f"{where}{names} {verb} {title}: {shown.unit.number(best.mean)} {shown.unit.name}."
    fallen = counts(groups).get(found.leader, 0)
    if found.leads and not fallen:
        count = len(found.adjusted)
        others = "the other method" if count == 1 else f"each of the {count} others"
        others += f" over the {best.unit}s that both have" * bool(found.missing)
        others += " (Holm-corrected over them)" * (count > 1)
        told = f"{where}**{name} has the {kind} {title}**, {number}, significantly"
        return f"{told} {_side(shown.lowest)} {others}."
    told = f"{where}{name} has the {kind} {title}, {number}"
    above, below = found.differing(1), found.differing(-1)
    equal = [label for label in found.adjusted if label not in (*above, *below)]
    side, other = _side(shown.lowest), _side(not shown.lowest)
    said = {f"significantly {side}": above, f"significantly {other}": below}
    if all(math.isnan(p) for p in found.adjusted.values()):
        told += f"; no test is possible without two common {best.unit}s whose differences vary."
    elif not above and not below:
        told += ", but **does not differ significantly** from any other."
    elif equal or below:
        said[f"not significantly {side}"] = equal
        parts = [f"{how} {_listed([*map(style.title, of)])}" for how, of in said.items() if of]
        told += f"; {', '.join(parts)}."
    else:
        told += "."
    return (
        told
        + f" It has collapsed in {fallen} of {best.runs} run{'s' * (best.runs != 1)}."
        * bool(fallen)
    )


def _side(lowest: bool) -> str:
    return "below" if lowest else "above"


def _over(found: Estimate) -> str:
    return f"one {found.unit}" if found.n == 1 else f"mean over {found.n} {found.unit}s ± 95 % CI"


def _listed(names: Sequence[str], most: int = 6) -> str:
    shown = list(names[:most]) + [f"{len(names) - most} more"] * (len(names) > most)
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _against(baseline: str, data: pd.DataFrame, unit: Unit) -> str:
    """Which groups differ significantly from the baseline, and what could be detected."""
    tested = data[data["p_holm"].notna()]
    different = tested[tested["p_holm"] < SIGNIFICANT]
    name, many = style.title(baseline), len(tested) > 1
    power = f" {power_words(data, unit)}".rstrip()
    if not len(tested):
        return (
            f"No comparison with {name} can be tested: a test needs two common "
            f"{data['unit'].iloc[0]}s whose differences vary."
        )
    if not len(different):
        if not many:
            return f"The comparison with {name} is not significant.{power}"
        count = f"corrected over all {len(tested)} comparisons with it"
        return f"Of the comparisons with {name}, none is significant ({count}).{power}"
    points = f" {unit.of_differences}"
    texts = [
        f"{row['method']} ({unit.number(row['difference'], '+')}{points}, p {row['p_holm']:.2g})"
        for row in different.to_dict("records")
    ]
    if not many:
        return f"The comparison with {name} is significant: {_listed(texts)}.{power}"
    verb = "is" if len(different) == 1 else "are"
    return (
        f"Of {len(tested)} comparisons with {name}, {len(different)} {verb} significant (corrected "
        f"over all of them): {_listed(texts)}.{power}"
    )


def _lacking(facets: Facets, score: str) -> list[str]:
    """The groups that lack runs which others have: ``FedLD (2 of 3 runs)``."""
    texts = []
    for setting, inside in facets.items():
        values = by_run(inside, score, "final")
        for label, count in stats.missing(values).items():
            if count:
                runs = stats.of_runs(values[label]).runs
                where = f", {setting}" * bool(setting)
                texts.append(f"{style.title(label)} ({runs} of {runs + count} runs{where})")
    return texts


def _missing(facets: Facets, score: str) -> str:
    """Which groups lack runs that others have; empty if none does."""
    texts = _lacking(facets, score)
    if not texts:
        return ""
    return (
        f"**Incomplete: {_listed(texts)}.** These methods lack the value of runs that others have: "
        "their means are over other runs than those of the others, and they are never called the "
        "best."
    )


def _collapsed(facets: Facets) -> str:
    """Which groups have collapsed runs; empty if none, and it is unknown for some."""
    known, texts = True, []
    for setting, inside in facets.items():
        fallen = counts(inside)
        for label, runs in ((one.label, one.runs) for one in inside):
            count = fallen.get(label, 0)
            known &= label in fallen and bool(runs[COLLAPSED].notna().all())
            if count:
                where = f", {setting}" * bool(setting)
                of = f"{count} of {len(runs)} run{'s' * (len(runs) != 1)}"
                texts.append(f"{style.title(label)} ({of}{where})")
    if texts:
        return (
            f"**Collapsed: {_listed(texts)}.** These final models predict one class only, or their "
            "balanced accuracy is at most that of chance; their accuracy says how frequent that "
            "class is. Compare balanced accuracy and the confusion matrices."
        )
    return (
        "No final model has collapsed: all have a balanced accuracy above that of chance." * known
    )


def draw(facets: Facets, score: str) -> Drawing:
    """Final scores: mean, interval and units, one row per method and a panel per setting."""
    shown = SCORES[score]
    unit = unit_of(facets)
    over = "seeds on one partition" if unit == "seed" else "partitions"
    factor = shown.unit.factor
    most = math.inf if shown.lowest else factor
    found = {
        title: {
            label: factor * units.means(own)
            for label, own in by_run(groups, score, "final").items()
            if own.notna().any()
        }
        for title, groups in facets.items()
    }
    labels = list(dict.fromkeys(g.label for groups in facets.values() for g in groups))
    lines = facet_lines(facets)
    lacking = _lacking(facets, score)
    guesses = {title: _guess(groups, score) for title, groups in facets.items()}
    title = TAKES["final"].format(shown.title)
    with style.look():
        columns = 1 if len(found) == 1 else 2
        fig, places = panels.method_rows(list(found), labels, shown.unit.head(title), columns)
        for axes, (setting, values) in zip(places, found.items(), strict=True):
            fallen = counts(facets[setting])
            for label, own in values.items():
                row, colour = labels.index(label), lines[label].colour
                _row(axes, own, row, colour, bool(fallen.get(label)), most)
            guess = guesses[setting]
            if guess is not None:
                axes.axvline(
                    factor * guess, color="#777777", linestyle=":", linewidth=1.2, zorder=1
                )
            axes.margins(x=0.06)
        handles = [
            Line2D([], [], color="#444444", marker="o", linestyle="-"),
            Line2D([], [], color="#444444", marker="|", linestyle=""),
        ]
        texts = [
            f"mean and 95 % CI over {over}",
            "a seed" if unit == "seed" else "a partition (mean over its seeds)",
        ]
        if any(value for groups in facets.values() for value in counts(groups).values()):
            handles.append(
                Line2D([], [], color="#444444", marker="o", linestyle="", markerfacecolor="white")
            )
            texts.append(f"{COLLAPSE} with collapsed runs")
        if any(guess is not None for guess in guesses.values()):
            handles.append(Line2D([], [], color="#777777", linestyle=":"))
            texts.append(f"predicting {GUESS[score]}")
        panels.legend(fig, handles, texts)
    return Drawing(
        name="headline",
        title=title,
        caption=(
            f"{title}: mean, 95 % confidence interval over {over}, and each {unit}."
            + f" Means over other runs than those of the others: {'; '.join(lacking)}."
            * bool(lacking)
        ),
        reading=(
            f"{'Left' if shown.lowest else 'Right'} is better. Intervals that overlap may still "
            f"differ {unit} by {unit}: the sentences above rest on {TESTS['t']}s over common "
            f"{unit}s with Holm's correction, at level {SIGNIFICANT:g}."
        ),
        figure=fig,
        alt=_told(found, title, shown.unit, unit),
    )


def _row(
    axes: Axes, values: pd.Series[float], row: int, colour: str, fallen: bool, most: float
) -> None:
    """Mean with interval within 0..most, a tick for each unit, and the mean in figures.

    A mean outside, from a file that was edited, is an end of its interval.
    """
    found = estimate(values.tolist())
    axes.plot(values, [row + 0.27] * len(values), "|", color=colour, markersize=6, alpha=0.8)
    low = max(found.low, min(0.0, found.mean))
    high = min(found.high, max(most, found.mean))
    ends = [[found.mean - low], [high - found.mean]]
    axes.errorbar(
        found.mean, row, xerr=None if math.isnan(found.half) else ends, fmt="o",
        color=colour, capsize=3, markersize=7, elinewidth=1.4,
        markerfacecolor="white" if fallen else colour,
    )  # fmt: skip
    axes.annotate(
        f"{found.mean:.3g}{COLLAPSE * fallen}", (found.mean, row), (0, 6),
        textcoords="offset points", ha="center", fontsize=9,
    )  # fmt: skip


def _guess(groups: Sequence[Group], score: str) -> float | None:
    """The score of predicting one class always; None if the classes are unknown."""
    if score not in GUESS:
        return None
    found = series.values(groups[:1], "classes", ["support"], "label", take="last")
    support = [
        frame["support"].xs(frame.index.get_level_values(series.UNIT)[0], level=series.UNIT)
        for frame in found.values()
    ]
    there = support[0][support[0] > 0] if support else pd.Series(dtype=float)
    if len(there) < 2:
        return None
    return float(there.max() / there.sum()) if score == "accuracy" else 1 / len(there)


def _told(
    found: Mapping[str, Mapping[str, pd.Series[float]]], title: str, unit: Unit,
    over: ExperimentalUnit,
) -> str:  # fmt: skip
    said = []
    for setting, values in found.items():
        means = {style.title(label): own.mean() for label, own in values.items()}
        texts = [f"{label} {mean:.4g}" for label, mean in list(means.items())[: panels.SPOKEN]]
        said.append(f"{f'{setting}: ' * bool(setting)}{', '.join(texts)}")
    return f"Dot plot. {unit.head(title)}, mean over {over}s. {'; '.join(said)}."
