"""docs/study/: the tables that collect.py makes of planted blocks and of a small study that is run,
and those of docs/FEDERATIONS.md."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from scipy import stats

from fedsim.cli import main
from fedsim.config import experiments
from fedsim.storage import trials
from fedsim.storage.trials import Trial
from fedsim.studies import execute
from tests.unit.docs.test_protocol import check, module

collect = module("collect")
SETTINGS = """
data: {name: digits, num_clients: 2, val_fraction: 0.2, partition: dirichlet, alpha: 0.5}
model: {name: logistic}
train: {rounds: 12, sample_rate: 1.0, batch_size: 200}
engine: {kind: serial, checkpoint_every: 0}
"""
STUDY = (
    SETTINGS
    + """
methods:
  FedAvg: {algorithm: fedavg}
  FedLD: {algorithm: fedld}
partitions: [20, 21]
search: {train.lr: 'loguniform(1e-130, 1e+30)'}
trials: 2
grid: {seed: [0]}
seeds: [1, 2]
by: val_balanced_accuracy
sampler: random
pruner: none
"""
)
SWEEP = (
    SETTINGS
    + """
grid:
  run:
    - CE mean: {algorithm: fedavg}
  train.lr: [0.001, 0.01]
  data.alpha: [100]
  data.seed: [20]
  seed: [0]
"""
)
KEYS = ["method", "data_seed", "seed"]
CELLS = [(method, part) for part in (20, 21) for method in ("FedAvg", "FedLD")]
REASON = "round 2, client 0: the training loss is NaN or infinite; lower train.lr"
SCORE = {("FedAvg", 20): 0.5, ("FedLD", 20): 0.6, ("FedAvg", 21): 0.1, ("FedLD", 21): 0.7}
"""The balanced accuracy of the last round by cell; 0.1 is that of a guess."""


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def plant_rounds(path: Path, score: float) -> None:
    """Three rounds; the second is not evaluated, the first is 0.1 below the last."""
    tests = {1: score - 0.1, 2: None, 3: score}
    rows = [
        {
            "round": i, "val_accuracy": s and s / 2, "test_accuracy": s and round(s + 0.01, 2),
            "test_balanced_accuracy": s, "simulated_seconds": 0.5, "downlink_bytes": 20,
            "uplink_bytes": 10, "val_balanced_accuracy": s and s / 4,
        }
        for i, s in tests.items()
    ]  # fmt: skip
    write(path / "rounds.csv", rows)


def plant_run(path: Path, score: float, lr: float, part: int = 20) -> None:
    """A finished run; the test part of a partition has its own sample."""
    plant_rounds(path, score)
    (path / "env.json").write_text(json.dumps({"classes": [*range(10)], "git_commit": "abc"}))
    named = [("train", 1), ("train", 2), ("train", 3), ("val", 4), ("test", part)]
    write(path / "split.csv", [{"sample": i, "part": name} for name, i in named])
    summary: dict[str, Any] = {"train.lr": lr, "client_accuracy_p10": "", "simulated_seconds": ""}
    summary |= {"downlink_bytes": 60, "uplink_bytes": 30, "client_test_accuracy": 0.45}
    for take, value in (("final", score), ("last10", score - 0.05)):
        summary |= {f"{take}_test_accuracy": value + 0.01, f"{take}_test_balanced_accuracy": value}
        summary[f"{take}_test_auc"] = 1 / 3
    write(path / "summary.csv", [summary])


def plant_search(path: Path, score: float) -> None:
    """Two candidates: the first diverged, the second has the rate 0.1."""
    path.mkdir(parents=True)
    begun = {"by": "val_balanced_accuracy", "sampler": "random", "pruner": "none", "seeds": [0]}
    begun |= {"search": {"train.lr": "loguniform(0.0001, 0.1)"}, "settings": {}, "ahead": 1}
    trials.write_study(path, begun | {"trials": 2})
    first = Trial(number=0, params={"train.lr": 0.05}, state="failed", error=REASON)
    second = Trial(number=1, params={"train.lr": 0.1}, state="complete", value=score / 4)
    trials.write(path, ["train.lr"], [first, second])
    plant_rounds(path / "trial-0001" / "seed=0", score)


def plant_study(studies: Path, name: str) -> None:
    """A finished study."""
    chosen = []
    for method, part in CELLS:
        plant_search(studies / name / "tuning" / f"{method}+split-{part}", SCORE[method, part])
        chosen.append({"method": method, "partition": f"split-{part}", "trial": 1})
        for seed in (1, 2):
            run = studies / name / "runs" / f"method={method}+split-{part},seed={seed}"
            plant_run(run, SCORE[method, part], 0.1, part)
    write(studies / name / "chosen.csv", chosen)
    rows = [
        f"    - {method}+split-{part}: {{data.seed: {part}, algorithm: {method.lower()}, "
        f"label: {method}, train.lr: 0.1}}"
        for method, part in CELLS
    ]
    text = "\n".join([SETTINGS, "grid:", "  method:", *rows, "  seed: [1, 2]", ""])
    (studies / name / "comparison.yaml").write_text(text)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished blocks and, beside them, the files that planned them."""
    studies = tmp_path_factory.mktemp("studies")
    (studies / "small.yaml").write_text(STUDY)
    (studies / "sweep.yaml").write_text(SWEEP)
    plant_study(studies, "small")
    for lr, loss in ((0.001, -0.5), (0.01, 0.25)):
        run = studies / "sweep" / f"run=CE_mean,train.lr={lr},data.alpha=100,data.seed=20,seed=0"
        plant_run(run, 0.3, lr)
        rows = [{"round": i, **dict.fromkeys(collect.LOSSES, i * loss)} for i in (1, 2)]
        write(run / "decomposition.csv", rows)
    return studies


