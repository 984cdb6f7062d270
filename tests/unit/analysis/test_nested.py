"""Nested designs, the power of a design, and runs that are lost."""

from __future__ import annotations

import math
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from scipy import stats as scipy_stats

from analysis import stats, units  # fmt: skip
from analysis.cli import main
from analysis.figures import curves  # fmt: skip
from analysis.runs import find, group, summaries
from analysis.tables import layout  # fmt: skip
from analysis.tables import scores as tables
from fedsim.studies import sweep_tables
from tests.unit.analysis.run_files import run_of


def nested(values: dict[int, list[float]]) -> pd.Series:
    """Values by partition and seed; the seeds of a partition count from 0."""
    runs = {(p, s): value for p, own in values.items() for s, value in enumerate(own)}
    index = pd.MultiIndex.from_tuples(runs, names=["data.seed", "seed"])
    return pd.Series(list(runs.values()), index=index)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two methods on three partitions with two seeds each; means per cent in the comments."""
    for partition, (ours, theirs) in enumerate(
        [
            ((0.62, 0.64), (0.50, 0.54)),  # 63 and 52: difference 11
            ((0.70, 0.74), (0.60, 0.58)),  # 72 and 59: difference 13
            ((0.64, 0.68), (0.55, 0.59)),  # 66 and 57: difference 9
        ]
    ):
        for seed in (0, 1):
            more = {"data.seed": partition}
            run_of(tmp_path, "fedld", seed, [0.1, ours[seed]], **more)
            run_of(tmp_path, "fedavg", seed, [0.1, theirs[seed]], **more)
    return tmp_path


def test_variances_of_a_balanced_design_by_hand() -> None:
    got = units.levels(nested({0: [1, 3], 1: [5, 7], 2: [3, 5]}))
    # means 2 6 4; within: 3 partitions with squares 1 + 1, over 6 - 3; MSB = 2 (4 + 4 + 0) / 2 = 8
    assert (got.within, got.between) == (pytest.approx(2), pytest.approx((8 - 2) / 2))
    assert (got.runs, got.seeds, got.truncated) == (6, "2", False)
    assert got.share == pytest.approx(3 / 5)


def test_variances_of_an_unbalanced_design_by_hand() -> None:
    got = units.levels(nested({0: [1, 3], 1: [6]}))
    # mean 10/3; MSB = 2 (4/3)^2 + (8/3)^2 = 96/9; MSW = 2 / (3 - 2); n0 = 3 - (4 + 1) / 3 = 4/3
    assert (got.within, got.between) == (pytest.approx(2), pytest.approx((96 / 9 - 2) / (4 / 3)))
    assert got.seeds == "1 to 2"


def test_an_estimate_is_over_the_means_of_the_partitions() -> None:
    got = stats.of_runs(nested({0: [1, 3], 1: [6], 2: [4, math.nan]}))
    # means 2 6 4 count alike: mean 4, s = 2, half = 4.302653 * 2 / sqrt(3)
    assert (got.mean, got.std, got.n, got.unit) == (4, 2, 3, "partition")
    assert got.half == pytest.approx(4.302653 * 2 / math.sqrt(3), rel=1e-6)
    assert got.runs == 4


@pytest.mark.parametrize("test", [stats.T, stats.Test("wilcoxon")])
def test_tests_are_paired_over_partitions(test: stats.Test) -> None:
    ours = nested({0: [1, 3], 1: [6, 7], 2: [4, 9], 3: [8, 8]})
    theirs = nested({0: [0, 1], 1: [5, 5], 2: [4, 3], 4: [1, 1]}).drop((2, 1))
    got = stats.paired(ours, theirs, test)
    # differences of common runs: 1 2; 1 2; 0 (seed 1 is not common); partitions 3 and 4 neither
    assert got.difference.n == 3
    assert got.difference.mean == pytest.approx((1.5 + 1.5 + 0) / 3)
    want = scipy_stats.ttest_1samp([1.5, 1.5, 0], 0)
    p = want.pvalue if test.kind == "t" else scipy_stats.wilcoxon([1.5, 1.5, 0]).pvalue
    assert got.p == pytest.approx(p)


@pytest.mark.parametrize("n", [2, 3, 5, 10, 60])
@pytest.mark.parametrize("level", [0.05, 0.05 / 50])
def test_detectable_differences_of_small_designs(n: int, level: float) -> None:
    """Power by another way: the mean over quantiles of s of the normal distribution's tail."""
    effect = units.detectable(1.0, n, level)
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    s = np.sqrt(scipy_stats.chi2.ppf(quantiles, n - 1) / (n - 1))
    limit = scipy_stats.t.isf(level / 2, n - 1)
    power = scipy_stats.norm.sf(limit * s - effect * math.sqrt(n)).mean()
    assert power == pytest.approx(0.8, abs=1e-5)


