"""Mean ranks and verdicts on published values: against SciPy, scikit-posthocs, by hand."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy import stats
from scipy import stats as scipy_stats

from analysis import AnalysisError, ranks, verdicts
from analysis.cli import main
from analysis.figures import ranks as rank_figure
from analysis.runs import find, summaries
from analysis.scores import SCORES
from analysis.verdicts import CONFIRMED, CONTRADICTED, EXACTLY, UNDECIDED, UNTESTABLE
from tests.unit.analysis.run_files import run_of

SCORED = np.array(
    [
        [0.763, 0.768, 0.771, 0.798], [0.599, 0.591, 0.590, 0.569], [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657], [0.882, 0.888, 0.886, 0.898], [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685], [0.583, 0.583, 0.563, 0.625], [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000], [0.940, 0.962, 0.965, 0.962], [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.975, 0.975], [0.957, 0.978, 0.946, 0.970],
    ]
)  # fmt: skip
"""14 blocks, 4 methods, with ties."""
POSTHOC = {(0, 1): 0.08867271, (0, 2): 0.97168647, (0, 3): 0.06168326, (1, 2): 0.22669689,
           (1, 3): 0.99888234, (2, 3): 0.17005164}  # fmt: skip
"""scikit-posthocs 0.17.1: posthoc_nemenyi_friedman(SCORED), p by pair of columns."""


def test_ranks_by_hand() -> None:
    # the best is 1; 0.5 and 0.5 share 2 and 3; what is lost shares the last ranks 4 and 5
    values = np.array([[0.9, 0.5, 0.5, math.nan, math.nan], [0.1, 0.2, 0.3, 0.4, math.nan]])
    assert ranks.ranked(values).tolist() == [[1, 2.5, 2.5, 4.5, 4.5], [4, 3, 2, 1, 5]]
    assert ranks.ranked(values, lowest=True).tolist() == [[3, 1.5, 1.5, 4.5, 4.5], [1, 2, 3, 4, 5]]


def test_friedman_is_scipys() -> None:
    found = ranks.ranked(SCORED)
    want = scipy_stats.friedmanchisquare(*SCORED.T)
    assert ranks.friedman(found) == pytest.approx((want.statistic, want.pvalue), rel=1e-9)
    mean = [scipy_stats.rankdata(-row) for row in SCORED]
    assert found.mean(axis=0) == pytest.approx(np.mean(mean, axis=0), rel=1e-12)


def test_iman_davenport_by_hand() -> None:
    # three blocks all ranked 1 2 3 but one 2 1 3: R = 4 5 9; chi2 = 12 / (3 3 4) (16 + 25 + 81)
    # - 3 3 4 = 4.6667; F = 2 * 4.6667 / (3 * 2 - 4.6667) = 7, with 2 and 4 degrees of freedom
    found = np.array([[1, 2, 3], [1, 2, 3], [2, 1, 3]], dtype=float)
    chi2, p = ranks.friedman(found)
    assert chi2 == pytest.approx(14 / 3, rel=1e-12)
    assert p == pytest.approx(math.exp(-7 / 3), rel=1e-12)  # two degrees of freedom
    f, p_f = ranks.iman_davenport(found)
    assert f == pytest.approx(7, rel=1e-12)
    assert p_f == pytest.approx((1 + 2 * 7 / 4) ** -2, rel=1e-12)  # F(2, 4): (1 + f / 2)^-2


@pytest.mark.parametrize(
    ("k", "q"),
    [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (7, 2.949), (8, 3.031),
     (9, 3.102), (10, 3.164)],
)  # fmt: skip
def test_critical_values_are_those_of_the_paper(k: int, q: float) -> None:
    """Demšar (2006), table 5 (a), which has three decimals."""
    got = ranks.critical_difference(k, 20) / math.sqrt(k * (k + 1) / 120)
    assert got == pytest.approx(q, abs=1e-3)


def test_nemenyi_is_that_of_scikit_posthocs() -> None:
    """At the level that is the p value of a pair, its difference is the critical one."""
    means = ranks.ranked(SCORED).mean(axis=0)
    for (a, b), p in POSTHOC.items():
        got = ranks.critical_difference(4, 14, level=p)
        assert got == pytest.approx(abs(means[a] - means[b]), abs=1e-6)


def test_cliques_by_hand() -> None:
    assert ranks.cliques([1, 2, 2.5, 4], 1) == [(0, 1), (1, 2)]
    assert ranks.cliques([1, 2, 2.5, 4], 1.5) == [(0, 2), (2, 3)]
    assert ranks.cliques([1, 3, 5], 1) == []
    assert ranks.cliques([1, 3, 5], 9) == [(0, 2)]


def found(values: np.ndarray, labels: str = "abcdefgh") -> ranks.Ranks:
    names = list(labels[: values.shape[1]]) if isinstance(labels, str) else labels
    blocks = [f"block {i}" for i in range(len(values))]
    table = pd.DataFrame(values, blocks, names)
    of = pd.DataFrame(ranks.ranked(values), blocks, names)
    order = sorted(names, key=lambda label: of[label].mean())
    return ranks.Ranks(
        values=table[order], ranks=of[order], score=SCORES["accuracy"], title="final test accuracy"
    )


def test_letters_are_shared_by_what_does_not_differ() -> None:
    rng = np.random.default_rng(1)
    levels = np.array([0.9, 0.5, 0.5, 0.1])
    assert ranks.letters(found(levels + rng.normal(0, 0.01, (30, 4)))) == ["a", "b", "b", "c"]
    same = found(rng.normal(0.5, 0.01, (30, 4)))
    assert same.p > 0.05
    assert ranks.letters(same) == ["a"] * 4
    assert "no pair is told apart" in ranks.tables(same)[0].caption


@pytest.mark.parametrize("count", [2, 5, 30])
def test_the_diagram_has_every_label_inside_and_apart(count: int) -> None:
    rng = np.random.default_rng(count)
    labels = [f"method {i} with a rather long name, setting={i}" for i in range(count)]
    values = np.arange(count) / count + rng.normal(0, 0.05, (15, count))
    figure = rank_figure.figure(found(values, labels))
    FigureCanvasAgg(figure).draw()
    (axes,) = figure.axes
    names = axes.get_yticklabels()
    assert sum("method" in name.get_text() for name in names) == count
    boxes = [text.get_window_extent() for text in (*names, *axes.texts)]
    for box in boxes:
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert 0 <= box.y0 < box.y1 <= figure.bbox.y1
    for one, two in itertools.pairwise(boxes[:count]):
        assert not one.overlaps(two)
    bars = [path.vertices[:, 0] for path in axes.collections[0].get_paths()]
    difference = ranks.critical_difference(count, 15)
    assert [bar[1] - bar[0] for bar in bars] == pytest.approx([difference] * count)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["table", "--ranks", *map(str, arguments)])


ALPHA = "\N{GREEK SMALL LETTER ALPHA}"
LEVELS = {"fedavg": 0.5, "fedprox": 0.6, "fedld": 0.7}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three methods, always in this order, under four settings on two partitions with two seeds."""
    root = tmp_path / "runs"
    for name, level in LEVELS.items():
        for alpha in (0.1, 1.0, 10.0, 100.0):
            for partition in (0, 1):
                for seed in (0, 1):
                    value = level + 0.01 * np.log10(alpha) + partition / 1000 + seed / 1000
                    run_of(root, name, seed, [value], alpha=alpha, **{"data.seed": partition})
    return root


