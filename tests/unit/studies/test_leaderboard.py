"""What is an entry of a task: complete, under its settings, with the scores of its own rounds.

The runs are those of one method on one partition in a pack of docs/leaderboard.
"""

import csv
import json
import math
import re
import shutil
import sys
from dataclasses import replace as changed
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedsim.cli import main
from fedsim.core.errors import ConfigError
from fedsim.storage import manifest, pack
from fedsim.studies import leaderboard
from fedsim.training.provenance import Code

DIGITS = Path(__file__).resolve().parents[3] / "docs" / "leaderboard" / "digits"
TASK = changed(leaderboard.load(DIGITS / "task.yaml"), runs=((2, 1), (2, 2)))
RUN = "method=FedAvg,data.seed=2,seed=1"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaderboard")
    pack.unpack(DIGITS / "fedsim.zip", folder / "pack")
    for name in (RUN, RUN.replace("seed=1", "seed=2")):
        shutil.copytree(folder / "pack" / name, folder / "entry" / name)
    return folder / "entry"


@pytest.fixture
def entry(unpacked, tmp_path):
    """The two runs of FedAvg, which may be changed."""
    return shutil.copytree(unpacked, tmp_path / "entry")


def forge(run):
    """Writes manifest.json anew."""
    known = json.loads((run / manifest.NAME).read_text())
    known["files"] = manifest.digests(run)
    (run / manifest.NAME).write_text(json.dumps(known))


def replace(run, file, old, new):
    text = (run / file).read_text()
    assert old in text
    (run / file).write_text(text.replace(old, new, 1))
    forge(run)


def last_score(run):
    """The balanced accuracy of the last round, as rounds.csv has it."""
    header, *_, line = (run / "rounds.csv").read_text().splitlines()
    return line.split(",")[header.split(",").index("test_balanced_accuracy")]


def copied(folder, **changes):
    """One more run, with other seeds."""
    run = shutil.copytree(folder / RUN, folder / "one more")
    for old, new in changes.items():
        replace(run, "config.yaml", f"{old}: 1\n", f"{old}: {new}\n")


def said(folder):
    """What is wrong, in lines."""
    return [str(difference) for difference in leaderboard.check(folder, TASK, {})[1]]


def test_an_entry_has_the_scores_of_its_runs(unpacked):
    runs, wrong = leaderboard.check(unpacked, TASK, {})
    assert not wrong
    assert sorted((run.partition, run.seed) for run in runs) == sorted(TASK.runs)
    run = next(run for run in runs if run.name == RUN)
    with (unpacked / RUN / "summary.csv").open(newline="") as file:
        summary = next(csv.DictReader(file))
    assert run.scores == {
        metric: float(summary[f"last10_test_{metric}"]) for metric in leaderboard.METRICS
    }
    assert (run.label, run.state) == ("FedAvg", "finished")
    assert run.settings == {"algorithm": "fedavg", "train.lr": "0.1"}
    models = (unpacked / RUN / "models.csv").read_text().splitlines()
    assert models[-1].endswith(run.model)


@pytest.mark.parametrize(
    ("plant", "lines"),
    [
        pytest.param(
            lambda e: replace(e / RUN, "config.yaml", "sample_rate: 0.5", "sample_rate: 0.6"),
            [rf"{RUN}/config\.yaml: train\.sample_rate \(0\.6, wanted 0\.5\)"],
            id="a fixed setting",
        ),
        pytest.param(
            lambda e: replace(e / RUN, "config.yaml", "name: logistic", "name: mlp"),
            [rf"{RUN}/config\.yaml: model\.name \('mlp', wanted 'logistic'\)"],
            id="another model",
        ),
        pytest.param(
            lambda e: copied(e, seed=3),
            [r"one more/config\.yaml: seed 3 and data\.seed 2: not a run of the task"],
            id="an additional seed",
        ),
        pytest.param(
            copied, [rf"one more: is the same run of FedAvg as {RUN}"], id="a run twice"
        ),
        pytest.param(
            lambda e: shutil.rmtree(e / RUN),
            [r"FedAvg: lacks the run with data\.seed 2 and seed 1"],
            id="a missing run",
        ),
        pytest.param(
            lambda e: (e / RUN / "summary.csv").unlink(),
            [rf"{RUN}: is interrupted, not finished"],
            id="an unfinished run",
        ),
        pytest.param(
            lambda e: (e / RUN / "manifest.json").unlink(),
            [rf"{RUN}/manifest\.json: is missing"],
            id="no manifest",
        ),
        pytest.param(
            lambda e: (e / RUN / "rounds.csv").write_text("round\n1\n"),
            [rf"{RUN}/rounds\.csv: is not the file that manifest\.json names"],
            id="another table",
        ),
        pytest.param(
            lambda e: replace(e / RUN, "rounds.csv", last_score(e / RUN), "0.9999"),
            [rf"{RUN}/summary\.csv, column last10_test_balanced_accuracy: 0\.8\d+, not 0\.9\d+ as "
             r"rounds\.csv gives"],
            id="a changed digit, and the manifest with it",
        ),
        pytest.param(
            lambda e: replace(
                e / RUN, "rounds.csv", (e / RUN / "rounds.csv").read_text().splitlines()[-1] + "\n",
                "",
            ),
            [rf"{RUN}/rounds\.csv: 9 rounds, not 10 as in the task"],
            id="ended early",
        ),
        pytest.param(
            lambda e: replace(e / RUN, "config.yaml", "lr: 0.1", "lr: 0.2"),
            [r"method=FedAvg,data\.seed=2,seed=2/config\.yaml: train\.lr 0\.1, not 0\.2 as in "
             rf"{RUN}"],
            id="a choice for one seed",
        ),
        pytest.param(
            lambda e: replace(e / RUN, "config.yaml", ": fedavg\n", ": centralized\n"),
            [rf"{RUN}/config\.yaml: algorithm centralized: pools the data, and is no entry"],
            id="pooled data",
        ),
        pytest.param(
            lambda e: replace(e / RUN, "summary.csv", "sha256:", "sha256:0"),
            [rf"{RUN.replace('seed=1', 'seed=2')}: data sha256:\w+, not sha256:0\w+ as in {RUN}"],
            id="other data",
        ),
    ],
)  # fmt: skip
def test_what_is_no_entry_is_refused_with_file_key_and_reason(entry, plant, lines):
    plant(entry)
    found = said(entry)
    assert len(found) == len(lines), found
    for line, expected in zip(found, lines, strict=True):
        assert re.fullmatch(expected, line), line


