"""What tuning gives: the expected test score of the best of k candidates, from trials of searches.

Dodge, Gururangan, Card, Schwartz and Smith, Show Your Work (EMNLP 2019), with the unbiased
estimator over subsets without replacement (Tang et al., ACL 2020, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from . import AnalysisError
from .facets import labels_of
from .figures import grid, style
from .figures.grid import Panel
from .files import read_table
from .labels import title_of
from .paired import Floats
from .runs import find, summaries
from .scores import Score, column, completed, shown
from .stats import EQUAL, half_width
from .tables.layout import EMPTY, Table
from .trials import FILE, Search, is_search, read_search
from .units import ExperimentalUnit, finite
from .words import say, sentences

SHOWN = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500)
"""The numbers of candidates in the table; figure and CSV have all."""


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The trials of one method's search under one setting."""

    validation: Floats  # (n,) chosen by the largest; -inf for those that failed or were pruned
    test: Floats  # (n,) test scores; NaN for the same, and where it is not finite
    failed: int  # number of trials that failed, or whose test score is not finite
    pruned: int  # number of trials that were stopped early
    sampler: str  # how they were proposed

    def curve(self, score: Score) -> Floats:
        """The expected test score (n,) of the best of k = 1 .. n candidates."""
        return expected_best(self.validation, self.test, lowest=score.unbounded)


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Searches by setting and method, and the test score that is drawn."""

    searches: Mapping[str, Mapping[str, Candidates]]
    score: Score


def expected_best(validation: Floats, test: Floats, *, lowest: bool = False) -> Floats:
    """The mean over all subsets of k of n candidates of the chosen one's test score, k = 1 .. n.

    Chosen is the largest ``validation`` (n,), equal ones alike. With t_(i) the test score of the
    i-th smallest, ``E_k = sum_i C(i - 1, k - 1) / C(n, k) t_(i)``. A candidate without a test score
    (NaN) counts as 0; with ``lowest`` E_k is NaN while a subset may have no other.
    """
    n = len(validation)
    order = np.argsort(validation, kind="stable")
    keys, scores = validation[order], test[order]
    lost = np.isnan(scores)
    scores = np.where(lost, 0.0, scores)
    near = EQUAL * np.abs(keys[np.isfinite(keys)]).max(initial=0.0)
    steps = [False, *(b != a and not b - a <= near for a, b in pairwise(keys))]
    ties = np.cumsum(steps)
    means = np.bincount(ties, scores) / np.bincount(ties)
    share = np.bincount(ties, lost) / np.bincount(ties)
    positions = np.arange(n, 1, -1)  # i of the ratios C(i - 2, k - 1) / C(i - 1, k - 1)
    expected = np.empty(n)
    for k in range(1, n + 1):
        falling = np.maximum(positions - k, 0) / (positions - 1)
        weights = k / n * np.concatenate([[1.0], np.cumprod(falling)])[::-1]
        expected[k - 1] = weights @ means[ties]
        if lowest and weights @ share[ties] > 0:
            expected[k - 1] = math.nan
    return expected


def gather(places: Sequence[str], metric: str | None = None) -> Budgets:
    """The searches at or below the places, each a folder, or ``NAME=DIR`` for one search."""
    found: dict[str, dict[str, Candidates]] = {}
    wanted, scores = metric, dict[str, Score]()
    for method, setting, folder in _named(places):
        search = read_search(folder)
        wanted, scores = wanted or search.measure, shown(search.measures)
        if wanted not in scores:
            raise AnalysisError(
                f"--metric {wanted}: no measure of {folder}; there are {', '.join(scores)}"
            )
        if metric is None and search.measure != wanted:
            raise AnalysisError(
                f"{folder}: was chosen by {search.by}, other searches by val_{wanted}; say which "
                "test score to compare with --metric"
            )
        if method in found.setdefault(setting, {}):
            raise AnalysisError(
                f"{folder}: is called {method}, as another search is; name them with NAME=DIR"
            )
        found[setting][method] = _candidates(folder, search, wanted)
    return Budgets(searches=found, score=scores[wanted or "accuracy"])


def _named(places: Sequence[str]) -> Iterator[tuple[str, str, Path]]:
    """Method, setting and folder of each search."""
    for place in places:
        name, _, path = place.partition("=")
        named = bool(path) and not Path(place).exists()
        folder = Path(path if named else place)
        if not folder.exists():
            raise AnalysisError(f"{place}: there is no such folder")
        below = [folder] if is_search(folder) else sorted(f.parent for f in folder.rglob(FILE))
        if not below or (named and below != [folder]):
            raise AnalysisError(
                f"{place}: is no search by fedsim tune (a folder with {FILE})"
                + ", and there is none below it" * (not below)
            )
        for one in below:
            method, _, setting = name.partition("+")
            yield *((method, setting) if named else _of_study(one)), one


def _of_study(folder: Path) -> tuple[str, str]:
    """Method and partition of a search, by chosen.csv of its study, else by its folder's name."""
    folder = folder.resolve()
    file = folder.parent.parent / "chosen.csv"
    if folder.parent.name == "tuning" and file.is_file():
        rows = read_table(file, (), ("method", "partition")).fillna("")
        for method, partition in zip(rows["method"], rows["partition"], strict=True):
            name = method + f"+{partition}" * bool(partition)
            if "".join(c if c.isalnum() or c in "._-+" else "_" for c in name) == folder.name:
                return method, partition
    method, plus, setting = folder.name.rpartition("+")
    return (method, setting) if plus else (setting, "")


