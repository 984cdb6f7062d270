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
from .scores import SCORES, VALIDATION, Score, column, completed
from .stats import EQUAL, half_width
from .tables.layout import EMPTY, Table
from .trials import FILE, Search, is_search, read_search
from .units import ExperimentalUnit, finite
from .words import say, sentences

SHOWN = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500)
"""The numbers of candidates in the table; figure and CSV have all."""


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The trials of one method's search under one setting.

    Args:
        validation: (n,) what they were chosen by, larger is better; -inf for those that failed or
            were pruned.
        test: (n,) test scores; NaN for the same, and for candidates whose test score is not finite.
        failed: number of trials that failed, or whose test score is not finite.
        pruned: number of trials that were stopped early.
        sampler: how they were proposed.
    """

    validation: Floats
    test: Floats
    failed: int
    pruned: int
    sampler: str

    def curve(self, score: Score) -> Floats:
        """The expected test score (n,) of the best of k = 1 .. n candidates."""
        return expected_best(self.validation, self.test, lowest=score.lowest)


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Searches by setting and method, and the test score that is drawn."""

    searches: Mapping[str, Mapping[str, Candidates]]
    score: Score

    @property
    def labels(self) -> list[str]:
        """The methods, in the order in which they are found."""
        return labels_of(self.searches)


def expected_best(validation: Floats, test: Floats, *, lowest: bool = False) -> Floats:
    """The mean over all subsets of k of n candidates of the test score of the one chosen.

    Chosen is the largest ``validation`` (n,). With t_(i) the test score of the i-th smallest,
    ``E_k = sum_i C(i - 1, k - 1) / C(n, k) t_(i)``. Among equal ones each is chosen alike. A
    candidate without a test score (NaN) counts as 0, the worst score; with ``lowest``, where there
    is no worst, E_k is NaN while a subset may have no other.

    Returns:
        (n,) E_1 .. E_n.
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
    """The searches at or below the places, each a folder, or ``NAME=DIR`` for one search.

    A search is called NAME, else as its study calls it, else by its folder: what stands behind the
    last + of it is the setting. ``metric`` is the test score; None for that of the validation
    metric by which all searches chose.

    Raises:
        AnalysisError: no search, one that has not ended, two of the same name, or scores that
            cannot be read or compared.
    """
    found: dict[str, dict[str, Candidates]] = {}
    folders: dict[tuple[str, str], Path] = {}
    wanted = metric
    for method, setting, folder in _named(places):
        search = read_search(folder)
        own = VALIDATION[search.by]
        wanted = wanted or own
        if metric is None and own != wanted:
            raise AnalysisError(
                f"{folder}: was chosen by {search.by}, other searches by val_{wanted}; say which "
                "test score to compare with --metric"
            )
        if (setting, method) in folders:
            raise AnalysisError(
                f"{folder}: is called {method}, as {folders[setting, method]} is; name them with "
                "NAME=DIR"
            )
        folders[setting, method] = folder
        found.setdefault(setting, {})[method] = _candidates(folder, search, wanted)
    return Budgets(searches=found, score=SCORES[wanted or "accuracy"])


def _named(places: Sequence[str]) -> Iterator[tuple[str, str, Path]]:
    """Method, setting and folder of each search."""
    for place in places:
        name, given, path = place.partition("=")
        folder = Path(path) if given and not Path(place).exists() else Path(place)
        if not folder.exists():
            raise AnalysisError(f"{place}: there is no such folder")
        below = [folder] if is_search(folder) else sorted(f.parent for f in folder.rglob(FILE))
        if not below or (folder != Path(place) and below != [folder]):
            raise AnalysisError(
                f"{place}: is no search by fedsim tune (a folder with {FILE})"
                + ", and there is none below it" * (not below)
            )
        for one in below:
            if folder != Path(place):
                method, _, setting = name.partition("+")
            else:
                method, setting = _of_study(one)
            yield method, setting, one


def _of_study(folder: Path) -> tuple[str, str]:
    """Method and partition of a search, by chosen.csv of its study, else by its folder's name."""
    file = folder.resolve().parent.parent / "chosen.csv"
    if folder.resolve().parent.name == "tuning" and file.is_file():
        for row in read_table(file, (), ("method", "partition")).fillna("").to_dict("records"):
            name = f"{row['method']}+{row['partition']}" if row["partition"] else row["method"]
            if "".join(c if c.isalnum() or c in "._-+" else "_" for c in name) == folder.name:
                return str(row["method"]), str(row["partition"])
    method, plus, setting = folder.resolve().name.rpartition("+")
    return (method, setting) if plus else (setting, "")


