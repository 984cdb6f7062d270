"""Searches: expected best-of-k curves, the best trial, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from analysis import AnalysisError, budget, trials
from analysis.cli import main
from analysis.runs import find
from analysis.scores import SCORES
from tests.unit.analysis.run_files import run_of, write_run


def by_subsets(validation: np.ndarray, test: np.ndarray, k: int) -> float:
    """The definition: every choice of k, in every order; the first of equal values is chosen."""
    scores = [
        test[max(order, key=lambda i: validation[i])]
        for order in itertools.permutations(range(len(test)), k)
    ]
    return float(np.mean(scores))


@pytest.mark.parametrize("seed", range(3))
def test_the_curve_is_the_mean_over_all_choices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    validation, test = rng.integers(0, 5, 7).astype(float), rng.random(7)
    validation[0], test[0] = -math.inf, math.nan
    got = budget.expected_best(validation, test)
    counted = np.where(np.isnan(test), 0.0, test)
    want = [by_subsets(validation, counted, k) for k in range(1, 8)]
    assert got == pytest.approx(want, rel=1e-12)


def test_the_curve_by_hand() -> None:
    # validation 1 2 3 with test scores 0.9 0.5 0.7; of pairs the best are 2 3 3: 0.5 0.7 0.7
    got = budget.expected_best(np.array([1.0, 2.0, 3.0]), np.array([0.9, 0.5, 0.7]))
    assert got == pytest.approx([0.7, 1.9 / 3, 0.7], rel=1e-12)


def test_many_trials_do_not_overflow() -> None:
    got = budget.expected_best(np.arange(2000.0), np.arange(2000.0) / 2000)
    assert got[[0, -1]] == pytest.approx([1999 / 4000, 1999 / 2000], rel=1e-9)
    # the expectation of the largest of k of 0 .. n - 1 is k (n + 1) / (k + 1) - 1
    k = np.arange(1, 2001)
    assert got == pytest.approx((k * 2001 / (k + 1) - 1) / 2000, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_a_failed_trial_never_improves_the_curve(seed: int) -> None:
    """Whichever trial fails, no value rises when test scores rise with validation scores."""
    rng = np.random.default_rng(seed)
    test = np.sort(rng.random(6))
    whole = budget.expected_best(test, test)
    for lost in range(6):
        failed = np.where(np.arange(6) == lost, math.nan, test)
        keys = np.where(np.isnan(failed), -math.inf, test)
        assert (budget.expected_best(keys, failed) <= whole + 1e-15).all()


def test_of_a_loss_the_curve_begins_where_no_choice_has_failed() -> None:
    validation = np.array([-math.inf, -0.5, -math.inf, -0.2])
    test = np.array([math.nan, 0.6, math.nan, 0.3])
    got = budget.expected_best(validation, test, lowest=True)
    assert np.isnan(got[:2]).all()
    # of the four triples two lack one of the good ones: 0.6 (1 of 4: without the last), else 0.3
    assert got[2:] == pytest.approx([(0.6 + 3 * 0.3) / 4, 0.3], rel=1e-12)


def search(
    folder: Path, ended: list[tuple[str, float | None, float | None]], **study: object
) -> Path:
    """A search whose trials have state, validation value and test score, of two seeds."""
    folder.mkdir(parents=True)
    lines = ["trial,state,value,train.lr,run"]
    for number, (state, value, test) in enumerate(ended):
        name = f"trial-{number:04d}"
        shown = "" if value is None else value
        lines.append(f"{number},{state},{shown},0.{number + 1},{name}")
        for seed in (0, 1) if test is not None else ():
            made = run_of(folder / "made", f"fedavg{number}", seed, [test])
            (folder / name).mkdir(exist_ok=True)
            made.rename(folder / name / f"seed={seed}")
    (folder / "trials.csv").write_text("\n".join([*lines, ""]))
    given = {"by": "val_accuracy", "search": {"train.lr": "uniform(0, 1)"}, "seeds": [0, 1],
             "sampler": "random", "trials": len(ended)}  # fmt: skip
    (folder / "study.json").write_text(json.dumps(given | study))
    return folder


GOOD = [("complete", 0.5, 0.4), ("complete", 0.7, 0.8), ("complete", 0.6, 0.6)]
"""Means of pairs: the best are 0.8 0.6 0.8."""
LOST = [("complete", 0.5, 0.4), ("complete", 0.9, 0.9), ("failed", None, None)]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two methods, tuned on two partitions; a trial of FedLD has diverged on each."""
    root = tmp_path / "study"
    for partition in ("0", "1"):
        search(root / f"tuning/FedAvg+{partition}", GOOD)
        search(root / f"tuning/Fed_LD+{partition}", LOST)
    rows = [f"{m},{p},0" for p in (0, 1) for m in ("FedAvg", "Fed LD")]
    (root / "chosen.csv").write_text("\n".join(["method,partition,trial", *rows, ""]))
    return root


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["table", "--budget", *map(str, arguments)])