def _candidates(folder: Path, search: Search, metric: str) -> Candidates:
    """The trials of a search with their test scores."""
    table = search.table
    if search.planned is not None and len(table) < search.planned:
        raise AnalysisError(
            f"{folder}: {len(table)} of {search.planned} trials have ended; those that are left "
            "may be the worst: let 'fedsim tune' or 'fedsim study' end the search"
        )
    complete = (table["state"] == "complete") & finite(table["value"]).notna()
    tested = _tested(folder, search, table["run"][complete], metric)
    scores = finite(table["run"].map(tested).where(complete).astype(float))
    sign = -1.0 if search.score.lowest else 1.0
    pruned = table["state"] == "pruned"
    return Candidates(
        validation=(sign * table["value"]).where(complete, -math.inf).to_numpy(float),
        test=np.asarray(scores, dtype=np.float64), pruned=int(pruned.sum()), sampler=search.sampler,
        failed=int((scores.isna() & ~pruned).sum()),
    )  # fmt: skip


def _tested(folder: Path, search: Search, names: pd.Series[str], metric: str) -> dict[str, float]:
    """The test score of each trial, the mean over its seeds; NaN where one is not finite."""
    if names.empty:
        return {}
    for run in (folder / name / f"seed={seed}" for name in names for seed in search.seeds):
        if not (run / "summary.csv").is_file():
            raise AnalysisError(
                f"{run}: is gone, or has no summary.csv; the test scores of complete trials "
                "are in their runs"
            )
    runs = completed(summaries(find([folder / name for name in names])[0]), [metric])
    values = finite(runs[column(metric, "final")])
    if values.isna().all():
        raise AnalysisError(f"{folder}: no trial has a test {metric}")
    trial = runs["path"].map(lambda path: Path(path).parent.name)
    return {str(name): own.mean(skipna=False) for name, own in values.groupby(trial)}


def curves(budgets: Budgets, unit: ExperimentalUnit = "seed") -> dict[str, dict[str, pd.DataFrame]]:
    """Mean, low, high (95 % t interval over settings, or NaN) and n by setting, method and k."""
    made: dict[str, dict[str, pd.DataFrame]] = {}
    for (setting, method), group in _grouped(budgets, unit).items():
        band = _band([one.curve(budgets.score) for one in group])
        made.setdefault(setting, {})[method] = band
    return made


def _grouped(budgets: Budgets, unit: ExperimentalUnit) -> dict[tuple[str, str], list[Candidates]]:
    """The searches behind each curve, by setting and method: one, or those of all partitions."""
    if unit == "seed":
        every = budgets.searches.items()
        return {(setting, method): [one] for setting, of in every for method, one in of.items()}
    for method in labels_of(budgets.searches):
        for setting, of in budgets.searches.items():
            if method not in of:
                raise AnalysisError(
                    f"--unit partition: {method} has no search on {setting}, others have; a mean "
                    "over other partitions does not compare"
                )
    searches = budgets.searches.values()
    return {("", method): [of[method] for of in searches] for method in labels_of(budgets.searches)}


