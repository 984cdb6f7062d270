"""Published tables: those of the package hold together, and the verdicts on planted runs."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace

import pandas as pd
import pytest
from click.testing import CliRunner
from click.testing import Result as Done

from fedsim.audit import published
from fedsim.audit.published import FULL, SCALED, SEEDS, Result, Table
from fedsim.cli import main
from fedsim.config import presets
from fedsim.core.errors import ConfigError, StoreError
from fedsim.studies import execute
from fedsim.studies import sweep as sweeps

NUMBERS = """\
table,method,setting,seed,value,sd,n,margin
one,FedAvg,Digits,,80.5,,,
one,FedAvg,Letters,,80.5,,,
one,FedGH,Digits,,90,1,3,2
one,FedGH,Seeds,42,80,,,
one,FedGH,Seeds,43,81,,,
"""
JOB = """
        preset: fedgh_digits_small
        data: digits, embedded
        samples: 100
        methods:
          FedAvg: {algorithm: fedavg, server: own}
          FedGH: {algorithm: fedavg, server: fedgh}
        settings:
          Digits: {split: alpha1_all}
"""
PAPER = f"""\
paper: "Somebody, 2024"
tables:
  one:
    title: "A table"
    place: Table 1
    provenance: Read in the paper.
    metric:
      Digits: final_test_accuracy
      "": {{table: decomposition, column: shift_loss, absolute: true}}
    unit: percent
    margin: 1
    claims:
      - {{above: [FedGH], below: [FedAvg], settings: [Digits]}}
    jobs:
      full:{JOB}      scaled:{JOB}"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table in place of those of the package."""
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "paper.yaml").write_text(PAPER)
    (folder / "numbers.csv").write_text(NUMBERS)
    monkeypatch.setattr(published, "FOLDER", folder)
    return published.load("one")


def test_a_table(table: Table) -> None:
    assert (table.title, table.source) == ("A table", "Somebody, 2024, Table 1")
    first, _, third, seeds = table.numbers
    assert (first.value, first.margin, first.n, math.isnan(first.sd)) == (80.5, 1.0, None, True)
    assert (third.value, third.margin, third.n, third.sd) == (90.0, 2.0, 3, 1.0)
    assert (seeds.values, seeds.value) == ({42: 80.0, 43: 81.0}, 80.5)
    assert table.metric["Digits"] == {"column": "final_test_accuracy"}
    assert table.metric[""]["absolute"]
    job = table.jobs[FULL]
    assert job.runs == 6  # of the 72 runs of the preset those of two methods and one split
    assert job.labels("FedGH", "Digits") == {
        "algorithm": "fedavg", "server": "fedgh", "split": "alpha1_all",
    }  # fmt: skip
    assert job.labels("FedGH", "Letters") is None
    assert [len(part) for part in table.tested(job)] == [2, 1]
    assert [len(part) for part in table.tested(table.jobs[SCALED])] == [0, 1]  # claims alone


# those of the package


@pytest.mark.parametrize("name", published.names())
def test_a_table_of_the_package(name: str) -> None:
    """Every cell of every job has runs, which differ in nothing but seeds."""
    table = published.load(name)
    assert table.provenance
    assert table.unit in ("percent", "accuracy", "share", "rounds", "nats", "C-index")
    assert table.jobs or table.missing
    values = {(n.method, n.setting): n.value for n in table.numbers}
    for claim in table.claims:
        assert {"", claim.setting} & table.metric.keys()
        high = values.get((claim.above, claim.setting), math.inf)
        assert high > values.get((claim.below, claim.setting), -math.inf), claim
    for job in table.jobs.values():
        runs = [set(run.name.split(",")) for run in sweeps.expand(job.experiment, {}, build=False)]
        assert len(runs) == job.runs
        numbers, claims = table.tested(job)
        cells = {(n.method, n.setting) for n in numbers}
        cells |= {(m, c.setting) for c in claims for m in (c.above, c.below)}
        used = set()
        for method, setting in cells:
            labels = job.labels(method, setting)
            assert labels is not None
            parts = {f"{axis}={label}" for axis, label in labels.items()}
            places = [i for i, run in enumerate(runs) if parts <= run]
            varied = [{part for part in runs[i] if part.split("=")[0] not in SEEDS} for i in places]
            assert len(places) > 1
            assert all(each == varied[0] for each in varied)
            used |= set(places)
        assert used == set(range(len(runs))), "a run that tests nothing"