def test_the_searches_of_a_study(study: Path) -> None:
    found = budget.gather([str(study)])
    assert {setting: sorted(of) for setting, of in found.searches.items()} == {
        "0": ["Fed LD", "FedAvg"], "1": ["Fed LD", "FedAvg"],
    }  # fmt: skip
    made = budget.curves(found)
    assert made["0"]["FedAvg"]["mean"].tolist() == pytest.approx([0.6, 2.2 / 3, 0.8])
    # 0.4 0.9 and 0: mean 1.3 / 3; pairs 0.9 0.9 0.4
    assert made["1"]["Fed LD"]["mean"].tolist() == pytest.approx([1.3 / 3, 2.2 / 3, 0.9])
    one = budget.curves(found, "partition")[""]["FedAvg"]
    assert one["n"].tolist() == [2, 2, 2]
    assert one["high"].tolist() == pytest.approx([0.6, 2.2 / 3, 0.8])


def test_failed_trials_count_and_are_named(study: Path) -> None:
    done = invoke(study, "--unit", "partition")
    assert done.exit_code == 0, done.output
    assert "| Method | Trials | Failed | k = 1 | k = 2 | k = 3 |" in done.output
    assert "| Fed LD | 3 | 2 | 43.33 | 73.33 | 90.00 |" in done.output
    assert "count as 0: Fed LD (2 failed)." in done.output
    by_setting = invoke(study).output
    assert "Fed LD on 0 (1 failed); Fed LD on 1 (1 failed)" in by_setting
    assert "random)" not in by_setting


def test_pruned_trials_and_diverged_test_scores_count_as_failed(tmp_path: Path) -> None:
    trials = [("complete", 0.5, 0.5), ("pruned", 0.99, None), ("complete", 0.9, math.inf)]
    folder = search(tmp_path / "a", trials, sampler="tpe")
    (own,) = budget.gather([str(folder)]).searches[""].values()
    assert (own.failed, own.pruned) == (1, 1)
    # chosen: the diverged one wherever it is there, which counts as 0
    assert own.curve(SCORES["accuracy"]) == pytest.approx([0.5 / 3, 0.5 / 3, 0.0])
    caption = invoke(folder).output
    assert "chosen last, too, and count as failed: a (1 pruned)" in caption
    assert "Trials proposed by tpe depend on each other" in caption


@pytest.mark.slow
def test_names_and_files(study: Path, tmp_path: Path) -> None:
    given = [f"Mine={study / 'tuning/FedAvg+0'}", f"Other={study / 'tuning/Fed_LD+0'}"]
    outs = [tmp_path / f"b.{suffix}" for suffix in ("png", "csv", "tex")]
    wanted = [x for out in outs for x in ("--out", out)]
    done = invoke(*given, *wanted)
    assert done.exit_code == 0, done.output
    first = [out.read_bytes() for out in outs]
    assert invoke(*given, *wanted).exit_code == 0
    assert [out.read_bytes() for out in outs] == first
    data = pd.read_csv(tmp_path / "b.csv")
    assert data["label"].unique().tolist() == ["Mine", "Other"]
    assert data["candidates"].tolist() == [1, 2, 3] * 2
    figure = budget.figure(budget.gather(given))
    assert [axes.get_xlabel() for axes in figure.axes] == ["Candidates"]
    assert len(budget.figure(budget.gather([str(study)])).axes) == 2


