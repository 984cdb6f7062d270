"""Means with intervals over seeds or partitions, paired comparisons, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats

from . import AnalysisError, units
from . import paired as by_test
from .labels import AXIS, METHOD
from .paired import SIGNIFICANT, Chances, Floats, T, Test, Verdict, signed_levels
from .runs import conditions
from .units import ExperimentalUnit, Levels

LEVEL = 0.95  # coverage of every interval
FEWEST = 3  # over fewer common units nothing is said of what is detected, or whom a method helps
EQUAL = 1e-12  # relative tolerance: differences closer than this differ by rounding alone
Values = Mapping[str, Mapping[str, "pd.Series[float]"]]
"""By column of the table and label: one value per run, indexed by seed, or partition and seed."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds or partitions."""

    mean: float  # NaN without a value
    std: float  # sample standard deviation (ddof 1), NaN below two values
    n: int  # number of values
    half: float  # half-width of the 95 % t interval of the mean, NaN below two values
    unit: ExperimentalUnit = "seed"  # what the values are of
    levels: Levels | None = None  # the variance between and within partitions, if they are the unit

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
    """A method compared with the baseline, over common seeds or partitions."""

    difference: Estimate  # method minus baseline, over the common units
    p: float  # two-sided p value; NaN if not available
    reason: str = ""  # why p is not available, else empty
    sign: int = 0  # 1 if above the baseline by mean and statistic, -1 if below by both, else 0
    equal: float = math.nan  # p value of `paired.equivalence`
    chances: Chances | None = None  # of the Bayesian test (`paired.chances`)

    @property
    def doubt(self) -> float:
        """p, or one minus the probability of being better; NaN over too few units."""
        if self.chances is None:
            return self.p
        few = self.difference.n < by_test.FEWEST_BAYES
        return math.nan if few else 1 - self.chances[2 if self.sign > 0 else 0]


NOTHING = Comparison(Estimate(mean=math.nan, std=math.nan, n=0, half=math.nan), math.nan)
"""Without a baseline."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The statistics of one method in one column of a table."""

    row: str  # the method's label
    column: str  # a setting's value or a group of images; empty in tables without columns
    estimate: Estimate  # over the seeds or partitions
    comparison: Comparison | None = None  # with the baseline; None for the baseline itself
    adjusted: float = math.nan  # the p value after Holm's correction over the table
    detectable: float = math.nan  # at `level` (`analysis.units.detectable`); NaN if not available
    level: float = math.nan  # 0.05 over the number of comparisons of the table
    leads: bool = False  # whether it is significantly the best of its column (`ranked`)
    collapsed: int = 0  # number of runs whose final model has collapsed (`analysis.scores`)
    missing: int = 0  # number of runs without a value (`missing`)
    verdict: Verdict = ""  # with a rope; ``incomplete`` where it or the baseline lacks runs

    @property
    def mark(self) -> str:
        """A star if the adjusted p value is significant, or the Bayesian test decides so."""
        bayes = self.comparison is not None and self.comparison.chances is not None
        significant = self.verdict in ("lower", "higher") if bayes else self.adjusted < SIGNIFICANT
        return " *" * significant


def half_width(std: Floats, n: Floats, ratio: float = 0.0) -> Floats:
    """Half-widths t(0.975, n - 1) s sqrt(1 / n + ratio) of 95 % t intervals; NaN for n below 2."""
    factor = np.full(n.shape, math.nan)
    for count in np.unique(n[n > 1]):
        root = math.sqrt(count / (1 + count * ratio))
        factor[n == count] = stats.t.ppf(0.5 + LEVEL / 2, count - 1) / root
    return std * factor