def test_partitions_are_the_unit_where_there_are_several(runs: Path) -> None:
    unset, partition = (invoke("table", runs, *of) for of in ((), ("--unit", "partition")))
    assert (unset.exit_code, unset.output) == (0, partition.output)
    assert "Unit: the partition of the data" in unset.output
    done = invoke("table", runs, "--unit", "seed")
    assert done.exit_code == 2
    assert done.output.count("\n") == 1
    assert "the runs differ in data.seed (0, 1, 2)" in done.output
    assert "--unit partition" in done.output


def test_a_table_over_partitions_by_hand(runs: Path) -> None:
    made = tables.make(
        "accuracy", summaries(find([runs])[0]), baseline="fedavg", takes=["final"], unit="partition"
    )
    main_table, variance = made
    # differences 11 13 9: mean 11, s = 2, half = 4.302653 * 2 / sqrt(3) = 4.97,
    # t = 11 / (2 / sqrt 3) = 9.526, p(2 degrees) = 0.010838; FedLD: 63 72 66, FedAvg: 52 59 57
    assert main_table.head[:3] == ["Method", "Partitions", "Seeds"]
    assert main_table.rows[0][:5] == ["FedAvg", "3", "2", "56.00 ± 8.96", "3.61"]
    assert main_table.rows[1][1:8] == [
        "3", "2", "**67.00** ± 11.38", "4.58", "+11.00 ± 4.97", "0.0108", "0.0108 *",
    ]  # fmt: skip
    detectable = units.detectable(2.0, 3, 0.05)
    assert main_table.rows[1][8] == f"{detectable:.2f}"
    assert (
        f"Power: with 3 partitions x 2 seeds, a difference of {detectable:.2f} points is detected "
        "with 80 % probability (paired t test at level 0.05, "
    ) in main_table.caption
    assert "Unit: the partition of the data (data.seed)" in main_table.caption
    # FedLD: within (2 + 8 + 8) / 3 = 6; MSB = 2 * 21 = 42; between (42 - 6) / 2 = 18
    assert variance.rows[1][3:6] == ["4.24", "2.45", "75"]
    # differences 12 10; 10 16; 9 9: within (2 + 18 + 0) / 3; MSB = 2 * 4; between 2/3
    assert variance.rows[1][6:] == ["0.82", "2.58", "9"]
    row = variance.data.set_index("label").loc["fedld"]
    assert row["difference_var_between"] == pytest.approx(2 / 3 * 1e-4)
    text = layout.csv(made)
    assert "accuracy_final_variance" in text


def test_curves_are_means_over_partitions(runs: Path) -> None:
    groups = group(summaries(find([runs])[0]), ("algorithm",), "partition")
    found = curves.figure(groups, ["test_accuracy"])
    assert found.legends[0].get_title().get_text() == (
        "Mean over 3 partitions of the data, band: 95 % t interval over the partitions"
    )
    lines = {line.get_label(): line.get_ydata()[-1] for line in found.axes[0].lines}
    assert lines == {"FedAvg": pytest.approx(56), "FedLD": pytest.approx(67)}