@pytest.mark.slow
def test_what_is_refused(study: Path, tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        done = invoke(*arguments)
        assert done.exit_code == 2
        return done.output

    one = study / "tuning/FedAvg+0"
    assert "there is no such folder" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "is no search by fedsim tune" in refused(tmp_path / "empty")
    assert "is called A, as" in refused(f"A={one}", f"A={study / 'tuning/Fed_LD+0'}")
    unfinished = search(tmp_path / "unfinished", GOOD, trials=9)
    assert "3 of 9 trials have ended" in refused(unfinished)
    other = search(tmp_path / "other", GOOD, by="val_auc")
    assert "was chosen by val_auc, other searches by val_accuracy" in refused(one, other)
    assert "no trial has a test auc" in refused(other)
    assert invoke(one, other, "--metric", "accuracy").exit_code == 0
    (study / "tuning/Fed_LD+1/trials.csv").unlink()
    assert "Fed LD has no search on 1" in refused(study, "--unit", "partition")
    (one / "trial-0001/seed=1/summary.csv").unlink()
    assert "seed=1: is gone, or has no summary.csv" in refused(one)
    with pytest.raises(AnalysisError):
        budget.gather([str(one)])


TABLE = """trial,state,value,train.lr,server,train.local_epochs,run
0,complete,0.5,0.001,null,1,trial-0000
1,failed,,9.5,fedgh,2,trial-0001
2,pruned,0.9,0.25,fedgh,3,trial-0002
3,complete,0.8125,0.0625,fedgh,2,trial-0003
4,complete,0.8125,0.125,null,2,trial-0004
"""
FORMS = {
    "train.lr": "loguniform(0.001, 10)",
    "server": "choice(null, fedgh)",
    "train.local_epochs": "int(1, 3)",
}


def write_search(folder: Path, table: str = TABLE, by: str = "val_accuracy") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trials.csv").write_text(table)
    (folder / "study.json").write_text(json.dumps({"by": by, "search": FORMS}))
    return folder


def report(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def test_the_best_is_a_complete_trial_and_the_first_of_equal_ones(tmp_path: Path) -> None:
    search = trials.read_search(write_search(tmp_path))
    assert search.best is not None
    assert search.best["trial"] == 3
    (said,) = trials.findings(search)
    assert said == (
        "Best: trial 3, validation accuracy **81.25 %**, with `train.lr = 0.0625`, "
        "`server = fedgh`, `train.local_epochs = 2`."
    )
    assert trials.lead(search).startswith("5 trials (3 complete, 1 pruned, 1 failed).")


def test_the_table_has_the_best_first_and_failed_trials_last(tmp_path: Path) -> None:
    table = trials.table(trials.read_search(write_search(tmp_path)))
    assert [row[:2] for row in table.rows] == [
        ["3", "complete"], ["4", "complete"], ["0", "complete"], ["2", "pruned"], ["1", "failed"],
    ]  # fmt: skip
    assert table.rows[-1][-1] == "\N{EN DASH}"


@pytest.mark.slow
@pytest.mark.integration
def test_the_page_and_its_files(tmp_path: Path) -> None:
    search = write_search(tmp_path / "search")
    done = report(search, "--out", tmp_path / "page")
    assert done.exit_code == 0, done.output
    names = {str(p.relative_to(tmp_path / "page")) for p in (tmp_path / "page").rglob("*.*")}
    figures = {f"figures/{n}.{s}" for n in ("search", "search_values") for s in ("png", "pdf")}
    assert names == {"report.html", *figures, *(f"tables/trials.{s}" for s in ("csv", "md", "tex"))}
    text = (tmp_path / "page/report.html").read_text()
    assert "Best: trial 3, validation accuracy <strong>81.25 %</strong>" in text
    assert len(pd.read_csv(tmp_path / "page/tables/trials.csv")) == 5
    first = {p: p.read_bytes() for p in (tmp_path / "page").rglob("*.p*")}
    assert report(search, "--out", tmp_path / "page").exit_code == 0
    assert {p: p.read_bytes() for p in first} == first


CONFIRMED = """trial,value,train.lr,server,train.local_epochs,n,val_accuracy_mean,val_accuracy_std,\
val_accuracy_ci95,final_test_accuracy_mean,final_test_accuracy_std,final_test_accuracy_ci95
4,0.8125,0.125,null,2,3,0.79,0.01,0.0248,0.77,0.02,0.0497
3,0.8125,0.0625,fedgh,2,1,0.75,,,0.74,,
"""


@pytest.mark.slow
@pytest.mark.integration
def test_the_page_has_the_trials_on_fresh_seeds_first(tmp_path: Path) -> None:
    search = write_search(tmp_path / "search")
    (search / "confirm.csv").write_text(CONFIRMED)
    table = trials.confirmed(search, trials.read_search(search))
    assert table is not None
    assert table.head[-4:] == [
        "In the search", "n", "Validation accuracy (%) ± 95 % CI",
        "Final test accuracy (%) ± 95 % CI",
    ]  # fmt: skip
    assert table.rows[0] == [
        "4",
        "0.125",
        "null",
        "2",
        "81.25",
        "3",
        "79.00 ± 2.48",
        "77.00 ± 4.97",
    ]
    assert table.rows[1][-3:] == ["1", "75.00", "74.00"]
    done = report(search, "--out", tmp_path / "page")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "page/report.html").read_text()
    assert text.index("The best trials on fresh training seeds") < text.index("All trials")
    assert len(pd.read_csv(tmp_path / "page/tables/confirmed.csv")) == 2


@pytest.mark.slow
def test_panels_are_logarithmic_where_the_search_was(tmp_path: Path) -> None:
    search = trials.read_search(write_search(tmp_path))
    _, values = trials.drawings(search)
    lr, server, epochs = [axes for axes in values.figure.axes if axes.get_visible()]
    assert (lr.get_xscale(), epochs.get_xscale()) == ("log", "linear")
    values.figure.draw_without_rendering()
    ticks = {tick.get_text() for tick in lr.get_xticklabels(which="both")} - {""}
    assert ticks
    assert all(float(tick) > 0 for tick in ticks), "numbers, no mathematics"
    assert [label.get_text() for label in server.get_xticklabels()] == ["fedgh", "null"]


@pytest.mark.parametrize(
    ("table", "by", "wanted"),
    [
        (TABLE.splitlines()[0] + "\n", "val_accuracy", "no trial has ended yet"),
        (TABLE, "test_accuracy", "unknown metric 'test_accuracy'"),
        (TABLE.replace("train.lr", "train.other"), "val_auc", "does not say what was searched"),
        (TABLE.replace("0.5,", "half,"), "val_auc", "line 2: value is 'half', not a number"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, table: str, by: str, wanted: str) -> None:
    with pytest.raises(AnalysisError) as error:
        trials.read_search(write_search(tmp_path, table, by))
    assert wanted in str(error.value)


def test_trials_are_no_runs_to_compare_unless_they_are_named(tmp_path: Path) -> None:
    search = write_search(tmp_path / "all/search")
    trial = write_run(search / "trial-0003/seed=0", "fedavg", 0)
    run = write_run(tmp_path / "all/run", "fedavg", 0)
    assert find([tmp_path / "all"]) == ([run], [])
    assert find([search]) == ([trial], [])
    assert find([search / "trial-0003"]) == ([trial], [])
