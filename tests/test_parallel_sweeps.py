"""Sweeps and searches in processes: killed, told to end, resumed, to the same bytes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedsim.config import experiments
from fedsim.core.machine import cores
from fedsim.studies import sweep
from fedsim.studies.parallel import Here
from fedsim.studies.processes import Processes
from fedsim.training.events import Done, Event, Failed, Job, Logged, Lost, RoundEnded, Stopped
from tests.commands import (
    PATIENCE,
    Sandbox,
    count_rows,
    interrupt,
    temporary_sandbox,
    wait_for_exit,
    wait_for_rows,
)

pytestmark = pytest.mark.integration
ROUNDS = 8
GRID = (
    "engine: {kind: serial}\n"
    "data: {num_clients: 8}\n"
    f"train: {{sample_rate: 0.5, local_epochs: 2, rounds: {ROUNDS}}}\n"
    "grid:\n  algorithm: [fedpac, fedld]\n  seed: [0, 1]\n"
)
NAMES = [f"algorithm={method},seed={seed}" for method in ("fedpac", "fedld") for seed in (0, 1)]
TABLES = ("rounds.csv", "clients.csv", "partition.csv", "model.safetensors")
Follow = Callable[[int, Job, Event], object]


class Heard:
    """A follower that keeps how runs end, what is logged, and asks what the test wants."""

    def __init__(self, follow: Follow = lambda *_: None) -> None:
        self.follow = follow
        self.told: list[tuple[str, Event]] = []

    def happened(self, slot: int, job: Job, event: Event) -> None:
        if isinstance(event, Done | Failed | Lost | Logged | Stopped):
            self.told.append((job.name, event))
        self.follow(slot, job, event)

    def stopping(self) -> None:
        self.told.append(("", Stopped()))


def runs_of(text: str = GRID) -> list[sweep.SweepRun]:
    return sweep.expand(experiments.parse(text, "grid.yaml"), {})


def contents(out: Path) -> dict[str, bytes]:
    """The results of a sweep, of which two must not differ by a byte."""
    files = [out / name / table for name in NAMES for table in TABLES]
    return {
        str(file.relative_to(out)): file.read_bytes() for file in [*files, out / "aggregate.csv"]
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The same runs one after the other in this process."""
    out = tmp_path_factory.mktemp("alone")
    sweep.run_all(runs_of(), runs_of(), out, Here(), Heard())
    return contents(out)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    drivers = Processes(2)
    yield drivers
    drivers.close()


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with temporary_sandbox() as made:
        (made.work / "grid.yaml").write_text(GRID)
        (made.work / "search.yaml").write_text(SEARCH)
        yield made


@pytest.mark.slow
def test_runs_side_by_side_have_the_bytes_of_runs_alone(
    processes: Processes, alone: dict[str, bytes], tmp_path: Path
) -> None:
    pids = [processes.pid(slot) for slot in processes.slots]
    heard = Heard()
    sweep.run_all(runs_of(), list(reversed(runs_of())), tmp_path, processes, heard)
    assert contents(tmp_path) == alone
    assert sorted(name for name, event in heard.told if isinstance(event, Done)) == sorted(NAMES)
    assert [processes.pid(slot) for slot in processes.slots] == pids, "each did several runs"


@pytest.mark.slow
def test_a_run_may_be_ended_or_lost_while_others_go_on(
    processes: Processes, alone: dict[str, bytes], tmp_path: Path
) -> None:
    first, ended, lost, _ = NAMES
    killed: list[str] = []

    def ask(slot: int, job: Job, event: Event) -> None:
        if not isinstance(event, RoundEnded) or event.row["round"] != 2:
            return
        if job.name == ended:
            processes.end(slot)
        elif job.name == lost and not killed:
            killed.append(job.name)
            os.kill(processes.pid(slot), signal.SIGKILL)

    heard = Heard(ask)
    sweep.run_all(runs_of(), runs_of(), tmp_path, processes, heard)
    ends = dict(heard.told)
    assert isinstance(ends[ended], Done)
    assert ends[ended].summary["rounds"] < ROUNDS
    reason = "its process was ended by SIGKILL, perhaps for lack of memory"
    losses = [(name, event) for name, event in heard.told if isinstance(event, Lost)]
    assert losses == [(lost, Lost(reason))]
    for name in (first, *NAMES[2:]):  # the lost run was resumed
        for table in TABLES:
            assert (tmp_path / name / table).read_bytes() == alone[f"{name}/{table}"]
    assert not list(tmp_path.glob("*interrupted*"))


