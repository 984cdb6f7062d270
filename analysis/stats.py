"""Means with intervals over seeds or partitions, paired comparisons, Holm's correction.

What is repeated, and one value for each, :mod:`analysis.units` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats

from . import AnalysisError, units
from . import paired as by_test
from .labels import METHOD
from .paired import SIGNIFICANT, Chances, Floats, T, Test, Verdict, signed_levels
from .runs import conditions
from .units import ExperimentalUnit, Levels

LEVEL = 0.95
"""Coverage of every interval."""
FEWEST = 3
"""With fewer common units too little is known of how differences vary to say what is detected, or
whom a method helps."""
EQUAL = 1e-12
"""Relative tolerance: differences closer than this differ by rounding alone."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds or partitions.

    Args:
        mean: NaN without a value.
        std: sample standard deviation (ddof 1), NaN below two values.
        n: number of values.
        half: half-width of the 95 % t interval of the mean, NaN below two values; in tables with
            the corrected test by its variance.
        unit: what the values are of.
        levels: the variance between and within partitions, if they are the unit.
    """

    mean: float
    std: float
    n: int
    half: float
    unit: ExperimentalUnit = "seed"
    levels: Levels | None = None

    @property
    def runs(self) -> int:
        """Number of runs behind the values."""
        return self.n if self.levels is None else self.levels.runs

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.mean + self.half


@dataclass(frozen=True)
class Comparison:
    """A method compared with the baseline, over common seeds or partitions.

    Args:
        difference: method minus baseline, over the common units.
        p: two-sided p value; NaN if not available.
        reason: why p is not available, else empty.
        sign: 1 if the method is above the baseline, by the mean difference and by the statistic of
            the test, -1 if it is below by both, else 0.
        equal: p value of the test that they are practically equal (:func:`paired.equivalence`);
            NaN if not available.
        chances: of the Bayesian test (:func:`paired.chances`).
    """

    difference: Estimate
    p: float
    reason: str = ""
    sign: int = 0
    equal: float = math.nan
    chances: Chances | None = None

    @property
    def doubt(self) -> float:
        """By which methods are ranked: p, or one minus the probability of being the better one.

        NaN over so few units that the test decides nothing.
        """
        if self.chances is None:
            return self.p
        if self.difference.n < by_test.FEWEST_BAYES:
            return math.nan
        lower, _, higher = self.chances
        return 1 - (higher if self.sign > 0 else lower)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The statistics of one method in one column of a table.

    Args:
        row: the method's label.
        column: a setting's value or a group of images; empty in tables without columns.
        estimate: over the seeds or partitions.
        comparison: with the baseline; None for the baseline itself.
        adjusted: the p value after Holm's correction over the table; NaN if not available.
        detectable: the smallest true difference from the baseline that a t test at :attr:`level`
            finds with probability 0.8 (:func:`analysis.units.detectable`); NaN if not available.
        level: 0.05 over the number of comparisons of the table, at which Holm's correction
            rejects whatever the other p values are.
        leads: whether the mean is the best of its column, and significantly so (:func:`ranked`).
        collapsed: number of runs whose final model has collapsed (:mod:`analysis.scores`).
        missing: number of runs without a value (:func:`missing`).
        verdict: of the comparison, of tests with a rope; ``incomplete`` where the method or the
            baseline lacks runs.
    """

    row: str
    column: str
    estimate: Estimate
    comparison: Comparison | None = None
    adjusted: float = math.nan
    detectable: float = math.nan
    level: float = math.nan
    leads: bool = False
    collapsed: int = 0
    missing: int = 0
    verdict: Verdict = ""

    @property
    def mark(self) -> str:
        """A star if the adjusted p value is significant, or the Bayesian test decides so."""
        bayes = self.comparison is not None and self.comparison.chances is not None
        significant = self.verdict in ("lower", "higher") if bayes else self.adjusted < SIGNIFICANT
        return " *" * significant


def half_width(std: Floats, n: Floats, ratio: float = 0.0) -> Floats:
    """Half-widths of 95 % t intervals, t(0.975, n - 1) s / sqrt(n); NaN for n below 2.

    ``std`` is the sample standard deviation (ddof 1), of any shape, ``n`` of the same shape. With a
    ``ratio`` of test to training samples they are t(0.975, n - 1) s sqrt(1 / n + ratio).
    """
    factor = np.full(n.shape, math.nan)
    for count in np.unique(n[n > 1]):
        root = math.sqrt(count / (1 + count * ratio))  # 1 / sqrt(1 / n + ratio)
        factor[n == count] = stats.t.ppf(0.5 + LEVEL / 2, count - 1) / root
    return std * factor


