"""Several real Ray nodes on this machine, by the scripts in launch/."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import ray

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, LocalRule
from tests.commands import PATIENCE, clean_environment

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
TABLES = ("rounds.csv", "clients.csv", "classes.csv", "partition.csv", "model.safetensors")
TRACE = "FEDSIM_TEST_TRACE"
METHOD = "tests.engine.test_nodes:build"
EXPERIMENT = ("run", "-a", METHOD, "--clients", "8", "--sample-rate", "0.5")


HOLD = "hold"
"""The file that holds clients in round 3 while it is there."""


@dataclass(frozen=True)
class Traced(LocalRule):
    """SGD that leaves a file named after the Ray node, and then waits for the other node's."""

    def begin(self, env: LocalEnv) -> None:
        if not ray.is_initialized():
            return
        trace, node = Path(os.environ[TRACE]), ray.get_runtime_context().get_node_id()
        (trace / "seen" / node).touch()
        until(lambda: number_in(trace / "seen") >= 2)  # else one actor may do all the work
        if env.ctx.round == 2 and (trace / HOLD).exists():
            (trace / "held" / node).touch()
            until(lambda: not (trace / HOLD).exists())


def until(there: Callable[[], bool]) -> None:
    """Returns when it is so, or gives up."""
    deadline = time.monotonic() + PATIENCE
    while not there() and time.monotonic() < deadline:
        time.sleep(0.05)


def number_in(folder: Path) -> int:
    return len(list(folder.iterdir()))


def build() -> Algorithm:
    return Algorithm(local=Traced())


@pytest.fixture
def ray_folder():
    """A short temporary directory for Ray; empty at the end, and in no process's command line."""
    with tempfile.TemporaryDirectory(prefix="fs", dir="/tmp") as folder:
        yield Path(folder)
        assert list(Path(folder).iterdir()) == [], "temporary files remain"
        assert processes_of(folder) == []


@pytest.fixture
def environment(ray_folder, tmp_path):
    """What a shell in which fedsim is installed has; the program's own secrets are not in it."""
    for name in ("home", "trace/seen", "trace/held"):
        (tmp_path / name).mkdir(parents=True)
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    added = {"RAY_TMPDIR": str(ray_folder), "HOME": str(tmp_path / "home"), "PATH": programs}
    return clean_environment(**added, **{TRACE: str(tmp_path / "trace")})


