"""``fedsim tune`` with real runs: the command, its files, and that it never sees test labels."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from fedsim.cli import main
from fedsim.config import experiments
from fedsim.core.errors import FedsimError
from fedsim.core.rows import RoundRow
from fedsim.core.searches import METRICS
from fedsim.storage import trials
from fedsim.studies import capacity

SMALL = """
algorithm: fedavg
data: {num_clients: 4, val_fraction: 0.2}
model: {name: mlp}
train: {rounds: 2, sample_rate: 0.5, batch_size: 100}
"""
SEARCH = SMALL + "search:\n  train.lr: choice(0.01, 0.3, 1.0e+30)\n  train.momentum: choice(0.5)\n"


def fedsim(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A finished search in which a learning rate diverges."""
    root = tmp_path_factory.mktemp("tune")
    (root / "search.yaml").write_text(SEARCH + "grid: {seed: [3, 4]}\n")
    done = fedsim(
        *("tune", root / "search.yaml", "--sampler", "grid", "--parallel", 1, "--engine", "serial"),
        *("--confirm", 1, "--out", root / "out"),
    )
    return root / "out", done


pytestmark = pytest.mark.integration


def test_a_search_from_the_command_line(searched: tuple[Path, Result]) -> None:
    out, done = searched
    assert done.exit_code == 0, done.output
    read = pd.read_csv(out / "trials.csv")
    assert list(read) == ["trial", "state", "value", "train.lr", "train.momentum", "run"]
    assert list(read["state"]) == ["complete", "complete", "failed"]
    for trial, value in zip(read["run"][:2], read["value"], strict=False):
        runs = [pd.read_csv(out / trial / f"seed={seed}/rounds.csv") for seed in (3, 4)]
        assert value == pytest.approx(sum(r["val_accuracy"].iloc[-1] for r in runs) / 2, rel=1e-15)
    assert "3 trials: 2 complete, 1 failed" in done.output
    assert "best trial 1: val_accuracy" in done.output
    assert "test acc" not in done.output.partition("on fresh training seeds")[0]
    assert "NaN" in done.output or "inf" in done.output or "not finite" in done.output


def test_confirmed_on_seeds_that_the_search_has_not_seen(searched: tuple[Path, Result]) -> None:
    out, done = searched
    (row,) = pd.read_csv(out / "confirm.csv").to_dict("records")
    assert (row["trial"], row["n"]) == (1, 3)
    seeds = (5, 6, 7)
    last = [pd.read_csv(out / f"confirm/trial=1,seed={seed}/rounds.csv").iloc[-1] for seed in seeds]
    values = pd.Series([r["val_accuracy"] for r in last])
    assert row["val_accuracy_mean"] == pytest.approx(values.mean(), rel=1e-12)
    half = 4.302652729911275 * values.std() / 3**0.5  # t quantile of two degrees of freedom
    assert row["val_accuracy_ci95"] == pytest.approx(half, rel=1e-9)
    tested = pd.Series([r["test_accuracy"] for r in last])
    assert row["final_test_accuracy_mean"] == pytest.approx(tested.mean(), rel=1e-12)
    assert "best.yaml has trial 1" in done.output
    first = (out / "best.yaml").read_text().splitlines()[0]
    assert (
        first == f"# trial 1: val_accuracy {row['val_accuracy_mean']!r}, mean over 3 fresh "
        "training seeds"
    )