def over_units(values: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Mean, std, n and half-width of the 95 % interval by key; NaN values are excluded.

    ``values`` has one row per unit and key, indexed by (unit, *keys).

    Returns:
        Indexed by the keys in order, columns (name of the value, mean | std | n | half).
    """
    by = values.groupby(level=list(keys), sort=True)
    mean, std, n = by.mean(), by.std(ddof=1), by.count()
    half = half_width(std.to_numpy(float), n.to_numpy(float))
    halves = pd.DataFrame(half, index=mean.index, columns=mean.columns)
    parts = {"mean": mean, "std": std, "n": n, "half": halves}
    order = [(column, part) for column in values.columns for part in parts]
    return pd.concat(parts, axis=1).swaplevel(axis=1)[order]


def estimate(values: Sequence[float], ratio: float = 0.0) -> Estimate:
    """Mean, std and interval (:func:`half_width`) of the values that are finite."""
    finite = np.asarray([value for value in values if math.isfinite(value)])
    mean = float(finite.mean()) if len(finite) else math.nan
    std = float(finite.std(ddof=1)) if len(finite) > 1 else math.nan
    half = half_width(np.array(std), np.array(float(len(finite))), ratio)
    return Estimate(mean=mean, std=std, n=len(finite), half=float(half))


def of_runs(values: pd.Series[float], ratio: float = 0.0) -> Estimate:
    """Mean, std and interval over the units, from one value per run, by seed or by partition.

    See :func:`analysis.units.means`; values that are not finite are excluded, unless all are
    infinite, as their mean then is.
    """
    if units.infinite(values):
        alike = of_runs(pd.Series(0.0, values.index), ratio)
        return replace(alike, mean=math.inf, std=math.nan, half=math.nan)
    values = units.finite(values)
    plain = estimate(units.means(values).tolist(), ratio)
    if units.unit_of(values.index) == "seed":
        return plain
    return replace(plain, unit="partition", levels=units.levels(values))


def paired(values: pd.Series[float], baseline: pd.Series[float], test: Test = T) -> Comparison:
    """Compares two methods over their common runs; the values are indexed by run.

    Runs are common with the same seed, and the same partition where that is the unit; its value is
    then the mean difference of its common runs. A test needs :data:`FEWEST` common units and
    differences that vary; else p is not available, so that nothing is marked significant. The
    interval of the difference is the t interval for all tests, by the variance of the corrected
    test for that one. The Wilcoxon test drops differences of zero;
    over n units its p value cannot be below 2 / 2^n. Differences that are equal up to rounding
    share a rank, see :func:`analysis.paired.signed_levels`.
    """
    ours, theirs = (units.finite(own).dropna() for own in (values, baseline))
    ours, theirs = ours.align(theirs, join="inner")
    found = Comparison(of_runs(ours - theirs, test.ratio), math.nan)
    n, unit = found.difference.n, found.difference.unit
    if n < 2:
        return replace(found, reason=f"{'no' if n == 0 else 'only one'} common {unit}")
    ours, theirs = units.means(ours), units.means(theirs)
    differences = np.asarray(ours - theirs, dtype=float)
    rounding = EQUAL * max(ours.abs().max(), theirs.abs().max())
    found = replace(found, equal=by_test.equivalence(differences, rounding, test))
    if test.bayes and test.rope is not None:
        chances = by_test.chances(differences, rounding, test.rope)
        sign = int(np.sign(chances[2] - chances[0]))
        return replace(found, chances=chances, sign=sign)
    levels = signed_levels(differences, rounding)
    if np.ptp(differences) <= rounding or not levels.any():
        return replace(found, reason=f"the same difference for every {unit}")
    sign = int(np.sign(found.difference.mean))
    if test.kind == "wilcoxon":
        others = levels[levels != 0]
        ranks = float((np.sign(others) * stats.rankdata(np.abs(others))).sum())
        sign = sign if sign * ranks > 0 else 0
    found = replace(found, sign=sign)
    if n < FEWEST:
        return replace(found, reason=f"only {n} common {unit}s, a test takes {FEWEST}")
    return replace(found, p=by_test.p_value(differences, levels, test))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction: adjusted p values, in the order given.

    The k-th smallest of m is multiplied by m - k + 1, then results are clipped to 1 and made
    non-decreasing. NaN (no comparison) stays NaN and does not count in m.
    """
    raw = np.asarray(p, dtype=float)
    order = [index for index in np.argsort(raw) if not math.isnan(raw[index])]
    adjusted, highest = raw.copy(), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, float(raw[index]) * (len(order) - rank)))
        adjusted[index] = highest
    return adjusted.tolist()