def processes_of(folder: str) -> list[str]:
    """Command lines of the processes that name the folder, or one that begins so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_text().replace("\0", " ")
        except OSError:  # ended in between
            continue
        if folder in line:
            found.append(line)
    return found


def start(environment, *arguments):
    command = ["launch/nodes.sh", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)


def tables(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in TABLES}


def serial(environment, folder: Path, rounds: int = 3) -> dict[str, bytes]:
    """What the experiment gives in one process."""
    command = [sys.executable, "-m", "fedsim", *EXPERIMENT, "--rounds", str(rounds)]
    command += ["--engine", "serial", "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment)
    assert done.returncode == 0
    return tables(folder)


def wait_for_round(run: subprocess.Popen, folder: Path, number: int) -> None:
    """Returns when the run has written so many rounds."""
    table = folder / "rounds.csv"
    while not table.exists() or table.read_text().count("\n") <= number:
        assert run.poll() is None, run.communicate()
        time.sleep(0.05)


def test_a_run_on_two_nodes_has_the_bytes_of_one_process(environment, tmp_path):
    out, pids = tmp_path / "two", tmp_path / "pids"
    command = (*EXPERIMENT, "--rounds", "3", "--out", out)
    run = start(environment, 2, "--cpus", "2", "--pids", pids, "--", *command)
    said, problems = run.communicate()
    assert run.returncode == 0, problems
    assert problems.startswith("2 Ray nodes at "), problems
    assert "2 actors shared by 8 clients" in said
    assert number_in(tmp_path / "trace" / "seen") == 2, "both nodes trained clients"
    numbers, leaders = zip(*(line.split() for line in pids.read_text().splitlines()), strict=True)
    assert numbers == ("1", "2")
    assert not any(Path("/proc", pid).exists() for pid in leaders)
    assert not (tmp_path / "home" / ".ray").exists(), "the cluster's secret is its own"
    assert tables(out) == serial(environment, tmp_path / "serial")


def held_in_round_3(environment, tmp_path: Path, *command: object) -> subprocess.Popen:
    """A run of 8 rounds in which clients on both nodes are in the middle of round 3."""
    trace = tmp_path / "trace"
    (trace / HOLD).touch()
    run = start(environment, *command, *EXPERIMENT, "--rounds", "8", "--out", tmp_path / "two")
    while number_in(trace / "held") < 2:
        assert run.poll() is None, run.communicate()
        time.sleep(0.05)
    return run


def kill_node(pids: Path, number: int) -> None:
    """Ends all processes of a node at once: none of them sees another one end."""
    leader = dict(line.split() for line in pids.read_text().splitlines())[str(number)]
    members = subprocess.run(
        ["ps", "-o", "pid=", "--sid", leader], capture_output=True, text=True, check=True
    )
    assert members.stdout.split()
    for order in (signal.SIGSTOP, signal.SIGKILL):
        for pid in members.stdout.split():
            os.kill(int(pid), order)


def test_a_node_killed_in_round_3_of_8(environment, tmp_path):
    out, pids = tmp_path / "two", tmp_path / "pids"
    run = held_in_round_3(environment, tmp_path, 2, "--cpus", "2", "--pids", pids, "--")
    kill_node(pids, 2)
    (tmp_path / "trace" / HOLD).unlink()
    said, problems = run.communicate()
    assert run.returncode == 0, problems
    assert tables(out) == serial(environment, tmp_path / "serial", 8)
    errors = pd.read_csv(out / "errors.csv")
    assert errors["round"].unique().tolist() == [3]
    assert errors["client_id"].notna().all()
    assert problems.count("\n") == 1, "the terminal stays calm"
    assert "(raylet" not in said


def test_a_run_on_two_nodes_goes_on_on_two_others(environment, tmp_path):
    out = tmp_path / "two"
    run = held_in_round_3(environment, tmp_path, 2, "--cpus", "2", "--")
    run.send_signal(signal.SIGTERM)
    _, problems = run.communicate()
    assert run.returncode == 143, problems
    assert problems.splitlines()[1:] == [told_how_to_go_on(out, 8, 2)]
    (tmp_path / "trace" / HOLD).unlink()
    run = start(environment, 2, "--cpus", "2", "--", "resume", out)
    said, problems = run.communicate()
    assert run.returncode == 0, problems
    assert f"resuming {out} after round 2\n" in said
    assert tables(out) == serial(environment, tmp_path / "serial", 8)


def told_how_to_go_on(out: Path, rounds: int, done: int | None = None) -> str:
    """The last line of a run that was told to end."""
    done = pd.read_csv(out / "rounds.csv")["round"].max() if done is None else done
    return f"interrupted after {done} of {rounds} rounds; resume with: fedsim resume {out}"


def test_a_signal_ends_the_run_and_all_nodes(environment, tmp_path):
    out = tmp_path / "long"
    command = (*EXPERIMENT, "--rounds", "5000", "--out", out)
    run = start(environment, 2, "--cpus", "2", "--", *command)
    wait_for_round(run, out, 2)
    run.send_signal(signal.SIGINT)
    _, problems = run.communicate()
    assert run.returncode == 128 + signal.SIGINT, problems
    assert problems.splitlines()[1:] == [told_how_to_go_on(out, 5000)]


def test_a_signal_before_the_nodes_are_up(environment, ray_folder):
    run = start(environment, 2, "--cpus", "2", "--", *EXPERIMENT)
    while not any("ray start" in line for line in processes_of(str(ray_folder))):
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    run.communicate()
    assert run.returncode == 143


def test_what_fedsim_refuses_ends_the_nodes_too(environment):
    run = start(environment, 2, "--cpus", "2", "--", "run", "-a", "nosuch")
    _, problems = run.communicate()
    assert run.returncode == 2
    assert "unknown algorithm 'nosuch'" in problems


SRUN = """#!/bin/bash
# Stands in for SLURM: the task of each node, all here.
while [ "$1" != bash ]; do shift; done
tasks=()
for ((i = 0; i < SLURM_JOB_NUM_NODES; i++)); do SLURM_NODEID=$i "$@" & tasks+=($!); done
trap 'kill -TERM "${tasks[@]}"' TERM
while kill -0 "${tasks[@]}" 2>/dev/null; do wait "${tasks[@]}"; done
"""


def test_the_slurm_script_with_a_stand_in_for_srun(environment, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "srun").write_text(SRUN)
    (programs / "srun").chmod(0o755)
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "activate").touch()
    job = {
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_MEM_PER_NODE": "4096",
        "FEDSIM_ENV": str(tmp_path / "env"),
        "FEDSIM_STORE_GIB": "1",
        "PATH": f"{programs}:{environment['PATH']}",
    }
    out = tmp_path / "slurm"
    command = ["bash", "launch/slurm.sbatch", *EXPERIMENT, "--rounds", "3", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=environment | job, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert number_in(tmp_path / "trace" / "seen") == 2, "both nodes trained clients"
    assert tables(out) == serial(environment, tmp_path / "serial")
    assert not list(ROOT.glob(".ray-*"))
    assert not list(Path("/tmp").glob(f"fs-{os.getpid()}-*"))
    assert processes_of(f"/tmp/fs-{os.getpid()}-") == []
