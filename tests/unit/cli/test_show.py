"""``fedsim show``, on runs of several methods, data sets and versions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import pytest
from click.testing import CliRunner

from fedsim.cli import details, main
from fedsim.core.files import lock
from fedsim.core.rows import ClassRow, ClientRow, RoundRow
from fedsim.storage.run_dir import RunWriter
from tests.commands import clean_environment
from tests.unit.cli.test_runs import write_run

ROOT = Path(__file__).resolve().parents[3]


def call(*args, status=0):
    done = CliRunner().invoke(main, [*map(str, args)])
    assert done.exit_code == status, done.output
    return done.stdout if status == 0 else done.stderr


def shown(run):
    return json.loads(call("show", run, "--format", "json"))


def compared(*runs):
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
    with lock(run):
        assert call("show", run).startswith(f"{run}: running (pid ")


def test_settings_in_which_runs_differ(tmp_path):
    a = write_run(tmp_path / "a", end=True, algorithm="fedprox", seed=1)
    b = write_run(tmp_path / "b", (0.125,), algorithm="fedavg", data={"name": "synthetic"})
    found = compared(a, b)
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


def test_runs_are_told_apart_by_the_ends_of_their_paths(tmp_path):
    runs = [write_run(tmp_path / name / "run") for name in ("a", "b")]
    lines = call("show", *runs).splitlines()
    assert ["result", "a/run", "b/run"] in [line.split() for line in lines]
    text = call("show", runs[0], runs[0])
    assert "all are equal" in text
    assert "run (1)" in text


@pytest.mark.parametrize("others", [0, 1])
def test_what_holds_no_run_is_refused(others, tmp_path):
    (tmp_path / "sweep" / "empty").mkdir(parents=True)
    other = [write_run(tmp_path / "sweep" / "seed=0")] * others
    absent, sweep, empty = tmp_path / "x", tmp_path / "sweep", tmp_path / "sweep" / "empty"
    assert call("show", absent, *other, status=2) == (
        f"error: RUN {absent}: there is no such folder\n"
    )
    wanted = f"error: RUN {sweep}: holds no run; 'fedsim runs {sweep}' lists those below it\n"
    assert call("show", sweep, *other, status=2) == wanted
    assert call("show", empty, *other, status=2) == f"error: RUN {empty}: holds no run\n"


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("config.yaml", "a: [", 2),
        ("rounds.csv", "round,x\n1,abc\n", 1),
        ("rounds.csv", "a\n1,2\n", 1),
        ("classes.csv", "a,b\n1,2\n", 1),
    ],
)
def test_a_damaged_run_is_refused_with_the_file(name, text, code, tmp_path):
    run = write_run(tmp_path / "a")
    (run / name).write_text(text)
    said = call("show", run, status=code)
    assert said.startswith("error: ")
    assert str(run / name) in said
    assert said.count("\n") == 1


def test_curves_are_thinned_out_and_flat_ones_drawn():
    assert details.sparkline([0.5, 0.5]) == "▁▁"
    line = details.sparkline([n / 999 for n in range(1000)])
    assert len(line) == details.WIDTH
    assert (line[0], line[-1]) == ("▁", "█")


@pytest.mark.slow
def test_torch_and_pandas_are_not_imported(tmp_path):
    run = write_run(tmp_path / "a", end=True)
    for args in (["show", str(run)], ["show", str(run), str(run)]):
        code = (
            f"import sys; from fedsim.cli import main; main({args!r}, standalone_mode=False); "
            "sys.exit(any(m in sys.modules for m in ('pandas', 'torch')))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, env=clean_environment()
        )
        assert done.returncode == 0, done.stderr


def test_a_collapse_is_said(tmp_path):
    a, b, c = (write_run(tmp_path / name, end=True) for name in "abc")
    for run, said in ((a, "True"), (b, "False"), (c, "")):
        (run / "summary.csv").write_text(f"rounds,collapsed\n3,{said}\n")
    assert "the final model collapsed" in call("show", a)
    assert "the final model collapsed" not in call("show", b)
    lines = [line.split() for line in call("show", a, b, c).splitlines()]
    assert ["collapsed", "yes", "no", "-"] in lines
    assert compared(a, b, c)["collapsed"] == [True, False, None]
    assert [shown(run)["collapsed"] for run in (a, b, c)] == [True, False, None]


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
        ({"sample_rate": 1.0}, "add or remove one"),
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