GROUPED = ("--by", "label", "--by", "alpha")


@pytest.mark.slow
def test_blocks_are_settings_and_partitions(runs: Path) -> None:
    frame = summaries(find([runs])[0])
    got = ranks.gather(frame, ("label", "alpha"), unit="partition")
    assert got.labels == ["fedld", "fedprox", "fedavg"]
    assert got.means.tolist() == [1, 2, 3]
    assert list(got.values.index[:2]) == [f"{ALPHA} = 0.1, partition {p}" for p in (0, 1)]
    assert len(got.values) == 8
    # FedLD at alpha 0.1 on partition 0: 0.7 - 0.01, mean over the seeds
    assert got.values["fedld"].iloc[0] == pytest.approx(0.6905)
    one = frame[frame["data.seed"] == 0]
    assert len(ranks.gather(one, ("label", "alpha")).values) == 4
    assert ranks.gather(one, ("label", "alpha"), "accuracy", "best").title == "best test accuracy"


@pytest.mark.slow
def test_of_a_loss_the_lowest_is_the_best(runs: Path) -> None:
    frame = summaries(find([runs])[0]).assign(
        final_test_loss=lambda f: f["final_test_accuracy"], best_test_loss=0.0, last10_test_loss=0.0
    )
    got = ranks.gather(frame, ("label", "alpha"), "loss", unit="partition")
    assert got.labels == ["fedavg", "fedprox", "fedld"]


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["gone", "unfinished", "not finite"])
def test_a_lost_run_is_ranked_last_and_named(runs: Path, fate: str) -> None:
    """FedLD, which is the best by far, lacks one of the two seeds of a block."""
    (run,) = (run for run in find([runs])[0] if run.name == "fedld-0.1-1-1")
    if fate == "not finite":
        frame = pd.read_csv(run / "summary.csv").assign(final_test_accuracy=math.inf)
        frame.to_csv(run / "summary.csv", index=False)
    else:
        (run / "summary.csv").unlink()
        if fate == "gone":
            (run / "rounds.csv").unlink()
    done = invoke(runs, *GROUPED, "--unit", "partition", "--out", runs.parent / "ranks.csv")
    assert done.exit_code == 0, done.output
    # seven times 1 and once 3
    assert "| FedLD | 1.25 | 7 | 1 | a |" in done.output
    assert "Ranked last for want of runs that others have: FedLD (" in done.output
    assert ("Left out: 1 run (no summary.csv" in done.output) == (fate == "unfinished")
    data = pd.read_csv(runs.parent / "ranks.csv")
    assert data[data["table"] == "ranks"].set_index("label")["mean_rank"]["fedld"] == 1.25
    lost = data[(data["table"] == "ranks_by_block") & data["value"].isna()]
    assert lost[["label", "rank"]].to_numpy().tolist() == [["fedld", 3.0]]


