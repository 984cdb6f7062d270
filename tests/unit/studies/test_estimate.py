"""What runs will take: kinds, measured rounds and their extrapolation."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fedsim.cli import main
from fedsim.config.resolve import from_flags, resolve
from fedsim.config.run import RunConfig
from fedsim.core.errors import DivergedError
from fedsim.studies import estimate
from fedsim.studies.estimate import CONTENTION, Measured
from fedsim.training import driver

TINY = ("engine.kind=serial", "data.num_clients=4", "train.sample_rate=0.5", "train.rounds=40")


def config(*sets: str) -> RunConfig:
    return resolve(from_flags({}, TINY), from_flags({}, sets))


def test_a_run_is_its_first_round_the_later_ones_and_its_evaluations() -> None:
    measured = Measured(first=5.0, round=2.5, evaluation=1.0, fixed=100.0, per_round=7.0)
    run = config("train.rounds=21", "evaluation.every=4")
    assert measured.seconds(run) == 5 + 20 * 2.5 + 20 / 4 * 1
    assert measured.seconds(config("train.rounds=1")) == 5
    assert measured.disk(run) == 100 + 21 * 7


@pytest.mark.parametrize(
    ("slots", "wanted"), [(1, 9.0), (2, 5 * CONTENTION), (3, 4 * CONTENTION), (9, 4 * CONTENTION)]
)
def test_the_longest_runs_start_first(slots: int, wanted: float) -> None:
    assert estimate.makespan([1.0, 4.0, 2.0, 2.0], slots) == wanted


def test_seeds_and_learning_rates_are_of_one_kind_and_methods_of_another() -> None:
    runs = [config(), config("seed=1"), config("train.lr=1"), config("data.seed=3")]
    runs += [config("algorithm=fedavg"), config("train.batch_size=5"), config("model.name=mlp")]
    assert [len(kind) for kind in estimate.by_kind(runs)] == [4, 1, 1, 1]


@pytest.mark.integration
def test_rounds_are_measured_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(estimate, "SECONDS", 0.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    measured = estimate.measure(config())
    assert min(measured.first, measured.round, measured.evaluation, measured.per_round) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_says_how_to_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise DivergedError("round 1")

    monkeypatch.setattr(driver, "run", fail)
    done = CliRunner().invoke(main, ["run", "--dry-run", "--engine", "serial"])
    assert done.exit_code == 1
    assert done.stderr == "error: round 1\nnote: --no-measure lists the runs without training any\n"


def test_the_dry_run_of_a_run_and_of_a_sweep(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    measured = Measured(first=36.0, round=36.0, evaluation=0.0, fixed=2e6, per_round=0.0)
    trained = []
    monkeypatch.setattr(estimate, "measure", lambda c: trained.append(c.seed) or measured)
    monkeypatch.setattr("fedsim.cli.dry_run.num_gpus", lambda: 2)
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    done = CliRunner().invoke(
        main, ["run", "--dry-run", "--engine", "serial", "--gpu-price", "3", "--out", "r"]
    )
    assert done.exit_code == 0, done.output
    assert "2.00 (2 GPUs), 6.00 in all" in done.stdout, "100 rounds of 36 s on two GPUs"
    assert "disk" in done.stdout
    (tmp_path / "g.yaml").write_text("engine: {kind: serial}\ngrid: {seed: [4, 5]}\n")
    listed = CliRunner().invoke(main, ["sweep", "g.yaml", "--dry-run", "--parallel", "1"])
    assert listed.stdout.splitlines()[:3] == ["seed=4", "seed=5", ""]
    assert "2 runs" in listed.stdout
    assert trained == [0, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["g.yaml"]
