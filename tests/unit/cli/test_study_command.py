"""``fedsim study`` with real runs, and its results in Python."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result

import fedsim
from fedsim.cli import main
from fedsim.core.errors import ConfigError, StoreError
from fedsim.studies import execute

pytestmark = pytest.mark.integration

SMALL = """
data: {num_clients: 4, val_fraction: 0.2}
model: {name: mlp}
train: {rounds: 2, sample_rate: 0.5, batch_size: 100}
engine: {kind: serial, checkpoint_every: 0}
"""
FILE = (
    SMALL
    + """
methods:
  Mean: {algorithm: fedavg}
  Local: {algorithm: local}
partitions:
  skewed: {data.alpha: 0.1}
  mixed: {data.alpha: 10}
search:
  Mean: {train.lr: 'choice(0.01, 0.3)'}
sampler: grid
trials: 2
seeds: [5, 6]
baseline: Mean
"""
)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def without_report(patch: pytest.MonkeyPatch) -> None:
    """Writes no report, whose figures take most of the time of a study this small."""
    patch.setattr(execute, "report", lambda plan, out: out / "no report")


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A finished study of a tuned and an untuned method on two partitions."""
    root = tmp_path_factory.mktemp("study")
    (root / "small.yaml").write_text(FILE)
    command = ("study", root / "small.yaml", "--out", root / "out", "--parallel", 1)
    with pytest.MonkeyPatch.context() as patch:
        without_report(patch)
        return root / "out", call(*command)


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    without_report(monkeypatch)


def test_a_study_from_the_command_line(studied: tuple[Path, Result]) -> None:
    out, done = studied
    assert done.exit_code == 0, done.output
    assert "not tuned, nothing to search: Local\n" in done.output
    assert "4 runs of trials, then 8 to compare, one at a time in this process" in done.output
    assert "Mean on skewed: [2/2] trial 1: train.lr=0.3: val_accuracy" in done.output
    assert "[12/12] method=Local+mixed,seed=6" in done.output
    assert f"wrote {out}/no report" in done.output
    head, *rows = done.output.partition("seeds on one partition)\n")[2].splitlines()[:5]
    assert re.split(" {2,}", head)[:3] == ["method", "partition", "n"]
    assert [re.split(" {2,}", row)[:3] for row in rows] == [
        [method, partition, "2"]
        for partition in ("skewed", "mixed")
        for method in ("Mean", "Local")
    ]
    assert {path.name for path in out.iterdir()} - {".lock", "report"} == {
        "chosen.csv", "comparison.yaml", "runs", "tuning",
    }  # fmt: skip
    summary = pd.read_csv(out / "runs/summary.csv")
    assert list(summary["label"]) == ["Mean"] * 2 + ["Local"] * 2 + ["Mean"] * 2 + ["Local"] * 2
    assert set(summary["seed"]) == {5, 6}


@pytest.mark.slow
def test_a_finished_study_has_a_report(studied: tuple[Path, Result]) -> None:
    out, _ = studied
    done = call("study", out.parent / "small.yaml", "--out", out, "--parallel", 1)
    assert f"wrote {out}/report/report.html" in done.output
    assert "Mean" in (out / "report/report.html").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_a_finished_study_does_nothing_again(studied: tuple[Path, Result]) -> None:
    out, _ = studied
    before = {path: path.stat().st_mtime_ns for path in out.rglob("rounds.csv")}
    done = call("study", out.parent / "small.yaml", "--out", out, "--parallel", 1)
    assert done.exit_code == 0, done.output
    assert {path: path.stat().st_mtime_ns for path in out.rglob("rounds.csv")} == before
    changed = call("study", out.parent / "small.yaml", "--out", out, "--rounds", 3)
    assert changed.exit_code == 2
    assert "was begun with train.rounds 2, not 3" in changed.stderr


