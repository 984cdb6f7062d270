"""The beginning of a report: what is significant, what collapsed, and one figure of the results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from .. import series, stats, units
from ..figures import grid as panels
from ..figures import style
from ..figures.grid import Drawing, Facets, facet_lines
from ..paired import SIGNIFICANT, T
from ..runs import Group
from ..scores import COLLAPSED, counts
from ..stats import FEWEST, Estimate, estimate
from ..tables.captions import power_words
from ..tables.layout import COLLAPSE, Table, Unit
from ..words import listed, say, sentences
from .outcome import Outcome, named

MOST = 6
"""At most this many settings have a sentence of their own."""
GUESS = {
    "accuracy": "always the most frequent class", "balanced_accuracy": "always the same class",
}  # fmt: skip
"""What a score of guessing is, in the legend."""


def findings(of: Outcome, baseline: str | None, compared: Mapping[str, Table]) -> list[str]:
    """Sentences: the best method of each setting, the comparisons with the baseline, collapses.

    ``compared`` are tables of the values that the outcome has, by setting.
    """
    told = [_leading(setting, of) for setting in list(of.values)[:MOST]]
    if len(of.values) > MOST:
        told.append(say("findings.others", count=len(of.values) - MOST))
    if baseline is not None:
        told += [
            f"{setting}: " * bool(setting) + _against(baseline, table.data, of.shown.unit)
            for setting, table in list(compared.items())[:MOST]
        ]
    told.append(_missing(of))
    told.append(_collapsed(of.facets))
    return [text for text in told if text]


def _leading(setting: str, of: Outcome) -> str:
    """The best method under one setting, and which others it differs from."""
    shown, values = of.shown, of.values[setting]
    texts = {"title": of.title[0].lower() + of.title[1:], "where": f"{setting}: " * bool(setting)}
    order = stats.ranking(values, lowest=shown.lowest)
    if order is None:
        return say("leading.no_value", **texts)
    if order.leader is None:
        return say("leading.unranked", **texts)
    best = stats.of_runs(values[order.leader])
    texts["name"] = style.title(order.leader)
    texts["number"] = f"{shown.unit.spread(best)} {shown.unit.name} ({_over(best)})"
    if not order.adjusted:
        return say("leading.alone", **texts)
    texts["kind"] = "lowest" if shown.lowest else "highest"
    near = stats.EQUAL * abs(best.mean)
    tied = [
        label
        for label in order.adjusted
        if label not in order.missing and abs(units.means(values[label]).mean() - best.mean) <= near
    ]
    if any(label in order.missing for label in order.adjusted):
        texts["title"] += " of the methods with all runs"
    if tied:
        texts["names"] = listed([texts["name"], *map(style.title, tied)])
        texts["number"] = f"{shown.unit.number(best.mean)} {shown.unit.name}"
        every = len(tied) == len(order.adjusted)
        return say(
            "leading.tied", verb="have the same" if every else f"share the {texts['kind']}", **texts
        )
    side, other = ("below", "above") if shown.lowest else ("above", "below")
    fallen = of.collapsed[setting].get(order.leader, 0)
    if order.leads and not fallen:
        count = len(order.adjusted)
        others = "the other method" if count == 1 else f"each of the {count} others"
        others += f" over the {best.unit}s that both have" * bool(order.missing)
        others += " (Holm-corrected over them)" * (count > 1)
        return say("leading.leads", side=side, others=others, **texts)
    above, below = order.differing(1), order.differing(-1)
    equal = [label for label in order.adjusted if label not in (*above, *below)]
    told = {f"significantly {side}": above, f"significantly {other}": below}
    if all(math.isnan(p) for p in order.adjusted.values()):
        tests = say("leading.no_test", unit=best.unit, fewest=FEWEST)
    elif not above and not below:
        tests = say("leading.equal")
    elif equal or below:
        told[f"not significantly {side}"] = equal
        parts = [f"{how} {named(labels)}" for how, labels in told.items() if labels]
        tests = f"; {', '.join(parts)}."
    else:
        tests = "."
    return sentences(
        say("leading.best", tests=tests, **texts),
        say("leading.collapsed", fallen=fallen, runs=best.runs) if fallen else "",
    )


def _over(best: Estimate) -> str:
    return f"one {best.unit}" if best.n == 1 else f"mean over {best.n} {best.unit}s ± 95 % CI"


def _against(baseline: str, data: pd.DataFrame, unit: Unit) -> str:
    """Which groups differ significantly from the baseline, and what could be detected."""
    tested = data[data["p_holm"].notna()]
    different = tested[tested["p_holm"] < SIGNIFICANT]
    name = style.title(baseline)
    if not len(tested):
        return say("against.untested", baseline=name, unit=data["unit"].iloc[0], fewest=FEWEST)
    names = [
        f"{row['method']} ({unit.number(row['difference'], '+')} {unit.of_differences}, "
        f"p {row['p_holm']:.2g})"
        for row in different.to_dict("records")
    ]
    if len(tested) > 1:
        key = "some" if names else "none"
    else:
        key = "significant" if names else "not_significant"
    told = say(
        f"against.{key}", baseline=name, tests=len(tested), count=len(names),
        verb="is" if len(names) == 1 else "are", names=listed(names) if names else "",
    )  # fmt: skip
    return sentences(told, power_words(data, unit))


def _lacking(of: Outcome) -> list[str]:
    """The groups that lack runs which others have: ``FedLD (2 of 3 runs)``."""
    texts = []
    for setting, values in of.values.items():
        for label, count in stats.missing(values).items():
            if count:
                runs = stats.of_runs(values[label]).runs
                where = f", {setting}" * bool(setting)
                texts.append(f"{style.title(label)} ({runs} of {runs + count} runs{where})")
    return texts


def _missing(of: Outcome) -> str:
    """Which groups lack runs that others have; empty if none does."""
    texts = _lacking(of)
    return say("findings.incomplete", names=listed(texts)) if texts else ""


def _collapsed(facets: Facets) -> str:
    """Which groups have collapsed runs; empty if none, and it is unknown for some."""
    known, texts = True, []
    for setting, inside in facets.items():
        fallen = counts(inside)
        for one in inside:
            count = fallen.get(one.label, 0)
            known &= one.label in fallen and bool(one.runs[COLLAPSED].notna().all())
            if count:
                runs, where = len(one.runs), f", {setting}" * bool(setting)
                of = say("findings.of_runs", count=count, runs=runs)
                texts.append(f"{style.title(one.label)} ({of}{where})")
    if texts:
        return say("findings.collapsed", names=listed(texts))
    return say("findings.no_collapse") if known else ""


def draw(of: Outcome) -> Drawing:
    """Final scores: mean, interval and units, one row per method and a panel per setting."""
    shown, unit = of.shown, of.unit
    over = "seeds on one partition" if unit == "seed" else "partitions"
    factor = shown.unit.factor
    most = math.inf if shown.lowest else factor
    by_setting = {
        setting: {
            label: factor * units.means(own)
            for label, own in values.items()
            if units.finite(own).notna().any()
        }
        for setting, values in of.values.items()
    }
    labels, lines = of.labels, facet_lines(of.facets, of.labels)
    lacking = "; ".join(_lacking(of))
    guesses = {
        setting: None if of.by_site else _guess(groups, of.score)
        for setting, groups in of.facets.items()
    }
    title = of.title
    grey: dict[str, Any] = {"color": "#444444", "linestyle": ""}
    handles = [
        Line2D([], [], **grey | {"linestyle": "-"}, marker="o"), Line2D([], [], **grey, marker="|")
    ]  # fmt: skip
    each = "a seed" if unit == "seed" else "a partition (mean over its seeds)"
    texts = [f"mean and 95 % CI over {over}", each]
    with style.look():
        columns = 1 if len(by_setting) == 1 else 2
        axis = shown.unit.head(title)
        fig, places = panels.method_rows(list(by_setting), labels, axis, columns)
        for axes, (setting, values) in zip(places, by_setting.items(), strict=True):
            fallen = of.collapsed[setting]
            for label, own in values.items():
                row, colour = labels.index(label), lines[label].colour
                _row(axes, own, row, colour, bool(fallen.get(label)), most, shown.unit.digits)
            guess = guesses[setting]
            if guess is not None:
                axes.axvline(
                    factor * guess, color="#777777", linestyle=":", linewidth=1.2, zorder=1
                )
            axes.margins(x=0.06)
        if any(value for by_label in of.collapsed.values() for value in by_label.values()):
            handles.append(Line2D([], [], **grey, marker="o", markerfacecolor="white"))
            texts.append(f"{COLLAPSE} with collapsed runs")
        if any(guess is not None for guess in guesses.values()):
            handles.append(Line2D([], [], color="#777777", linestyle=":"))
            texts.append(f"predicting {GUESS[of.score]}")
        panels.legend(fig, handles, texts)
    return panels.drawing(
        "headline", fig, title=title, part=of.part, over=over, unit=unit, axis=axis,
        told=_told(by_setting, shown.unit.digits),
        lacking=f" {say('headline.lacking', names=lacking)}" if lacking else "",
        side="Left" if shown.lowest else "Right", test=T.title, level=SIGNIFICANT,
    )  # fmt: skip


def _row(
    axes: Axes, values: pd.Series[float], row: int, colour: str, fallen: bool, most: float,
    digits: int,
) -> None:  # fmt: skip
    """Mean with interval within 0..most, a tick for each unit, and the mean in figures.

    A mean outside, from a file that was edited, is an end of its interval.
    """
    own = estimate(values.tolist())
    axes.plot(values, [row + 0.27] * len(values), "|", color=colour, markersize=6, alpha=0.8)
    low = max(own.low, min(0.0, own.mean))
    high = min(own.high, max(most, own.mean))
    ends = [[own.mean - low], [high - own.mean]]
    axes.errorbar(
        own.mean, row, xerr=None if math.isnan(own.half) else ends, fmt="o",
        color=colour, capsize=3, markersize=7, elinewidth=1.4,
        markerfacecolor="white" if fallen else colour,
    )  # fmt: skip
    axes.annotate(
        f"{own.mean:.{digits}f}{COLLAPSE * fallen}", (own.mean, row), (0, 6),
        textcoords="offset points", ha="center", fontsize=9,
    )  # fmt: skip


def _guess(groups: Sequence[Group], score: str) -> float | None:
    """The score of predicting one class always; None if the classes are unknown."""
    if score not in GUESS:
        return None
    by_label = series.values(groups[:1], "classes", ["support"], "label", take="last")
    support = [
        frame["support"].xs(frame.index.get_level_values(series.UNIT)[0], level=series.UNIT)
        for frame in by_label.values()
    ]
    there = support[0][support[0] > 0] if support else pd.Series(dtype=float)
    if len(there) < 2:
        return None
    return float(there.max() / there.sum()) if score == "accuracy" else 1 / len(there)


def _told(by_setting: Mapping[str, Mapping[str, pd.Series[float]]], digits: int) -> str:
    told = []
    for setting, values in by_setting.items():
        means = {style.title(label): own.mean() for label, own in values.items()}
        texts = [
            f"{label} {mean:.{digits}f}" for label, mean in list(means.items())[: panels.SPOKEN]
        ]
        told.append(f"{f'{setting}: ' * bool(setting)}{', '.join(texts)}")
    return "; ".join(told)
