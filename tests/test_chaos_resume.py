"""Runs on Ray that are killed, told to end or out of disk, and go on to the same bytes."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import fedsim
from fedsim.config.run import RunConfig
from fedsim.core import files
from tests.commands import (
    Sandbox,
    count_rows,
    interrupt,
    temporary_sandbox,
    wait_for_exit,
    wait_for_rows,
)

pytestmark = pytest.mark.slow

ROUNDS = 20
EPOCHS = 3
"""Makes a round long enough for a kill to come in the middle of it."""


@pytest.fixture
def sandbox():
    with temporary_sandbox() as made:
        yield made


def config(method: str, batch: int = 1) -> RunConfig:
    return RunConfig(
        algorithm=method,
        data={"num_clients": 8},
        train={"rounds": ROUNDS, "sample_rate": 0.5, "local_epochs": EPOCHS},
        engine={"kind": "serial", "client_batch": batch},
    )


def run(sandbox: Sandbox, method: str, *more: str) -> subprocess.Popen[str]:
    """The same experiment on Ray, in the directory ``run``."""
    args = ["run", "-a", method, "--clients", "8", "--sample-rate", "0.5", "--rounds", str(ROUNDS)]
    args += ["--set", f"train.local_epochs={EPOCHS}", "--actors", "2", "--out", "run"]
    return sandbox.start(*args, *more)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The files of each method's run in one process, computed when first asked for."""
    known: dict[tuple[str, int], dict[str, object]] = {}

    def of(method: str, batch: int = 1) -> dict[str, object]:
        if (method, batch) not in known:
            out = tmp_path_factory.mktemp(method) / "run"
            known[method, batch] = contents(fedsim.run(config(method, batch), out).path)
        return known[method, batch]

    return of


def contents(run: Path) -> dict[str, object]:
    """All files of a run but times, places and checkpoints; of its summary what they leave."""
    names = {path.name for path in run.iterdir() if path.is_file()}
    names -= {"timings.csv", "env.json", "summary.csv", "config.yaml", files.LOCK_FILE}
    summary = pd.read_csv(run / "summary.csv").drop(columns=["run_id", "total_seconds"])
    return {name: (run / name).read_bytes() for name in names} | {"": summary.to_csv()}


@pytest.mark.parametrize(
    ("method", "kills", "batch"),
    [
        ("fedpac", 2, 1),  # states of clients, private answers and two phases
        pytest.param("scaffold", 2, 3, marks=pytest.mark.nightly),  # states; clients train together
        pytest.param("fedld", 4, 1, marks=pytest.mark.nightly),
        pytest.param("fedbn", 3, 1, marks=pytest.mark.nightly),
        pytest.param("fedpac", 5, 1, marks=pytest.mark.nightly),
        *(
            pytest.param(method, 2, 3, marks=pytest.mark.nightly)
            for method in ("fedavg", "fedprox", "feddyn", "fedld")
        ),
    ],
)
def test_killed_again_and_again(method, kills, batch, sandbox, undisturbed):
    """At random moments; each time another process goes on, while the last one's Ray still ends."""
    draw = random.Random(method)
    table = sandbox.work / "run" / "rounds.csv"
    process, done = run(sandbox, method, "--client-batch", str(batch)), 0
    for _ in range(kills):
        kill_in_a_round(process, table, done, draw.random())
        done = count_rows(table)
        process = sandbox.start("resume", "run")
    out, err = wait_for_exit(process)
    assert re.search(r"resuming run after round [1-9]", out)
    assert err == ""
    assert contents(table.parent) == undisturbed(method, batch)
    resumed = json.loads((table.parent / "env.json").read_text())["resumed"]
    assert len(resumed) == kills


def kill_in_a_round(process: subprocess.Popen[str], table: Path, done: int, part: float) -> None:
    """Kills a run some rounds after the first ``done``, when about this part of one is over."""
    wait_for_rows(process, table, done + 1)
    begun = time.monotonic()
    wait_for_rows(process, table, done + 2)
    time.sleep(part * (time.monotonic() - begun))
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it was killed while it ran"


IN_A_SMALL_FILE_SYSTEM = """
set -eu
mount -t tmpfs -o size=2m tmpfs small
head -c 1800000 /dev/zero >small/others
set +e
"$@"
echo "status $?"
rm small/others
"$1" "$2" "$3" resume small/run && cp -r small/run .
"""


def test_a_disk_that_is_really_full(sandbox, undisturbed):
    """In a mount namespace of its own; there is room for two checkpoints, which is not enough."""
    alone = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"]).returncode:
        pytest.skip("this system does not let a test mount a file system")
    (sandbox.work / "small").mkdir()
    settings = ["-a", "fedbn", "--clients", "8", "--sample-rate", "0.5", "--rounds", str(ROUNDS)]
    settings += ["--set", f"train.local_epochs={EPOCHS}", "--out", "small/run"]
    settings += ["--engine", "serial"]  # the driver alone writes
    command = [sys.executable, "-m", "fedsim", "run", *settings]
    done = subprocess.run(
        [*alone, "bash", "-c", IN_A_SMALL_FILE_SYSTEM, "bash", *command],
        cwd=sandbox.work, env=sandbox.environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "status 1\n" in done.stdout
    error = r"error: small/run/\S+: cannot be written \(No space left on device\)"
    assert re.match(error + "; resume with: fedsim resume small/run\n", done.stderr), done.stderr
    assert contents(sandbox.work / "run") == undisturbed("fedbn")


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="int"),
        pytest.param(signal.SIGKILL, id="kill", marks=pytest.mark.nightly),
    ],
)
def test_a_sweep_goes_on(number, sandbox, undisturbed):
    grid = "algorithm: fedavg\ngrid: {algorithm: [fedbn, fedpac]}\n"
    (sandbox.work / "grid.yaml").write_text(grid)
    args = ["sweep", "grid.yaml", "--clients", "8", "--sample-rate", "0.5", "--actors", "2"]
    args += ["--rounds", str(ROUNDS), "--set", f"train.local_epochs={EPOCHS}", "--out", "sweep"]
    runs = {
        method: sandbox.work / "sweep" / f"algorithm={method}" for method in ("fedbn", "fedpac")
    }
    process = sandbox.start(*args)
    wait_for_rows(process, runs["fedpac"] / "rounds.csv", 3)
    written = (runs["fedbn"] / "summary.csv").stat().st_mtime_ns
    if number == signal.SIGINT:
        interrupt(process, number)
        _, err = wait_for_exit(process, 130)
        stopping, interrupted = err.splitlines()
        assert stopping.startswith("stopping: every run ends its round and leaves a checkpoint")
        assert interrupted == "interrupted; the runs are in sweep, the same command continues"
    else:
        process.kill()
        process.communicate()
    out, err = wait_for_exit(sandbox.start(*args))
    assert err == ""
    assert "[1/2] algorithm=fedbn: finished before\n" in out
    assert "[2/2] algorithm=fedpac: resumed after an interruption\n" in out
    assert (runs["fedbn"] / "summary.csv").stat().st_mtime_ns == written
    assert not list((sandbox.work / "sweep").glob("*interrupted*"))
    for method, folder in runs.items():
        assert contents(folder) == undisturbed(method)
