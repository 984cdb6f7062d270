"""Runs of another task than classification through the commands: its measures stand where accuracy
does, by name, unit and direction."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from scipy import stats

from analysis.runs import find, group, summaries
from analysis.scores import measure_of, measures_of
from fedsim.cli import main
from fedsim.core.measures import Measures

pytestmark = pytest.mark.integration

SETTINGS = """
data: {name: diabetes, num_clients: 4, val_fraction: 0.2}
train: {rounds: 3, sample_rate: 1.0, lr: 0.05}
engine: {kind: serial}
"""
GRID = SETTINGS + "grid: {algorithm: [fedavg, fednova], seed: [0, 1]}\n"
SEARCH = SETTINGS + "algorithm: fedavg\nsearch: {train.lr: 'choice(0.0001, 0.05)'}\n"


def fedsim(*arguments: object, code: int = 0) -> Result:
    done = CliRunner().invoke(main, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with two seeds, on numbers."""
    folder = tmp_path_factory.mktemp("measures")
    (folder / "grid.yaml").write_text(GRID)
    done = fedsim("sweep", folder / "grid.yaml", "--out", folder / "sweep", "--parallel", 1)
    (folder / "sweep.txt").write_text(done.output)
    return folder / "sweep"


@pytest.fixture(scope="module")
def run(sweep: Path) -> Path:
    return sweep / "algorithm=fedavg,seed=0"


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on classes with a measure beside those that every such run has."""
    out = tmp_path_factory.mktemp("classes") / "run"
    fedsim(
        *("run", "-d", "digits", "-a", "fedavg", "--model", "logistic", "--clients", 3),
        *("--sample-rate", 1, "--rounds", 2, "--engine", "serial", "--out", out),
        *("--set", "evaluation.measures=sensitivity"),
    )
    return out


def rounds(run: Path) -> pd.DataFrame:
    return pd.read_csv(run / "rounds.csv")


def test_measures_beside_those_of_classes_come_before_the_loss(classes: Path) -> None:
    measures = Measures.of(json.loads((classes / "env.json").read_text()))
    assert measures.primary == "accuracy"
    assert [*measures.scores][-2:] == ["sensitivity", "loss"]
    assert measures.scores["auc"] == Measures().scores["auc"]


def test_a_sweep_shows_the_measures_and_averages_them(sweep: Path) -> None:
    text = (sweep.parent / "sweep.txt").read_text()
    assert "test RMSE: mean +- half-width" in text
    assert "best by val. RMSE" in text
    assert "final R2" in text
    assert "accuracy" not in text
    table = pd.read_csv(sweep / "aggregate.csv").set_index("configuration")
    summary = pd.read_csv(sweep / "summary.csv")
    for method, own in summary.groupby("algorithm"):
        values, row = own["best_test_r2"].to_numpy(), table.loc[f"algorithm={method}"]
        half = stats.t.ppf(0.975, 1) * values.std(ddof=1) / np.sqrt(2)
        expected = values.mean(), values.std(ddof=1), half
        got = [row[f"best_test_r2_{name}"] for name in ("mean", "std", "ci95")]
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_progress_and_result_name_the_primary_measure(tmp_path: Path) -> None:
    """A learning rate at which the model stays worse than the mean target: it has collapsed."""
    done = fedsim(
        *("run", "-d", "diabetes", "-a", "fedavg", "--clients", 3, "--sample-rate", 1),
        *("--rounds", 2, "--engine", "serial", "--lr", 1e-5, "--out", tmp_path / "run"),
    )
    values = rounds(tmp_path / "run")
    first, last = values["test_rmse"]
    assert f"round 1/2  test RMSE {first:.4f}  train loss" in done.output
    assert f"final test RMSE        {last:.4f}" in done.output
    assert "(round 2, chosen by test RMSE)" in done.output
    assert "final R2               -" in done.output
    assert "collapsed: it is no better than the same prediction" in done.output
    assert "collapsed: it is no better" in fedsim("show", tmp_path / "run").output


def test_runs_and_show_have_final_and_best(run: Path, classes: Path) -> None:
    table = rounds(run)
    best, final = int(table["val_rmse"].idxmin()), float(table["test_rmse"].iloc[-1])
    listed = fedsim("runs", run.parent, classes, "--format", "json").stdout
    of = {Path(each["path"]).name: each for each in json.loads(listed)}
    got = of[run.name]
    assert (got["measure"], got["final"], got["final_test_accuracy"]) == ("rmse", final, None)
    assert got["best"] == table["test_rmse"][best]
    assert of["run"]["final"] == of["run"]["final_test_accuracy"]
    assert f"{final:.4f} rmse" in fedsim("runs", run.parent).output
    values = json.loads(fedsim("show", run, "--format", "json").stdout)
    assert values["best_round"] == best + 1
    assert values["curves"]["val_rmse"]["1"] == table["val_rmse"][0]
    assert f"test rmse      {table['test_rmse'][0]:.4f} " in fedsim("show", run).output
    assert "final test rmse" in fedsim("show", run, classes).output


def test_scores_of_runs_by_name(sweep: Path, classes: Path) -> None:
    runs = summaries(find([sweep])[0])
    rmse, r2 = measure_of(runs, "rmse"), measure_of(group(runs), "r2")
    assert (rmse.title, rmse.unit.name, rmse.lowest) == ("RMSE", "", True)
    assert (r2.axis, r2.lowest, r2.possible) == ("R2", False, (-np.inf, np.inf))
    beside = measure_of(summaries([classes]), "sensitivity")
    assert (beside.axis, beside.possible) == ("Sensitivity (%)", (0, 100))
    assert measures_of(()).primary == "accuracy"


def numbers(*arguments: object, out: Path) -> pd.DataFrame:
    fedsim("table", *arguments, "--out", out)
    return pd.read_csv(out)


def test_tables_by_the_primary_measure_and_by_name(sweep: Path, tmp_path: Path) -> None:
    summary = pd.read_csv(sweep / "summary.csv").groupby("algorithm")
    for options, column in (
        (("--at", "final"), "final_test_rmse"),
        (("--at", "best", "--metric", "mae"), "best_test_mae"),
        (("--at", "last10", "--metric", "r2"), "last10_test_r2"),
    ):
        made = numbers(sweep, *options, out=tmp_path / "table.csv").set_index("label")["mean"]
        np.testing.assert_allclose(made, summary[column].mean()[made.index], rtol=1e-12)
    text = fedsim("table", sweep, "--at", "best").output
    assert "RMSE, lower is better, at the best round, chosen by RMSE on the validation part" in text
    latex = tmp_path / "table.tex"
    fedsim("table", sweep, "--metric", "scores", "--out", latex)
    assert "RMSE" in latex.read_text()
    assert "R2" in latex.read_text()


def test_a_measure_of_classes_beside_the_others(classes: Path, tmp_path: Path) -> None:
    made = numbers(classes, "--metric", "sensitivity", "--at", "final", out=tmp_path / "table.csv")
    assert made["mean"].tolist() == [rounds(classes)["test_sensitivity"].iloc[-1]]
    assert "Final test accuracy" in fedsim("table", classes).output


def test_rank_one_is_the_lowest_rmse_and_the_highest_r2(sweep: Path, tmp_path: Path) -> None:
    for metric, sign in (("rmse", 1), ("r2", -1)):
        options = ("--ranks", "--by", "label", "--by", "seed", "--metric", metric)
        fedsim("table", sweep, *options, "--out", tmp_path / f"{metric}.csv")
        summary = pd.read_csv(sweep / "summary.csv")
        wide = sign * summary.pivot(index="seed", columns="label", values=f"final_test_{metric}")
        expected = wide.rank(axis=1).mean()
        text = fedsim("table", sweep, *options).output
        for label, title in (("fedavg", "FedAvg"), ("fednova", "FedNova")):
            assert f"| {title} | {expected[label]:.2f} |" in text


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("table", "{sweep}", "--metric", "auc"), "'auc': no measure of the task regression"),
        (("curves", "{sweep}", "--metric", "maee"), "did you mean 'mae'?"),
        (("report", "{sweep}", "--metric", "accuracy"), "there are rmse, mae, r2, loss"),
        (("table", "{sweep}", "{classes}"), "their tasks, "),
        (("influence", "{run}", "--metric", "test_auc"), "known are step, val_rmse, val_mae"),
        (("tune", "{search}", "--by", "val_auc"), "judged by one of val_rmse, val_mae, val_r2"),
        (("tune", "{search}", "--by", "rmse"), "--by: 'rmse' given; trials of regression"),
    ],
)  # fmt: skip
def test_unknown_measures_are_refused_in_one_line(
    sweep: Path, run: Path, classes: Path, tmp_path: Path, command: tuple[str, ...], message: str
) -> None:
    (tmp_path / "search.yaml").write_text(SEARCH)
    named = {"sweep": sweep, "run": run, "classes": classes, "search": tmp_path / "search.yaml"}
    before = {*tmp_path.iterdir()}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        done = CliRunner().invoke(main, [part.format(**named) for part in command])
    assert done.exit_code > 0
    assert message in done.output
    assert done.output.count("\n") == 1
    assert {*tmp_path.iterdir()} == before


def test_curves_of_a_measure_on_either_part(sweep: Path, tmp_path: Path) -> None:
    for name, options in (("a", ()), ("b", ("--metric", "val_rmse", "--metric", "r2"))):
        fedsim("curves", sweep, *options, "--out", tmp_path / f"{name}.svg")
    words = (tmp_path / "b.svg").read_text()
    assert "Validation RMSE" in words
    assert "Test R2" in words
    assert "Test RMSE" in (tmp_path / "a.svg").read_text()


@pytest.mark.slow
def test_a_report_speaks_of_the_measure(sweep: Path, tmp_path: Path) -> None:
    fedsim("report", sweep, "--out", tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    words = " ".join(page.split())
    summary = pd.read_csv(sweep / "summary.csv").groupby("label")["final_test_rmse"].mean()
    best = {"fedavg": "FedAvg", "fednova": "FedNova"}[str(summary.idxmin())]
    assert f"{best} has the lowest RMSE ({summary.min():.4f})" in words
    assert "Left is better" in words
    assert "A lower RMSE and a lower loss are better" in words
    assert "Test RMSE after the last round" in words
    assert "balanced accuracy" not in words
    assert not (tmp_path / "report" / "figures" / "confusion.png").exists()


def test_a_search_minimises_the_primary_measure(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "search.yaml").write_text(SEARCH)
    options = ("--sampler", "grid", "--parallel", 1, "--pruner", "none", "--confirm", 1)
    out = tmp_path / "search"
    done = fedsim("tune", tmp_path / "search.yaml", *options, "--out", out)
    trials = pd.read_csv(out / "trials.csv")
    best = trials.loc[trials["value"].idxmin()]
    assert (best["train.lr"], len(trials)) == (0.05, 2)
    assert f"best trial {best['trial']}: val_rmse {best['value']:.4f}" in done.output
    assert "final test RMSE" in done.output
    study: dict[str, Any] = json.loads((out / "study.json").read_text())
    assert (study["by"], study["task"]["measures"]["rmse"]["better"]) == ("val_rmse", "down")
    text = fedsim("table", out, "--budget", "--metric", "r2").output
    assert "Expected test R2 of the best of k candidates" in text
    other = tmp_path / "other"
    fedsim("tune", tmp_path / "search.yaml", *options[:-2], "--by", "val_r2", "--out", other)
    highest = pd.read_csv(other / "trials.csv")
    assert highest.loc[highest["value"].idxmax(), "train.lr"] == 0.05
    shown = json.loads(fedsim("show", other, "--format", "json").stdout)
    assert shown["best_params"] == {"train.lr": 0.05}


def test_verify_compares_the_measures_and_finds_a_change(run: Path, tmp_path: Path) -> None:
    assert "byte for byte" in fedsim("verify", run, "--rounds", "all").output
    copy = shutil.copytree(run, tmp_path / "copy")
    table = (copy / "rounds.csv").read_text()
    cell = str(rounds(run)["test_mae"].iloc[1])
    assert table.count(cell) == 1
    (copy / "rounds.csv").write_text(table.replace(cell, cell[:-1] + str((int(cell[-1]) + 1) % 10)))
    done = fedsim("verify", copy, "--rounds", "all", code=1)
    assert "round 2, column test_mae" in done.output


def test_influence_on_a_measure_is_what_the_round_gained(run: Path, tmp_path: Path) -> None:
    rmse = rounds(run)["test_rmse"]
    done = fedsim(
        *("influence", run, "--metric", "test_rmse", "--rounds", 2),
        *("--figure", tmp_path / "who.svg", "--format", "json"),
    )
    rows = json.loads(done.stdout)["rounds"]
    assert len(rows) == 4
    assert rows[0]["total"] == pytest.approx(rmse[0] - rmse[1], rel=1e-12)
    assert sum(row["shapley"] for row in rows) == pytest.approx(rows[0]["total"], rel=1e-9)
    again = fedsim("replay", run, "--round", 2, "--set", "train.lr=0.1").output
    assert "test_rmse" in again


def test_partition_counts_samples_where_there_are_no_classes(tmp_path: Path) -> None:
    options = ("-d", "diabetes", "--clients", 3, "--out", tmp_path / "split")
    done = fedsim("partition", *options)
    assert "training samples on 3 clients" in done.output
    assert "classes" not in done.output
    counts = pd.read_csv(tmp_path / "split" / "partition.csv")["train_samples"]
    lines = [line.split() for line in done.output.splitlines()[2:5]]
    assert [int(samples) for _, samples in lines] == counts.tolist()
    assert (tmp_path / "split" / "partition.png").stat().st_size > 0