def test_an_entry_chooses_its_method_and_learning_rate(entry):
    for run in entry.glob("method=*"):
        replace(run, "config.yaml", "momentum: 0.5", "momentum: 0.9")
        replace(run, "config.yaml", "weights: samples", "weights: uniform")
        replace(run, "config.yaml", "dir: null", "dir: /data")
    runs, wrong = leaderboard.check(entry, TASK, {})
    assert not wrong
    assert {tuple(run.settings.items()) for run in runs} == {
        (("algorithm", "fedavg"), ("train.lr", "0.1"), ("train.momentum", "0.9"),
         ("fedavg.weights", "uniform"))
    }  # fmt: skip


def test_a_run_that_diverged_has_no_score(entry):
    (entry / RUN / "summary.csv").unlink()
    (entry / RUN / "failure.json").write_text('{"error": "round 3: the loss of client 1 is nan"}')
    runs, wrong = leaderboard.check(entry, TASK, {})
    assert not wrong
    failed = [run for run in runs if run.state == "failed"]
    assert [run.name for run in failed] == [RUN]
    assert all(math.isnan(score) for score in failed[0].scores.values())


def test_the_command_says_what_is_wrong_before_any_round(entry):
    shutil.rmtree(entry / RUN)
    task = TASK.path.read_text().replace("data.seed: [0, 1, 2]", "data.seed: [2]")
    (entry.parent / "task.yaml").write_text(task)
    given = ["verify", str(entry), "--task", str(entry.parent / "task.yaml")]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 1
    reason = "FedAvg: lacks the run with data.seed 2 and seed 1"
    assert f"  differs    {reason}\n" in done.output
    assert done.output.endswith("NOT entries of the task; no round was done again\n")
    done = CliRunner().invoke(main, [*given, "--format", "json"])
    assert done.exit_code == 1
    assert json.loads(done.output) == {"verified": False, "task": [reason]}


@pytest.mark.parametrize(
    ("began", "accepted", "lines"),
    [
        ("1", None, []),
        ("2", None, ["sha256:.* not sha256:.* as in the task"]),
        ("1", "2", ["sha256:.* not sha256:.* as in the task"]),
        (None, None, ["unknown, not sha256:.* as in the task"]),
    ],
)
def test_the_modules_of_a_run_are_those_of_the_task(entry, began, accepted, lines):
    def model(digit):
        return Code("net:build", {"net.py": digit * 64})

    known = json.loads((entry / RUN / "env.json").read_text())
    for key, digit in (("code", began), ("accepted_code", accepted)):
        given = {} if digit is None else {"model": vars(model(digit))}
        (entry / RUN / "env.json").write_text(json.dumps(known := known | {key: given}))
    forge(entry / RUN)
    shutil.copy(entry / RUN / "env.json", entry / RUN.replace("seed=1", "seed=2"))
    forge(entry / RUN.replace("seed=1", "seed=2"))
    _, wrong = leaderboard.check(entry, TASK, {"model": model("1")})
    assert len(wrong) == 2 * len(lines)
    for difference, line in zip(wrong, 2 * lines, strict=True):
        assert re.fullmatch(rf".*/env\.json, code of the model net:build: {line}", str(difference))


def test_a_module_in_the_folder_of_a_run_is_not_that_of_the_task(entry, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for folder in ("mine", "theirs"):
        (entry.parent / folder).mkdir()
        (entry.parent / folder / "same_name.py").write_text(f"build = {folder!r}\n")
    theirs, mine = (f"working_dir: {entry.parent / name}" for name in ("theirs", "mine"))
    task = TASK.path.read_text().replace("data.seed: [0, 1, 2]", "data.seed: [2]")
    task = task.replace("logistic", "'same_name:build'")
    task = task.replace("save_model: false", f"save_model: false, {theirs}")
    (entry.parent / "task.yaml").write_text(task)
    for run in entry.glob("method=*"):
        replace(run, "config.yaml", "name: logistic", "name: same_name:build")
        replace(run, "config.yaml", "working_dir: null", mine)
    done = CliRunner().invoke(
        main, ["verify", str(entry), "--task", str(entry.parent / "task.yaml")]
    )
    assert done.exit_code == 1, done.output
    assert "code of the model same_name:build: unknown, not sha256:" in done.output


@pytest.mark.parametrize(
    ("grid", "reason"),
    [
        ("{algorithm: [fedavg], data.seed: [0], seed: [0]}", "algorithm, data.seed, seed given"),
        ("{seed: [0, 1]}", "seed given"),
        ("{data.seed: [{a: {data.seed: 0, data.alpha: 1}}], seed: [0]}", "data.seed, seed given"),
    ],
)
def test_a_task_is_a_grid_of_partitions_and_seeds(tmp_path, grid, reason):
    path = tmp_path / "task.yaml"
    path.write_text(f"data: {{name: digits}}\ngrid: {grid}\n")
    expected = f"{path} (grid): {reason}; a task has lists of data.seed and seed"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        leaderboard.load(path)
