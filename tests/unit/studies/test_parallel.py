"""The control loop of runs side by side, with drivers that do what the test says."""

from __future__ import annotations

import logging
import os
import platform
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from multiprocessing import Pipe
from pathlib import Path
from unittest import mock

import pytest

from fedsim.config.resolve import from_flags, resolve
from fedsim.core import files
from fedsim.core.errors import (
    ConfigError,
    DivergedError,
    EngineLostError,
    HeldError,
    Interrupted,
    StoreError,
    WorkerError,
)
from fedsim.studies import parallel
from fedsim.studies.parallel import Drivers
from fedsim.studies.processes import Processes
from fedsim.training import driver
from fedsim.training.callbacks import Callback
from fedsim.training.events import (
    Begun,
    Done,
    Event,
    Failed,
    Job,
    Logged,
    Lost,
    Orders,
    RoundEnded,
    Started,
    Stopped,
)

DONE = Done({})


class Scripted:
    """Drivers whose every job has a list of events; one of each active slot at a time."""

    def __init__(self, count: int, **scripts: Iterable[Event]) -> None:
        self.slots = tuple(range(count))
        self.scripts = {name: deque(events) for name, events in scripts.items()}
        self.active: dict[int, str] = {}
        self.submitted: list[tuple[int, str]] = []
        self.most = 0
        self.asked: list[tuple[str, int | None]] = []
        self.closed: list[bool] = []

    def submit(self, slot: int, job: Job) -> None:
        assert slot not in self.active
        self.active[slot] = job.name
        self.submitted.append((slot, job.name))
        self.most = max(self.most, len(self.active))

    def events(self, tell: Callable[[int, Event], None]) -> None:
        for slot, name in list(self.active.items()):
            event = self.scripts[name].popleft()
            if isinstance(event, parallel.ENDINGS):
                del self.active[slot]
            tell(slot, event)

    def stop(self, slot: int | None = None) -> None:
        self.asked.append(("stop", slot))
        for number, name in self.active.items():
            if slot in (None, number):
                self.scripts[name] = deque([Stopped()])

    def end(self, slot: int) -> None:
        self.asked.append(("end", slot))
        self.scripts[self.active[slot]] = deque([DONE])

    def close(self, at_once: bool = False) -> None:
        self.closed.append(at_once)


class Heard:
    """A follower that keeps what it is told, and may answer."""

    def __init__(self, answer: Callable[[int, Job, Event], object] = lambda *_: None) -> None:
        self.answer = answer
        self.events: list[tuple[int, str, Event]] = []
        self.stops = 0

    def happened(self, slot: int, job: Job, event: Event) -> None:
        self.events.append((slot, job.name, event))
        self.answer(slot, job, event)

    def stopping(self) -> None:
        self.stops += 1

    def of(self, name: str) -> list[Event]:
        return [event for _, told, event in self.events if told == name]


def control(drivers: Drivers, heard: Heard, names: Sequence[str]) -> None:
    config = resolve()
    jobs = iter([Job(name, config, Path(name)) for name in names])
    parallel.control(lambda: next(jobs, None), drivers, heard)


def round_of(number: int) -> RoundEnded:
    return RoundEnded({"round": number}, 0.1)


def test_every_slot_is_kept_at_work_and_every_event_told() -> None:
    drivers = Scripted(
        2, a=[Started(0, 2), round_of(1), round_of(2), DONE], b=[DONE], c=[DONE], d=[DONE]
    )
    heard = Heard()
    control(drivers, heard, "abcd")
    assert drivers.submitted == [(0, "a"), (1, "b"), (1, "c"), (1, "d")]
    assert drivers.most == 2
    assert [type(event) for event in heard.of("a")] == [Started, RoundEnded, RoundEnded, Done]
    assert drivers.closed == []  # they are warm for what follows


def test_a_lost_run_is_resumed_before_others_begin() -> None:
    drivers = Scripted(1, a=[round_of(1), Lost("gone"), DONE], b=[DONE])
    heard = Heard()
    control(drivers, heard, "ab")
    assert [name for _, name in drivers.submitted] == ["a", "a", "b"]
    assert heard.of("a") == [heard.of("a")[0], Lost("gone"), DONE]


