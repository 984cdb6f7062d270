"""Scores beside accuracy, what is bold, and collapsed models."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from analysis import paired, scores
from analysis.cli import main
from analysis.runs import find, summaries
from analysis.tables import scores as tables
from tests.unit.analysis.run_files import rows, run_of

CLASSES = "round,label,support,recall,precision"
MAJORITY = ("2,0,60,1.0,0.6", "2,1,30,0.0,0.0", "2,2,10,0.0,0.0")
"""The rows of a model that predicts class 0 alone."""
FAIR = ("2,0,60,0.5,0.6", "2,1,30,0.5,0.5", "2,2,10,0.5,0.2")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def scored_run(
    root: Path, algorithm: str, seed: int, balanced: list[float | None], classes: tuple[str, ...]
) -> Path:
    """A run whose accuracy is 0.6 throughout, with these balanced accuracies per round."""
    folder = run_of(root, algorithm, seed, [0.6] * len(balanced))
    frame = pd.read_csv(folder / "rounds.csv")
    loss = [None if value is None else 1 - value for value in balanced]
    frame = frame.assign(test_balanced_accuracy=balanced, test_loss=loss)
    frame.to_csv(folder / "rounds.csv", index=False)
    rows(folder, "classes", CLASSES, "1,0,60,0,0", "1,1,30,0,0", "1,2,10,0,0", *classes)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """FedAvg predicts one class in two of three seeds; FedLD does not, at the same accuracy."""
    for seed in (0, 1, 2):
        one_class = seed < 2
        balanced = 1 / 3 if one_class else 0.4
        classes = MAJORITY if one_class else FAIR
        scored_run(tmp_path, "fedavg", seed, [0.3, balanced], classes)
        scored_run(tmp_path, "fedld", seed, [0.5, 0.6 + seed / 100], FAIR)
    return tmp_path


def of(runs: Path, names: tuple[str, ...]) -> pd.DataFrame:
    return scores.completed(summaries(find([runs])[0]), names)


def test_older_runs_get_their_scores_from_rounds_csv(runs: Path) -> None:
    got = of(runs, ("balanced_accuracy", "loss", "auc"))
    own = got[(got["algorithm"] == "fedld") & (got["seed"] == 1)].iloc[0]
    # the best round is 1 (summary.csv); the mean of two rounds 0.5 and 0.61
    assert own["final_test_balanced_accuracy"] == pytest.approx(0.61)
    assert own["best_test_balanced_accuracy"] == pytest.approx(0.5)
    assert own["last10_test_balanced_accuracy"] == pytest.approx(0.555)
    assert own["final_test_loss"] == pytest.approx(0.39)
    assert math.isnan(own["final_test_auc"])


def test_the_final_score_is_of_the_last_evaluated_round(tmp_path: Path) -> None:
    folder = scored_run(tmp_path, "fedavg", 0, [0.25, 0.5, None], FAIR)
    frame = pd.read_csv(folder / "rounds.csv").assign(test_accuracy=[0.1, 0.2, None])
    frame.to_csv(folder / "rounds.csv", index=False)
    got = of(tmp_path, ("balanced_accuracy",)).iloc[0]
    assert got["final_test_balanced_accuracy"] == 0.5
    assert got["last10_test_balanced_accuracy"] == 0.375


@pytest.mark.parametrize(
    ("classes", "collapsed"),
    [
        (MAJORITY, True),
        (FAIR, False),
        # better than chance in one class, and worse in another: 0.9 + 0 + 0.1 <= 1
        (("2,0,60,0.9,0.6", "2,1,30,0,0", "2,2,10,0.1,1"), True),
        # the third class has no test samples: chance is 1/2
        (("2,0,60,0.9,0.6", "2,1,30,0.05,0.1", "2,2,0,,0"), True),
        (("2,0,60,0.9,0.6", "2,1,30,0.2,0.3", "2,2,0,,0"), False),
        # personalised models that predict one class each, with the rounding of a mean of thirds
        (("2,0,60,0.3333333333333333,0.6", "2,1,30,0.33333333333333337,0.3", "2,2,9,0.3333333,0"),
         True),
    ],
)  # fmt: skip
def test_a_collapsed_model(tmp_path: Path, classes: tuple[str, ...], collapsed: bool) -> None:
    folder = scored_run(tmp_path, "fedavg", 0, [0.5, 0.5], classes)
    assert scores.collapsed(folder) is collapsed
    assert of(tmp_path, ())["collapsed"].tolist() == [collapsed]


def test_a_table_says_what_collapsed(runs: Path, tmp_path: Path) -> None:
    shown = invoke("table", runs, "--metric", "balanced_accuracy", "--at", "final")
    assert shown.exit_code == 0, shown.output
    # 1/3 1/3 0.4 and 0.60 0.61 0.62: differences 0.2667 0.2767 0.22, t = 14.6, p = 0.0047
    assert "| FedAvg | 3 | 35.56† ± 9.56 | 3.85 |" in shown.stdout
    assert "| FedLD | 3 | **61.00** ± 2.48 | 1.00 |" in shown.stdout
    fallen = "whose balanced accuracy is at most that of chance; runs: FedAvg (2 of 3)."
    assert fallen in shown.stdout
    file = tmp_path / "t.tex"
    assert invoke("table", runs, "--metric", "balanced_accuracy", "--out", file).exit_code == 0
    assert r"FedAvg & 3 & 35.56$^{\dagger}$ $\pm$ 9.56 &" in file.read_text()


def test_a_collapsed_method_is_never_bold(runs: Path) -> None:
    for folder in runs.glob("fedld-*"):
        rows(folder, "classes", CLASSES, *MAJORITY)
    (got,) = tables.make("balanced_accuracy", summaries(find([runs])[0]), takes=["final"])
    assert [row[2] for row in got.rows] == ["35.56† ± 9.56", "61.00† ± 2.48"]
    assert got.data["leads"].tolist() == [False, False]
    assert got.data["collapsed"].tolist() == [2, 3]


def test_bold_needs_a_significant_difference_from_every_other(tmp_path: Path) -> None:
    values = {
        "far": (0.10, 0.11, 0.12, 0.10), "near": (0.50, 0.45, 0.52, 0.44),
        "top": (0.51, 0.47, 0.51, 0.47),
    }  # fmt: skip
    for name, accuracies in values.items():
        for seed, accuracy in enumerate(accuracies):
            run_of(tmp_path, name, seed, [accuracy])
    table = summaries(find([tmp_path])[0])
    (three,) = tables.make("accuracy", table, takes=["final"])
    assert not any("**" in cell for row in three.rows for cell in row)
    assert "Nothing is bold here." in three.caption
    apart = table[table["algorithm"] != "near"]
    (two,) = tables.make("accuracy", apart, takes=["final"])
    assert two.rows[1][2].startswith("**49.00**")
    assert "level 0.05 (two-sided paired t test over common seeds, Holm-corrected" in two.caption
    # the smallest p value of a signed-rank test over four seeds is 2 / 2^4
    (ranks,) = tables.make("accuracy", apart, test=paired.Test("wilcoxon"), takes=["final"])
    assert not any("**" in cell for row in ranks.rows for cell in row)
    assert "two-sided Wilcoxon signed-rank test over common seeds" in ranks.caption


def test_of_a_loss_the_lowest_is_best(runs: Path) -> None:
    (got,) = tables.make("loss", summaries(find([runs])[0]), takes=["final"])
    assert got.head[2] == "Loss (nats) ± 95 % CI"
    assert got.rows[1][2] == "**0.3900** ± 0.0248"
    assert "Bold: the lowest mean, where" in got.caption


def test_all_scores_side_by_side(runs: Path) -> None:
    result = invoke("table", runs, "--metric", "scores")
    assert result.exit_code == 0, result.output
    head = "| Method | Accuracy (%) ± 95 % CI | Balanced accuracy (%) ± 95 % CI |\n"
    assert head in result.stdout
    assert "| FedLD | 60.00 ± 0.00 | **61.00** ± 2.48 |" in result.stdout
    assert result.stdout.count("FedAvg (2 of 3)") == 1


@pytest.mark.slow
def test_what_is_computed_for_older_runs_is_what_fedsim_writes(sweep_runs: Path) -> None:
    """The summaries of fedsim's own runs, and the same without the columns of this version."""
    present = summaries(find([sweep_runs])[0])
    every = [name for name in scores.SCORES if name != "loss"]
    columns = [scores.column(name, take) for name in every[1:] for take in scores.TAKES]
    older = scores.completed(present.drop(columns=[*columns, "collapsed"]), every)
    for name in columns:
        assert older[name].to_numpy() == pytest.approx(
            present[name].astype(float).to_numpy(), abs=1e-12, nan_ok=True
        )
    assert older["collapsed"].tolist() == present["collapsed"].tolist()
