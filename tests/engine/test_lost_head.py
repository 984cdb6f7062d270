"""When the Ray on this machine dies, the run says so in one line and can be resumed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

import fedsim
from fedsim.config.run import RunConfig
from tests.commands import clean_environment

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PATIENCE = 240.0
"""Seconds after which a test gives up."""
ROUNDS = 30


def processes_below(pid: int) -> dict[int, str]:
    """The command line of each process below one, by its id."""
    found: dict[int, str] = {}
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[child.pid] = " ".join(child.cmdline())
    return found


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> bytes:
    """rounds.csv of a run that nothing disturbs."""
    config = RunConfig(
        algorithm="fedavg",
        data={"num_clients": 5},
        train={"rounds": ROUNDS, "sample_rate": 1.0},
        engine={"kind": "serial"},
    )
    return (fedsim.run(config, tmp_path_factory.mktemp("a") / "b").path / "rounds.csv").read_bytes()


@pytest.mark.parametrize("victim", ["/gcs_server ", "/raylet ", "/agent.py ", "/main.py "])
def test_the_run_says_what_died_and_goes_on_when_resumed(victim, tmp_path, wanted):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "fedsim", "run", "-a", "fedavg", "--clients", "5"]
    command += ["--sample-rate", "1", "--rounds", str(ROUNDS), "--engine", "ray", "--actors", "1"]
    run = subprocess.Popen(
        [*command, "--out", str(out)], stderr=subprocess.PIPE, text=True, env=clean_environment()
    )
    try:
        until, found = time.monotonic() + PATIENCE, []
        while time.monotonic() < until and not (found and (out / "rounds.csv").exists()):
            time.sleep(0.05)
            below = processes_below(run.pid)
            found = [pid for pid, line in below.items() if victim in f"{line} "]
        os.kill(found[0], signal.SIGKILL)
        _, told = run.communicate(timeout=PATIENCE)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 1
    (line,) = [line for line in told.splitlines() if line.startswith("error: ")]
    assert "Ray on this machine died: its " in line
    assert line.endswith(f"resume with: fedsim resume {out}")
    assert len((out / "rounds.csv").read_bytes()) < len(wanted), "it was to be interrupted"
    store = fedsim.resume(out, {"engine.kind": "serial"})
    assert (store.path / "rounds.csv").read_bytes() == wanted
