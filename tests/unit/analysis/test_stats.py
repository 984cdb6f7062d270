"""Statistics by hand and against SciPy, and values of many runs aggregated over seeds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from analysis import series, stats
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


def test_holm_rejects_no_more_than_raw_and_no_fewer_than_bonferroni() -> None:
    raw = np.random.default_rng(0).uniform(0, 0.2, 30)
    adjusted = np.array(stats.holm(raw.tolist()))
    assert (adjusted >= raw).all()
    assert (adjusted <= np.minimum(1, 30 * raw) + 1e-15).all()
    assert (np.diff(adjusted[raw.argsort()]) >= 0).all()


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


def test_last_round_is_that_of_the_rows_asked_for(runs: Path) -> None:
    where = {"split": "test"}
    groups = groups_of(runs)

    def last(key: str) -> pd.DataFrame:
        found = series.aggregated(groups, "evaluations", ["accuracy"], key, where, take="last")
        return found["fedld"]

    by_group = series.aggregated(groups, "evaluations", ["accuracy"], "group", where, take="last")[
        "fedld"
    ]
    assert by_group["accuracy"]["mean"].to_dict() == pytest.approx(
        {"aligned": 0.55, "conflicting": 0.3}
    )
    by_client = series.aggregated(
        groups, "evaluations", ["accuracy"], "client_id", where, take="last"
    )["fedld"]
    assert by_client["accuracy"]["mean"].to_dict() == {0: 0.25, 1: 0.75}


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
