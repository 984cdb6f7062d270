"""Tables over seeds or partitions: scores of the test part, groups of images, loss terms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pandas as pd

from .. import AnalysisError, paired, scores, series
from ..facets import settings_by
from ..formats import NONE, PLAIN, NumberFormat
from ..labels import AXIS, LABEL, labels, meant, text, title_of
from ..paired import T, Test
from ..runs import Group, check_columns, expanded, group, ordered_labels, unit_among, values_of
from ..scores import SCORES, TAKES, Score, by_run, measure_of, measures_of, primary_of, scores_of
from ..stats import Cell, Values, cells, ranked
from ..units import COLUMNS, ExperimentalUnit, finite
from ..words import say
from . import clients, pairs, participation, sites
from .captions import comparisons, incomplete, signs
from .layout import Table, crossed, detailed, with_differences, with_variances, with_worst

TERMS: Mapping[str, str] = {
    "local_loss": "Local", "shift_loss": "Shift", "aggregation_loss": "Aggregation",
    "global_loss": "Global",
}  # fmt: skip
"""Columns of decomposition.csv; the first three add up to the last."""
TABLES = (
    *("scores", "clients", "sites", "pairs", "target", "groups", "decomposition", "participation"),
)
"""The tables by name, beside those of a score, which ``fedsim table --help`` explains."""
VERDICTS = ("pairs", "groups")  # those that show verdicts, beside those of a score
RESPLIT = ("scores", "pairs")
"""Those of scores of the whole test part, whose size the corrected test takes."""
UNITS = {"%": " in per cent", "nats": " in nats", "": ""}  # in sentences
FILES: Mapping[str, str] = {"groups": "evaluations", "decomposition": "decomposition"}
"""The file behind each table that is not made from summary.csv."""


def make(
    name: str, runs: pd.DataFrame, by: Sequence[str] = (LABEL,), columns: str | None = None,
    baseline: str | None = None, test: Test = T, takes: Sequence[str] = tuple(TAKES),
    unit: ExperimentalUnit | None = None, measure: str | None = None,
) -> list[Table]:  # fmt: skip
    """The tables of a score of the runs, or one of :data:`TABLES`, as ``fedsim table --metric``
    shows them."""
    shown = None if name in TABLES else measure_of(runs, name)
    known = scores_of(runs)
    _check(name, known, columns, baseline, test, measure)
    measured = [one for one in known if one not in scores.OTHERS]
    runs = scores.completed(runs, [name] if shown else measured if name == "scores" else ())
    columns = None if columns is None else expanded(runs, [columns])[0]
    if baseline is not None:
        rows = [column for column in expanded(runs, by) if column != columns]
        check_columns(runs, rows)
        baseline = meant(baseline, labels(runs, rows))
    unit = unit_among(runs, [*by, *([columns] if columns else ())], unit)
    if test.kind == "corrected":
        test = replace(test, ratio=paired.ratio(runs, unit))
    if name == "target":
        return [pairs.reached(runs, by, columns, unit)]
    if name == "pairs":
        made, of = [pairs.accuracies(runs, by, columns, test, unit)], primary_of(runs)[1].unit
        return with_differences(with_variances(made, of), of)
    if shown:
        _check_there(runs, name)
    if columns and shown:
        made = [
            crossed_score(runs, by, columns, name, take, baseline, test, unit) for take in takes
        ]
        return with_differences(with_variances(made, shown.unit), shown.unit)
    groups = group(runs, by, unit)
    if shown:
        made = [scored(groups, name, take, baseline, test) for take in takes]
        return with_variances(made, shown.unit)
    if name == "sites":
        whole, left_out = sites.split(groups, settings_by(by, groups))
        return sites.tables(sites.by_setting(whole, left_out, baseline, test, measure), test)
    return _of_groups(name, groups, baseline, test)


def _of_groups(name: str, groups: Sequence[Group], baseline: str | None, test: Test) -> list[Table]:
    """The tables that are made from other files than summary.csv, and that of all scores."""
    if name == "participation":
        return [participation.table(groups)]
    if name == "decomposition":
        return decomposition(groups, baseline, test) or _none(name)
    of = {"clients": clients.spreads, "groups": image_groups, "scores": all_scores}[name]
    return with_variances(of(groups, baseline, test) or _none(name), primary_of(groups)[1].unit)


def _none(name: str) -> NoReturn:
    how = "; evaluation.decompose_every above 0 writes them"
    how = " of groups; data sets with groups write them" if name == "groups" else how
    raise AnalysisError(f"in no run {FILES[name]}.csv has rows{how}")


def _check(
    name: str, known: Mapping[str, Score], columns: str | None, baseline: str | None, test: Test,
    measure: str | None,
) -> None:  # fmt: skip
    """Refuses options that the table has no use for; ``known`` are the scores of the runs."""
    crossing, verdicts = (*known, "pairs", "target"), (*known, *VERDICTS)
    resplit = (*(one for one in known if one not in scores.OTHERS), *RESPLIT)
    refused = {
        f"--baseline {baseline}: the table {name} compares each method with its own clients under "
        "their own server rule; leave it out": name == "pairs" and baseline is not None,
        f"--columns {columns}: the table {name} has columns of its own; --columns goes with "
        f"{', '.join(crossing)}": columns is not None and name not in crossing,
        f"--measure {measure}: goes with --metric sites": measure is not None and name != "sites",
        f"--rope: the table {name} has no verdicts; those that do are {', '.join(verdicts)}":
            test.rope is not None and name not in verdicts,
        f"--test corrected: takes the size of the whole test part, which the table {name} is not "
        f"about; those that are: {', '.join(resplit)}":
            test.kind == "corrected" and name not in resplit,
        "--rope: verdicts are of comparisons; name what to compare with: --baseline METHOD":
            test.rope is not None and not test.bayes and baseline is None and name != "pairs",
    }  # fmt: skip
    for problem, is_so in refused.items():
        if is_so:
            raise AnalysisError(problem)


def _check_there(runs: pd.DataFrame, score: str) -> None:
    """Raises an AnalysisError if no run has the score, but for the primary, which may be n/a."""
    columns = [scores.column(score, take) for take in TAKES]
    private = score == "epsilon" and "dp.level" in runs and runs["dp.level"].notna().any()
    primary = measures_of(runs).primary
    if score in scores.EPSILONS and not private:
        runs = runs.replace(math.inf, math.nan)
    if score != primary and runs[columns].isna().all(axis=None):
        raise AnalysisError(f"in no run rounds.csv has {scores.of_rounds(score)}")


def without_rows(name: str, groups: Sequence[Group]) -> dict[str, list[Path]]:
    """The runs that lack the file of a table of :data:`FILES`, or rows in it, by the reason."""
    return {f"no rows in {FILES[name]}.csv": series.absent(groups, FILES[name])}


def scored(
    groups: Sequence[Group], score: str, take: str, baseline: str | None = None, test: Test = T
) -> Table:
    """A score of :func:`analysis.scores.completed` runs, with one row per method."""
    shown, classes = measure_of(groups, score), measures_of(groups).of_classes
    statistics = _cells({"": by_run(groups, score, take)}, {"": groups}, baseline, test, shown)
    caption = _meaning(groups, score, take)
    caption += signs(statistics, test, lowest=shown.lowest, classes=classes)
    caption += comparisons(statistics, baseline, test, shown.unit, details=True)
    name, title = f"{score}_{take}", scores.heading(score, take, shown)
    return detailed(name, title, caption, statistics, shown.unit, shown.name)


def crossed_score(
    runs: pd.DataFrame, by: Sequence[str], columns: str, score: str, take: str,
    baseline: str | None = None, test: Test = T, unit: ExperimentalUnit = "seed",
) -> Table:  # fmt: skip
    """A score with one column per value of a setting; comparisons are within a column."""
    check_columns(runs, [columns])
    rows, of = [c for c in by if c != columns], runs[columns].map(text)
    shown, classes = measure_of(runs, score), measures_of(runs).of_classes
    blocks = {value: group(runs[of == value], rows, unit) for value in values_of(runs, columns)}
    values = {value: by_run(groups, score, take) for value, groups in blocks.items()}
    statistics = _cells(values, blocks, baseline, test, shown)
    everyone = [one for groups in blocks.values() for one in groups]
    caption = _meaning(everyone, score, take)
    caption += signs(statistics, test, lowest=shown.lowest, classes=classes)
    caption += comparisons(statistics, baseline, test, shown.unit)
    axis = columns.removeprefix(AXIS)
    name = f"{score}_{take}_by_{axis}"
    title = f"{shown.unit.head(scores.heading(score, take, shown))} by {axis}"
    none = {"unset": "none"} if columns == "attack.name" else {}
    prefix = "" if columns.startswith(AXIS) else f"{columns}="  # a grid's row has a name
    heads = {value: f"{prefix}{none.get(value, value)}" for value in blocks}
    titles = {label: title_of(label) for label in ordered_labels(runs, rows)}
    table = crossed(name, title, caption, statistics, heads, shown.unit, rows=titles)
    return with_worst(table, shown.lowest) if _attacked_by(runs, of) else table


def _attacked_by(runs: pd.DataFrame, of: pd.Series[str]) -> bool:
    """Whether the columns of a table are attacks: several, one each."""
    attacks = runs.get("attack.name", pd.Series(None, runs.index)).map(text)
    return attacks.nunique() > 1 and bool((attacks.groupby(of).nunique() == 1).all())


def all_scores(groups: Sequence[Group], baseline: str | None = None, test: Test = T) -> list[Table]:
    """All scores of the final models but the losses, one column each; empty columns are left out. A
    table for each unit and direction; of tasks of classes the scores that are best high."""
    measures = measures_of(groups)
    kinds: dict[tuple[NumberFormat, bool], dict[str, Score]] = {}
    for name, score in scores.shown(measures).items():
        if name != "loss" and not (measures.of_classes and score.lowest):
            kinds.setdefault((score.unit, score.lowest), {})[name] = score
    made: list[Table] = []
    for (unit, lowest), named in kinds.items():
        every = {name: by_run(groups, name, "final") for name in named}
        values = {n: of for n, of in every.items() if any(one.notna().any() for one in of.values())}
        if not values and made:
            continue
        score = next(iter(named.values()))
        statistics = _cells(values, dict.fromkeys(values, groups), baseline, test, score)
        meant = signs(statistics, test, lowest=lowest, classes=measures.of_classes)
        caption = say("tables.scores", signs=meant, unit=UNITS[unit.name], lowest=lowest)
        caption += comparisons(statistics, baseline, test, unit)
        heads = {name: named[name].axis for name in values}
        name = f"scores_{len(made) + 1}" if made else "scores"
        made.append(crossed(name, "Scores of the final models", caption, statistics, heads, unit))
    return made


def _cells(
    values: Values, groups: Mapping[str, Sequence[Group]], baseline: str | None, test: Test,
    score: Score = SCORES["accuracy"],
) -> list[Cell]:  # fmt: skip
    """The statistics of a table of scores, ranked; ``groups`` are those of each column."""
    collapsed = {
        (column, label): count
        for column, inside in groups.items()
        for label, count in scores.counts(inside).items()
    }
    statistics = cells(values, baseline, test)
    return ranked(statistics, values, test, lowest=score.lowest, collapsed=collapsed)


def image_groups(
    groups: Sequence[Group], baseline: str | None = None, test: Test = T
) -> list[Table]:
    """Accuracy by group of test images in the last evaluation of it; [] if no run has groups."""
    (name, score), test_part = primary_of(groups), {"split": "test"}
    by_group = series.by_run(groups, "evaluations", [name], "group", test_part, take="last")
    values = {group: of[name] for (group,), of in _by_key(by_group, ["group"]).items()}
    if not values:
        return []
    statistics = _cells(values, dict.fromkeys(values, groups), baseline, test, score)
    meant = signs(statistics, test, lowest=score.lowest, classes=measures_of(groups).of_classes)
    caption = say("tables.groups", signs=meant, score=score.name, unit=UNITS[score.unit.name])
    caption += comparisons(statistics, baseline, test, score.unit, details=True)
    title = f"{score.name} by group of test images"
    return [detailed("groups", title, caption, statistics, score.unit, score.name)]


def decomposition(
    groups: Sequence[Group], baseline: str | None = None, test: Test = T
) -> list[Table]:
    """The terms of the loss by split and scope: mean over the decomposed rounds, and last."""
    keys, unit = ["split", "scope"], groups[0].unit if groups else "seed"
    loss, classes = measure_of(groups, "loss"), measures_of(groups).of_classes
    rounds = series.by_run(groups, "decomposition", [*TERMS], ["round", *keys])
    by = {k: f.sort_index().groupby(level=[*COLUMNS[unit], *keys]) for k, f in rounds.items()}
    spans = {
        "mean": ("mean over the decomposed rounds", {label: of.mean() for label, of in by.items()}),
        "last": ("last decomposed round", {label: of.last() for label, of in by.items()}),
    }
    tables = []
    for span, (words, by_label) in spans.items():
        for (split, scope), values in sorted(_by_key(by_label, keys).items()):
            statistics = cells(values, baseline, test)
            caption = say(
                "tables.decomposition", split=split, scope=scope, span=words, unit=unit,
                classes=classes, unit_words=say(f"units.{unit}"),
            )  # fmt: skip
            caption += incomplete(statistics, ranked=False)
            caption += comparisons(statistics, baseline, test, loss.unit)
            name = f"decomposition_{span}_{split}_{scope}"
            title = f"Terms of the loss ({split}, {scope}), {words}"
            texts = []
            for cell in statistics:  # ``0.4500 [0.3661, 0.5339] *``
                interval = PLAIN.interval(cell.estimate).replace(NONE, "")
                texts.append(f"{PLAIN.number(cell.estimate.mean)} {interval}".strip() + cell.mark)
            tables.append(crossed(name, title, caption, statistics, TERMS, texts=texts))
    return tables


def _by_key(
    by_label: Mapping[str, pd.DataFrame], keys: list[str]
) -> dict[tuple[str, ...], dict[str, dict[str, pd.Series[float]]]]:
    """Rearranges :func:`analysis.series.by_run`: each run's value by key, column and label."""
    result: dict[tuple[str, ...], dict[str, dict[str, pd.Series[float]]]] = {}
    for label, frame in by_label.items():
        for key, part in frame.reset_index(keys).groupby(keys):
            of = result.setdefault(tuple(map(str, key)), {})
            for column in part.columns.difference(keys, sort=False):
                of.setdefault(column, {})[label] = finite(part[column])
    return result


def _meaning(groups: Sequence[Group], score: str, take: str) -> str:
    """What a caption begins with: the score, its unit, and from which rounds it is."""
    names = {"val": "validation part", "test": "test part itself"}
    parts = sorted({str(part) for one in groups for part in one.runs.get("best_by", ())})
    shown, by = measure_of(groups, score), measures_of(groups).title
    of = " or ".join(names.get(part, part) for part in parts)
    meaning = say(f"tables.{take}", parts=of, by=by)
    unit = UNITS[shown.unit.name]
    return f"{shown.name}{unit}{', lower is better' * shown.lowest}, {meaning}. "