def test_a_run_whose_driver_is_lost_three_times_has_failed() -> None:
    drivers, heard = Scripted(1, a=[Lost("gone")] * 3, b=[DONE]), Heard()
    control(drivers, heard, "ab")
    assert heard.of("a")[-1] == Failed("gone, 3 times")
    assert heard.of("b") == [DONE]


def test_a_follower_may_stop_one_run_and_end_another() -> None:
    drivers = Scripted(2, a=[round_of(1), round_of(2)], b=[round_of(1), round_of(2)], c=[DONE])

    def prune(slot: int, job: Job, event: Event) -> None:
        if isinstance(event, RoundEnded):
            (drivers.stop if job.name == "a" else drivers.end)(slot)

    heard = Heard(prune)
    control(drivers, heard, "abc")
    assert [heard.of(name)[-1] for name in "abc"] == [Stopped(), DONE, DONE]
    assert heard.stops == 0


def test_jobs_may_come_later() -> None:
    """None is no end while a run is active: the next job may follow from its result."""
    drivers, waiting = Scripted(2, a=[round_of(1), DONE], b=[DONE]), [Job("a", resolve(), Path())]

    def next_when_done(_: int, job: Job, event: Event) -> None:
        if event == DONE and job.name == "a":
            waiting.append(Job("b", job.config, job.out))

    heard = Heard(next_when_done)
    parallel.control(lambda: waiting.pop() if waiting else None, drivers, heard)
    assert heard.of("b") == [DONE]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_runs_and_begins_none(number: int) -> None:
    drivers = Scripted(2, a=[round_of(1)], b=[round_of(1)], c=[DONE])
    heard = Heard(
        lambda _, job, event: (
            os.kill(os.getpid(), number) if job.name == "b" and event == round_of(1) else None
        )
    )
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as interrupt:
        control(drivers, heard, "abc")
    assert (interrupt.value.number, interrupt.value.again) == (number, False)
    assert drivers.asked == [("stop", None)]
    assert [name for _, name in drivers.submitted] == ["a", "b"]
    assert [heard.of(name)[-1] for name in "ab"] == [Stopped()] * 2
    assert heard.stops == 1
    assert drivers.closed == []
    assert signal.getsignal(number) == before


def test_a_second_signal_kills_the_drivers() -> None:
    drivers = Scripted(1, a=[round_of(1), round_of(2), round_of(3)])
    drivers.stop = lambda slot=None: drivers.asked.append(("stop", slot))  # type: ignore[method-assign]
    heard = Heard(lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted) as interrupt:
        control(drivers, heard, "a")
    assert interrupt.value.again
    assert drivers.closed == [True]


def test_a_driver_that_is_lost_while_stopping_is_not_made_again() -> None:
    drivers = Scripted(1, a=[round_of(1), Lost("gone")], b=[DONE])
    drivers.stop = lambda slot=None: drivers.asked.append(("stop", slot))  # type: ignore[method-assign]
    heard = Heard()
    heard.answer = lambda _, __, event: (
        os.kill(os.getpid(), signal.SIGTERM) if isinstance(event, RoundEnded) else None
    )
    with pytest.raises(Interrupted):
        control(drivers, heard, "ab")
    assert [name for _, name in drivers.submitted] == ["a"]


def job(tmp_path: Path, *sets: str) -> Job:
    given = ("algorithm=fedavg", "train.rounds=3", "engine.kind=serial", *sets)
    return Job("run", resolve(from_flags({}, given)), tmp_path / "run")


class Asks(Callback):
    """Gives an order after the first round."""

    def __init__(self, orders: Orders, order: str) -> None:
        self.orders, self.order = orders, order

    def on_round_end(self, round: int, rows: object) -> None:
        setattr(self.orders, self.order, True)