@pytest.mark.slow
def test_processes_find_the_users_code_and_pass_on_its_warnings(sandbox: Sandbox) -> None:
    (sandbox.work / "toy.py").write_text(
        "import warnings\nfrom fedsim.algorithms.base import Algorithm\n"
        "def build(strength: float = 1.0) -> Algorithm:\n"
        "    warnings.warn(f'strength {strength}')\n    return Algorithm()\n"
    )
    (sandbox.work / "toy.yaml").write_text(
        "algorithm: toy:build\ndata: {num_clients: 4}\ntrain: {rounds: 1, sample_rate: 1}\n"
        "engine: {kind: serial}\n"
        "grid: {seed: [1, 2]}\n"
    )
    out, err = wait_for_exit(sandbox.start("sweep", "toy.yaml", "--out", "s"))
    assert "[2/2] seed=" in out
    if cores() > 1:
        assert len(re.findall("^seed=[12]: .*UserWarning: strength 1.0", err, re.M)) == 1
    assert sandbox.left() == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
def test_a_sweep_that_is_told_to_end_goes_on(
    number: int, sandbox: Sandbox, alone: dict[str, bytes]
) -> None:
    command = ("sweep", "grid.yaml", "--out", "s")
    process = sandbox.start(*command)
    wait_for_rows(process, sandbox.work / "s" / NAMES[0] / "rounds.csv", 2)
    interrupt(process, number)
    _, err = wait_for_exit(process, 128 + number)
    assert err.endswith("interrupted; the runs are in s, the same command continues\n")
    assert sandbox.left() == {}
    begun = sandbox.work / "s" / NAMES[0]
    newest = max((begun / "checkpoints").glob("round-*.json"))
    rows = (begun / "rounds.csv").read_text().splitlines()[1:]
    assert newest.stem == f"round-{len(rows):06d}"
    out, err = wait_for_exit(sandbox.start(*command))
    assert err == ""
    assert f"{NAMES[0]}: resumed after an interruption" in out
    assert contents(sandbox.work / "s") == alone
    assert not list((sandbox.work / "s").glob("*interrupted*"))


@pytest.mark.slow
def test_a_sweep_that_is_killed_leaves_no_process_and_goes_on(
    sandbox: Sandbox, alone: dict[str, bytes]
) -> None:
    command = ("sweep", "grid.yaml", "--out", "s")
    process = sandbox.start(*command)
    wait_for_rows(process, sandbox.work / "s" / NAMES[0] / "rounds.csv", 2)
    process.kill()
    process.communicate()
    assert sandbox.left() == {}
    out, _ = wait_for_exit(sandbox.start(*command))
    assert f"{NAMES[0]}: resumed after an interruption" in out
    assert contents(sandbox.work / "s") == alone


SEARCH = """
algorithm: fedavg
data: {num_clients: 4, val_fraction: 0.2}
model: {name: mlp}
train: {rounds: 6, sample_rate: 0.5, local_epochs: 5}
search:
  train.lr: loguniform(0.001, 1)
grid: {seed: [0, 1]}
"""
FILES = ("trials.csv", "trials.jsonl", "best.yaml", "study.json")
COUNT = 6


def begin(sandbox: Sandbox, out: str, parallel: int) -> subprocess.Popen[str]:
    return sandbox.start(
        *("tune", "search.yaml", "--trials", str(COUNT), "--pruner", "asha", "--out", out),
        *("--parallel", str(parallel), "--engine", "serial"),
    )


def wait_for_a_run_under_way(process: subprocess.Popen[str], out: Path, done: int) -> None:
    """Returns when another trial has ended and a run after it has done a round, not its last."""
    wait_for_rows(process, out / "trials.csv", done + 1)
    ended = count_rows(out / "trials.csv")
    while process.poll() is None:
        tables = out.glob(f"trial-{ended:04d}/*/rounds.csv")
        if any(1 <= count_rows(table) < 6 for table in tables):
            return
        time.sleep(0.005)
    raise AssertionError(process.communicate())


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_killed_and_told_to_end_a_search_goes_on_to_the_same_table(
    parallel: int, sandbox: Sandbox
) -> None:
    wait_for_exit(begin(sandbox, "whole", parallel))
    out = sandbox.work / "killed"
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = begin(sandbox, "killed", parallel)
        wait_for_a_run_under_way(process, out, count_rows(out / "trials.csv"))
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143}[number], said
        assert sandbox.left() == {}
        assert count_rows(out / "trials.csv") < COUNT
    assert "interrupted; the search is in killed, the same command continues" in said
    wait_for_exit(begin(sandbox, "killed", parallel))
    for name in FILES:
        found, wanted = ((folder / name).read_bytes() for folder in (out, sandbox.work / "whole"))
        if name == "trials.jsonl":  # in the order in which the trials ended
            found, wanted = (b"".join(sorted(text.splitlines())) for text in (found, wanted))
        assert found == wanted, name
    for run in out.glob("trial-*/seed=?/rounds.csv"):
        whole = sandbox.work / "whole" / run.relative_to(out)
        shorter, longer = sorted([run.read_bytes(), whole.read_bytes()], key=len)
        assert longer.startswith(shorter)