def test_every_number_is_of_a_table_and_an_unknown_table_names_the_nearest() -> None:
    assert {row["table"] for row in published._rows(published.FOLDER)} <= set(published.names())
    with pytest.raises(ConfigError, match=r"table 'fedld_fig3' \(did you mean 'fedld_fig2'"):
        published.load("fedld_fig3")


SCOPES = {
    "Cleveland": "client_0", "Hungarian": "client_1", "Switzerland": "client_2", "VA": "client_3",
    "Pooled test": "pooled",
}  # fmt: skip


def test_the_numbers_of_flamby_are_those_of_its_files(shared_data: Path) -> None:
    """Seed by seed, and for TCGA-BRCA mean and deviation (n - 1) of the means over six clients."""
    with (shared_data / "flamby" / "published" / "flamby.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    values = {(r["dataset"], r["method"], r["scope"], r["seed"]): float(r["value"]) for r in rows}
    for number in published.load("flamby_heart").numbers:
        cell = ("fed_heart_disease", number.method, SCOPES[number.setting])
        assert number.values == {seed: values[*cell, str(seed)] for seed in range(42, 47)}
    table = published.load("flamby_tcga_brca")
    for number in table.numbers:
        method = number.method.replace("training", "Training")
        means = [
            fmean(values["fed_tcga_brca", method, f"client_{i}", str(seed)] for i in range(6))
            for seed in range(42, 47)
        ]
        assert number.value == pytest.approx(fmean(means), abs=5.1e-5)
        assert number.sd == pytest.approx(stdev(means), abs=5.1e-5)
    sds = {number.method: f"{number.sd:.2f}" for number in table.numbers}
    assert f"{sds['FedAvg']} of FedAvg and {sds['FedProx']} of FedProx" in table.about


# verdicts


def judged(
    table: Table, out: Path, values: dict[str, list[float | None]], samples: int = 100
) -> dict[str, Result]:
    """By server rule accuracies of runs, one per seed; None: not finished."""
    runs = []
    for server, accuracies in values.items():
        for seed, accuracy in enumerate(accuracies):
            name = f"split=alpha1_all,algorithm=fedavg,server={server},seed={seed}"
            folder = out / name
            folder.mkdir(parents=True)
            if accuracy is not None:
                (folder / "summary.csv").write_text(f"final_test_accuracy\n{accuracy}\n")
                (folder / "partition.csv").write_text(f"client_id,train_samples\n0,{samples}\n")
            config = SimpleNamespace(seed=seed, data=SimpleNamespace(seed=0))
            runs.append(SimpleNamespace(name=name, config=config))
    results = published.write(table, table.jobs[FULL], runs, out)  # type: ignore[arg-type]
    return {f"{each.result.method}, {each.result.setting}": each for each in results}


NEAR = [0.805, 0.806, 0.804, 0.805]
HIGHER = [0.825, 0.827, 0.824, 0.826]


def test_each_verdict_of_a_job(table: Table, tmp_path: Path) -> None:
    results = judged(table, tmp_path, {"own": [*NEAR], "fedgh": [*HIGHER]})
    words = {key: each.verdict.word for key, each in results.items()}
    assert words == {
        "FedAvg, Digits": "confirmed",
        "FedAvg, Letters": "not testable here",
        "FedGH, Digits": "contradicted",
        "FedGH, Seeds": "not testable here",
        "FedGH > FedAvg, Digits": "confirmed",
    }
    assert results["FedAvg, Letters"].verdict.reason == "not in the runs of the full job"
    assert results["FedAvg, Digits"].verdict.difference == pytest.approx(0.0, abs=1e-9)
    assert results["FedGH > FedAvg, Digits"].verdict.difference == pytest.approx(2.05, abs=1e-9)
    cells = results["FedGH, Digits"].cells
    assert (cells["published"], cells["ours"], cells["n"]) == ("90 (sd 1, n 3)", "82.55", "4")
    stored = pd.read_csv(tmp_path / "verdicts.csv")
    assert stored["verdict"].tolist() == list(words.values())
    values = pd.read_csv(tmp_path / "values.csv")
    assert len(values) == 8
    assert values["value"].tolist()[:4] == pytest.approx([80.5, 80.6, 80.4, 80.5], abs=1e-9)
    again = published.judge(table, table.jobs[FULL], values)
    assert [each.verdict.word for each in again] == list(words.values())


def test_an_undecided_result_says_how_many_seeds_would_decide(table: Table, tmp_path: Path) -> None:
    values: dict[str, list[float | None]]
    values = {"own": [0.80, 0.82, 0.79, 0.81], "fedgh": [0.80, 0.81, 0.80, 0.82]}
    results = judged(table, tmp_path, values)
    for each in (results["FedAvg, Digits"], results["FedGH > FedAvg, Digits"]):
        assert each.verdict.word == "not decidable"
        assert f"{each.verdict.needed:,} seeds would decide" in each.cells["note"]


def test_a_run_that_is_not_finished_decides_nothing(table: Table, tmp_path: Path) -> None:
    results = judged(table, tmp_path, {"own": [*NEAR[:3], None], "fedgh": [*HIGHER]})
    for key in ("FedAvg, Digits", "FedGH > FedAvg, Digits"):
        assert results[key].verdict.word == "not decidable"
        assert results[key].verdict.reason == "1 of 4 runs have no value"


def test_a_part_of_the_data_tests_nothing(table: Table, tmp_path: Path) -> None:
    results = judged(table, tmp_path, {"own": [*NEAR], "fedgh": [*NEAR]}, samples=60)
    assert {each.verdict.word for each in results.values()} == {"not testable here"}
    reason = results["FedAvg, Digits"].verdict.reason
    assert reason == "60 training samples, the published runs have 100"


def test_the_metric_of_a_run(tmp_path: Path) -> None:
    shift = {"table": "decomposition", "column": "shift_loss", "absolute": True}
    assert math.isnan(published.read(tmp_path, **shift))  # not finished
    (tmp_path / "summary.csv").write_text("run_id,rounds_to_target\na,\n")
    (tmp_path / "decomposition.csv").write_text("round,shift_loss\n1,-3\n2,-2.5\n")
    (tmp_path / "evaluations.csv").write_text(
        "round,client_id,split,accuracy\n1,0,own,0.1\n2,0,own,0.25\n2,1,own,0.75\n2,1,test,0.5\n"
    )
    assert published.read(tmp_path, **shift) == 2.5
    where = {"client_id": 1, "split": "own"}
    assert published.read(tmp_path, "accuracy", "evaluations", where) == 0.75
    assert math.isnan(published.read(tmp_path, "rounds_to_target"))
    with pytest.raises(StoreError, match=r"evaluations\.csv: 3 rows for accuracy, needed is one"):
        published.read(tmp_path, "accuracy", "evaluations")
    with pytest.raises(StoreError, match=r"summary\.csv: has no column 'x'"):
        published.read(tmp_path, "x")


# the command

TINY_NUMBERS = """\
table,method,setting,seed,value,sd,n,margin
tiny,IID,E = 5,,50,,,
tiny,IID,E = 1,,50,,,
later,FedAvg,Survival,,0.7,,,
"""
COMMON = """
    provenance: Planted.
    metric: final_test_accuracy
    unit: percent
    margin: 90"""
TINY = f"""\
    title: "Two networks on digits"
    place: Table 1{COMMON}
    claims:
      - {{above: [IID], below: [Shards], settings: [E = 5]}}
    jobs:
      full:
        preset: tiny
        seeds: [0, 1]
        data: digits, embedded
        about: tiny
        seconds: 61
        methods:
          IID: {{data.partition: iid}}
          Shards: {{data.partition: shards}}
        settings: {{E = 5: {{train.local_epochs: 1}}}}
"""
PAPERS = f"""\
paper: "Somebody, 2024"
tables:
  tiny:
{TINY}
  later:
    title: "A table of tomorrow"
    place: Table 2{COMMON}
    missing: survival tasks
"""
PRESET = """\
data: {name: digits, num_clients: 4}
train: {rounds: 1}
model: {name: logistic}
grid: {data.partition: [iid, shards], train.local_epochs: [1, 5]}
"""


def call(*arguments: object) -> Done:
    return CliRunner().invoke(main, ["reproduce", *map(str, arguments)])


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two tables in place of those of the package, and an empty folder to be in."""
    folder, here = tmp_path / "tables", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    (folder / "paper.yaml").write_text(PAPERS)
    (folder / "numbers.csv").write_text(TINY_NUMBERS)
    monkeypatch.setattr(published, "FOLDER", folder)
    monkeypatch.setattr(presets, "_texts", lambda: {"tiny": PRESET})
    monkeypatch.chdir(here)
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))


def planted(plan, out, how) -> execute.Outcome:
    """A sweep that has ended: IID has 50 to 50.3 % on three seeds, Shards 40 points less."""
    runs = plan.grid
    for run in runs:
        accuracy = 0.5 + run.config.seed / 1000 - 0.4 * (run.config.data.partition == "shards")
        folder = out / run.name
        folder.mkdir(parents=True)
        (folder / "summary.csv").write_text(f"final_test_accuracy\n{accuracy}\n")
        (folder / "partition.csv").write_text("client_id,train_samples\n0,30\n1,40\n")
    failed = [runs[-1].name] if out.name == "failed" else []
    return execute.Outcome(runs=runs, table=pd.DataFrame(), failed=failed)


@pytest.mark.usefixtures("tables")
def test_the_verdicts_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "run", planted)
    done = call("tiny", "--out", "out")
    assert done.exit_code == 0, done.output
    lines = [line.split("  ") for line in done.output.splitlines()]
    assert lines[0] == ["Two networks on digits (Somebody, 2024, Table 1)"]
    rows = {line[0]: " ".join(line) for line in lines}
    assert "50 " in rows["IID"]
    assert "50.05" in rows["IID"]
    assert rows["IID"].rstrip().endswith("confirmed")
    assert "the same difference for every seed" in rows["IID > Shards"]
    assert "not testable here: 1 number (not in the runs of the full job)\n" in done.output
    assert "1 confirmed; 1 not decidable\nfiles: out/values.csv, out/verdicts.csv\n" in done.output
    words = pd.read_csv("out/verdicts.csv")["verdict"].tolist()
    assert words == ["confirmed", "not testable here", "not decidable"]
    assert pd.read_csv("out/values.csv")["samples"].tolist() == [70] * 4
    failed = call("tiny", "--out", "failed")
    assert failed.exit_code == 1
    assert "1 of 4 runs failed" in failed.stderr


@pytest.mark.usefixtures("tables")
@pytest.mark.slow
@pytest.mark.integration
def test_a_job_from_start_to_verdict() -> None:
    done = call("tiny", "--engine", "serial", "--parallel", 1)
    assert done.exit_code == 0, done.output
    assert "Two networks on digits (Somebody, 2024, Table 1)\n" in done.output
    assert "full job: 4 runs of the preset tiny; data: digits, embedded\n" in done.output
    folder = Path("runs/reproduce-tiny-full")
    outcome = pd.read_csv(folder / "verdicts.csv")
    assert outcome["method"].tolist() == ["IID", "IID", "IID > Shards"]
    assert outcome["verdict"].tolist()[1] == "not testable here"
    assert outcome["n"].tolist() == [2, 0, 2]
    values = pd.read_csv(folder / "values.csv")
    assert values["method"].tolist() == ["IID"] * 2 + ["Shards"] * 2
    for _, row in values.iterrows():
        part = "iid" if row["method"] == "IID" else "shards"
        run = f"data.partition={part},train.local_epochs=1,seed={row['seed']}"
        accuracy = pd.read_csv(folder / run / "summary.csv")["final_test_accuracy"].item()
        assert row["value"] == pytest.approx(100 * accuracy, rel=1e-12)
        assert row["samples"] == 1438
    assert "not testable here: 1 number (not in the runs of the full job)" in done.output
    again = call("tiny", "--engine", "serial", "--parallel", 1)
    assert again.output.count("finished before") == 4
    assert pd.read_csv(folder / "verdicts.csv").equals(outcome)


@pytest.mark.usefixtures("tables")
def test_the_list() -> None:
    done = call("--list")
    assert done.exit_code == 0, done.output
    rows = {line.split()[0]: line for line in done.output.splitlines()}
    assert "1 number, 1 claim" in rows["tiny"]
    assert "61 s" in rows["tiny"]
    assert "not testable here" in rows["later"]


@pytest.mark.usefixtures("tables")
def test_a_dry_run_lists_the_runs_and_writes_nothing() -> None:
    done = call("tiny", "--dry-run", "--no-measure")
    assert done.exit_code == 0, done.output
    assert done.output.count("data.partition=shards") == 2
    assert "4 runs" in done.output
    assert not [*Path.cwd().iterdir()]


REFUSED = {
    "unknown": (["tinny"], "unknown table 'tinny' (did you mean 'tiny'?)"),
    "no name": ([], "NAME is missing; 'fedsim reproduce --list' shows the tables"),
    "no job": (["later"], "later: not testable here: survival tasks"),
    "job": (["tiny", "--job", "scaled"], "--job scaled: tiny has the job full"),
    "setting": (["tiny", "--set", "train.lr=1"], "--set train.lr: a table is tested with its own"),
}


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case: str) -> None:
    arguments, message = REFUSED[case]
    done = call(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not [*Path.cwd().iterdir()]