def test_the_best_configuration_runs(searched: tuple[Path, Result], tmp_path: Path) -> None:
    out, _ = searched
    done = fedsim("run", "-c", out / "best.yaml", "--engine", "serial", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    for name in ("rounds.csv", "clients.csv"):
        again = (tmp_path / "run" / name).read_bytes()
        assert again == (out / "trial-0001/seed=3" / name).read_bytes()
    done = fedsim("sweep", out / "best.yaml", "--dry-run", "--no-measure")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("run\n")


def test_the_same_command_does_nothing_more(searched: tuple[Path, Result]) -> None:
    out, _ = searched
    before = {path: path.stat().st_mtime_ns for path in out.rglob("rounds.csv")}
    read = (out / "trials.csv").read_bytes()
    with mock.patch.object(capacity, "make_drivers", wraps=capacity.make_drivers) as make_drivers:
        done = fedsim(
            *("tune", out.parent / "search.yaml", "--sampler", "grid", "--parallel", 1),
            *("--engine", "serial", "--out", out, "--confirm", 1),
        )
    assert done.exit_code == 0, done.output
    assert {path: path.stat().st_mtime_ns for path in out.rglob("rounds.csv")} == before
    assert (out / "trials.csv").read_bytes() == read
    assert make_drivers.call_args.args[0] == []


CANARY = """
from dataclasses import replace

import numpy as np

from fedsim import data


def plain(folder, *, val_fraction=0.2):
    return data.load("digits", val_fraction=val_fraction)


def other(folder, *, val_fraction=0.2):
    found = plain(folder, val_fraction=val_fraction)
    y = found.y.copy()
    y[found.test] = (y[found.test] + 1) % 10
    assert not np.array_equal(y, found.y)
    return replace(found, y=y)
"""


@pytest.mark.slow
def test_other_test_labels_change_no_byte_of_the_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "canary_labels.py").write_text(CANARY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("search.yaml").write_text(SMALL + "search:\n  train.lr: loguniform(0.01, 1)\n")
    for name in ("plain", "other"):
        done = fedsim(
            *("tune", "search.yaml", "-d", f"canary_labels:{name}", "--trials", 3),
            *("--parallel", 1, "--engine", "serial", "--pruner", "asha", "--out", name),
        )
        assert done.exit_code == 0, done.output
    for file in ("trials.csv", "trials.jsonl"):
        assert Path("plain", file).read_bytes() == Path("other", file).read_bytes()
    runs = [pd.read_csv(f"{name}/trial-0000/seed=0/rounds.csv") for name in ("plain", "other")]
    assert not runs[0]["test_accuracy"].equals(runs[1]["test_accuracy"])


def test_without_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "search.yaml").write_text(SEARCH)
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = fedsim("tune", tmp_path / "search.yaml", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert done.output.endswith("pip install 'fedsim-ray[tune]'\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "arguments", "wanted"),
    [
        (SMALL, (), "there is nothing to search: give a section 'search:'"),
        (SEARCH, ("--set", "data.val_fraction=0"), "set data.val_fraction, such as 0.1"),
        (SEARCH, ("--search", "train.lr"), "--search train.lr: must be key=value"),
        (SEARCH, ("--by", "test_accuracy"), "'test_accuracy' is not one of 'val_accuracy'"),
        (SEARCH, ("--search", "train.lr=uniform(2, 1)"), "--search train.lr: 'uniform(2, 1)'"),
        (SEARCH, ("--sampler", "grid", "--search", "train.lr=uniform(1, 2)"), "--sampler grid"),
        (SEARCH, ("--trials", 0), "0 is not in the range 1<=x<=10000"),
        (
            SMALL + "search:\n  train.rounds: int(1, 1000000000)\n",
            ("--sampler", "grid", "--pruner", "none", "--set", "data.val_fraction=0.2"),
            "trials: 1,000,000,000 trials of 1 run; a search has at most 10,000 runs",
        ),
    ],
)
def test_what_cannot_be_searched(
    tmp_path: Path, text: str, arguments: tuple[object, ...], wanted: str
) -> None:
    (tmp_path / "search.yaml").write_text(text)
    done = fedsim("tune", tmp_path / "search.yaml", "--out", tmp_path / "out", *arguments)
    assert done.exit_code == 2, done.output
    assert wanted in done.output
    assert done.output.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_no_trial_is_complete(tmp_path: Path) -> None:
    (tmp_path / "search.yaml").write_text(SMALL + "search:\n  train.lr: choice(1.0e+30, 1.0e+31)\n")
    done = fedsim(
        *("tune", tmp_path / "search.yaml", "--trials", 2, "--out", tmp_path / "out"),
        *("--parallel", 1, "--engine", "serial"),
    )
    assert done.exit_code == 1
    assert "no trial is complete (2 failed): " in done.output


def test_trials_are_judged_by_columns_of_rounds_csv() -> None:
    assert set(METRICS) < set(RoundRow.columns())
    assert importlib.import_module("fedsim.cli.sweep").MOST_RUNS == experiments.MOST_RUNS


@pytest.mark.parametrize("failed", [None, 2])
def test_where_no_trial_is_confirmed_the_command_fails(
    failed: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No run on the fresh seeds finished, or a trial's did on one of three only."""
    show = importlib.import_module("fedsim.cli.sweep")._show_search
    trial = trials.Trial(number=4, params={"train.lr": 0.5}, state="complete", value=0.9)
    plan = SimpleNamespace(seeds=(0,), proposer=SimpleNamespace(by="val_accuracy"))
    row = {"trial": 4, "n": 1, "value": 0.9, "failed": failed}
    row |= dict.fromkeys(
        f"{name}_{end}"
        for name in ("val_accuracy", "final_test_accuracy")
        for end in ("mean", "ci95")
    )
    numbers = {column: float for column in row if "_" in column}
    table = None if failed is None else pd.DataFrame([row]).astype(numbers)
    tuning = SimpleNamespace(ended=[trial], leaders=[trial], plan=plan)
    ended = SimpleNamespace(tunings=[tuning], failed=[], confirmed=table)
    with pytest.raises(FedsimError, match="none of the best trials finished on all fresh seeds"):
        show(ended, tmp_path, confirm=True)
    said = capsys.readouterr().out
    assert ("best.yaml has trial 4" in said) == (failed is not None)
    assert ("1 of 3" in said) == (failed is not None)
