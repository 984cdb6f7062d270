"""Tests of differences against SciPy, baycomp and by hand; verdicts, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from scipy import stats as scipy_stats

from analysis import paired, resplits, stats, units
from analysis.cli import main
from analysis.runs import find, summaries
from analysis.tables import scores as tables
from tests.unit.analysis.run_files import rows, run_of

OURS = np.array([0.8131, 0.8472, 0.8013, 0.8655, 0.8317, 0.7929, 0.8843, 0.8261, 0.8096, 0.8408])
THEIRS = np.array([0.8017, 0.7954, 0.8118, 0.8263, 0.8049, 0.8042, 0.8371, 0.8226, 0.8089, 0.8177])
DIFFERENCES = OURS - THEIRS
N = len(DIFFERENCES)


def compared(test: stats.Test, differences: np.ndarray = DIFFERENCES) -> stats.Comparison:
    return stats.paired(pd.Series(differences) + 0.5, pd.Series(0.5, range(len(differences))), test)


def test_the_corrected_test_is_that_of_baycomp() -> None:
    """baycomp 1.0.3, CorrelatedTTest(THEIRS, OURS, 0.0107, runs=1): rho 1 / 10, variance and P.

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
    """baycomp 1.0.3, SignedRankTest.probs(THEIRS, OURS, rope, nsamples=10**6, random_state=1).

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
    values = pd.Series(OURS[:count])
    test = stats.Test(kind, 0.01, 0.25 if kind == "corrected" else 0.0)
    (_, cell) = stats.cells({"": {"a": values, "b": values + shift}}, "a", test)
    assert cell.comparison is not None
    wanted = 2.0**-count if kind == "wilcoxon" else float(count < 5)
    assert cell.comparison.equal == pytest.approx(wanted)
    assert cell.verdict == ("not decidable" if count < 5 else "practically equal")
    at_the_border = paired.equivalence(np.full(count, 0.62 - 0.61), 1e-12, test)
    assert at_the_border == 1


def test_accuracies_on_a_grid_are_wrongly_called_equal_in_at_most_five_of_a_hundred() -> None:
    rng = np.random.default_rng(9)
    for count in (2, 3, 4, 5):
        noise = rng.normal(0, 0.007, (2, 1000, count))
        ours, theirs = np.round(0.6 + noise, 2) + np.array([0.02, 0.0])[:, None, None]
        ps = [paired.equivalence(d, 1e-12, stats.Test("t", 0.02)) for d in ours - theirs]
        # 1,000 draws: 5 % and three standard errors of 0.7 %
        assert np.mean(np.array(ps) < 0.05) < 0.071, count


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
    base = pd.Series(THEIRS)
    values = {"a": base, "b": base + noise + shift}
    test = stats.Test(kind, rope, 1.0 if kind == "corrected" else 0.0)
    ours = stats.cells({"": values}, "a", test)[1]
    assert ours.verdict == wanted
    if kind == "bayes":
        assert bool(ours.mark) == (wanted in ("higher", "lower"))


@pytest.mark.parametrize("lost", ["a", "b"])
@pytest.mark.parametrize("kind", ["t", "bayes"])
def test_a_comparison_without_all_runs_has_no_verdict(kind: paired.Kind, lost: str) -> None:
    base = pd.Series(THEIRS)
    values = {"a": base, "b": base + 0.05 + DIFFERENCES / 10}
    values[lost] = values[lost].where(values[lost].index != 3)
    ours = stats.cells({"": values}, "a", stats.Test(kind, 0.01))[1]
    assert ours.verdict == "incomplete"
    assert (ours.mark == "") == (kind == "bayes")


@pytest.mark.parametrize(("n", "ratio"), [(10, 0.25), (5, 0.1), (10, 0.0)])
def test_the_power_of_the_corrected_test(n: int, ratio: float) -> None:
    true = units.detectable(0.02, n, 0.05, ratio)
    assert true == pytest.approx(
        units.detectable(0.02, n, 0.05) * math.sqrt((1 / n + ratio) * n), rel=1e-9
    )


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["table", *map(str, arguments)])


SPLIT = "sample,part,client_id,label"


def split_of(folder: Path, train: list[int], test: list[int], part: str = "test") -> None:
    client = "" if part == "test" else "0"
    lines = [f"{s},train,{i % 2},0" for i, s in enumerate(train)]
    rows(folder, "split", SPLIT, *lines, *(f"{s},{part},{client},0" for s in test))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
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
def test_the_ratio_is_read_from_the_split(runs: Path) -> None:
    frame = summaries(find([runs])[0])
    assert resplits.ratio(frame, "partition") == 2 / 8
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


def test_held_out_clients_do_not_train_and_clients_may_own_the_test_samples(runs: Path) -> None:
    for run in find([runs])[0]:
        p = int(run.name.split("-")[1])
        split_of(run, [s for s in range(10) if s not in (p, p + 1)], [p, p + 1], "own_test")
        (run / "env.json").write_text('{"heldout_clients": [1]}')
    assert resplits.ratio(summaries(find([runs])[0]), "partition") == 2 / 4


@pytest.mark.slow
def test_what_the_corrected_test_refuses(runs: Path) -> None:
    corrected = ("--test", "corrected", "--baseline", "fedavg")
    by_seed = invoke(runs / "fedavg-0-0", runs / "fedld-0-0", *corrected)
    assert "--test corrected: needs --unit partition" in by_seed.output
    groups = invoke(runs, "--unit", "partition", *corrected, "--metric", "groups")
    assert "--test corrected: takes the size of the whole test part" in groups.output
    more = [s for s in range(20) if s not in (3, 4)]
    for run in find([runs])[0]:
        if "-3-" in run.name:
            split_of(run, more, [3, 4])
    other = invoke(runs, "--unit", "partition", *corrected)
    assert other.exit_code == 2
    assert "the runs differ in test over training samples (0.111 in" in other.output
    for run in find([runs])[0]:
        split_of(run, [s for s in range(10) if s > 1], [0, 1])
    same = invoke(runs, "--unit", "partition", *corrected)
    assert "have the same test samples" in same.output
    (runs / "fedavg-0-0/split.csv").unlink()
    gone = invoke(runs, "--unit", "partition", *corrected)
    assert "fedavg-0-0/split.csv: there is no such file" in gone.output
    assert all(r.exit_code == 2 for r in (by_seed, groups, same, gone))


@pytest.mark.slow
def test_tables_with_verdicts(runs: Path, tmp_path: Path) -> None:
    given = (runs, "--unit", "partition", "--baseline", "fedavg", "--at", "final")
    tost = invoke(*given, "--rope", 0.2)
    assert "| p | p (Holm) | Verdict | Detectable (points) |" in tost.output
    assert "| <0.0001 | <0.0001 \\* | practically equal | 1.11 |" in tost.output
    assert "lies within ±20 points" in tost.output
    bayes = invoke(*given, "--rope", 0.01, "--test", "bayes")
    assert "| P lower | P equal | P higher | Verdict |" in bayes.output
    assert "| 0.000 | 0.000 | 1.000 | higher |" in bayes.output
    assert "p: two-sided" not in bayes.output
    assert "| FedLD | 6 | 2 | **72.57** ± 1.76 |" in bayes.output
    out = tmp_path / "t.csv"
    assert invoke(*given, "--rope", 0.01, "--test", "bayes", "--out", out).exit_code == 0
    data = pd.read_csv(out)
    assert data[data["table"] == "accuracy_final"]["verdict"].tolist()[1:] == ["higher"]
    assert data["p_higher"].max() > 0.999
    assert "verdict" not in pd.read_csv(_plain(given, tmp_path)).columns
    crossed = invoke(*given, "--columns", "alpha", "--rope", 0.01, "--test", "bayes")
    assert "| FedLD | +10.02 ± 0.81 (0.00 / 0.00 / 1.00), higher \\* |" in crossed.output


def _plain(given: tuple[object, ...], folder: Path) -> Path:
    out = folder / "plain.csv"
    assert invoke(*given, "--out", out).exit_code == 0
    return out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rope", "0.01"), "--rope: verdicts are of comparisons; name what to compare with"),
        (("--test", "bayes"), "--test bayes: needs --rope R"),
        (("--rope", "0.01", "--metric", "sites"), "--rope: the table sites has no verdicts"),
        (("--rope", "x"), "Invalid value for '--rope'"),
        (("--rope", "0"), "--rope 0: has to be a number above 0"),
    ],
)
def test_options_that_are_refused(runs: Path, arguments: tuple[str, ...], message: str) -> None:
    done = invoke(runs, "--unit", "partition", *arguments)
    assert done.exit_code == 2
    assert message in done.output