Values = Mapping[str, Mapping[str, "pd.Series[float]"]]
"""By column of the table and label: one value per run, indexed by seed, or partition and seed."""


def cells(values: Values, baseline: str | None = None, test: Test = T) -> list[Cell]:
    """The statistics of a table, with p values corrected over all its comparisons.

    ``baseline`` is the label to compare with, see :func:`reference`; None for no comparison. The
    other arguments are those of :func:`compared`.

    Raises:
        AnalysisError: there is nothing to compare with the baseline.
    """
    made = compared(values, lambda label, labels: reference(label, labels, baseline), test)
    if baseline is not None and not any(cell.comparison for cell in made):
        labels = dict.fromkeys(cell.row for cell in made)
        if baseline not in labels or len(labels) == 1:
            raise AnalysisError(
                f"baseline {baseline}: nothing to compare with it; the runs are {'; '.join(labels)}"
            )
    return made


def compared(
    values: Values, other: Callable[[str, Collection[str]], str | None], test: Test = T
) -> list[Cell]:
    """The statistics of a table whose labels are compared with other labels of their column.

    ``other`` maps a label and all labels of its column to the one it is compared with; itself or
    None for no comparison. The paired test is over the seeds or partitions that both have.
    """
    lacking = {
        (column, label): count
        for (column, _), group in rivals(values).items()
        for label, count in missing(group).items()
    }
    made, incomplete = [], []
    for column, series in values.items():
        for label, own in series.items():
            theirs = other(label, series)
            comparison = None
            if theirs not in (None, label) and not any(map(units.infinite, (own, series[theirs]))):
                comparison = paired(own, series[theirs], test)
            estimate = of_runs(own, test.ratio)
            cell = Cell(row=label, column=column, estimate=estimate, comparison=comparison)
            made.append(replace(cell, missing=lacking[column, label]))
            incomplete.append(any(lacking[column, of] for of in (label, theirs) if of is not None))
    adjusted = holm([cell.comparison.p if cell.comparison else float("nan") for cell in made])
    level = SIGNIFICANT / max(1, sum(not math.isnan(p) for p in adjusted))
    return [
        replace(
            cell, adjusted=p, level=level, detectable=_detectable(one, level, test),
            verdict=_verdict(one, p, test, fewer),
        )
        if (one := cell.comparison)
        else cell
        for cell, p, fewer in zip(made, adjusted, incomplete, strict=True)
    ]  # fmt: skip


def _verdict(one: Comparison, adjusted: float, test: Test, incomplete: bool) -> Verdict:
    """See :attr:`Cell.verdict`."""
    if test.rope is None:
        return ""
    if incomplete:
        return "incomplete"
    return by_test.verdict(one.difference.n, one.sign, adjusted, one.equal, one.chances)


def _detectable(comparison: Comparison, level: float, test: Test) -> float:
    """See :attr:`Cell.detectable`.

    It is that of the t tests; for the Wilcoxon test there is none: its asymptotic efficiency says
    little about few units, where its p value may be unable to reach the level at all.
    """
    difference = comparison.difference
    untested = math.isnan(comparison.p) and difference.n >= FEWEST
    if untested or test.kind in ("wilcoxon", "bayes"):
        return math.nan
    return units.detectable(difference.std, difference.n, level, test.ratio)


def missing(values: Mapping[str, pd.Series[float]]) -> dict[str, int]:
    """How many runs each method lacks: its own without a finite value, and those of others.

    ``values`` are by label, indexed by run. A run that no method has a value of, though all have
    the run, is not missing: the score does not exist there, such as an AUC without one of the
    classes.
    """
    runs = {label: set(series.index) for label, series in values.items()}
    valued = {
        label: set((series if units.infinite(series) else units.finite(series)).dropna().index)
        for label, series in values.items()
    }
    if not runs:
        return {}
    nowhere = set.intersection(*(runs[label] - valued[label] for label in runs))
    every = set.union(*valued.values())
    return {label: len((every | runs[label]) - valued[label] - nowhere) for label in runs}


