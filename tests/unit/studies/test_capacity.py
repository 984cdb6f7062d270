"""How many runs go side by side, with which engine, and what people see of them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedsim.cli import main
from fedsim.config import experiments
from fedsim.config.resolve import from_flags, resolve
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.machine import PROCESS
from fedsim.core.types import GIB
from fedsim.display import board
from fedsim.studies import capacity, sweep
from fedsim.training.events import (
    Begun,
    Done,
    Event,
    Failed,
    Job,
    Logged,
    Lost,
    RoundEnded,
    Started,
)

GRID = "grid: {seed: [0, 1, 2, 3, 4, 5]}\n"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of four cores and 16 GiB, without a GPU."""
    monkeypatch.setattr(capacity, "cores", lambda: 4)
    monkeypatch.setattr(capacity, "available_memory", lambda: 16.0 * GIB)
    monkeypatch.setattr(capacity, "num_gpus", lambda: 0)


def configs(count: int = 6, *sets: str) -> list[RunConfig]:
    kind = () if any("kind" in given for given in sets) else ("engine.kind=serial",)
    return [resolve(from_flags({}, (*kind, *sets)))] * count


def kinds(text: str, parallel: capacity.Parallel = "auto", *sets: str) -> set[str]:
    runs = sweep.expand(experiments.parse(text, "g.yaml"), from_flags({}, sets), parallel)
    return {run.config.engine.kind for run in runs}


@pytest.mark.parametrize(
    ("sets", "kind"),
    [
        ((), "serial"),
        (("engine.gpus_per_client=0",), "serial"),
        (("engine.kind=ray",), "ray"),
        (("engine.kind=serial",), "serial"),
        (("engine.actors=2",), "ray"),
        (("engine.gpus_per_client=0.5",), "ray"),
        (("engine.cpus_per_client=2",), "ray"),
    ],
)
def test_the_engine_of_a_sweep(sets: tuple[str, ...], kind: str) -> None:
    assert kinds(GRID, "auto", *sets) == {kind}


def test_few_runs_one_at_a_time_and_gpus_are_left_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds("grid: {seed: [0, 1, 2]}\n") == {"ray"}, "four actors do more than three processes"
    assert kinds("grid: {seed: [0, 1, 2]}\n", "auto", "train.sample_rate=0.04") == {"serial"}
    assert kinds(GRID, 1) == {"serial"}, "on a laptop"
    monkeypatch.setattr(capacity, "cores", lambda: 16)
    assert kinds(GRID, 1) == {"ray"}
    monkeypatch.setattr(capacity, "cores", lambda: 4)
    monkeypatch.setattr(capacity, "num_gpus", lambda: 1)
    assert kinds(GRID) == kinds(GRID, 1) == {"ray"}
    assert kinds(GRID, "auto", "engine.gpus_per_client=0") == {"serial"}


@pytest.mark.parametrize(
    ("runs", "sets", "parallel", "count"),
    [
        (6, (), "auto", 4),
        (6, (), 3, 3),
        (6, (), 1, 1),
        (3, (), "auto", 3),
        (3, (), 9, 3),
        (1, (), "auto", 1),
        (6, ("train.threads=2",), "auto", 2),
        (6, ("engine.memory_per_client=6",), "auto", 2),
        (6, ("engine.memory_per_client=60",), "auto", 1),
        (6, ("engine.kind=mine:make",), "auto", 1),
        (6, ("engine.kind=mine:make",), 2, 2),
    ],
)
def test_the_number_of_runs_at_once(
    runs: int, sets: tuple[str, ...], parallel: capacity.Parallel, count: int
) -> None:
    assert capacity.local_runs(configs(runs, *sets), parallel) == count