@pytest.fixture
def studies(planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to damage; tables go to an archive beside it."""
    copied = tmp_path / "studies"
    shutil.copytree(planted, copied)
    monkeypatch.setattr(collect, "FILES", copied)
    monkeypatch.setattr(collect.archive, "ARCHIVE", tmp_path / "results.zip")
    return copied


def runs_of(studies: Path, block: str = "small") -> pd.DataFrame:
    return collect.collect(studies, block)[f"protocol/{block}.csv"]


def trials_of(studies: Path) -> pd.DataFrame:
    return collect.collect(studies, "small")["protocol/small_trials.csv"]


def test_a_run_is_a_row(studies: Path) -> None:
    table = runs_of(studies)
    assert list(table) == list(collect.RUNS)
    assert table[KEYS].to_numpy().tolist() == [[*cell, seed] for cell in CELLS for seed in (1, 2)]
    row = table.iloc[2].dropna().to_dict()  # no decomposition, no clock, no clients with test parts
    assert row == {
        "method": "FedLD", "data_seed": 20, "seed": 1, "alpha": 0.5, "lr": 0.1,
        "status": "finished", "classes": 10, "train_samples": 3, "test_samples": 1,
        "test_drawn": 1, "accuracy": 0.61, "balanced_accuracy": 0.6, "auc": 1 / 3, "collapsed": 0,
        "uplink_bytes": 30, "downlink_bytes": 60,
        "path": "small/runs/method=FedLD+split-20,seed=1", "commit": "abc",
    }  # fmt: skip
    assert table["collapsed"].to_list() == [0, 0, 0, 0, 1, 1, 0, 0]


def test_missing_and_diverged_runs_are_rows(studies: Path) -> None:
    runs = studies / "small" / "runs"
    shutil.rmtree(runs / "method=FedAvg+split-20,seed=1")
    for seed, reason in ((1, "worker 0 was lost"), (2, REASON)):
        run = runs / f"method=FedLD+split-21,seed={seed}"
        (run / "summary.csv").unlink()
        (run / "failure.json").write_text(json.dumps({"error": reason}))
    (runs / "method=FedLD+split-20,seed=1" / "summary.csv").unlink()  # killed
    table = runs_of(studies)
    assert table["status"].to_list() == [
        "failed", "finished", "failed", "finished", "finished", "finished", "failed", "diverged",
    ]  # fmt: skip
    assert table["accuracy"].isna().to_list() == (table["status"] != "finished").to_list()
    assert table[["classes", "train_samples", "test_samples", "test_drawn"]].notna().all(axis=None)


def test_candidates_are_those_of_the_searches(studies: Path) -> None:
    table = trials_of(studies)
    assert table["state"].to_list() == ["diverged", "complete"] * 4
    assert table["chosen"].to_list() == [0, 1] * 4
    assert table.iloc[3].to_dict() == {
        "method": "FedLD", "data_seed": 20, "trial": 1, "state": "complete", "train.lr": 0.1,
        "val_balanced_accuracy": 0.15, "val_accuracy": 0.3, "balanced_accuracy": 0.6,
        "accuracy": 0.61, "chosen": 1, "at_edge": "train.lr high", "search": 1,
    }  # fmt: skip


def test_of_equal_candidates_the_earlier_is_chosen() -> None:
    rows = [
        {"trial": 0, "state": "complete", "x": 0.4}, {"trial": 1, "state": "complete", "x": 0.5},
        {"trial": 2, "state": "complete", "x": 0.5}, {"trial": 3, "state": "diverged"},
    ]  # fmt: skip
    assert collect.choice(rows, "x") == 1
    assert collect.choice(rows[3:], "x") is None


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        ("comparison.yaml", "data.seed: 21", "data.seed: 22", r".*22.* is not in .*small\.yaml"),
        (
            "runs/method=FedLD+split-20,seed=2/summary.csv",
            "\n0.1,",
            "\n0.2,",
            r"train\.lr is 0\.2, planned was 0\.1",
        ),
        ("chosen.csv", "FedLD,split-20,1", "FedLD,split-20,0", r"trial 0 of .*, should be 1"),
    ],
)
def test_what_was_not_planned_is_refused(
    name: str, before: str, after: str, message: str, studies: Path
) -> None:
    file = studies / "small" / name
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    with pytest.raises(ValueError, match=message):
        collect.collect(studies, "small")


def test_a_search_that_has_not_ended_is_refused(studies: Path) -> None:
    file = studies / "small" / "tuning" / "FedLD+split-20" / "trials.jsonl"
    file.write_text(file.read_text().splitlines(keepends=True)[0])
    with pytest.raises(ValueError, match=r"FedLD\+split-20: 1 of 2 trials have ended"):
        trials_of(studies)


def test_the_first_search_stands_before_the_widened_one(studies: Path) -> None:
    plant_study(studies, "small_first")
    assert trials_of(studies)["search"].to_list() == [1] * 8 + [2] * 8


def test_curves_have_evaluated_rounds_and_sums(studies: Path) -> None:
    table = collect.collect(studies, "small")["protocol/small_curves.csv"]
    assert list(table) == list(collect.CURVES)
    assert table.iloc[:2].to_numpy().tolist() == [
        ["FedAvg", 20, 1, 1, 0.41, 0.4, 10, 20, 0.5], ["FedAvg", 20, 1, 3, 0.51, 0.5, 30, 60, 1.5],
    ]  # fmt: skip
    assert len(table) == 8 * 2


def test_terms_of_a_sweep_are_those_of_its_last_round(studies: Path) -> None:
    made = collect.collect(studies, "sweep")
    assert list(made) == ["protocol/sweep.csv", "protocol/sweep_curves.csv"]
    columns = ["method", "lr", "alpha", "shift_loss", "global_loss"]
    assert made["protocol/sweep.csv"][columns].to_numpy().tolist() == [
        ["CE mean", 0.001, 100, -1.0, -1.0], ["CE mean", 0.01, 100, 0.5, 0.5],
    ]  # fmt: skip


def test_check_reads_what_is_stored(studies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    collect.main(studies, [])
    assert capsys.readouterr().out.splitlines()[:3] == [
        "small: 8 finished",
        " search      key  choices  low  high widen",
        "      1 train.lr        4    0     4      ",
    ]
    made = [f"{name}.csv" for name in ("deviations", "small", "small_curves", "small_trials")]
    made += ["sweep.csv", "sweep_curves.csv"]
    assert collect.archive.names() == [f"protocol/{name}" for name in made]
    stored = collect.archive.table("protocol/small.csv")
    assert stored["uplink_bytes"].dtype == "int64"
    assert stored["auc"].to_list() == [1 / 3] * 8
    found = check.values(stored, "balanced_accuracy", "FedLD", 2, 2)
    assert found.to_dict() == {20: 0.6, 21: 0.7}


def test_last10_is_the_mean_over_evaluated_rounds_among_the_last_ten() -> None:
    rounds = [{"round": str(i), "x": str(i)} for i in range(2, 21, 2)]
    assert collect.scored(rounds, "x", "last10") == (12 + 14 + 16 + 18 + 20) / 5
    assert collect.scored(rounds, "x", "final") == 20


def test_an_edge_is_a_value_beyond_which_no_candidate_lies() -> None:
    """Whatever the range is: its outermost part may hold no candidate."""
    rows = [{"train.lr": lr, "fedprox.mu": mu} for lr, mu in ((0.01, 1), (0.2, 0.1), (0.1, 0.2))]
    assert [collect.edges(row, rows, rows[0]) for row in rows] == [
        ["train.lr low", "fedprox.mu high"], ["train.lr high", "fedprox.mu low"], [],
    ]  # fmt: skip


@pytest.mark.parametrize(("high", "widen"), [(3, "yes"), (2, "")])
def test_choices_at_edges_are_counted_by_key_and_side(high: int, widen: str) -> None:
    """20 searches of 20 candidates: one choice by chance at either side, more than two widen."""
    search = pd.DataFrame({"method": "FedAvg", "data_seed": range(20)})
    table = search.merge(pd.DataFrame({"trial": range(20)}), how="cross")
    table = table.assign(chosen=(table["trial"] == 0).astype(int), search=1, at_edge="")
    table = table.assign(**{"train.lr": 0.1, "fedprox.mu": 1.0})
    table.loc[table["data_seed"] < high, "at_edge"] = "train.lr high; fedprox.mu low"
    assert collect.at_edges(table).to_numpy().tolist() == [
        [1, "train.lr", 20, 0, high, widen], [1, "fedprox.mu", 20, high, 0, ""],
    ]  # fmt: skip


def test_deviations_are_the_rows_of_the_page() -> None:
    page = collect.PROTOCOL.read_text()
    before = collect.deviations(page)
    assert list(before) == ["Date", "Commit", "Block", "What", "Why", "Results seen before?"]
    row = ["2026-01-02", "abc", "H1", "a \\| b, c", "d", "no"]
    after = collect.deviations(f"{page.rstrip()}\n| {' | '.join(row)} |\n")
    assert after.to_numpy().tolist() == [*before.to_numpy().tolist(), row]


@pytest.mark.slow
@pytest.mark.integration
def test_a_study_that_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "report", lambda plan, out: out / "no report")
    monkeypatch.setattr(collect, "FILES", tmp_path)
    file = tmp_path / "small.yaml"
    file.write_text(STUDY)  # the first candidate diverges, by its rate of about 1e25
    command = ["study", str(file), "--out", str(tmp_path / "small"), "--parallel", "1"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    own = trials_of(tmp_path)
    # each partition has candidates of its own, the same for both methods
    assert own["state"].to_list() == ["diverged", "complete"] * 2 + ["complete"] * 4
    runs = runs_of(tmp_path)
    assert runs["status"].to_list() == ["finished"] * 8
    for row in runs.to_dict("records"):
        summary = pd.read_csv(tmp_path / row["path"] / "summary.csv").iloc[0]
        assert row["balanced_accuracy"] == summary["final_test_balanced_accuracy"]
        assert row["lr"] == summary["train.lr"]


# docs/FEDERATIONS.md: tables from the archive, grids that fedsim can run

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "FEDERATIONS.md").read_text()
federations = module("federations")
archive = federations.archive


@pytest.mark.slow
def test_every_table_of_the_page_follows_from_the_archive() -> None:
    assert federations.rendered(PAGE) == PAGE
    assert {m[1] for m in federations.BLOCK.findall(PAGE)} == federations.GRIDS.keys()


@pytest.mark.parametrize("name", federations.GRIDS)
def test_the_archive_has_every_run_of_a_grid_once(name: str) -> None:
    runs = archive.table(f"federations/{name}.csv")
    axes = [*federations.GRIDS[name]["grid"], "data.seed", "seed"]
    assert not runs[axes].duplicated().any()
    assert len(runs) == math.prod(runs[axis].nunique() for axis in axes)
    assert runs["data.seed"].nunique() == 5
    assert runs["seed"].nunique() == 2


def test_the_curves_of_the_figure_are_those_of_the_runs() -> None:
    """No run has reached 80 % before its time; the end is that of the first run that ends."""
    runs = archive.table("federations/clocks_digits.csv", dtype={"data.alpha": str})
    curves = archive.table(federations.CURVES, dtype={"data.alpha": str})
    ways = list(curves.groupby(["waiting", "data.alpha"]))
    assert len(ways) == 2 * len(federations.WAITING)
    for (way, alpha), curve in ways:
        own = runs[(runs["waiting"] == federations.named(way)) & (runs["data.alpha"] == alpha)]
        assert len(own) == 10
        assert len(curve) == federations.POINTS
        before = curve[curve["second"] < 0.9999 * own["simulated_seconds_to_target"].min()]
        assert (before["mean"] < 0.8).all()
        end = curve.iloc[-1]
        assert end["second"] == pytest.approx(own["simulated_seconds"].min(), rel=1e-4)
        assert end["mean"] == pytest.approx(own["last10_test_accuracy"].mean(), abs=0.03)
    assert federations.FIGURE.is_file()
    assert f"study/{federations.FIGURE.name}" in PAGE


@pytest.mark.parametrize("name", federations.GRIDS)
def test_fedsim_reads_the_grid(name: str, tmp_path: Path) -> None:
    federations.write_grids(tmp_path)
    axes = experiments.read(tmp_path / f"{name}.yaml").grid
    runs = archive.table(f"federations/{name}.csv")
    assert math.prod(len(axis.values) for axis in axes) == len(runs)


def test_a_cell_is_the_mean_over_partitions_with_its_t_interval() -> None:
    runs = pd.DataFrame(
        {"rule": "krum", "data.seed": [0, 0, 1, 1], "seed": [0, 1, 0, 1], "score": [1, 3, 5, 7]}
    )
    found = federations.over_partitions(federations.of(runs, "rule", "krum", "score"))
    assert found.mean == 4
    assert found.half == pytest.approx(stats.t.ppf(0.975, 1) * 2, rel=1e-12)


def test_ratios_have_a_geometric_mean_unless_a_run_missed_the_target() -> None:
    index = pd.MultiIndex.from_product([[0, 1], [0]], names=["data.seed", "seed"])
    assert federations.factor(pd.Series([2.0, 8.0], index)).startswith("4.0 (")
    assert federations.factor(pd.Series([2.0, None], index)) == ""
    assert federations.reached(pd.Series([2.0, None], index), "{:.0f}") == "1 of 2 runs"