def over_units(values: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """(name, mean | std | n | half) by key, without NaN, of values indexed by (unit, *keys)."""
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
    """Mean, std and interval over the units of finite values by run; infinite if all are."""
    if units.infinite(values):
        alike = of_runs(pd.Series(0.0, values.index), ratio)
        return replace(alike, mean=math.inf, std=math.nan, half=math.nan)
    values = units.finite(values)
    plain = estimate(units.means(values).tolist(), ratio)
    if units.unit_of(values.index) == "seed":
        return plain
    return replace(plain, unit="partition", levels=units.levels(values))


def paired(values: pd.Series[float], baseline: pd.Series[float], test: Test = T) -> Comparison:
    """Compares two methods over their common runs, by the mean differences of common units."""
    ours, theirs = (units.finite(series).dropna() for series in (values, baseline))
    ours, theirs = ours.align(theirs, join="inner")
    result = Comparison(of_runs(ours - theirs, test.ratio), math.nan)
    n, unit = result.difference.n, result.difference.unit
    if n < 2:
        return replace(result, reason=f"{'no' if n == 0 else 'only one'} common {unit}")
    ours, theirs = units.means(ours), units.means(theirs)
    differences = np.asarray(ours - theirs, dtype=float)
    rounding = EQUAL * max(ours.abs().max(), theirs.abs().max())
    result = replace(result, equal=by_test.equivalence(differences, rounding, test))
    if test.bayes and test.rope is not None:
        chances = by_test.chances(differences, rounding, test.rope)
        return replace(result, chances=chances, sign=int(np.sign(chances[2] - chances[0])))
    levels = signed_levels(differences, rounding)
    if np.ptp(differences) <= rounding or not levels.any():
        return replace(result, reason=f"the same difference for every {unit}")
    sign = int(np.sign(result.difference.mean))
    if test.kind == "wilcoxon":
        others = levels[levels != 0]
        ranks = float((np.sign(others) * stats.rankdata(np.abs(others))).sum())
        sign = sign if sign * ranks > 0 else 0
    if n < FEWEST:
        reason = f"only {n} common {unit}s, a test takes {FEWEST}"
        return replace(result, sign=sign, reason=reason)
    return replace(result, sign=sign, p=by_test.p_value(differences, levels, test))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction: adjusted p values in the order given; NaN do not count."""
    adjusted = np.array(p, dtype=float)
    m = int((~np.isnan(adjusted)).sum())
    order = np.argsort(adjusted)[:m]
    scaled = np.minimum(1.0, adjusted[order] * np.arange(m, 0, -1))
    adjusted[order] = np.maximum.accumulate(scaled)
    return adjusted.tolist()


def cells(values: Values, baseline: str | None = None, test: Test = T) -> list[Cell]:
    """:func:`compared` with a baseline's label, see :func:`reference`; None for no comparison."""
    made = compared(values, lambda label, labels: reference(label, labels, baseline), test)
    if baseline is not None and not any(cell.comparison for cell in made):
        labels = dict.fromkeys(cell.row for cell in made)
        if baseline not in labels or len(labels) == 1:
            known = "; ".join(labels).replace(AXIS, "")
            raise AnalysisError(
                f"baseline {baseline}: nothing to compare with it; the runs are {known}"
            )
    return made


def compared(
    values: Values, other: Callable[[str, Collection[str]], str | None], test: Test = T
) -> list[Cell]:
    """The statistics of a table, with p values corrected over all its comparisons. ``other`` maps a
    label, and those of its column, to what it is compared with; None: nothing."""
    lacking = {
        (column, label): count
        for (column, _), group in rivals(values).items()
        for label, count in missing(group).items()
    }
    made = []
    for column, series in values.items():
        for label, runs in series.items():
            theirs = other(label, series)
            comparison = None
            if theirs not in (None, label) and not any(map(units.infinite, (runs, series[theirs]))):
                comparison = paired(runs, series[theirs], test)
            fewer = lacking[column, label] or (theirs and lacking[column, theirs])
            cell = Cell(
                row=label, column=column, estimate=of_runs(runs, test.ratio), comparison=comparison,
                missing=lacking[column, label],
                verdict="incomplete" if comparison and fewer and test.rope is not None else "",
            )  # fmt: skip
            made.append(cell)
    adjusted = holm([cell.comparison.p if cell.comparison else math.nan for cell in made])
    level = SIGNIFICANT / max(1, sum(not math.isnan(p) for p in adjusted))
    return [_judged(cell, p, level, test) for cell, p in zip(made, adjusted, strict=True)]


def _judged(cell: Cell, adjusted: float, level: float, test: Test) -> Cell:
    """The cell with what follows from all comparisons of its table."""
    if (other := cell.comparison) is None:
        return cell
    difference, verdict, detectable = other.difference, cell.verdict, math.nan
    if test.rope is not None and not verdict:
        verdict = by_test.verdict(difference.n, other.sign, adjusted, other.equal, other.chances)
    untested = math.isnan(other.p) and difference.n >= FEWEST
    if not untested and test.kind in ("t", "corrected"):
        detectable = units.detectable(difference.std, difference.n, level, test.ratio)
    return replace(cell, adjusted=adjusted, level=level, detectable=detectable, verdict=verdict)


def missing(values: Mapping[str, pd.Series[float]]) -> dict[str, int]:
    """By label the runs without a finite value, but for those that all have and none a value of."""
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
    """The best of several methods, and its paired tests against each of the others."""

    leader: str | None  # the label with the best mean of those that lack no run; None if all do
    # by label of the others: p, Holm-corrected, or `Comparison.doubt` of the Bayesian test; NaN
    adjusted: Mapping[str, float]
    signs: Mapping[str, int]  # of the others: 1 where the leader is better, -1 where worse
    missing: Mapping[str, int]  # the number of runs that each lacks, of those that lack any

    def differing(self, sign: int) -> list[str]:
        """The others than which the leader is significantly better (1), or worse (-1)."""
        significant = [label for label, p in self.adjusted.items() if p < SIGNIFICANT]
        return [label for label in significant if self.signs[label] == sign]

    @property
    def leads(self) -> bool:
        """Whether the leader is significantly better than every other method."""
        return bool(self.adjusted) and len(self.differing(1)) == len(self.adjusted)


def ranking(
    values: Mapping[str, pd.Series[float]], test: Test = T, *, lowest: bool = False
) -> Ranking | None:
    """Ranks methods by their mean over units; None without any. One that lacks runs cannot lead."""
    lacking = {label: count for label, count in missing(values).items() if count}
    means = {label: units.means(units.finite(series)).mean() for label, series in values.items()}
    means = {label: mean for label, mean in means.items() if not math.isnan(mean)}
    if not means:
        return None
    whole = [label for label in means if label not in lacking]
    if not whole:
        return Ranking(None, {}, {}, lacking)
    leader = (min if lowest else max)(whole, key=lambda label: means[label])
    tests = {k: paired(values[leader], values[k], test) for k in means if k != leader}
    doubts = [one.doubt for one in tests.values()]
    return Ranking(
        leader,
        dict(zip(tests, doubts if test.bayes else holm(doubts), strict=True)),
        {label: -one.sign if lowest else one.sign for label, one in tests.items()},
        lacking,
    )


def ranked(
    shown: Sequence[Cell], values: Values, test: Test = T, *, lowest: bool = False,
    collapsed: Mapping[tuple[str, str], int] | None = None,
) -> list[Cell]:  # fmt: skip
    """The cells with :attr:`Cell.leads` and :attr:`Cell.collapsed`; no collapsed one leads."""
    places = {key: ranking(series, test, lowest=lowest) for key, series in rivals(values).items()}
    leading = {(key[0], r.leader) for key, r in places.items() if r is not None and r.leads}
    counts = {(cell.column, cell.row): 0 for cell in shown} | dict(collapsed or {})
    return [
        replace(cell, leads=key in leading and not counts[key], collapsed=counts[key])
        for cell in shown
        for key in [(cell.column, cell.row)]
    ]


def rivals(values: Values) -> dict[tuple[str, str], dict[str, pd.Series[float]]]:
    """The methods that are ranked among each other, by column and settings of data and schedule."""
    by_column: dict[tuple[str, str], dict[str, pd.Series[float]]] = {}
    for column, series in values.items():
        for label, runs in series.items():
            by_column.setdefault((column, conditions(label)), {})[label] = runs
    return by_column


def reference(label: str, labels: Collection[str], baseline: str | None) -> str | None:
    """The baseline's label with the most settings of ``label``, and no other; None without one."""
    if baseline is None:
        return None
    method, wanted = _split(baseline)
    possible = _split(label)[1] | wanted
    split = {candidate: _split(candidate) for candidate in labels}
    fitting = [
        candidate
        for candidate, (name, settings) in split.items()
        if name == method and wanted <= settings <= possible
    ]
    return max(fitting, key=lambda candidate: len(split[candidate][1]), default=None)


def _split(label: str) -> tuple[frozenset[str], frozenset[str]]:
    """The parts of a label that name the method, and the others, its settings."""
    parts = label.split(", ")
    method = {p for p in parts if "=" not in p or p.partition("=")[0] in METHOD}
    return frozenset(method), frozenset(parts) - method