def test_one_method_or_one_block_is_refused(runs: Path) -> None:
    frame = summaries(find([runs])[0])
    one = frame[(frame["data.seed"] == 0) & (frame["alpha"] == 0.1)]
    with pytest.raises(AnalysisError, match="these runs are one; name a setting"):
        ranks.gather(one)
    with pytest.raises(AnalysisError, match="each setting has one method alone"):
        ranks.gather(frame[frame["algorithm"] == "fedld"], ("label", "alpha"), unit="partition")
    assert "is a file named .png" in invoke(runs, *GROUPED, "--out", "x.gif").output
    refused = {"--baseline fedavg": "without --columns", "--metric pairs": "one --metric of accu"}
    for flags, message in refused.items():
        assert message in invoke(runs, *GROUPED, *flags.split()).stderr
    assert "without --ranks and --by" in invoke(runs, *GROUPED, "--budget").stderr


def by_seed(*values: float) -> pd.Series[float]:
    return pd.Series(values, index=pd.RangeIndex(len(values), name="seed"), dtype=float)


OURS = by_seed(80.0, 81.0, 82.0, 81.0)  # mean 81, std sqrt(2/3), standard error sqrt(1/6)
ERROR = math.sqrt(1 / 6)


def test_the_intervals_of_a_number_that_is_taken_as_exact() -> None:
    found = verdicts.number(OURS, 80.5, 2.0)
    assert (found.ours, found.n, found.unit, found.difference) == (81.0, 4, "seed", 0.5)
    assert found.half90 == pytest.approx(2.3533634348018264 * ERROR, rel=1e-9)  # t table, df 3
    assert found.half95 == pytest.approx(3.182446305284263 * ERROR, rel=1e-9)
    assert (found.word, found.needed) == (CONFIRMED, None)


