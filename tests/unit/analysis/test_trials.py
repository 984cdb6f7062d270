"""The report of a search: which trial is the best, what is drawn, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from analysis import AnalysisError, trials
from analysis.cli import main
from analysis.runs import find
from tests.unit.analysis.run_files import write_run

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


def test_of_a_loss_the_lowest_is_the_best(tmp_path: Path) -> None:
    search = trials.read_search(write_search(tmp_path, by="val_loss"))
    assert search.best is not None
    assert search.best["trial"] == 0
    assert [row[0] for row in trials.table(search).rows] == ["0", "3", "4", "2", "1"]


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
    assert "the best is trial 3 with 81.25 %" in text
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


@pytest.mark.parametrize("text", ["trial\n1\n", "", CONFIRMED.replace("0.79", "x")])
def test_fresh_seeds_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    search = write_search(tmp_path)
    (search / "confirm.csv").write_text(text)
    with pytest.raises(AnalysisError, match=r"confirm\.csv"):
        trials.confirmed(search, trials.read_search(search))


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


def test_a_search_in_which_nothing_is_complete(tmp_path: Path) -> None:
    head, _, failed, *_ = TABLE.splitlines(keepends=True)
    search = trials.read_search(write_search(tmp_path, head + failed))
    assert search.best is None
    assert trials.findings(search) == ["No trial is complete."]
    assert len(list(trials.drawings(search))) == 2


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


def test_options_of_runs_are_refused(tmp_path: Path) -> None:
    done = report(write_search(tmp_path), "--out", tmp_path / "page", "--baseline", "fedavg")
    assert done.exit_code == 2
    assert "--by, --baseline, --unit and --metric are for runs" in done.output


def test_trials_are_no_runs_to_compare_unless_they_are_named(tmp_path: Path) -> None:
    search = write_search(tmp_path / "all/search")
    trial = write_run(search / "trial-0003/seed=0", "fedavg", 0)
    run = write_run(tmp_path / "all/run", "fedavg", 0)
    assert find([tmp_path / "all"]) == ([run], [])
    assert find([search]) == ([trial], [])
    assert find([search / "trial-0003"]) == ([trial], [])