def _candidates(folder: Path, search: Search, metric: str) -> Candidates:
    """The trials of a search with their test scores.

    Raises:
        AnalysisError: it has not ended, or a run of a complete trial is not there.
    """
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
    """The test score of each trial, the mean over its training seeds; NaN where one is not finite.

    Raises:
        AnalysisError: a run is not there or has not ended, or none has the score.
    """
    if names.empty:
        return {}
    for name in names:
        for run in [folder / name / f"seed={seed}" for seed in search.seeds] or [folder / name]:
            if not run.is_dir() or (search.seeds and not (run / "summary.csv").is_file()):
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
    """Mean, low, high and n of the expected test score by setting, method and k.

    With the partition as the unit the settings are averaged, each a partition; low and high are
    the ends of a 95 % t interval then, else NaN.

    Raises:
        AnalysisError: partitions are the unit, and a method was not tuned on all of them.
    """
    by_setting = {
        setting: {method: own.curve(budgets.score) for method, own in of.items()}
        for setting, of in budgets.searches.items()
    }
    if unit == "seed":
        return {
            setting: {method: _band([curve]) for method, curve in of.items()}
            for setting, of in by_setting.items()
        }
    for method in budgets.labels:
        lacking = [setting for setting, of in by_setting.items() if method not in of]
        if lacking:
            raise AnalysisError(
                f"--unit partition: {method} has no search on {lacking[0]}, others have; a mean "
                "over other partitions does not compare"
            )
    return {
        "": {method: _band([of[method] for of in by_setting.values()]) for method in budgets.labels}
    }


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
    made = curves(budgets, unit)
    score, most = budgets.score, max(len(c) for of in made.values() for c in of.values())
    shown = sorted({k for k in SHOWN if k <= most} | {most})
    counts = _counts(budgets, unit)
    settings = any(made)
    rows, lines = [], []
    for setting, of in made.items():
        for method, curve in of.items():
            failed, pruned = counts[setting, method]
            known = curve["mean"].reindex(shown)
            cells = [EMPTY if math.isnan(v) else score.unit.number(v) for v in known]
            rows.append(
                [title_of(method), *[setting] * settings, str(len(curve)), str(failed), *cells]
            )
            lines += [
                {"label": method, "setting": setting, "candidates": k, **row, "trials": len(curve),
                 "failed": failed, "pruned": pruned}
                for k, row in curve.to_dict("index").items()
            ]  # fmt: skip
    head = ["Method", *["Setting"] * settings, "Trials", "Failed", *(f"k = {k}" for k in shown)]
    return Table(
        name="budget", title=score.unit.head(say("budget.title", score=score.title)),
        caption=_caption(budgets, made, unit), head=head, rows=rows, words=1 + settings,
        data=pd.DataFrame(lines),
    )  # fmt: skip


def _counts(budgets: Budgets, unit: ExperimentalUnit) -> dict[tuple[str, str], tuple[int, int]]:
    """Failed and pruned trials by setting and method, summed over partitions as the unit."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for setting, of in budgets.searches.items():
        for method, own in of.items():
            key = ("" if unit == "partition" else setting, method)
            failed, pruned = found.get(key, (0, 0))
            found[key] = failed + own.failed, pruned + own.pruned
    return found


def _caption(
    budgets: Budgets, made: Mapping[str, Mapping[str, pd.DataFrame]], unit: ExperimentalUnit
) -> str:
    counts = _counts(budgets, unit)
    failed = [_name(key, f"{n} failed") for key, (n, _) in counts.items() if n]
    pruned = [_name(key, f"{n} pruned") for key, (_, n) in counts.items() if n]
    lengths = {len(curve) for of in made.values() for curve in of.values()}
    every = [own for of in budgets.searches.values() for own in of.values()]
    samplers = sorted({own.sampler for own in every} - {"random", ""})
    worst = "unbounded" if budgets.score.lowest else "zero"
    over = len(budgets.searches) if unit == "partition" else 0
    return sentences(
        say("budget.caption", score=budgets.score.title),
        say("budget.partitions", count=over) if over > 1 else "",
        say(f"budget.{worst}", names="; ".join(failed)) if failed else "",
        say("budget.pruned", names="; ".join(pruned)) if pruned else "",
        say("budget.unequal") if len(lengths) > 1 else "",
        say("budget.proposed", names=", ".join(samplers)) if samplers else "",
    )


def _name(key: tuple[str, str], told: str) -> str:
    setting, method = key
    return f"{title_of(method)}{f' on {setting}' * bool(setting)} ({told})"


def figure(budgets: Budgets, unit: ExperimentalUnit = "seed") -> Figure:
    """Expected test score against the number of candidates, a panel per setting."""
    factor = budgets.score.unit.factor
    bounds = (0.0, factor) if not budgets.score.lowest else (0.0, math.inf)
    shown = [
        Panel(
            label=budgets.score.unit.head(f"Test {budgets.score.title}"), title=setting,
            curves={
                method: (curve[["mean", "low", "high"]] * factor).assign(n=curve["n"]).dropna(
                    subset="mean"
                )
                for method, curve in of.items()
            },
            possible=bounds, x="Candidates", unit=unit,
        )
        for setting, of in curves(budgets, unit).items()
    ]  # fmt: skip
    note = say("budget.note")
    if unit == "partition" and len(budgets.searches) > 1:
        note += say("budget.band", count=len(budgets.searches))
    lines = style.lines(budgets.labels)
    return grid.curves_figure(shown, note, lines)
