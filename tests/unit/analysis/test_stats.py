"""Means, intervals and paired tests: against SciPy, baycomp, by hand and in simulations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from scipy import stats as scipy_stats

from analysis import paired, series, stats, units
from analysis.cli import main
from analysis.runs import find, summaries
from analysis.tables import scores as tables
from tests.unit.analysis.run_files import groups_of, rows, run_of

SEEDS = [3, 1, 4, 5, 9]
OURS = pd.Series([0.81, 0.84, 0.80, 0.86, 0.83], index=SEEDS)
THEIRS = pd.Series([0.80, 0.79, 0.81, 0.82, 0.80], index=SEEDS)


def test_estimate_is_scipys_t_interval() -> None:
    got = stats.estimate(OURS.tolist())
    low, high = scipy_stats.t.interval(0.95, 4, loc=OURS.mean(), scale=scipy_stats.sem(OURS))
    assert (got.low, got.high) == pytest.approx((low, high), rel=1e-12)
    assert (got.mean, got.std, got.n) == (pytest.approx(0.828), pytest.approx(OURS.std()), 5)


def test_paired_t_is_scipys_over_the_common_seeds() -> None:
    more = pd.concat([THEIRS.iloc[::-1], pd.Series({77: 0.1})])
    got = stats.paired(OURS, more)
    want = scipy_stats.ttest_rel(OURS, THEIRS)
    assert got.p == pytest.approx(want.pvalue, rel=1e-12)
    interval = want.confidence_interval(0.95)
    assert (got.difference.low, got.difference.high) == pytest.approx(tuple(interval), rel=1e-12)
    assert got.difference.n == 5


def test_wilcoxon_by_hand() -> None:
    # all five differences positive: the most extreme of 2^5 signs on either side, p = 2 / 32
    above = OURS + pd.Series([0.01, 0.02, 0.03, 0.04, 0.05], index=SEEDS)
    assert stats.paired(above, OURS, stats.Test("wilcoxon")).p == pytest.approx(2 / 32)
    # a difference of zero is dropped: four are left, all positive, p = 2 / 16
    equal = above.where(above.index != SEEDS[0], OURS)
    assert stats.paired(equal, OURS, stats.Test("wilcoxon")).p == pytest.approx(2 / 16)
    # differences 1 5 -1 4 3 (per cent): ties and a mixed sign, as scipy has it
    want = scipy_stats.wilcoxon(OURS - THEIRS).pvalue
    assert stats.paired(OURS, THEIRS, stats.Test("wilcoxon")).p == pytest.approx(want)


def test_differences_of_rounding_alone_have_no_p() -> None:
    ours = pd.Series([1.0, 1.0 + 9e-13, 1.0 - 9e-13])
    theirs = pd.Series([1.0, 1.0, 1.0])
    got = stats.paired(ours, theirs, stats.Test("wilcoxon"))
    assert math.isnan(got.p)
    assert got.reason == "the same difference for every seed"


@pytest.mark.parametrize("test", [stats.T, stats.Test("wilcoxon")])
@pytest.mark.parametrize(
    ("ours", "theirs", "n", "reason"),
    [
        ({0: 0.5}, {1: 0.5}, 0, "no common seed"),
        ({0: 0.5, 1: 0.6}, {1: 0.5, 2: 0.7}, 1, "only one common seed"),
        ({0: 0.5, 1: math.nan}, {0: 0.4, 1: 0.7}, 1, "only one common seed"),
        ({0: 0.5, 1: 0.6}, {0: 0.5, 1: 0.6}, 2, "the same difference for every seed"),
        # 0.3 - 0.2 and 0.9 - 0.8 differ in the last bits
        ({0: 0.3, 1: 0.9}, {0: 0.2, 1: 0.8}, 2, "the same difference for every seed"),
    ],
)
def test_degenerate_pairs_have_no_p_and_say_why(
    ours: dict[int, float], theirs: dict[int, float], n: int, reason: str, test: stats.Test
) -> None:
    got = stats.paired(pd.Series(ours), pd.Series(theirs), test)
    assert math.isnan(got.p)
    assert (got.difference.n, got.reason) == (n, reason)


def test_holm_by_hand() -> None:
    # sorted 0.005 0.01 0.03 0.04: times 4, 3, 2, 1 = 0.02 0.03 0.06 0.04, and never falling
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.6, 0.5]) == pytest.approx([1.0, 1.0])
    assert stats.holm([]) == []


def by_seed(*values: float) -> pd.Series[float]:
    return pd.Series(dict(enumerate(values)), dtype=float)


HARD = (0.70, 0.72, 0.69, 0.71, 0.10)
"""Values of five seeds, the last of which is much harder than the others."""


def test_the_method_without_the_hardest_seed_does_not_lead() -> None:
    # without the hard seed b's mean is 0.655 against a's 0.584, and is lower in each common one:
    # differences -0.05 -0.06 -0.04 -0.05: mean -0.05, s = 0.00816, t = -12.2, p = 0.0012
    values = {"a": by_seed(*HARD), "b": by_seed(0.65, 0.66, 0.65, 0.66, math.nan)}
    for own in (values, dict(reversed(values.items())), values | {"b": values["b"].dropna()}):
        table = stats.ranked(stats.cells({"": own}, "a"), {"": own})
        assert [cell.row for cell in table if cell.leads] == ["a"]
        assert {cell.row: cell.missing for cell in table} == {"a": 0, "b": 1}
        assert stats.missing(own) == {"a": 0, "b": 1}
        found = stats.ranking(own)
        assert found is not None
        assert (found.leader, found.missing, found.leads) == ("a", {"b": 1}, True)
        assert found.adjusted == pytest.approx({"b": 0.00118}, rel=0.01)


def test_the_leader_is_not_significantly_above_whom_it_is_below() -> None:
    """b has no value of the hard seed and is above a in the others: nobody leads."""
    values = {"a": by_seed(*HARD), "b": by_seed(0.75, 0.78, 0.73, 0.76, math.inf)}
    found = stats.ranking(values)
    assert found is not None
    assert found.leader == "a"
    assert found.adjusted["b"] < 0.01
    assert (found.differing(1), found.differing(-1), found.leads) == ([], ["b"], False)
    losses = {label: -own for label, own in values.items()}
    found = stats.ranking(losses, lowest=True)
    assert found is not None
    assert (found.leader, found.differing(-1), found.leads) == ("a", ["b"], False)


def test_ranks_and_mean_have_to_agree_on_who_is_above() -> None:
    # 11 differences of -0.01 to -0.11 and one of 2: the mean is positive, the ranks say negative:
    # W+ = 12 of 78, p = 0.034
    baseline = by_seed(*[1.0] * 12)
    differences = [*(-0.01 * k for k in range(1, 12)), 2.0]
    ours = baseline + by_seed(*differences)
    got = stats.paired(ours, baseline, stats.Test("wilcoxon"))
    assert got.difference.mean > 0
    assert got.p == pytest.approx(scipy_stats.wilcoxon(differences).pvalue)
    assert got.p < 0.05
    assert got.sign == 0
    found = stats.ranking({"ours": ours, "baseline": baseline}, stats.Test("wilcoxon"))
    assert found is not None
    assert (found.leader, found.leads) == ("ours", False)
    signs = [stats.paired(a, b).sign for a, b in ((OURS, THEIRS), (THEIRS, OURS), (OURS, OURS))]
    assert signs == [1, -1, 0]


def leading_by_hand(values: dict[str, dict[Any, float]], lowest: bool) -> str | None:
    """The method in bold, by the definition alone: t tests over units, Holm, complete, and best."""
    there = {a: {r: x for r, x in of.items() if math.isfinite(x)} for a, of in values.items()}
    every = {run for of in there.values() for run in of}
    everywhere = set.intersection(*(set(of) for of in values.values()))

    def units(of: dict[Any, float], runs: set[Any]) -> list[float]:
        """Sorted by unit: the values of seeds, or the means of partitions."""
        first = sorted({run[0] if isinstance(run, tuple) else run for run in runs})
        inside = [[r for r in runs if (r[0] if isinstance(r, tuple) else r) == u] for u in first]
        return [sum(of[run] for run in runs) / len(runs) for runs in inside]

    for own, of in there.items():
        failed = {r for r in values[own] if r not in of}
        nowhere = {r for r in failed & everywhere if r not in every}
        others = {other: theirs for other, theirs in there.items() if other != own and theirs}
        if not of or not others or every - of.keys() or failed - nowhere:
            continue
        p, better = [], []
        for theirs in others.values():
            common = of.keys() & theirs.keys()
            pairs = zip(units(of, common), units(theirs, common), strict=True)
            differences = [(b - a if lowest else a - b) for a, b in pairs]
            if len(differences) < stats.FEWEST or np.ptp(differences) < 1e-9:
                break
            t = np.mean(differences) / (np.std(differences, ddof=1) / len(differences) ** 0.5)
            p.append(2 * scipy_stats.t.sf(abs(t), len(differences) - 1))
            better.append(np.mean(differences) > 0)
        else:
            ordered = sorted(p)
            if all(better) and all(x * (len(p) - k) < 0.05 for k, x in enumerate(ordered)):
                return own
    return None


@pytest.mark.parametrize("tables", [12, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("lowest", [False, True])
def test_bold_is_complete_and_better_than_each_over_common_units(
    nested: bool, lowest: bool, tables: int
) -> None:
    rng = np.random.default_rng([nested, lowest])
    bold = 0
    for _ in range(tables):
        methods, count = int(rng.integers(2, 5)), int(rng.integers(1, 9))
        runs = [(p, s) for p in range(count) for s in (0, 1)] if nested else list(range(count))
        hard = rng.normal(0, 0.3, count)
        values: dict[str, dict[Any, float]] = {}
        for name in "abcd"[:methods]:
            level, of = rng.normal(0, 0.1), {}
            for run in runs:
                value = level + hard[run[0] if nested else run] + rng.normal(0, 0.02)
                fate = rng.choice(4, p=(0.93, 0.03, 0.02, 0.02))
                if fate < 3:
                    of[run] = (value, math.nan, math.inf)[fate]
            values[name] = of
        if rng.random() < 0.2:  # ties
            values["b"] = dict(values["a"])
        names = ["data.seed", "seed"] if nested else None
        series = {
            name: pd.Series(
                list(of.values()),
                pd.MultiIndex.from_tuples(list(of), names=names) if nested else list(of),
                dtype=float,
            )
            for name, of in values.items()
            if of
        }
        found = stats.ranked(stats.cells({"": series}), {"": series}, lowest=lowest)
        leading = [cell.row for cell in found if cell.leads]
        hand = leading_by_hand({name: values[name] for name in series}, lowest) if series else None
        assert leading == ([] if hand is None else [hand]), values
        bold += len(leading)
    assert bold


EVALUATIONS = "round,client_id,group,split,num_samples,loss,accuracy"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed in (0, 1):
        folder = run_of(tmp_path, "fedld", seed, [0.2, 0.4 + seed / 10, 0.6])
        rows(
            folder, "evaluations", EVALUATIONS,
            f"2,,aligned,test,9,1,{0.5 + seed / 10}", "2,,conflicting,test,9,1,0.3",
            "1,,aligned,test,9,1,0", "3,0,,test,4,1,0.25", "3,1,,test,4,1,0.75",
            "3,0,,val,4,1,0.5", "3,,aligned,test,9,1,",
        )  # fmt: skip
    return tmp_path


def test_series_by_round_in_numeric_order(tmp_path: Path) -> None:
    for seed, high in enumerate((0.4, 0.6)):
        run_of(tmp_path, "fedld", seed, [0.1] * 9 + [high])
    got = series.aggregated(groups_of(tmp_path), "rounds", ["test_accuracy"])["fedld"]
    assert got.index.tolist() == list(range(1, 11))
    # 0.4 0.6: s = 0.1414214, half = t(0.975, 1) s / sqrt(2) = 12.70620474 * 0.1
    assert got["test_accuracy"].loc[10].tolist() == pytest.approx([0.5, 0.1414214, 2, 1.2706205])


def test_a_mean_is_over_the_runs_that_have_a_value(tmp_path: Path) -> None:
    run_of(tmp_path, "fedld", 0, [0.1, math.nan, 0.3])
    run_of(tmp_path, "fedld", 1, [0.3, 0.5, 0.5])
    got = series.aggregated(groups_of(tmp_path), "rounds", ["test_accuracy"])["fedld"]
    assert got["test_accuracy"]["n"].tolist() == [2, 1, 2]
    assert got["test_accuracy"]["mean"].tolist() == pytest.approx([0.2, 0.5, 0.4])
    assert series.complete(got, "test_accuracy").index.tolist() == [1, 3]


def test_rows_with_the_same_key_are_averaged_within_the_run(tmp_path: Path) -> None:
    for seed, pairs in enumerate((["0.1", "0.3"], ["0.8"])):
        lines = (f"1,0,{i},{c}" for i, c in enumerate(pairs, 1))
        folder = run_of(tmp_path, "fedld", seed, [0.5])
        rows(folder, "cosines", "round,client_a,client_b,cosine", *lines)
    got = series.aggregated(groups_of(tmp_path), "cosines", ["cosine"])["fedld"]
    # the runs' means 0.2 and 0.8 count alike, whatever the number of pairs
    assert got.loc[1, ("cosine", "mean")] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("key", "means"),
    [("group", {"aligned": 0.55, "conflicting": 0.3}), ("client_id", {0: 0.25, 1: 0.75})],
)
def test_last_round_is_that_of_the_rows_asked_for(
    runs: Path, key: str, means: dict[object, float]
) -> None:
    columns, where = ["accuracy"], {"split": "test"}
    got = series.aggregated(groups_of(runs), "evaluations", columns, key, where, take="last")
    assert got["fedld"]["accuracy"]["mean"].to_dict() == pytest.approx(means)


def test_runs_without_the_table_are_skipped_and_named(runs: Path) -> None:
    bare = run_of(runs, "fedavg", 0, [0.5])
    empty = run_of(runs, "fedavg", 1, [0.5])
    rows(empty, "evaluations", EVALUATIONS)
    groups = groups_of(runs, "algorithm", "rounds")
    assert series.absent(groups, "evaluations") == [bare, empty]
    assert set(series.aggregated(groups, "evaluations", ["loss"])) == {"fedld, rounds=3"}
    assert len(series.absent(groups, "rounds", ["test_accuracy"])) == 0
    assert len(series.absent(groups, "rounds", ["gradient_diversity"])) == 4
    assert series.aggregated(groups, "rounds", ["gradient_diversity"]) == {}


TEN = np.array([0.8131, 0.8472, 0.8013, 0.8655, 0.8317, 0.7929, 0.8843, 0.8261, 0.8096, 0.8408])
OTHER_TEN = np.array(
    [0.8017, 0.7954, 0.8118, 0.8263, 0.8049, 0.8042, 0.8371, 0.8226, 0.8089, 0.8177]
)
DIFFERENCES = TEN - OTHER_TEN
N = len(DIFFERENCES)


def compared(test: stats.Test, differences: np.ndarray = DIFFERENCES) -> stats.Comparison:
    return stats.paired(pd.Series(differences) + 0.5, pd.Series(0.5, range(len(differences))), test)


def test_the_corrected_test_is_that_of_baycomp() -> None:
    """baycomp 1.0.3, CorrelatedTTest(OTHER_TEN, TEN, 0.0107, runs=1): rho 1 / 10, variance and P.

    Its variance is (1 / n + rho / (1 - rho)) s^2; a fold of ten has test over training samples
    1 / 9 = rho / (1 - rho). Its posterior is the t distribution of the test.
    """
    variance, left, right = 0.00011192287777777765, 0.011597289490954997, 0.7515596524312672
    test = stats.Test("corrected", ratio=1 / 9)
    assert paired.error(DIFFERENCES, 1 / 9) ** 2 == pytest.approx(variance, rel=1e-12)
    spread = math.sqrt(variance)
    mean = DIFFERENCES.mean()
    assert scipy_stats.t.cdf((-0.0107 - mean) / spread, 9) == pytest.approx(left, rel=1e-9)
    assert scipy_stats.t.sf((0.0107 - mean) / spread, 9) == pytest.approx(right, rel=1e-9)
    got = compared(test)
    assert got.p == pytest.approx(2 * scipy_stats.t.sf(mean / spread, 9), rel=1e-9)
    low, high = scipy_stats.t.interval(0.95, 9, loc=mean, scale=spread)
    assert (got.difference.low, got.difference.high) == pytest.approx((low, high), rel=1e-9)


def test_the_corrected_test_by_hand() -> None:
    # 1 2 3: mean 2, s = 1; error sqrt(1/3 + 1/4) = 0.763763; t = 2.618615 with 2 degrees of freedom
    got = compared(stats.Test("corrected", ratio=0.25), np.array([1.0, 2.0, 3.0]))
    t = 2 / math.sqrt(7 / 12)
    assert got.p == pytest.approx(1 - t / math.sqrt(2 + t**2), rel=1e-9)  # two-sided, 2 d.f.
    assert got.difference.half == pytest.approx(4.302652730 * math.sqrt(7 / 12), rel=1e-8)


@pytest.mark.parametrize(
    ("rope", "baycomp"),
    [
        (0.004, (0.007557, 0.008521, 0.983922)),
        (0.0107, (0.000638, 0.13539, 0.863972)),
        (0.0193, (0.0, 0.603485, 0.396515)),
        (0.0311, (0.0, 0.9672, 0.0328)),
    ],
)
def test_the_bayesian_test_is_that_of_baycomp(rope: float, baycomp: tuple[float, ...]) -> None:
    """baycomp 1.0.3, SignedRankTest.probs(OTHER_TEN, TEN, rope, nsamples=10**6, random_state=1).

    Both are shares of draws: the tolerance is five standard errors of 50,000 and 1,000,000 draws.
    """
    got = compared(stats.Test("bayes", rope)).chances
    assert got is not None
    for own, other in zip(got, baycomp, strict=True):
        assert abs(own - other) <= 5 * math.sqrt(0.25 / 50_000 + 0.25 / 1_000_000)
        assert abs(own - other) <= 1e-4 + 5 * math.sqrt(other * (1 - other) * (2e-5 + 1e-6))
    assert sum(got) == pytest.approx(1)


def test_differences_at_the_border_count_half_on_either_side() -> None:
    """All differences are the rope: in floats 0.3 - 0.2 > 0.1 and 0.2 - 0.1 = 0.1, which is noise.

    A draw's mass above is (1 - w_0)^2 / 2, below one half, so that the rope always has the most.
    """
    found = paired.chances(np.array([0.3 - 0.2, 0.2 - 0.1, 0.1] * 3), 1e-12, 0.1)
    assert found == (0.0, 1.0, 0.0)


@pytest.mark.parametrize("ratio", [0.0, 0.25])
@pytest.mark.parametrize("rope", [0.005, 0.02, 0.03, 0.04])
def test_two_one_sided_tests_are_the_90_percent_interval(rope: float, ratio: float) -> None:
    kind: paired.Kind = "corrected" if ratio else "t"
    p = paired.equivalence(DIFFERENCES, 1e-12, stats.Test(kind, rope, ratio))
    scale = paired.error(DIFFERENCES, ratio)
    low, high = scipy_stats.t.interval(0.9, N - 1, loc=DIFFERENCES.mean(), scale=scale)
    assert (p < 0.05) == (-rope < low and high < rope)
    if not ratio:
        above = scipy_stats.ttest_1samp(DIFFERENCES, -rope, alternative="greater").pvalue
        below = scipy_stats.ttest_1samp(DIFFERENCES, rope, alternative="less").pvalue
        assert p == pytest.approx(max(above, below), rel=1e-9)


def test_two_one_sided_signed_rank_tests_by_hand() -> None:
    # differences 0.1 .. 0.5 with rope 0.6: shifted up all five are positive, down all negative;
    # one of 2^5 signs is as extreme on either side. With rope 0.45 the largest is +0.05 of 0.05
    # 0.15 0.25 0.35: rank 1.5 (tied), so W+ = 1.5; signs with W+ <= 1.5: none, or one of the two
    inside = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    assert paired.equivalence(inside, 1e-12, stats.Test("wilcoxon", 0.6)) == pytest.approx(1 / 32)
    p = paired.equivalence(inside, 1e-12, stats.Test("wilcoxon", 0.45))
    assert p == pytest.approx(3 / 32)


@pytest.mark.parametrize("shift", [0.0, 0.005])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("kind", ["t", "corrected", "wilcoxon"])
def test_equal_differences_are_practically_equal_over_five_units_or_more(
    kind: paired.Kind, count: int, shift: float
) -> None:
    """Signed ranks of n differences of one sign have p 2^-n; a t test of them does not exist."""
    values = pd.Series(TEN[:count])
    test = stats.Test(kind, 0.01, 0.25 if kind == "corrected" else 0.0)
    (_, cell) = stats.cells({"": {"a": values, "b": values + shift}}, "a", test)
    assert cell.comparison is not None
    wanted = 2.0**-count if kind == "wilcoxon" else float(count < 5)
    assert cell.comparison.equal == pytest.approx(wanted)
    assert cell.verdict == ("not decidable" if count < 5 else "practically equal")
    at_the_border = paired.equivalence(np.full(count, 0.62 - 0.61), 1e-12, test)
    assert at_the_border == 1


@pytest.mark.parametrize(
    ("kind", "shift", "rope", "wanted"),
    [
        ("t", 0.05, 0.01, "higher"),
        ("t", -0.05, 0.01, "lower"),
        ("t", 0.0, 0.05, "practically equal"),
        ("t", 0.0, 0.001, "not decidable"),
        ("t", 0.015, 0.05, "practically equal"),  # significant, too, and small
        ("wilcoxon", 0.05, 0.01, "higher"),
        ("wilcoxon", 0.0, 0.05, "practically equal"),
        ("corrected", 0.12, 0.01, "higher"),
        ("corrected", 0.05, 0.01, "not decidable"),
        ("bayes", 0.05, 0.01, "higher"),
        ("bayes", -0.05, 0.01, "lower"),
        ("bayes", 0.0, 0.05, "practically equal"),
        ("bayes", 0.0, 0.004, "not decidable"),
    ],
)
def test_verdicts(kind: paired.Kind, shift: float, rope: float, wanted: str) -> None:
    noise = DIFFERENCES - DIFFERENCES.mean()
    base = pd.Series(OTHER_TEN)
    values = {"a": base, "b": base + noise + shift}
    test = stats.Test(kind, rope, 1.0 if kind == "corrected" else 0.0)
    ours = stats.cells({"": values}, "a", test)[1]
    assert ours.verdict == wanted
    if kind == "bayes":
        assert bool(ours.mark) == (wanted in ("higher", "lower"))


@pytest.mark.parametrize(("n", "ratio"), [(10, 0.25), (5, 0.1), (10, 0.0)])
def test_the_power_of_the_corrected_test(n: int, ratio: float) -> None:
    true = units.detectable(0.02, n, 0.05, ratio)
    assert true == pytest.approx(
        units.detectable(0.02, n, 0.05) * math.sqrt((1 / n + ratio) * n), rel=1e-9
    )


def table_of_runs(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["table", *map(str, arguments)])


SPLIT = "sample,part,client_id,label"


def split_of(folder: Path, train: list[int], test: list[int], part: str = "test") -> None:
    client = "" if part == "test" else "0"
    lines = [f"{s},train,{i % 2},0" for i, s in enumerate(train)]
    rows(folder, "split", SPLIT, *lines, *(f"{s},{part},{client},0" for s in test))


@pytest.fixture
def resplit_runs(tmp_path: Path) -> Path:
    """Two methods on six resplits of ten samples, two of which are tested; two seeds each."""
    noise = [0.010, -0.004, 0.007, -0.011, 0.002, -0.003]
    for p in range(6):
        for seed in (0, 1):
            for name, level in (("fedavg", 0.6), ("fedld", 0.7 + noise[p])):
                folder = run_of(
                    tmp_path, name, seed, [level + p / 100 + seed / 1000], **{"data.seed": p}
                )
                test = [p, p + 1]
                split_of(folder, [s for s in range(10) if s not in test], test)
    return tmp_path


@pytest.mark.slow
def test_the_ratio_is_read_from_the_split(resplit_runs: Path) -> None:
    frame = summaries(find([resplit_runs])[0])
    assert paired.ratio(frame, "partition") == 2 / 8
    (table, *_) = tables.make(
        "accuracy", frame, baseline="fedavg", test=stats.Test("corrected", 0.02), unit="partition",
        takes=["final"],
    )  # fmt: skip
    ours = table.cells[1]
    assert ours.comparison is not None
    differences = np.array([0.1 + x for x in (0.010, -0.004, 0.007, -0.011, 0.002, -0.003)])
    half = scipy_stats.t.ppf(0.975, 5) * differences.std(ddof=1) * math.sqrt(1 / 6 + 0.25)
    assert ours.comparison.difference.half == pytest.approx(half, rel=1e-9)
    assert "Inference: about new samples" in table.caption
    assert "(1 / n + 0.25) s²" in table.caption
    plain = tables.make("accuracy", frame, baseline="fedavg", unit="partition", takes=["final"])
    assert "not about new samples" in plain[0].caption
    assert plain[0].cells[1].estimate.half < ours.estimate.half


def test_held_out_clients_do_not_train_and_clients_may_own_the_test_samples(
    resplit_runs: Path,
) -> None:
    for run in find([resplit_runs])[0]:
        p = int(run.name.split("-")[1])
        split_of(run, [s for s in range(10) if s not in (p, p + 1)], [p, p + 1], "own_test")
        (run / "env.json").write_text('{"heldout_clients": [1]}')
    assert paired.ratio(summaries(find([resplit_runs])[0]), "partition") == 2 / 4


@pytest.mark.slow
def test_what_the_corrected_test_refuses(resplit_runs: Path) -> None:
    corrected = ("--test", "corrected", "--baseline", "fedavg")
    by_seed = table_of_runs(resplit_runs / "fedavg-0-0", resplit_runs / "fedld-0-0", *corrected)
    assert "--test corrected: needs --unit partition" in by_seed.output
    groups = table_of_runs(resplit_runs, "--unit", "partition", *corrected, "--metric", "groups")
    assert "--test corrected: takes the size of the whole test part" in groups.output
    for run in find([resplit_runs])[0]:
        split_of(run, [s for s in range(10) if s > 1], [0, 1])
    same = table_of_runs(resplit_runs, "--unit", "partition", *corrected)
    assert "have the same test samples" in same.output
    (resplit_runs / "fedavg-0-0/split.csv").unlink()
    gone = table_of_runs(resplit_runs, "--unit", "partition", *corrected)
    assert "fedavg-0-0/split.csv: there is no such file" in gone.output
    assert all(r.exit_code == 2 for r in (by_seed, groups, same, gone))


@pytest.mark.slow
def test_tables_with_verdicts(resplit_runs: Path, tmp_path: Path) -> None:
    given = (resplit_runs, "--unit", "partition", "--baseline", "fedavg", "--at", "final")
    tost = table_of_runs(*given, "--rope", 0.2)
    assert "| p | p (Holm) | Verdict | Detectable (points) |" in tost.output
    assert "| <0.0001 | <0.0001 \\* | practically equal | 1.11 |" in tost.output
    assert "lies within ±20 points" in tost.output
    bayes = table_of_runs(*given, "--rope", 0.01, "--test", "bayes")
    assert "| P lower | P equal | P higher | Verdict |" in bayes.output
    assert "| 0.000 | 0.000 | 1.000 | higher |" in bayes.output
    assert "p: two-sided" not in bayes.output
    assert "| FedLD | 6 | 2 | **72.57** ± 1.76 |" in bayes.output
    out = tmp_path / "t.csv"
    assert table_of_runs(*given, "--rope", 0.01, "--test", "bayes", "--out", out).exit_code == 0
    data = pd.read_csv(out)
    assert data[data["table"] == "accuracy_final"]["verdict"].tolist()[1:] == ["higher"]
    assert data["p_higher"].max() > 0.999
    crossed = table_of_runs(*given, "--columns", "alpha", "--rope", 0.01, "--test", "bayes")
    assert "| FedLD | +10.02 ± 0.81 (0.00 / 0.00 / 1.00), higher \\* |" in crossed.output
