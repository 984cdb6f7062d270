"""``fedsim runs`` and ``fedsim show``: what is listed and shown of runs; completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import MappingProxyType

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from fedsim import algorithms, data
from fedsim.cli import main
from fedsim.config import presets
from fedsim.config.resolve import to_yaml
from fedsim.config.run import RunConfig
from fedsim.config.sections import fields
from fedsim.core import files
from fedsim.core.errors import DivergedError
from fedsim.core.rows import ClassRow, ClientRow, RoundRow
from fedsim.data import partitions
from fedsim.models import NAMES
from fedsim.storage import directories, status, trials
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


def test_a_table_to_read(tmp_path):
    write_run(tmp_path / "a", end=True)
    done = CliRunner().invoke(main, ["runs", str(tmp_path)])
    head, row = done.output.splitlines()
    columns = "run algorithm dataset seed rounds state final best when"
    assert head.split() == columns.split()
    assert row.split()[:8] == [
        str(tmp_path / "a"), "fedld", "digits", "0", "3/5", "finished", "0.5000", "0.7500",
    ]  # fmt: skip


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
    directories.write_grid(sweep, {f"seed={seed}": {} for seed in range(4)})
    found = listed(tmp_path)["s"]
    assert (found["runs_finished"], found["runs_failed"], found["runs_in_grid"]) == (1, 1, 4)
    assert found["state"] == "interrupted"
    text = CliRunner().invoke(main, ["runs", str(tmp_path)]).output
    assert "interrupted (1 of 4 runs, 1 failed)" in text
    directories.write_grid(sweep, {"seed=0": {}, "seed=1": {}})
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
    ("ended", "state"), [(("complete", "failed"), "finished"), (("failed", "failed"), "failed")]
)
def test_a_search_whose_trials_have_all_ended(ended, state, tmp_path):
    search = write_search(tmp_path / "t", planned=2, ended=ended)
    assert listed(tmp_path)["t"]["state"] == state
    write_run(search / "confirm" / "trial=0,seed=1", end=False)
    assert listed(tmp_path)["t"]["state"] == "interrupted", "its runs on fresh seeds are left"


def test_a_process_elsewhere_counts_while_it_writes(tmp_path):
    run = write_run(tmp_path / "a")
    (run / ".lock").write_text("pid 7 on node-of-a-cluster\n")
    entry = listed(tmp_path)["a"]
    assert (entry["state"], entry["process"]) == ("running", "pid 7 on node-of-a-cluster")
    for file in run.iterdir():
        os.utime(file, (time.time() - 2 * status.FRESH,) * 2)
    assert listed(tmp_path)["a"]["state"] == "interrupted"


DAMAGES = {"config.yaml": [None, "a: ["], "summary.csv": ["", "final_test_accuracy\nx\n"]}


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, ts in DAMAGES.items() for t in ts])
def test_a_damaged_run_is_listed_with_the_reason(name, text, tmp_path):
    write_run(tmp_path / "whole", end=True)
    run = write_run(tmp_path / "bad", end=True)
    if text is None:
        (run / name).unlink()
    else:
        (run / name).write_text(text)
    found = listed(tmp_path)
    assert found["whole"]["state"] == "finished"
    assert found["bad"]["state"] == "damaged"
    assert str(run) in found["bad"]["problem"]
    table = CliRunner().invoke(main, ["runs", str(tmp_path)])
    assert table.output.splitlines()[0].endswith("problem")


def test_no_runs_is_said_and_an_absent_folder_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["runs"])
    assert (done.exit_code, done.stdout.partition(";")[0]) == (0, "no runs in runs")
    assert listed() == {}
    refused = CliRunner().invoke(main, ["runs", "nowhere"])
    assert refused.exit_code == 2
    assert refused.stderr == "error: DIR nowhere: there is no such folder\n"


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


# ---- fedsim show


def call(*args, status=0):
    done = CliRunner().invoke(main, [*map(str, args)])
    assert done.exit_code == status, done.output
    return done.stdout if status == 0 else done.stderr


def shown(*runs):
    return json.loads(call("show", *runs, "--format", "json"))


def test_the_settings_that_differ_from_the_defaults(tmp_path):
    run = write_run(
        tmp_path / "a", rounds=3, end=True, algorithm="fedprox", fedprox={"mu": 0.5},
        train={"lr": 0.1}, data={"name": "synthetic", "partition": "natural"},
        synthetic={"beta": 0.25},
    )  # fmt: skip
    found = shown(run)
    assert found["changed"] == {
        "algorithm": {"value": "fedprox", "default": "fedld"},
        "data.name": {"value": "synthetic", "default": "digits"},
        "train.rounds": {"value": 3, "default": 100},
        "train.lr": {"value": 0.1, "default": 0.01},
        "fedprox.mu": {"value": 0.5, "default": 0.1},
        "model.name": {"value": "cnn", "default": "leaf_synthetic"},
        "synthetic.beta": {"value": 0.25, "default": 0.0},
    }
    assert found["settings"]["fedprox.prox_form"] == "squared"
    assert (found["state"], found["rounds_done"], found["rounds"]) == ("finished", 3, 3)


def test_results_at_the_end_in_the_best_round_and_of_the_last_ten(tmp_path):
    accuracies = [0.9, *(None if n % 2 else n / 20 for n in range(2, 13))]
    found = shown(write_run(tmp_path / "a", accuracies, rounds=12))
    assert found["best_round"] == 1
    # of rounds 3 to 12 rounds 4, 6, ..., 12 are evaluated
    mean = pytest.approx((4 + 6 + 8 + 10 + 12) / 20 / 5)
    assert found["results"]["test_accuracy"] == {"final": 0.6, "best": 0.9, "last10": mean}
    assert "val_accuracy" not in found["results"]
    assert found["curves"]["test_accuracy"]["4"] == 0.2


@pytest.mark.parametrize("val", [(), (0.1, 0.3, 0.2)])
def test_the_best_round_follows_the_validation_part(tmp_path, val):
    found = shown(write_run(tmp_path / "a", (0.75, 0.25, 0.5), val=val))
    assert found["best_round"] == (2 if val else 1)
    assert found["results"]["test_accuracy"]["best"] == (0.25 if val else 0.75)


def test_a_page_to_read(tmp_path):
    run = write_run(tmp_path / "a", (0.0, 0.5, 1.0), rounds=100)
    store = RunWriter(run)
    store.write("env.json", '{"fedsim": "0.1.0", "device": "cpu", "classes": ["healthy", "ill"]}')
    for number in (1, 3):
        rows = (ClassRow(round=number, label=k, support=9, recall=k / 4, precision=None)
                for k in (0, 1))  # fmt: skip
        store.append("classes", rows)
    text = call("show", run)
    assert text.startswith(f"{run}: interrupted\nfedld on digits, ")
    assert "seed 0; 3 of 100 rounds\nfedsim 0.1.0 on cpu\n" in text
    assert "all settings have their defaults" in text
    assert "best (round 3)" in text
    lines = text.splitlines()
    (row,) = [line.split() for line in lines if "0.2500" in line]
    assert row[:4] == ["ill", "9", "0.2500", "-"]
    assert "test accuracy  0.0000 ▁▅█ 1.0000  rounds 1 to 3" in text
    with files.lock(run):
        assert call("show", run).startswith(f"{run}: running (pid ")


def test_settings_in_which_runs_differ(tmp_path):
    a = write_run(tmp_path / "a", end=True, algorithm="fedprox", seed=1)
    b = write_run(tmp_path / "b", (0.125,), algorithm="fedavg", data={"name": "synthetic"})
    found = shown(a, b)
    settings = found["settings"]
    assert settings["synthetic.beta"] == [None, 0.0]
    assert {key: value for key, value in settings.items() if "synthetic." not in key} == {
        "algorithm": ["fedprox", "fedavg"], "seed": [1, 0], "data.name": ["digits", "synthetic"],
        "fedprox.mu": [0.1, None], "fedprox.prox_form": ["squared", None],
        "fedavg.weights": [None, "samples"],
    }  # fmt: skip
    assert [r["test_accuracy"]["final"] for r in found["results"]] == [0.5, 0.125]
    text = call("show", a, b)
    assert text.splitlines()[0].split() == ["setting", "a", "b"]
    rows = {line[:30].split("  ")[0]: line.split()[-2:] for line in text.splitlines() if line}
    assert rows["algorithm"] == ["fedprox", "fedavg"]
    assert rows["fedprox.mu"] == ["0.1", "-"]
    assert rows["final test accuracy"] == ["0.5000", "0.1250"]
    assert "train.lr" not in rows


def test_what_holds_no_run_is_refused(tmp_path):
    (tmp_path / "sweep" / "empty").mkdir(parents=True)
    write_run(tmp_path / "sweep" / "seed=0")
    absent, sweep, empty = tmp_path / "x", tmp_path / "sweep", tmp_path / "sweep" / "empty"
    assert call("show", absent, status=2) == (f"error: RUN {absent}: there is no such folder\n")
    wanted = f"error: RUN {sweep}: holds no run; 'fedsim runs {sweep}' lists those below it\n"
    assert call("show", sweep, status=2) == wanted
    assert call("show", empty, status=2) == f"error: RUN {empty}: holds no run\n"


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [("config.yaml", "a: [", 2), ("rounds.csv", "a\n1,2\n", 1), ("classes.csv", "a,b\n1,2\n", 1)],
)
def test_a_damaged_run_is_refused_with_the_file(name, text, code, tmp_path):
    run = write_run(tmp_path / "a")
    (run / name).write_text(text)
    said = call("show", run, status=code)
    assert said.startswith("error: ")
    assert str(run / name) in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_torch_and_pandas_are_not_imported(tmp_path):
    run = write_run(tmp_path / "a", end=True)
    for args in (["show", str(run)], ["show", str(run), str(run)], ["runs", str(tmp_path)]):
        code = (
            f"import sys; from fedsim.cli import main; main({args!r}, standalone_mode=False); "
            "sys.exit(any(m in sys.modules for m in ('pandas', 'torch')))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, env=clean_environment()
        )
        assert done.returncode == 0, done.stderr


def round_row(number, **more):
    return RoundRow(
        round=number, lr=0.1, cohort_size=1, dropped=0, train_loss=1.0, test_accuracy=0.5,
        val_accuracy=None, **more,
    )  # fmt: skip


def private_run(path, epsilons, train=MappingProxyType({}), **dp):
    """Rounds with these epsilons, at delta 1e-5."""
    settings = {"dp": {"level": "user", "clip": 1.0} | dp, "train": train}
    run = write_run(path, (), **settings)
    for number, epsilon in enumerate(epsilons, 1):
        RunWriter(run).append("rounds", [round_row(number, epsilon=epsilon)])
    return run


@pytest.mark.parametrize(
    ("train", "neighbours"),
    [
        ({"cohort": "poisson"}, "add or remove one"),
        ({}, "replace one"),
        ({"selection": "round_robin"}, "add or remove one"),
    ],
)
def test_the_epsilon_of_clients(tmp_path, train, neighbours):
    run = private_run(tmp_path / "a", (1.25, 2.5), train)
    said = f"epsilon 2.5 after 2 rounds, delta 1e-05; neighbours {neighbours} client"
    assert f"\ndifferential privacy of clients: {said}\n" in call("show", run)
    expected = {"level": "user", "delta": 1e-5, "neighbours": neighbours, "epsilon": 2.5}
    assert shown(run)["privacy"] == expected


def test_an_infinite_epsilon(tmp_path):
    run = private_run(tmp_path / "a", (None,), noise_multiplier=0.0)
    assert shown(run)["privacy"]["epsilon"] is None
    assert "epsilon infinity after 1 round, delta" in call("show", run)
    assert shown(write_run(tmp_path / "b"))["privacy"] is None
    assert shown(private_run(tmp_path / "c", ()))["privacy"] is None


def test_the_epsilon_of_samples_is_the_largest_of_the_clients(tmp_path):
    run = private_run(tmp_path / "a", (None, None), level="example")
    for number, own in ((1, (9.0, 1.0)), (2, (None, 2.0))):  # the first is dropped in round 2
        rows = [
            ClientRow(round=number, client_id=c, num_samples=9, epsilon=epsilon,
                      status="dropped" if epsilon is None else "ok")
            for c, epsilon in enumerate(own)
        ]  # fmt: skip
        RunWriter(run).append("clients", rows)
    assert shown(run)["privacy"]["epsilon"] == 9.0
    assert (
        "differential privacy of samples: epsilon at most 9 after 2 rounds, delta 1e-05; "
        "neighbours add or remove one sample of a client"
    ) in call("show", run)


# ---- completion in shells


def completed(*args):
    """What a shell offers for the last argument."""
    found = ShellComplete(main, {}, "fedsim", "_FEDSIM_COMPLETE")
    return [item.value for item in found.get_completions(list(args[:-1]), args[-1])]


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (("run", "-a"), algorithms.names()),
        (("run", "--dataset"), [info.name for info in data.catalogue()]),
        (("run", "--model"), NAMES),
        (("run", "--partition"), [*partitions.NAMES, partitions.LEAVE_ONE_OUT]),
        (("run", "--preset"), presets.names()),
        (("sweep",), presets.names()),
    ],
)
def test_every_name_is_offered(args, wanted) -> None:
    assert sorted(completed(*args, "")) == sorted(wanted)
    assert not completed(*args, "no_such_") or args[-1] == "sweep"


def test_what_is_typed_limits_what_is_offered() -> None:
    assert completed("run", "-a", "fedp") == ["fedpac", "fedper", "fedprox"]
    assert completed("run", "--server", "fedgh,fedad") == ["fedgh,fedadagrad", "fedgh,fedadam"]
    assert completed("sweep", "my_gr") == ["my_gr"], "a file"
    assert {"run", "runs", "resume", "show"} <= set(completed(""))
    assert completed("run", "--alg") == ["--algorithm"]
    assert {f"{key}=" for key in fields()} == {*completed("run", "--set", "")}
    shell = ShellComplete(main, {}, "fedsim", "_FEDSIM_COMPLETE")
    for args in (["show"], ["runs"], ["predict", "a", "--data-dir"]):
        assert [item.type for item in shell.get_completions(args, "ru")] == ["dir"]