@pytest.mark.parametrize(
    ("published", "margin", "word"),
    [
        (80.5, 1.5, CONFIRMED),  # 0.5 + 0.961 inside
        (80.5, 1.4, UNDECIDED),
        (78.0, 1.5, CONTRADICTED),  # 3 - 1.299 above 1.5
        (78.0, 1.8, UNDECIDED),
        (84.0, 1.5, CONTRADICTED),
        (81.5, 1.5, CONFIRMED),
    ],
)
def test_a_number_is_confirmed_inside_and_contradicted_outside_the_margin(
    published: float, margin: float, word: str
) -> None:
    assert verdicts.number(OURS, published, margin).word == word


def test_with_a_published_spread_the_interval_is_that_of_welch() -> None:
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(0, 1, 7), rng.normal(1, 3, 5)
    found = verdicts.number(
        by_seed(*ours), float(theirs.mean()), 1.0, sd=float(theirs.std(ddof=1)), n=5
    )
    welch = stats.ttest_ind(ours, theirs, equal_var=False)
    for level, half in ((0.9, found.half90), (0.95, found.half95)):
        low, high = welch.confidence_interval(level)
        assert found.difference - half == pytest.approx(low, rel=1e-9)
        assert found.difference + half == pytest.approx(high, rel=1e-9)


def test_a_single_published_run_is_taken_to_vary_as_ours_do() -> None:
    found = verdicts.number(OURS, 81.0, 5.0, n=1)
    error = math.sqrt(2 / 3) * math.sqrt(1 / 4 + 1)  # the standard error of a prediction
    assert found.half95 == pytest.approx(3.182446305284263 * error, rel=1e-9)


def test_what_cannot_be_decided_says_how_many_runs_would() -> None:
    found = verdicts.number(OURS, 80.5, 1.0)
    assert found.word == UNDECIDED
    assert found.needed is not None
    std = math.sqrt(2 / 3)

    def chance(n: int) -> float:
        """By hand: P(both tests reject) of n values, difference 0.5, margin 1."""
        t, error = stats.t.ppf(0.95, n - 1), std / math.sqrt(n)
        upper = stats.nct.cdf(-t, n - 1, (0.5 - 1) / error)
        lower = stats.nct.sf(t, n - 1, (0.5 + 1) / error)
        return float(upper + lower - 1)

    assert chance(found.needed) >= 0.8 > chance(found.needed - 1)


def test_the_number_of_runs_is_found_where_more_of_them_lower_the_chance() -> None:
    """Welch: with ever more of our runs the degrees of freedom fall to those of two published."""

    def chance(n: int) -> float:
        return verdicts.power(0.0, 1.0, n, 1.1, 0.3, 2)

    assert max(map(chance, (16, 32, 64))) < 0.8
    few = verdicts.fewest(chance)
    assert few is not None
    assert chance(few) >= 0.8 > chance(few - 1)


def test_an_interval_that_is_too_wide_tests_nothing() -> None:
    found = verdicts.number(OURS, 81.0, 5.0, widest=2.5)
    assert found.word == UNTESTABLE
    assert found.reason == "too wide: the 95 % interval is wider than 2.5"
    assert verdicts.number(OURS, 81.0, 5.0, widest=2.7).word == CONFIRMED  # it is 2.598


def test_a_failed_run_leaves_a_number_undecided() -> None:
    found = verdicts.number(by_seed(80.5, math.nan, 80.5, 80.5), 80.5, 1.0)
    assert (found.word, found.reason) == (UNDECIDED, "1 of 4 runs have no value")
    assert verdicts.number(by_seed(80.5), 80.5, 1.0).word == UNDECIDED
    assert verdicts.number(by_seed(), 80.5, 1.0).reason == "no run has a value"