@pytest.mark.parametrize(
    ("sets", "parallel", "message"),
    [
        (
            (),
            5,
            "--parallel 5: so many runs do not fit on this machine, 4 do (4 cores, a run takes",
        ),
        (("train.threads=4",), 2, "1 does (4 cores, a run takes 4 threads"),
        (("engine.memory_per_client=6",), 3, "2 do (4 cores, a run takes 1 thread and about 6.00"),
    ],
)
def test_too_many_runs_are_refused_with_the_number_that_fits(
    sets: tuple[str, ...], parallel: int, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        capacity.local_runs(configs(6, *sets), parallel)
    assert message in str(error.value)


def test_the_memory_of_a_run_grows_with_its_model_and_its_cohort() -> None:
    (small,) = configs(1)
    (large,) = configs(1, "data.name=cifar10", "model.name=resnet18", "data.dir=.")
    (many,) = configs(1, "data.name=cifar10", "model.name=resnet18", "train.sample_rate=1")
    parameters = 11_173_962  # of ResNet-18 for ten classes at 32 x 32
    assert PROCESS < capacity.memory_of(small) < PROCESS + 2**25
    assert capacity.memory_of(large) == pytest.approx(PROCESS + 9 * 4 * parameters, rel=0.02)
    assert capacity.memory_of(many) - capacity.memory_of(large) == pytest.approx(
        45 * 4 * parameters, rel=0.02
    )
    (text,) = configs(1, "data.name=shakespeare")
    assert capacity.memory_of(text) == PROCESS


def test_the_clients_of_pooled_data_have_one_update_and_need_no_more_memory_than_one() -> None:
    (every,) = configs(1, "train.sample_rate=1")
    (pooled,) = configs(1, "train.sample_rate=1", "algorithm=centralized")
    vector, _ = capacity.model_bytes(every)
    assert capacity.memory_of(pooled) == PROCESS + 5 * vector
    assert capacity.memory_of(every) == PROCESS + 54 * vector
    kinds = capacity._different([every, pooled, every, pooled])
    assert kinds == [every, pooled]
    needs = [capacity._need(config) for config in kinds]
    assert [need.driver for need in needs] == [capacity.memory_of(config) for config in kinds]


@pytest.mark.parametrize(
    "name", ["mine:make", "timm:no_such_network", "torchvision:resnet18_of_tomorrow"]
)
def test_a_model_of_unknown_size_counts_nothing(name: str) -> None:
    (config,) = configs(1, "data.name=cifar10", f"model.name={name}")
    assert capacity.model_bytes(config) == (0, 0)


@pytest.mark.parametrize("value", ["0", "x", "1.5", ""])
def test_what_is_no_number_of_runs_is_refused(value: str) -> None:
    done = CliRunner().invoke(main, ["sweep", "table3_small", "--parallel", value])
    assert done.exit_code == 2
    assert "must be auto or a whole number from 1" in done.stderr


def job(name: str) -> Job:
    return Job(name, resolve(), Path(name))


def ended(number: int, seconds: float = 2.0) -> RoundEnded:
    return RoundEnded({"round": number, "test_accuracy": None}, seconds)


def board_of(*names: str) -> board.Board:
    return board.Board(total=len(names) + 1, ended=1)


def tell(shown: board.Board, slot: int, name: str, *events: Event) -> None:
    for event in events:
        shown.happened(slot, job(name), event)


def test_what_is_left_follows_from_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = board_of("a1", "a2", "b1")
    assert shown.left() is None
    tell(shown, 0, "a1", Begun(resumed=True), Started(5, 10), ended(6))
    # 20 seconds for a tenth of a run, 3 - 0.6 runs are left
    monkeypatch.setattr(board.time, "monotonic", lambda: shown.start + 20)
    assert shown.left() == pytest.approx(200 * 2.4)


def test_a_board_in_a_pipe_is_a_line_for_each_run_that_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "fedsim")
    shown = board_of("a1", "a2", "b1")
    tell(shown, 0, "a1", Begun(resumed=True), Started(3, 4), ended(4))
    tell(shown, 1, "a2", Begun(resumed=False), Logged(logging.WARNING, "a warning"), Lost("gone"))
    tell(shown, 1, "a2", Begun(resumed=False), Failed("round 1: NaN", "Traceback ...\n"))
    tell(shown, 0, "a1", Done({"final_test_accuracy": 0.5}))
    tell(shown, 0, "b1", Done({}, before=True))
    assert [record.getMessage() for record in caplog.records] == [
        "a1: resumed after an interruption",
        "a2: a warning",
        "a2: gone; resuming it",
        "[2/4] a2: failed: round 1: NaN",
        "[3/4] a1: 0 s, test accuracy 0.5000; about 0 s left",
        "[4/4] b1: finished before",
    ]
