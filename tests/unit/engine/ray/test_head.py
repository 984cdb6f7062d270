"""The processes of a Ray that was started here: the end of one is said at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from fedsim.core.errors import EngineLostError, WorkerError
from fedsim.engine.ray.head import Head, described
from tests.commands import PATIENCE, clean_environment


@pytest.fixture
def processes():
    """Two processes that wait."""
    command = [sys.executable, "-c", "input()"]
    made = {
        name: subprocess.Popen(command, stdin=subprocess.PIPE, env=clean_environment())
        for name in ("gcs", "raylet")
    }
    yield made
    for process in made.values():
        process.kill()
        process.communicate()


def test_the_end_of_a_process_is_told_from_another_thread(processes):
    told, heard = [], threading.Event()
    head = Head(processes)
    head.watch(lambda reason: (told.append((reason, threading.current_thread().name)), heard.set()))
    head.check()
    with head.guard():
        pass
    processes["raylet"].kill()
    assert heard.wait(PATIENCE)
    pid = processes["raylet"].pid
    ((reason, thread),) = told
    assert f"raylet (pid {pid}) was ended by SIGKILL" in reason
    assert thread == "ray-head"
    with pytest.raises(EngineLostError, match="SIGKILL"):
        head.check()
    with pytest.raises(EngineLostError, match="SIGKILL"), head.guard():
        pytest.fail("nothing is begun any more")
    head.close()


def test_an_error_is_that_of_the_process_where_one_has_ended(processes):
    head, heard = Head(processes), threading.Event()
    head.watch(lambda _: heard.set())
    with pytest.raises(WorkerError, match="lost") as kept, head.guard():
        raise WorkerError("round 3: lost")
    assert type(kept.value) is WorkerError

    def loses_its_process():
        processes["gcs"].kill()
        assert heard.wait(PATIENCE)
        raise WorkerError("round 3: lost")

    with pytest.raises(EngineLostError, match="gcs") as found, head.guard():
        loses_its_process()
    assert isinstance(found.value.__cause__, WorkerError)
    head.close()


def test_an_error_may_come_before_the_thread_looks_again(processes, monkeypatch):
    monkeypatch.setattr("fedsim.engine.ray.head.INTERVAL", 0.2)
    head = Head(processes)

    def is_faster():
        processes["raylet"].kill()
        raise WorkerError("round 3: lost")

    monkeypatch.setattr("fedsim.engine.ray.head.WAIT", PATIENCE, raising=False)
    with pytest.raises(EngineLostError, match="raylet"), head.guard():
        is_faster()
    head.close()


def test_what_happened_before_anybody_asked_is_told(processes):
    head = Head(processes)
    processes["gcs"].communicate(b"\n")
    until = time.monotonic() + PATIENCE
    while not head.reason and time.monotonic() < until:
        time.sleep(0.01)
    told = []
    head.watch(told.append)
    assert told == [described("gcs", processes["gcs"].pid, 0)]
    head.close()


def test_after_the_last_run_nothing_is_said(processes):
    told = []
    head = Head(processes)
    head.watch(told.append)
    head.watch(None)
    head.close()
    processes["raylet"].kill()
    processes["raylet"].wait()
    assert (told, head.reason) == ([], "")
