"""``fedsim runs``: what is listed, in which state, and that no run is held up by it."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from types import MappingProxyType

import pytest
from click.testing import CliRunner

from fedsim.cli import main
from fedsim.config.resolve import to_yaml
from fedsim.config.run import RunConfig
from fedsim.core import files
from fedsim.core.errors import DivergedError
from fedsim.storage import directories, status, trials
from fedsim.storage.rows import RoundRow
from fedsim.storage.run_dir import RunWriter
from fedsim.storage.trials import Trial
from tests.commands import clean_environment

ROOT = Path(__file__).resolve().parents[3]


def write_run(
    path,
    accuracies=(0.25, 0.75, 0.5),
    *,
    end=False,
    rounds=5,
    val=(),
    train=MappingProxyType({}),
    **settings,
):
    """A run directory with these test accuracies, None in rounds without evaluation."""
    store = RunWriter.create(path)
    config = RunConfig(train={"rounds": rounds} | train, **settings)
    kind = config.data.partition or "dirichlet"
    config = config.resolved(num_clients=config.data.num_clients, partition=kind, model="cnn")
    store.write("config.yaml", to_yaml(config))
    store.write("env.json", "{}")
    pairs = zip(accuracies, val or [None] * len(accuracies), strict=True)
    for number, (test, validation) in enumerate(pairs, 1):
        row = RoundRow(
            round=number, lr=0.1, cohort_size=1, dropped=0, train_loss=1 / number,
            test_accuracy=test, val_accuracy=validation,
        )  # fmt: skip
        store.append("rounds", [row])
    if end:
        results = {"final_test_accuracy": accuracies[-1], "best_test_accuracy": max(accuracies)}
        store.write_summary({"run_id": path.name, "rounds": len(accuracies), **results})
    return path


def listed(*folders):
    done = CliRunner().invoke(main, ["runs", *map(str, folders), "--format", "json"])
    assert done.exit_code == 0, done.output
    return {Path(entry["path"]).name: entry for entry in json.loads(done.stdout)}


def test_finished_and_interrupted_runs(tmp_path):
    write_run(tmp_path / "digits" / "a", end=True, seed=3)
    write_run(tmp_path / "b", (0.5, None), algorithm="fedprox", val=(0.9, None))
    found = listed(tmp_path)
    assert list(found) == ["b", "a"]
    a = found["a"]
    assert (a["state"], a["algorithm"], a["dataset"], a["seed"]) == (
        "finished", "fedld", "digits", 3,
    )  # fmt: skip
    assert (a["rounds_done"], a["rounds"]) == (3, 5)
    assert (a["final_test_accuracy"], a["best_test_accuracy"]) == (0.5, 0.75)
    b = found["b"]
    assert (b["state"], b["algorithm"], b["rounds_done"]) == ("interrupted", "fedprox", 2)
    assert b["final_test_accuracy"] == 0.5
    assert {entry["kind"] for entry in found.values()} == {"run"}


def test_the_best_round_is_that_of_the_validation_part_and_the_first_of_equals(tmp_path):
    write_run(tmp_path / "a", (0.25, 0.75, 0.5), val=(0.5, 0.6, 0.7))
    write_run(tmp_path / "b", (0.25, 0.5, 0.75, 0.6), val=(0.5, 0.7, 0.7, 0.1))
    found = listed(tmp_path)
    assert [found[name]["best_test_accuracy"] for name in "ab"] == [0.5, 0.5]


def test_a_table_to_read(tmp_path):
    write_run(tmp_path / "a", end=True)
    done = CliRunner().invoke(main, ["runs", str(tmp_path)])
    head, row = done.output.splitlines()
    columns = "run algorithm dataset seed rounds state final best when"
    assert head.split() == columns.split()
    assert row.split()[:8] == [
        str(tmp_path / "a"), "fedld", "digits", "0", "3/5", "finished", "0.5000", "0.7500",
    ]  # fmt: skip


@pytest.mark.parametrize("label", ["FedExP", "Mine: 100 %", "yes", "null", "long " * 30 + "name"])
def test_labels_are_shown_where_runs_have_one(tmp_path, label):
    write_run(tmp_path / "a", end=True, label=label)
    write_run(tmp_path / "b")
    (tmp_path / "search").mkdir()
    found = listed(tmp_path)
    assert [found[name]["label"] for name in "ab"] == [label, None]
    head, *rows = CliRunner().invoke(main, ["runs", str(tmp_path)]).output.splitlines()
    assert head.split()[:3] == ["run", "label", "algorithm"]
    assert f" {label} " in rows[0]
    assert re.split(" {2,}", rows[1])[1] == "-"


def test_a_sweep_of_one_run(tmp_path):
    write_run(tmp_path / "s" / "algorithm=fedavg,seed=0", end=True, seed=0)
    text = CliRunner().invoke(main, ["runs", str(tmp_path)]).output
    assert "(1 of 1 begun run)" in text


def test_runs_of_a_sweep_follow_it(tmp_path):
    for seed, end in ((0, True), (1, False)):
        write_run(tmp_path / "s" / f"algorithm=fedavg,seed={seed}", end=end, seed=seed)
    write_run(tmp_path / "s" / "algorithm=fedavg,seed=0.interrupted-1")
    found = listed(tmp_path)
    sweep = found.pop("s")
    assert sweep == {
        "kind": "sweep", "path": str(tmp_path / "s"), "state": "interrupted",
        "runs_finished": 1, "runs_failed": 0, "runs": 2, "runs_in_grid": None,
    }  # fmt: skip
    assert {entry["sweep"] for entry in found.values()} == {str(tmp_path / "s")}
    text = CliRunner().invoke(main, ["runs", str(tmp_path)]).output
    assert f"{tmp_path / 's'} (sweep)" in text
    assert "interrupted (1 of 2 begun runs)" in text
    assert "\n  algorithm=fedavg,seed=1 " in text
    (tmp_path / "s" / "algorithm=fedavg,seed=1" / "summary.csv").write_text("rounds\n3\n")
    assert listed(tmp_path)["s"]["state"] == "interrupted", "its tables are not written"
    (tmp_path / "s" / "aggregate.csv").write_text("n\n1\n")
    assert listed(tmp_path)["s"]["state"] == "finished"


def test_a_failed_run_is_told_apart_with_its_reason(tmp_path):
    run = write_run(tmp_path / "a")
    with pytest.raises(DivergedError), status.failure_written(run):
        raise DivergedError("round 4, client 2:\nthe loss is NaN")
    write_run(tmp_path / "b")
    entry = listed(tmp_path)["a"]
    assert (entry["state"], entry["problem"]) == ("failed", "round 4, client 2: the loss is NaN")
    text = CliRunner().invoke(main, ["runs", str(tmp_path)]).output
    assert "failed" in text
    assert "the loss is NaN" in text
    assert listed(tmp_path)["b"]["state"] == "interrupted"
    with files.lock(run):
        assert listed(tmp_path)["a"]["state"] == "running", "it was resumed"
    with pytest.raises(KeyboardInterrupt), status.failure_written(run):
        raise KeyboardInterrupt
    assert listed(tmp_path)["a"]["state"] == "interrupted"
    (run / "failure.json").write_text("?")
    assert "failure.json: cannot be read" in listed(tmp_path)["a"]["problem"]


def test_a_sweep_counts_the_runs_of_its_grid(tmp_path):
    sweep = tmp_path / "s"
    for seed in (0, 1, 7):
        write_run(sweep / f"seed={seed}", end=seed != 1, seed=seed)
    (sweep / "seed=1" / "failure.json").write_text('{"error": "no space"}')
    directories.write_grid(sweep, [f"seed={seed}" for seed in range(4)])
    found = listed(tmp_path)["s"]
    assert (found["runs_finished"], found["runs_failed"], found["runs_in_grid"]) == (1, 1, 4)
    assert found["state"] == "interrupted"
    text = CliRunner().invoke(main, ["runs", str(tmp_path)]).output
    assert "interrupted (1 of 4 runs, 1 failed)" in text
    directories.write_grid(sweep, ["seed=0", "seed=1"])
    assert listed(tmp_path)["s"]["state"] == "failed", "all have ended"
    with files.lock(sweep):
        assert listed(tmp_path)["s"]["state"] == "running", "between two runs"
    (sweep / "sweep.json").write_text("[]")
    assert listed(tmp_path)["s"]["runs_in_grid"] is None


def write_search(folder, planned=3, ended=("complete", "pruned")):
    folder.mkdir(parents=True)
    study = {"by": "val_accuracy", "sampler": "tpe", "pruner": "median", "seeds": [0]}
    study |= {
        "search": {"train.lr": "uniform(0, 1)"},
        "settings": {},
        "ahead": 1,
        "trials": planned,
    }
    trials.write_study(folder, study)
    done = []
    for number, state in enumerate(ended):
        write_run(folder / trials.folder_of(number) / "seed=0", end=True)
        value = None if state == "failed" else 0.5 + number / 8
        done.append(Trial(number=number, params={"train.lr": 0.25}, state=state, value=value))
    trials.write(folder, ["train.lr"], done)
    return folder


def test_a_search_has_one_line_and_its_runs_where_it_is_named(tmp_path):
    search = write_search(tmp_path / "tune-lr")
    found = listed(tmp_path)
    assert list(found) == ["tune-lr"]
    assert found["tune-lr"] == {
        "kind": "search", "path": str(search), "state": "interrupted", "problem": None,
        "by": "val_accuracy", "trials": 2, "trials_planned": 3, "complete": 1, "pruned": 1,
        "failed": 0, "best_trial": 0, "best_value": 0.5,
    }  # fmt: skip
    text = CliRunner().invoke(main, ["runs", str(tmp_path)]).output
    assert "interrupted (2 of 3 trials: 1 complete, 1 pruned)" in text
    assert "0.5000 (val_accuracy)" in text
    named = CliRunner().invoke(main, ["runs", str(search)]).output
    assert "trial-0000 (sweep)" in named
    with files.lock(search):
        assert listed(tmp_path)["tune-lr"]["state"] == "running"


def test_a_search_is_shown_with_its_best_trial(tmp_path):
    search = write_search(tmp_path / "tune-lr")
    (search / "best.yaml").write_text("# trial 0: val_accuracy 0.5\nalgorithm: fedavg\n")
    (search / "confirm.csv").write_text(
        "trial,value,train.lr,n,val_accuracy_mean,val_accuracy_std,val_accuracy_ci95,"
        "final_test_accuracy_mean,final_test_accuracy_ci95\n0,0.5,0.25,3,0.4,0.1,0.25,0.3,\n"
    )
    done = CliRunner().invoke(main, ["show", str(search)])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        f"{search}: interrupted search",
        "  train.lr: uniform(0, 1)",
        "by val_accuracy, sampler tpe, pruner median, training seeds 0",
        "2 of 3 trials: 1 complete, 1 pruned",
        "best trial 0: val_accuracy 0.5000",
        "  train.lr=0.25",
        "on fresh training seeds: mean +- half-width of its 95 % interval (t distribution)",
        "trial  n  in the search      val_accuracy  final test accuracy",
        "    0  3         0.5000  0.4000 +- 0.2500               0.3000",
        f"{search / 'best.yaml'} has trial 0",
    ]
    values = json.loads(
        CliRunner().invoke(main, ["show", str(search), "--format", "json"]).output,
        parse_constant=pytest.fail,
    )
    assert (values["best_yaml"], values["best_yaml_trial"]) == (str(search / "best.yaml"), 0)
    assert values["confirmed"][0]["final_test_accuracy_ci95"] is None


@pytest.mark.parametrize(
    ("ended", "state"),
    [(("complete", "failed"), "finished"), (("failed", "failed"), "failed")],
)
def test_a_search_whose_trials_have_all_ended(ended, state, tmp_path):
    search = write_search(tmp_path / "t", planned=2, ended=ended)
    assert listed(tmp_path)["t"]["state"] == state
    write_run(search / "confirm" / "trial=0,seed=1", end=False)
    assert listed(tmp_path)["t"]["state"] == "interrupted", "its runs on fresh seeds are left"


def test_a_damaged_search(tmp_path):
    search = write_search(tmp_path / "t")
    (search / "trials.jsonl").write_text("?\n")
    entry = listed(tmp_path)["t"]
    assert entry["state"] == "damaged"
    assert "trials.jsonl, line 1" in entry["problem"]
    assert CliRunner().invoke(main, ["show", str(search)]).exit_code == 2


@pytest.mark.parametrize(("end", "state"), [(True, "finished"), (False, "interrupted")])
def test_a_trial_needs_no_tables(tmp_path, end, state):
    write_run(tmp_path / "trial-0000" / "seed=0", end=True)
    write_run(tmp_path / "trial-0000" / "seed=1", end=end)
    assert listed(tmp_path)["trial-0000"]["state"] == state


def test_a_run_with_an_equals_sign_in_its_name_makes_no_sweep(tmp_path):
    for name in ("a", "lr=0.1"):
        write_run(tmp_path / name, end=True)
    assert {entry["kind"] for entry in listed(tmp_path).values()} == {"run"}


def test_a_run_that_holds_its_lock_is_running_and_stays_undisturbed(tmp_path):
    run = write_run(tmp_path / "a")
    with files.lock(run):
        before = (run / ".lock").read_bytes()
        entry = listed(tmp_path)["a"]
        assert entry["state"] == "running"
        assert entry["process"] == f"pid {os.getpid()} on {platform.node()}"
        assert (run / ".lock").read_bytes() == before
    assert listed(tmp_path)["a"]["state"] == "interrupted"


def test_a_killed_process_leaves_an_interrupted_run(tmp_path):
    run = write_run(tmp_path / "a")
    code = f"from pathlib import Path; from fedsim.core import files; import time\nwith files.lock(Path({str(run)!r})): print(flush=True); time.sleep(10**6)"  # noqa: E501
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, env=clean_environment()
    )
    process.stdout.readline()
    assert listed(tmp_path)["a"]["state"] == "running"
    process.kill()
    process.wait()
    assert (run / ".lock").read_text().startswith(f"pid {process.pid} on ")
    assert listed(tmp_path)["a"]["state"] == "interrupted"


def test_a_process_elsewhere_counts_while_it_writes(tmp_path):
    run = write_run(tmp_path / "a")
    (run / ".lock").write_text("pid 7 on node-of-a-cluster\n")
    entry = listed(tmp_path)["a"]
    assert (entry["state"], entry["process"]) == ("running", "pid 7 on node-of-a-cluster")
    for file in run.iterdir():
        os.utime(file, (time.time() - 2 * status.FRESH,) * 2)
    assert listed(tmp_path)["a"]["state"] == "interrupted"


def test_a_look_at_the_lock_does_not_keep_a_run_from_starting(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / ".lock").write_text(f"pid 1 on {platform.node()}\n")
    with (tmp_path / ".lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as lock_holder does, here until the second attempt
        real = time.sleep
        monkeypatch.setattr(time, "sleep", lambda s: (fcntl.flock(file, fcntl.LOCK_UN), real(s)))
        with files.lock(tmp_path):
            assert files.lock_holder(tmp_path).held


DAMAGES = {
    "config.yaml": [None, "a: [", "just text", "\udcff"],
    "summary.csv": ["", "rounds\n", "rounds,final_test_accuracy\n3\n", "final_test_accuracy\nx\n"],
}


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, ts in DAMAGES.items() for t in ts])
def test_a_damaged_run_is_listed_with_the_reason(name, text, tmp_path):
    write_run(tmp_path / "whole", end=True)
    run = write_run(tmp_path / "bad", end=True)
    if text is None:
        (run / name).unlink()
    else:
        (run / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    found = listed(tmp_path)
    assert found["whole"]["state"] == "finished"
    assert found["bad"]["state"] == "damaged"
    assert str(run) in found["bad"]["problem"]
    table = CliRunner().invoke(main, ["runs", str(tmp_path)])
    assert table.output.splitlines()[0].endswith("problem")


def test_a_row_that_is_being_written_does_not_count(tmp_path):
    run = write_run(tmp_path / "a")
    with (run / "rounds.csv").open("a") as file:
        file.write("4,0.1,1,0,0.")
    entry = listed(tmp_path)["a"]
    assert (entry["state"], entry["rounds_done"]) == ("interrupted", 3)


def test_runs_with_few_files_and_folders_that_are_no_runs(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "config.yaml").write_text("some: thing\n")
    started = tmp_path / "started"
    RunWriter.create(started).write("config.yaml", to_yaml(RunConfig()))
    (started / ".lock").touch()
    (started / "checkpoints" / "run").mkdir(parents=True)
    (started / "checkpoints" / "run" / "rounds.csv").touch()
    found = listed(tmp_path)
    assert list(found) == ["started"]
    assert (found["started"]["state"], found["started"]["rounds_done"]) == ("interrupted", 0)


def test_a_configuration_in_another_style_is_parsed(tmp_path):
    run = write_run(tmp_path / "a")
    text = "{algorithm: fedavg, seed: 4, data.name: digits, train: {rounds: 7}}\n"
    (run / "config.yaml").write_text(text)
    entry = listed(tmp_path)["a"]
    assert (entry["algorithm"], entry["seed"], entry["rounds"]) == ("fedavg", 4, 7)


def test_no_runs_is_said_and_an_absent_folder_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["runs"])
    assert (done.exit_code, done.stdout.partition(";")[0]) == (0, "no runs in runs")
    assert listed() == {}
    refused = CliRunner().invoke(main, ["runs", "nowhere"])
    assert refused.exit_code == 2
    assert refused.stderr == "error: DIR nowhere: there is no such folder\n"


@pytest.mark.slow
def test_neither_torch_nor_pandas_is_imported(tmp_path):
    write_run(tmp_path / "a", end=True)
    code = (
        f"import sys; from fedsim.cli import main; main(['runs', {str(tmp_path)!r}], "
        "standalone_mode=False); "
        "sys.exit(any(m in sys.modules for m in ('pandas', 'torch', 'pydantic')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout


def test_commands_take_the_newest_run_where_none_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    none = CliRunner().invoke(main, ["show"])
    assert none.exit_code == 2
    assert none.stderr == "error: RUN: none is named, and there is none below runs/\n"
    for when, name in enumerate(("digits/a", "sweep/seed=0", "sweep/seed=1", "b"), 1):
        run = write_run(Path("runs", name), end=True)
        os.utime(run / "summary.csv", (0, when % 4))
    done = CliRunner().invoke(main, ["show"])
    assert done.stderr == "newest: runs/sweep/seed=1\n"
    assert done.stdout.startswith("runs/sweep/seed=1: finished")
    for command in (["table"], ["curves"], ["verify", "--rounds", "1"]):
        assert CliRunner().invoke(main, command).stderr.startswith("newest: runs/sweep\n")
    Path("runs/search").mkdir()
    trials.write_study(Path("runs/search"), {"by": "val_accuracy", "trials": 1, "seeds": [0]})
    assert CliRunner().invoke(main, ["show"]).stderr.startswith("newest: runs/search\n")
    assert CliRunner().invoke(main, ["replay", "--round", "1"]).stderr.startswith(done.stderr)