@pytest.mark.slow
def test_the_comparison_is_run_by_sweep(studied: tuple[Path, Result]) -> None:
    out, _ = studied
    done = call("sweep", out / "comparison.yaml", "--out", out / "runs", "--parallel", 1)
    assert done.exit_code == 0, done.output
    assert done.output.count("finished before") == 8


def test_dry_run_counts_trials_and_runs(studied: tuple[Path, Result], tmp_path: Path) -> None:
    out, _ = studied
    done = call("study", out.parent / "small.yaml", "--out", tmp_path / "new", "--dry-run")
    counts, _, estimate = done.output.partition("\n\n")
    assert counts == (
        "not tuned, nothing to search: Local\n"
        "Mean on skewed: 2 trials over train.lr\n"
        "Mean on mixed: 2 trials over train.lr\n"
        "tuning: 4 trials, 4 runs\n"
        "comparison: 8 runs, 4 rows with training seeds 5, 6"
    )
    assert "12 runs" in estimate
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_results_of_a_study_in_python(studied: tuple[Path, Result]) -> None:
    out, _ = studied
    store = fedsim.StudyStore(out)
    assert repr(store) == f"StudyStore({str(out)!r}: 8 runs, 8 finished, Mean Local)"
    assert "<td style='text-align:left'>Mean Local</td>" in store._repr_html_()
    assert store.finished
    assert [run.summary["label"] for run in store.runs][:3] == ["Mean", "Mean", "Local"]
    assert list(store.chosen["method"]) == ["Mean", "Local", "Mean", "Local"]
    table = store.table(baseline="Mean")
    assert len(table) == 4
    one = store.summary.query("label == 'Mean' and alpha == 10")["final_test_accuracy"]
    assert np.isclose(table["mean"], one.mean(), rtol=1e-12).sum() == 1
    curves = store.curves()
    assert list(curves) == ["label", "round", "mean", "low", "high", "n"]
    last = curves[(curves["round"] == 2) & (curves["label"] == "Mean, alpha=10")]
    assert last["mean"].tolist() == pytest.approx([one.mean()])
    with pytest.raises(StoreError, match=r"summary\.csv: cannot be read"):
        _ = fedsim.SweepStore(out / "tuning").summary


@pytest.mark.slow
def test_a_sweep_of_a_dictionary(tmp_path: Path) -> None:
    content = yaml.safe_load(SMALL) | {"grid": {"algorithm": ["fedavg", "fedprox"]}}
    store = fedsim.sweep(content, tmp_path, overrides={"train.rounds": 1}, parallel=1)
    assert [run.summary["rounds"] for run in store.runs] == [1, 1]
    assert list(store.summary["algorithm"]) == ["fedavg", "fedprox"]
    assert len(store.table()) == 2
    again = fedsim.sweep(content, tmp_path, overrides={"train.rounds": 1}, parallel=1)
    assert repr(again) == f"SweepStore({str(tmp_path)!r}: 2 runs, 2 finished, fedavg fedprox)"
    with pytest.raises(ConfigError, match="out: a sweep that is no file needs a directory"):
        fedsim.sweep(content)
    with pytest.raises(ConfigError, match="values must be texts, numbers, lists or mappings"):
        fedsim.sweep({"seed": object()}, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_methods_tuned_for_each_seed_of_the_partition_are_compared_over_them(
    studied: tuple[Path, Result],
) -> None:
    out = studied[0].parent / "splits"
    text = FILE.replace("\n  skewed: {data.alpha: 0.1}\n  mixed: {data.alpha: 10}", " [0, 1]")
    (out.parent / "splits.yaml").write_text(text.replace("[5, 6]", "1"))
    done = call("study", out.parent / "splits.yaml", "--out", out, "--parallel", 1, "--rounds", 1)
    assert done.exit_code == 0, done.output
    table = fedsim.StudyStore(out).table(baseline="Mean")
    assert list(table["n"]) == [2, 2]
