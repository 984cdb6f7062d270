"""After success, failure, Ctrl-C, a kill and resume only the run directory and caches are left."""

from __future__ import annotations

import re
import signal

import pytest

from tests.commands import Place, ended, rows, somewhere, tell_to_end, wait_for

pytestmark = pytest.mark.slow

ARGS = ("run", "--clients", "8", "--sample-rate", "0.5", "--actors", "2", "--out", "run")
FAILING = ("-a", "tests.engine.broken:build", "--sample-rate", "1")


@pytest.fixture
def place():
    with somewhere() as found:
        yield found


def files_outside(place: Place) -> list[str]:
    """What lies in home, in the temporary folder and, beside the run, in the working folder."""
    found = {path for part in ("home", "tmp", "work") for path in (place.folder / part).rglob("*")}
    run = place.work / "run"
    return [str(path) for path in found if path != run and run not in path.parents]


def nothing_is_left(place: Place, seconds: float = 60.0) -> None:
    assert place.left(seconds) == {}
    assert files_outside(place) == []


def test_after_success_and_a_look_at_the_result(place):
    ended(place.start(*ARGS, "--rounds", "3"))
    nothing_is_left(place)
    ended(place.start("resume", "run"))
    nothing_is_left(place)


def test_after_a_failure(place):
    _, err = ended(place.start(*ARGS, "--rounds", "3", *FAILING), 1)
    assert "ValueError: on purpose" in err
    nothing_is_left(place)


def test_after_a_refusal(place):
    ended(place.start(*ARGS, "--cpus-per-client", "999"), 2)
    nothing_is_left(place)


SIGNALS = pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"]
)


@SIGNALS
def test_after_a_signal(number, status, place):
    process = place.start(*ARGS, "--rounds", "100000")
    wait_for(process, place.work / "run" / "rounds.csv", 1)
    tell_to_end(process, number)
    _, err = ended(process, status)
    assert re.fullmatch(r"interrupted after \d+ of .* resume with: fedsim resume run\n", err), err
    nothing_is_left(place)


@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGINT, 130, id="int"),
        pytest.param(signal.SIGTERM, 143, id="term", marks=pytest.mark.nightly),
    ],
)
def test_after_a_signal_while_ray_starts(number, status, place):
    process = place.start(*ARGS, "--rounds", "100000")
    while not any("raylet" in line for line in place.processes().values()):
        assert process.poll() is None, process.communicate()
    tell_to_end(process, number)
    _, err = ended(process, status)
    assert err == "interrupted before the first round\n"
    nothing_is_left(place, 180)  # Ray's agents, half started, look for their parent now and then


def test_after_a_kill_and_a_resume(place):
    table = place.work / "run" / "rounds.csv"
    process = place.start(*ARGS, "--rounds", "12", "--set", "train.local_epochs=5")
    wait_for(process, table, 2)
    process.kill()
    process.communicate()
    assert rows(table) < 12
    assert place.left(120) == {}, "Ray ends itself when its driver is gone"
    ended(place.start("resume", "run", "--address", "local"))
    nothing_is_left(place)
    assert rows(table) == 12
