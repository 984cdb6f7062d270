"""Mean ranks, Friedman's tests and critical differences against SciPy, scikit-posthocs, by hand."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy import stats as scipy_stats

from analysis import AnalysisError, ranks
from analysis.cli import main
from analysis.figures import ranks as rank_figure
from analysis.runs import find, summaries
from analysis.scores import SCORES
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
