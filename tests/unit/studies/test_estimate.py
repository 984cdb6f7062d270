"""What runs will take: shapes, measured rounds and their extrapolation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedsim.cli import main
from fedsim.config.resolve import from_flags, resolve
from fedsim.config.run import RunConfig
from fedsim.core.errors import DivergedError
from fedsim.studies import estimate as estimates
from fedsim.studies.estimate import CONTENTION, Measured, Shape, estimate
from fedsim.training import driver

TINY = ("engine.kind=serial", "data.num_clients=4", "train.sample_rate=0.5", "train.rounds=40")

NOTHING = Measured(
    num_clients=0,
    first=0.0,
    train=0.0,
    evaluate=0.0,
    decompose=0.0,
    other=0.0,
    fixed=0.0,
    per_round=0.0,
)


def config(*sets: str) -> RunConfig:
    return resolve(from_flags({}, TINY), from_flags({}, sets))


def test_a_run_is_its_first_round_the_later_ones_and_its_evaluations() -> None:
    took = {"first": 5.0, "train": 2.0, "evaluate": 1.0, "decompose": 3.0, "other": 0.5}
    measured = replace(NOTHING, **took, fixed=100.0, per_round=7.0)
    run = config("train.rounds=21", "evaluation.every=4", "evaluation.decompose_every=10")
    assert measured.seconds(run) == 5 + 20 * (2 + 0.5) + 20 / 4 * 1 + 20 / 10 * 3
    assert measured.seconds(config("train.rounds=1")) == 5
    assert measured.disk(run) == 100 + 21 * 7


@pytest.mark.parametrize(
    ("slots", "wanted"), [(1, 9.0), (2, 5 * CONTENTION), (3, 4 * CONTENTION), (9, 4 * CONTENTION)]
)
def test_the_longest_runs_start_first(slots: int, wanted: float) -> None:
    assert estimates._makespan([1.0, 4.0, 2.0, 2.0], slots) == wanted


def test_seeds_and_learning_rates_have_one_shape_and_methods_another() -> None:
    runs = [config(), config("seed=1"), config("train.lr=1"), config("data.seed=3")]
    runs += [config("algorithm=fedavg"), config("train.batch_size=5"), config("model.name=mlp")]
    found = estimate(runs, 1, measure=False)
    assert [len(shape.rounds) for shape in found.shapes] == [4, 1, 1, 1]
    assert found.seconds is found.gpu_hours is None
    assert found.disk > 0


def test_a_number_of_clients_that_the_data_decide_is_measured_or_not_told() -> None:
    by_site = RunConfig(data={"partition": "by_site"}, train={"sample_rate": 0.7})
    for measured, told in ((None, ""), (replace(NOTHING, num_clients=3), ", 2 of 3 clients")):
        shape = Shape(config=by_site, rounds=(1,), measured=measured)
        assert str(shape) == f"fedld, digits, cnn{told}, batch 50"


@pytest.mark.integration
def test_rounds_are_measured_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(estimates, "SECONDS", 0.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trained = []
    run = driver.run
    monkeypatch.setattr(driver, "run", lambda c, *args: trained.append(c.seed) or run(c, *args))
    found = estimate([config(), config("seed=1"), config("train.rounds=80", "seed=2")], 1)
    assert trained == [0]
    (shape,) = found.shapes
    measured = shape.measured
    assert measured is not None
    assert measured.num_clients == 4
    assert min(measured.train, measured.evaluate, measured.other, measured.per_round) > 0
    took = [measured.seconds(config(f"train.rounds={n}")) for n in (40, 40, 80)]
    assert found.seconds is not None
    assert found.seconds > sum(took)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sets", "most"),
    [
        (("train.local_epochs=1000000000",), 10),
        (("train.local_steps=1000000000", "algorithm=fedavg"), 200),
        (("evaluation.finetune_epochs=1000000000",), 10),
        (("algorithm=fedpac", "fedpac.head_epochs=1000000000"), 10),
        (("algorithm=centered_clipping", "centered_clipping.iterations=1000000000"), 1000),
        (("train.local_epochs=10", "train.batch_size=1000000000"), 0),
    ],
)
def test_a_measured_round_has_an_end(sets: tuple[str, ...], most: int) -> None:
    wanted = config(*sets)
    short, fewer = estimates._shortened(wanted)
    assert list(fewer.values()) == ([(most, 10**9)] if most else [])
    assert str(10**9) not in str(short.model_dump(exclude={"train": {"batch_size"}}))
    back = short.model_copy(
        update={k: getattr(wanted, k) for k in ("train", "evaluation", "hyperparameters")}
    )
    assert back == wanted


@pytest.mark.integration
def test_the_dry_run_of_a_round_without_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(estimates, "SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    sets = [f"--set={each}" for each in (*TINY, "train.local_epochs=1000000000", "model.name=mlp")]
    done = CliRunner().invoke(main, ["run", "-a", "fedavg", "--dry-run", *sets])
    assert done.exit_code == 0, done.output
    assert (
        "measured with train.local_epochs=10 in place of 1,000,000,000, its time is" in done.output
    )
    assert int(done.output.split("time ")[-1].split(" h ")[0].split()[-1]) > 1000


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
    measured = replace(NOTHING, num_clients=50, first=36.0, train=36.0, fixed=2e6)
    monkeypatch.setattr(estimates, "_measured", lambda *_: measured)
    monkeypatch.setattr(estimates, "num_gpus", lambda: 2)
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    done = CliRunner().invoke(
        main, ["run", "--dry-run", "--engine", "serial", "--gpu-price", "3", "--out", "r"]
    )
    assert done.exit_code == 0, done.output
    assert "5 of 50 clients, batch 50" in done.stdout
    assert "2.00 (2 GPUs), 6.00 in all" in done.stdout, "100 rounds of 36 s on two GPUs"
    assert "disk" in done.stdout
    (tmp_path / "g.yaml").write_text("engine: {kind: serial}\ngrid: {seed: [0, 1]}\n")
    listed = CliRunner().invoke(main, ["sweep", "g.yaml", "--dry-run", "--parallel", "1"])
    assert listed.stdout.splitlines()[:3] == ["seed=0", "seed=1", ""]
    assert "2 runs" in listed.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["g.yaml"]
