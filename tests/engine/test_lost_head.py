"""When the Ray on this machine dies, the run says so in one line and can be resumed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import fedsim
from fedsim.config.run import RunConfig
from tests.commands import clean_environment
from tests.engine.chaos import bytes_of

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROUNDS = 30


def processes_below(pid: int) -> dict[int, str]:
    """The command line of each process below one, by its id."""
    found: dict[int, str] = {}
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[child.pid] = " ".join(child.cmdline())
    return found


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> dict[str, bytes]:
    """The tables and the model of a run that nothing disturbs."""
    config = RunConfig(
        algorithm="fedavg",
        data={"num_clients": 5},
        train={"rounds": ROUNDS, "sample_rate": 1.0},
        engine={"kind": "serial"},
    )
    return bytes_of(fedsim.run(config, tmp_path_factory.mktemp("a") / "b"))


def killed(victim: str, out: Path, wanted: dict[str, bytes]) -> None:
    """A run on Ray of which one process of Ray's is killed; it says so and can be resumed."""
    command = [sys.executable, "-m", "fedsim", "run", "-a", "fedavg", "--clients", "5"]
    command += ["--sample-rate", "1", "--rounds", str(ROUNDS), "--engine", "ray", "--actors", "1"]
    run = subprocess.Popen(
        [*command, "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    try:
        found = []
        while not (found and (out / "rounds.csv").exists()):
            assert run.poll() is None, run.communicate()
            time.sleep(0.05)
            below = processes_below(run.pid)
            found = [pid for pid, line in below.items() if victim in f"{line} "]
        os.kill(found[0], signal.SIGKILL)
        _, told = run.communicate()
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 1
    (line,) = [line for line in told.splitlines() if line.startswith("error: ")]
    assert "Ray on this machine died: its " in line
    assert line.endswith(f"resume with: fedsim resume {out}")
    assert len((out / "rounds.csv").read_bytes()) < len(wanted["rounds.csv"]), "interrupted"


@pytest.mark.parametrize("victim", ["/gcs_server ", "/raylet ", "/agent.py ", "/main.py "])
def test_the_run_says_what_died_and_goes_on_when_resumed(victim, tmp_path, wanted):
    killed(victim, tmp_path / "run", wanted)
    assert bytes_of(fedsim.resume(tmp_path / "run", {"engine.kind": "serial"})) == wanted
