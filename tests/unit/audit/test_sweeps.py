"""Runs and sweeps on the command line: what is drawn, what is said, the exit status."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

import fedsim
from fedsim.audit.sweeps import drawn
from fedsim.cli import main
from fedsim.storage.directories import read_grid, write_grid
from fedsim.studies import sweep_tables
from fedsim.studies.sweep import group_of
from tests.unit.audit.test_verify import another_digit, forge, rewrite, small

pytestmark = pytest.mark.integration


def call(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return fedsim.run(small(), tmp_path_factory.mktemp("verify") / "run").path


@pytest.fixture
def run(honest, tmp_path):
    return shutil.copytree(honest, tmp_path / "run")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    out = tmp_path_factory.mktemp("verify") / "sweep"
    experiment = {
        "data": {"num_clients": 8, "test_fraction": 0.9},
        "train": {"rounds": 6, "sample_rate": 0.25, "batch_size": 20, "lr": 0.02},
        "evaluation": {"every": 2},
        "model": {"name": "mlp"},
        "engine": {"kind": "serial", "keep_every": 2},
        "grid": {"algorithm": ["fedavg", "fedld"], "seed": [0, 1]},
    }
    fedsim.sweep(experiment, out, parallel=1)
    return out


# one run


def test_a_verified_run(honest):
    done = call("verify", honest, "--rounds", 2, "--seed", 7)
    assert done.exit_code == 0, done.output
    lines = [line.split(None, 1) for line in done.output.splitlines()]
    assert lines[0] == [f"{honest}:", "6 rounds"]
    assert re.fullmatch(r"\d, \d \(seed 7\)", lines[1][1])
    assert re.fullmatch(
        r"again \d rounds? \(.*\): \d+ rows and \d models?, byte for byte", lines[2][1]
    )
    assert done.output.endswith(
        "verified; one wrong round would have been found with probability 0.33\n"
    )


def test_a_run_that_differs(run):
    rewrite(run / "rounds.csv", another_digit)
    forge(run)
    done = call("verify", run, "--rounds", "all")
    assert done.exit_code == 1
    assert re.search(r"^  differs    rounds\.csv, line 7, round 6, column \w+: ", done.output, re.M)
    assert done.output.endswith("NOT verified\n")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda run: shutil.rmtree(run), "there is no such run or sweep"),
        (lambda run: (run / "config.yaml").write_text("seed: x\n"), "seed"),
        (lambda run: (run / "rounds.csv").write_text("round,lr\n"), "no round is complete"),
        (lambda run: [p.unlink() for p in run.iterdir() if p.is_file()], "holds no run"),
    ],
)
def test_a_run_that_cannot_be_verified(change, reason, run):
    change(run)
    done = call("verify", run)
    assert done.exit_code == 2, done.output
    assert done.output.startswith("error: ")
    assert reason in done.output


@pytest.mark.slow
def test_nothing_stays_after_a_signal(honest, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "fedsim", "verify", honest, "--rounds", "all"]
    process = subprocess.Popen(command, env=os.environ | {"TMPDIR": str(temporary)})
    while not [*temporary.rglob("partition.csv")]:
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    assert not [*temporary.iterdir()]


# sweeps


def test_runs_of_a_sweep_are_drawn(sweep):
    some = drawn(sweep, sample=3, seed=1)
    assert (len(some.runs), len(some.finished)) == (3, 4)
    assert some.runs == drawn(sweep, sample=3, seed=1).runs
    done = call("verify", sweep, "--sample", 2, "--rounds", 1)
    assert done.exit_code == 0, done.output
    assert re.search(r"^2 of 4 finished runs drawn \(seed \d+\)$", done.output, re.M)
    assert done.output.endswith("summary.csv and aggregate.csv are what the runs give\n")


def test_a_run_of_the_grid_that_is_not_there(sweep, tmp_path):
    """Together with both tables, whose rows would name it."""
    name = "algorithm=fedld,seed=0"
    forged = shutil.copytree(sweep, tmp_path / "sweep")
    shutil.rmtree(forged / name)
    for table in ("summary", "aggregate"):
        (forged / f"{table}.csv").unlink()
    done = call("verify", forged, "--sample", 1, "--rounds", 1)
    assert done.exit_code == 0, done.output
    assert f"  unfinished 1 run of the grid: {name}\n" in done.output
    for table in ("summary", "aggregate"):
        assert f"  unknown    {table}.csv is missing: not compared\n" in done.output
    (forged / "sweep.json").unlink()
    without_a_run(forged, name, [path.parent.name for path in forged.glob("*/rounds.csv")])
    done = call("verify", forged, "--sample", 1, "--rounds", 1)
    assert "  unknown    sweep.json is missing: not compared\n" in done.output


def without_a_run(forged, name, grid=()):
    """A sweep whose tables are those of all runs but one, which stays where it is."""
    runs = {run: group_of(run) for run in grid or read_grid(forged) if run != name}
    sweep_tables.write(runs, forged)


def test_tables_that_leave_out_a_finished_run(sweep, tmp_path):
    forged = shutil.copytree(sweep, tmp_path / "sweep")
    name = "algorithm=fedld,seed=0"
    without_a_run(forged, name)
    done = call("verify", forged, "--sample", 1, "--rounds", 1)
    assert done.exit_code == 1
    assert (
        f"differs    summary.csv: does not name each finished run of the sweep once: {name}\n"
        in (done.output)
    )


@pytest.mark.slow
def test_a_finished_run_beside_the_grid_is_named(sweep, tmp_path):
    """As where the grid became smaller; the tables are those of the grid."""
    smaller = shutil.copytree(sweep, tmp_path / "sweep")
    name = "algorithm=fedld,seed=0"
    without_a_run(smaller, name)
    write_grid(smaller, [run for run in read_grid(smaller) if run != name])
    done = call("verify", smaller, "--sample", 1, "--rounds", 1)
    assert done.exit_code == 0, done.output
    assert f"not of the grid in sweep.json, nor of its tables: {name}\n" in done.output
    told = json.loads(
        call("verify", smaller, "--sample", 1, "--rounds", 1, "--format", "json").output
    )
    assert told["not_of_the_grid"] == [name]


@pytest.mark.parametrize(
    ("by", "elsewhere", "same"), [(1e-13, True, True), (1e-13, False, False), (1e-6, True, False)]
)
def test_the_tables_of_a_sweep_of_another_processor(by, elsewhere, same, sweep, tmp_path):
    other = shutil.copytree(sweep, tmp_path / "sweep")

    def rounded(rows):
        i = rows[0].index("final_test_accuracy_mean")
        rows[1][i] = repr(float(rows[1][i]) * (1 + by))

    rewrite(other / "aggregate.csv", rounded)
    difference = drawn(other, sample=1, seed=0).difference(elsewhere=elsewhere)
    assert (difference is None) == same