def test_a_sweep_and_a_table_agree(runs: Path) -> None:
    (lost,) = (run for run in find([runs])[0] if run.name == "fedld-2-1")
    (lost / "summary.csv").unlink()
    finished = [run.name for run in find([runs])[0]]
    swept = sweep_tables.write({name: name.partition("-")[0] for name in finished}, runs)
    (runs / "summary.csv").unlink()  # of the sweep
    made, _ = tables.make("accuracy", summaries(find([runs])[0]), takes=["final"], unit="partition")
    theirs = made.data.set_index("label")
    for row in swept.to_dict("records"):
        own = theirs.loc[row["configuration"]]
        assert row["unit"] == own["unit"] == "partition"
        assert (row["n"], row["runs"]) == (own["n"], own["runs"])
        assert row["final_test_accuracy_mean"] == pytest.approx(own["mean"], rel=1e-14)
        assert row["final_test_accuracy_std"] == pytest.approx(own["std"], rel=1e-12)
        half = own["high"] - own["mean"]
        assert row["final_test_accuracy_ci95"] == pytest.approx(half, rel=1e-12)


SETTINGS, LOST_SEEDS = (1.0, 10.0), range(5)
HARD = "fedld-1.0-0-4"
"""The run that diverges."""
FATES = ("missing", "diverged", "no score", "infinite")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs, the hard one with an accuracy of 0.1."""
    root = tmp_path_factory.mktemp("whole")
    for alpha in SETTINGS:
        for seed in LOST_SEEDS:
            noise = 0.002 * (seed * 7 % 5) + alpha / 1000
            for name, level in (("fedavg", 0.60), ("fedprox", 0.61), ("fedld", 0.66)):
                value = level + noise + 0.001 * ((seed + len(name)) % 3)
                if name == "fedld" and (alpha, seed) == (1.0, 4):
                    value = 0.1
                run_of(root, name, seed, [value], alpha=alpha, **{"data.seed": 0})
    return root


@pytest.fixture(scope="module", params=FATES)
def lost(
    request: pytest.FixtureRequest, whole: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same, but the hard run has no result, in one of the ways in which this happens."""
    root = tmp_path_factory.mktemp("lost") / "runs"
    shutil.copytree(whole, root)
    run = root / HARD
    summary = pd.read_csv(run / "summary.csv")
    if request.param == "missing":
        shutil.rmtree(run)
    elif request.param == "diverged":
        (run / "summary.csv").unlink()
        (run / "failure.json").write_text('{"error": "loss of client 3 is nan"}')
    else:
        value = math.nan if request.param == "no score" else math.inf
        scores = {c: value for c in summary.columns if c.endswith("test_accuracy")}
        summary.assign(**scores).to_csv(run / "summary.csv", index=False)
        rounds = pd.read_csv(run / "rounds.csv").assign(test_accuracy=value)
        rounds.to_csv(run / "rounds.csv", index=False)
    return root


TESTS = [stats.T, stats.Test("t", 0.01), stats.Test("bayes", 0.01)]


@cache
def made(root: Path, test: stats.Test) -> dict[tuple[str, str], stats.Cell]:
    frame = summaries(find([root])[0])
    (table, *_) = tables.make(
        "accuracy", frame, columns="alpha", baseline="fedavg", test=test, takes=["final"]
    )
    return {(cell.column, cell.row): cell for cell in table.cells}


@pytest.mark.parametrize("test", TESTS, ids=lambda test: f"{test.kind}-{test.rope}")
def test_in_tables_it_is_not_bold_and_has_no_verdict(
    whole: Path, lost: Path, test: stats.Test
) -> None:
    with_run, without = made(whole, test), made(lost, test)
    hard = ("1", "fedld")
    assert not with_run[hard].leads
    assert with_run["10", "fedld"].leads, "it would lead"
    assert not without[hard].leads
    assert without[hard].missing == 1
    if test.rope is not None:
        assert with_run["10", "fedld"].verdict == "higher"
        assert without[hard].verdict == "incomplete"
        others = {key: cell.verdict for key, cell in without.items() if key != hard}
        assert "incomplete" not in others.values()