@pytest.mark.parametrize("value", [3.0, 0.62])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_values_without_spread_decide_by_their_difference_from_five_on(
    count: int, value: float
) -> None:
    """On a grid two to four values are alike by chance too often for an error of 5 %."""
    same = by_seed(*[value] * count)
    inside, outside = (verdicts.number(same, value + by, 1.0) for by in (0.5, 1.5))
    if count < 5:
        assert {inside.word, outside.word} == {UNDECIDED}
        assert (inside.needed, inside.reason) == (
            5, f"{count} equal values do not tell how much they vary"
        )  # fmt: skip
    else:
        assert (inside.word, outside.word) == (CONFIRMED, CONTRADICTED)


PUBLISHED = {42: 0.7, 43: 0.8, 44: 0.75}


def exact(*values: float) -> pd.Series[float]:
    return pd.Series(values, index=pd.Index(list(PUBLISHED)[: len(values)], name="seed"))


def test_values_by_seed_are_confirmed_exactly_or_by_their_mean() -> None:
    same = verdicts.seeds(exact(0.7, 0.8, 0.75 + 5e-10), PUBLISHED, 0.1)
    assert (same.word, same.reason) == (EXACTLY, "3 of 3 values equal to 1e-09")
    near = verdicts.seeds(exact(0.7, 0.8, 0.751), PUBLISHED, 0.2)
    assert (near.word, near.reason) == (CONFIRMED, "2 of 3 values equal to 1e-09")
    assert verdicts.seeds(exact(0.9, 1.0, 0.95), PUBLISHED, 0.01).word == CONTRADICTED
    assert verdicts.seeds(exact(0.7, 0.8), PUBLISHED, 0.01).word == UNDECIDED
    other = exact(0.7, 0.8, 0.75).rename({44: 45})
    assert verdicts.seeds(other, PUBLISHED, 0.5).word == CONFIRMED


ABOVE = by_seed(1.0, 2.0, 3.0, 4.0, 5.0)


def test_an_order_is_confirmed_contradicted_or_undecided() -> None:
    lower = ABOVE - by_seed(1.0, 1.1, 0.9, 1.0, 1.05)
    noise = ABOVE + by_seed(1.0, -1.0, 1.0, -1.0, 0.2)
    found = verdicts.orders(
        {"up": (ABOVE, lower), "down": (lower, ABOVE), "none": (ABOVE, noise)}, 0.01
    )
    words = {key: one.word for key, one in found.items()}
    assert words == {"up": CONFIRMED, "down": CONTRADICTED, "none": UNDECIDED}
    p = stats.ttest_rel(ABOVE, lower).pvalue
    assert found["up"].p == pytest.approx(min(1, 3 * p), rel=1e-9)  # Holm over three
    assert found["up"].difference == pytest.approx(1.01, rel=1e-9)
    few = found["none"].needed
    assert few is not None
    effect = abs(found["none"].difference) / np.std(ABOVE - noise, ddof=1)

    def chance(n: int) -> float:
        limit = stats.t.isf(0.05 / 3 / 2, n - 1)
        return float(stats.nct.sf(limit, n - 1, effect * math.sqrt(n)))

    assert chance(few) >= 0.8 > chance(few - 1)


def test_an_order_inside_the_margin_says_so() -> None:
    near = ABOVE + by_seed(0.001, -0.001, 0.001, -0.001, 0.0)
    found = verdicts.orders({"a": (ABOVE, near)}, 0.1)["a"]
    assert (found.word, found.reason) == (UNDECIDED, "practically equal, within +-0.1")


def test_orders_without_all_values_are_undecided_and_not_counted() -> None:
    lower = ABOVE - by_seed(1.0, 1.1, 0.9, 1.0, 1.05)
    holes = lower.where(lower.index != 2)
    found = verdicts.orders({"whole": (ABOVE, lower), "holes": (ABOVE, holes)})
    assert (found["holes"].word, found["holes"].reason) == (UNDECIDED, "1 of 5 runs have no value")
    assert found["whole"].p == pytest.approx(stats.ttest_rel(ABOVE, lower).pvalue, rel=1e-9)
    same = verdicts.orders({"same": (ABOVE, ABOVE - 1)})["same"]
    assert (same.word, same.reason) == (UNDECIDED, "the same difference for every seed")
    assert verdicts.orders({}) == {}