def _band(many: Sequence[Floats]) -> pd.DataFrame:
    """Mean and interval over curves, as far as all of them go."""
    least = min(map(len, many))
    stacked = np.stack([curve[:least] for curve in many])
    mean, n = stacked.mean(axis=0), np.full(least, float(len(many)))
    std = stacked.std(axis=0, ddof=1) if len(many) > 1 else np.full(least, math.nan)
    half = half_width(std, n)
    index = pd.Index(range(1, least + 1), name="k")
    frame = {"mean": mean, "low": mean - half, "high": mean + half, "n": n}
    return pd.DataFrame(frame, index=index)


def table(budgets: Budgets, unit: ExperimentalUnit = "seed") -> Table:
    """The expected test score by method and number of candidates."""
    groups, made, score = _grouped(budgets, unit), curves(budgets, unit), budgets.score
    lengths = {len(made[setting][method]) for setting, method in groups}
    shown = sorted({k for k in SHOWN if k <= max(lengths)} | {max(lengths)})
    settings = any(made)
    rows, frames = [], []
    spoken: dict[str, list[str]] = {"failed": [], "pruned": []}
    for (setting, method), group in groups.items():
        curve = made[setting][method]
        counts = {name: sum(getattr(one, name) for one in group) for name in spoken}
        for state, count in counts.items():
            name = title_of(method) + f" on {setting}" * bool(setting)
            spoken[state] += [f"{name} ({count} {state})"] * bool(count)
        means = curve["mean"].reindex(shown)
        cells = [EMPTY if math.isnan(mean) else score.unit.number(mean) for mean in means]
        first = [title_of(method), *[setting] * settings]
        rows.append([*first, str(len(curve)), str(counts["failed"]), *cells])
        frame = curve.rename_axis("candidates").reset_index()
        frame.insert(0, "label", method)
        frame.insert(1, "setting", setting)
        frames.append(frame.assign(trials=len(curve), **counts))
    head = ["Method", *["Setting"] * settings, "Trials", "Failed", *(f"k = {k}" for k in shown)]
    samplers = {one.sampler for group in groups.values() for one in group} - {"random", ""}
    over = max(map(len, groups.values()))
    words = {
        "unbounded" if score.unbounded else "zero": "; ".join(spoken["failed"]),
        "pruned": "; ".join(spoken["pruned"]), "unequal": "different" * (len(lengths) > 1),
        "proposed": ", ".join(sorted(samplers)),
    }  # fmt: skip
    caption = sentences(
        say("budget.caption", score=score.title),
        say("budget.partitions", count=over) if over > 1 else "",
        *(say(f"budget.{key}", names=names) for key, names in words.items() if names),
    )
    return Table(
        name="budget", title=score.unit.head(say("budget.title", score=score.title)),
        caption=caption, head=head, rows=rows, words=1 + settings,
        data=pd.concat(frames, ignore_index=True),
    )  # fmt: skip


def figure(budgets: Budgets, unit: ExperimentalUnit = "seed") -> Figure:
    """Expected test score against the number of candidates, a panel per setting."""
    factor = budgets.score.unit.factor
    shown = [
        Panel(
            label=budgets.score.unit.head(f"Test {budgets.score.title}"), title=setting,
            curves={
                method: (curve[["mean", "low", "high"]] * factor).assign(n=curve["n"]).dropna(
                    subset="mean"
                )
                for method, curve in of.items()
            },
            possible=budgets.score.possible, x="Candidates", unit=unit,
        )
        for setting, of in curves(budgets, unit).items()
    ]  # fmt: skip
    note = say("budget.note")
    if unit == "partition" and len(budgets.searches) > 1:
        note += say("budget.band", count=len(budgets.searches))
    lines = style.lines(labels_of(budgets.searches))
    return grid.curves_figure(shown, note, lines)