@pytest.mark.integration
def test_a_run_that_was_stopped_is_resumed_to_its_end(tmp_path: Path) -> None:
    told: list[Event] = []
    orders = Orders()
    stops = [Asks(orders, "stop")]
    assert parallel.execute(job(tmp_path), orders, told.append, callbacks=stops) == Stopped()
    assert [type(event) for event in told] == [Begun, Started, RoundEnded]
    assert parallel.execute(job(tmp_path), orders, told.append) == Stopped()  # not begun
    assert (tmp_path / "run/rounds.csv").read_text().count("\n") == 2

    done = parallel.execute(job(tmp_path), Orders(), told.append)
    assert isinstance(done, Done)
    assert done.summary["rounds"] == 3
    assert told[3:5] == [Begun(resumed=True), Started(1, 3)]
    assert [e.row["round"] for e in told if isinstance(e, RoundEnded)] == [1, 2, 3]
    assert parallel.execute(job(tmp_path), Orders(), told.append) == Done({}, before=True)
    assert not list(tmp_path.glob("*interrupted*"))


@pytest.mark.parametrize(
    ("error", "reason"),
    [(DivergedError("round 2,\nNaN"), "round 2, NaN; no disk"), (KeyError("k"), "unexpected Key")],
)
def test_a_failure_is_one_line_with_its_notes(
    error: Exception, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error.add_note("no\ndisk")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(driver, "run", fail)
    failed = parallel.execute(job(tmp_path), Orders(), lambda _: None)
    assert isinstance(failed, Failed)
    assert failed.reason.startswith(reason)
    assert "\n" not in failed.reason
    assert type(error).__name__ in failed.traceback


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (DivergedError("NaN"), True),
        (ConfigError("data.dir"), True),
        (HeldError("another live run"), False),
        (WorkerError("client 3"), False),
        (StoreError("no space left"), False),
    ],
)
def test_only_failures_that_would_come_again_are_lasting(
    error: Exception, lasting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "run", mock.Mock(side_effect=error))
    failed = parallel.execute(job(tmp_path), Orders(), lambda _: None)
    assert isinstance(failed, Failed)
    assert failed.lasting is lasting


@pytest.mark.integration
def test_a_run_waits_for_the_process_that_holds_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a kill of the controller, whose drivers end their round first."""
    caplog.set_level("INFO", "fedsim")
    out = job(tmp_path).out
    out.mkdir()
    left = ExitStack()
    left.enter_context(files.lock(out))
    looks = mock.Mock(side_effect=[None, None, left.close])

    def sleep(_: float) -> None:
        if (leave := looks()) is not None:
            leave()

    monkeypatch.setattr(parallel.time, "sleep", sleep)
    done = parallel.execute(job(tmp_path), Orders(), lambda _: None)
    assert isinstance(done, Done)
    assert looks.call_count == 3
    waits = [r.getMessage() for r in caplog.records if "waiting for" in r.getMessage()]
    assert waits == [f"waiting for pid {os.getpid()} on {platform.node()}, which still holds {out}"]


def test_a_warning_is_reported_once_whichever_processes_and_runs_repeat_it() -> None:
    drivers = Processes(0)
    texts = ["a.py:1: UserWarning: slow\n", "a.py:2: UserWarning: slow\n"]
    for slot in (0, 1):
        busy = mock.Mock(at_work=True)
        warned = [Logged(logging.WARNING, text, once=True) for text in (*texts, *texts)]
        busy.receive.return_value = [*warned, Logged(logging.INFO, "5 clients")], False
        busy.pipe, other = Pipe()
        other.send_bytes(b"")
        drivers._made[slot] = busy
    told: list[str] = []
    drivers.events(lambda _, event: told.append(event.text))
    drivers.events(lambda _, event: told.append(event.text))
    assert told[:2] == texts
    assert told[2:] == ["5 clients"] * 4


def test_processes_that_all_runs_need_end_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise EngineLostError("Ray is gone")

    monkeypatch.setattr(driver, "run", fail)
    jobs = iter([job(tmp_path)])
    with pytest.raises(EngineLostError):
        parallel.control(lambda: next(jobs, None), parallel.Here(), Heard())