@dataclass(frozen=True)
class Ranking:
    """The best of several methods, and its paired tests against each of the others.

    Args:
        leader: the label with the best mean among the methods that lack no run; None if all do.
        adjusted: by label of the others: the p value after Holm's correction over them, or
            :attr:`Comparison.doubt` of the Bayesian test; NaN if not available.
        signs: by label of the others: 1 where the leader is better over the common units, -1 where
            it is worse (:attr:`Comparison.sign`).
        missing: by label the number of runs that it lacks, without those that lack none.
    """

    leader: str | None
    adjusted: Mapping[str, float]
    signs: Mapping[str, int]
    missing: Mapping[str, int]

    def differing(self, sign: int) -> list[str]:
        """The others than which the leader is significantly better (1), or worse (-1)."""
        return [
            label
            for label, p in self.adjusted.items()
            if p < SIGNIFICANT and self.signs[label] == sign
        ]

    @property
    def leads(self) -> bool:
        """Whether the leader is significantly better than every other method."""
        return bool(self.adjusted) and len(self.differing(1)) == len(self.adjusted)


def ranking(
    values: Mapping[str, pd.Series[float]], test: Test = T, *, lowest: bool = False
) -> Ranking | None:
    """Ranks methods by their mean over seeds or partitions; None without any value.

    A method that lacks runs (:func:`missing`) cannot be the leader: its mean is over other units
    than those of the rest. The leader is tested against it over the units that both have.

    ``values`` are by label, indexed by run. With ``lowest`` small values are better. Of equal
    means the first leads. Methods without any value are left out.
    """
    lacking = {label: count for label, count in missing(values).items() if count}
    finite = {label: units.finite(series) for label, series in values.items()}
    means = {
        label: units.means(series).mean()
        for label, series in finite.items()
        if series.notna().any()
    }
    if not means:
        return None
    whole = [label for label in means if label not in lacking]
    if not whole:
        return Ranking(None, {}, {}, lacking)
    leader = (min if lowest else max)(whole, key=lambda label: means[label])
    tests = {k: paired(values[leader], values[k], test) for k in means if k != leader}
    doubts = [one.doubt for one in tests.values()]
    adjusted = doubts if test.bayes else holm(doubts)
    return Ranking(
        leader,
        dict(zip(tests, adjusted, strict=True)),
        {label: -one.sign if lowest else one.sign for label, one in tests.items()},
        lacking,
    )


def ranked(
    shown: Sequence[Cell],
    values: Values,
    test: Test = T,
    *,
    lowest: bool = False,
    collapsed: Mapping[tuple[str, str], int] | None = None,
) -> list[Cell]:
    """The cells, with what :attr:`Cell.leads` and :attr:`Cell.collapsed` say.

    The methods of a column are ranked among those with the same settings of data and schedule. A
    method with a collapsed or missing run never leads. ``collapsed`` counts the former by column
    and label.
    """
    places = {key: ranking(series, test, lowest=lowest) for key, series in rivals(values).items()}
    leading = {(key[0], r.leader) for key, r in places.items() if r is not None and r.leads}
    fallen = {key: count for key, count in (collapsed or {}).items() if count}
    return [
        replace(
            cell,
            leads=(cell.column, cell.row) in leading - fallen.keys(),
            collapsed=fallen.get((cell.column, cell.row), 0),
        )
        for cell in shown
    ]


def rivals(values: Values) -> dict[tuple[str, str], dict[str, pd.Series[float]]]:
    """The methods that are ranked among each other, by column and settings of data and schedule."""
    by_column: dict[tuple[str, str], dict[str, pd.Series[float]]] = {}
    for column, series in values.items():
        for label, own in series.items():
            by_column.setdefault((column, conditions(label)), {})[label] = own
    return by_column


def reference(label: str, labels: Collection[str], baseline: str | None) -> str | None:
    """The label of the baseline under the settings of ``label``; None if there is none.

    With baseline ``fedavg``, ``fedld, alpha=0.1`` is compared with ``fedavg, alpha=0.1``, and
    ``fedld, fedld.keep=0.5`` with ``fedavg``, which has no such setting.
    """
    if baseline is None:
        return None
    method, given = _split(baseline)
    _, own = _split(label)
    split = {candidate: _split(candidate) for candidate in labels}
    fitting = [
        candidate
        for candidate, (name, settings) in split.items()
        if name == method and given <= settings <= own | given
    ]
    return max(fitting, key=lambda candidate: len(split[candidate][1]), default=None)


def _split(label: str) -> tuple[frozenset[str], frozenset[str]]:
    """The parts of a label that name the method, and the others, its settings."""
    parts = label.split(", ")
    method = {p for p in parts if "=" not in p or p.partition("=")[0] in METHOD}
    return frozenset(method), frozenset(parts) - method
