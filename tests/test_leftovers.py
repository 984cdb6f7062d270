"""After success, failure, Ctrl-C, a kill and resume only the run directory and caches are left."""

from __future__ import annotations

import re
import signal

import pytest

from tests.commands import (
    Sandbox,
    count_rows,
    interrupt,
    temporary_sandbox,
    wait_for_exit,
    wait_for_rows,
)

pytestmark = pytest.mark.slow

ARGS = ("run", "--clients", "8", "--sample-rate", "0.5", "--actors", "2", "--out", "run")
FAILING = ("-a", "tests.engine.broken:build", "--sample-rate", "1")


@pytest.fixture
def sandbox():
    with temporary_sandbox() as found:
        yield found


def files_outside(sandbox: Sandbox) -> list[str]:
    """What lies in home, in the temporary folder and, beside the run, in the working folder."""
    found = {
        path for part in ("home", "tmp", "work") for path in (sandbox.folder / part).rglob("*")
    }
    run = sandbox.work / "run"
    return [str(path) for path in found if path != run and run not in path.parents]


def nothing_is_left(sandbox: Sandbox) -> None:
    assert sandbox.left() == {}
    assert files_outside(sandbox) == []


def test_after_success_and_a_look_at_the_result(sandbox):
    wait_for_exit(sandbox.start(*ARGS, "--rounds", "3"))
    nothing_is_left(sandbox)
    wait_for_exit(sandbox.start("resume", "run"))
    nothing_is_left(sandbox)


def test_after_a_failure(sandbox):
    _, err = wait_for_exit(sandbox.start(*ARGS, "--rounds", "3", *FAILING), 1)
    assert "ValueError: on purpose" in err
    nothing_is_left(sandbox)


def test_after_a_refusal(sandbox):
    wait_for_exit(sandbox.start(*ARGS, "--cpus-per-client", "999"), 2)
    nothing_is_left(sandbox)


SIGNALS = pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"]
)


@SIGNALS
def test_after_a_signal(number, status, sandbox):
    process = sandbox.start(*ARGS, "--rounds", "100000")
    wait_for_rows(process, sandbox.work / "run" / "rounds.csv", 1)
    interrupt(process, number)
    _, err = wait_for_exit(process, status)
    assert re.fullmatch(r"interrupted after \d+ of .* resume with: fedsim resume run\n", err), err
    nothing_is_left(sandbox)


@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGINT, 130, id="int"),
        pytest.param(signal.SIGTERM, 143, id="term", marks=pytest.mark.nightly),
    ],
)
def test_after_a_signal_while_ray_starts(number, status, sandbox):
    process = sandbox.start(*ARGS, "--rounds", "100000")
    while not any("raylet" in line for line in sandbox.processes().values()):
        assert process.poll() is None, process.communicate()
    interrupt(process, number)
    _, err = wait_for_exit(process, status)
    how = r"before the first round|after \d+ of 100000 rounds; resume with: fedsim resume run"
    assert re.fullmatch(rf"interrupted ({how})\n", err), err  # as fast as this test looks
    nothing_is_left(sandbox)  # Ray's agents, half started, look for their parent now and then


def test_after_a_kill_and_a_resume(sandbox):
    table = sandbox.work / "run" / "rounds.csv"
    process = sandbox.start(*ARGS, "--rounds", "12", "--set", "train.local_epochs=5")
    wait_for_rows(process, table, 2)
    process.kill()
    process.communicate()
    assert count_rows(table) < 12
    assert sandbox.left() == {}, "Ray ends itself when its driver is gone"
    wait_for_exit(sandbox.start("resume", "run", "--address", "local"))
    nothing_is_left(sandbox)
    assert count_rows(table) == 12
