"""``fedsim reproduce``: the list, what is refused, and a whole job on tiny runs."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from fedsim.audit import published
from fedsim.cli import main
from fedsim.config import presets
from fedsim.studies import execute
from fedsim.studies import sweep as sweeps

NUMBERS = """\
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
NEEDS = TINY.replace("data: digits, embedded", "data: all of MNIST\n        find: [images-idx3]")
PAPER = f"""\
paper: "Somebody, 2024"
tables:
  tiny:
{TINY}
  needs:
{NEEDS}
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


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["reproduce", *map(str, arguments)])


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three tables in place of those of the package, and an empty folder to be in."""
    folder, here = tmp_path / "tables", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    (folder / "paper.yaml").write_text(PAPER)
    (folder / "numbers.csv").write_text(NUMBERS)
    monkeypatch.setattr(published, "FOLDER", folder)
    monkeypatch.setattr(presets, "_texts", lambda: {"tiny": PRESET})
    monkeypatch.chdir(here)
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))


def planted(experiment, overrides, out, parallel, how) -> execute.Outcome:
    """A sweep that has ended: IID has 50 to 50.3 % on three seeds, Shards 40 points less."""
    runs = sweeps.expand(experiment, overrides, build=False)
    for run in runs:
        accuracy = 0.5 + run.config.seed / 1000 - 0.4 * (run.config.data.partition == "shards")
        folder = out / run.name
        folder.mkdir(parents=True)
        (folder / "summary.csv").write_text(f"final_test_accuracy\n{accuracy}\n")
        (folder / "partition.csv").write_text("client_id,train_samples\n0,30\n1,40\n")
    failed = [runs[-1].name] if out.name == "failed" else []
    return execute.Outcome(runs=runs, table=pd.DataFrame(), failed=failed)


def test_the_verdicts_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "sweep", planted)
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


@pytest.mark.slow
@pytest.mark.integration
def test_a_job_from_start_to_verdict() -> None:
    done = call("tiny", "--engine", "serial", "--parallel", 1)
    assert done.exit_code == 0, done.output
    assert "Two networks on digits (Somebody, 2024, Table 1)\n" in done.output
    assert "full job: 4 runs of the preset tiny\n" in done.output
    folder = Path("runs/reproduce-tiny-full")
    found = pd.read_csv(folder / "verdicts.csv")
    assert found["method"].tolist() == ["IID", "IID", "IID > Shards"]
    assert found["verdict"].tolist()[1] == "not testable here"
    assert found["n"].tolist() == [2, 0, 2]
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
    assert pd.read_csv(folder / "verdicts.csv").equals(found)
    listed = call("--list")
    assert "1 not testable here" in listed.output
    (folder / "verdicts.csv").unlink()
    assert "4 of 4 runs" in call("--list").output


def test_the_list() -> None:
    done = call("--list")
    assert done.exit_code == 0, done.output
    rows = {line.split()[0]: line for line in done.output.splitlines()}
    assert "1 number, 1 claim" in rows["tiny"]
    assert "61 s" in rows["tiny"]
    assert "not run" in rows["tiny"]
    assert "not testable here" in rows["later"]
    full = json.loads(call("--list", "--format", "json").output)
    needs = {row["table"]: (row["needs"], row["data"]) for row in full}
    assert needs["tiny"] == ("digits, embedded", "yes")
    assert needs["later"] == ("survival tasks", "-")
    assert needs["needs"] == ("all of MNIST", "no")


def test_a_dry_run_lists_the_runs_and_writes_nothing() -> None:
    done = call("tiny", "--dry-run", "--no-measure")
    assert done.exit_code == 0, done.output
    assert done.output.count("data.partition=shards") == 2
    assert "4 runs" in done.output
    assert not [*Path.cwd().iterdir()]


REFUSED = {
    "unknown": (["tinny"], "unknown table 'tinny' (did you mean 'tiny'?)"),
    "no name": ([], "NAME is missing; 'fedsim reproduce --list' shows the tables"),
    "job": (["tiny", "--job", "scaled"], "--job scaled: tiny has the job full"),
    "setting": (["tiny", "--set", "train.lr=1"], "--set train.lr: a table is tested with its own"),
    "list and name": (["--list", "tiny"], "--list: shows all tables; leave out tiny"),
    "format": (["tiny", "--format", "json"], "--format json: goes with --list"),
    "data": (["needs"], "no --data-dir given: no file images-idx3 there; the full job needs"),
    "other data": (["needs", "--data-dir", "."], "--data-dir .: no file images-idx3 there"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case: str) -> None:
    arguments, message = REFUSED[case]
    done = call(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not [*Path.cwd().iterdir()]
