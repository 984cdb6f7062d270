"""Several runs: the loop that hands jobs to free slots, and how one of them is done.

Runs are done one by one in this process (:class:`Here`) or side by side in others
(:class:`fedsim.studies.processes.Processes`).
"""

from __future__ import annotations

import signal
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from fedsim.core.errors import DivergedError, FedsimError, HeldError, Interrupted, described
from fedsim.display.trackers import resumed as with_trackers
from fedsim.display.trackers import tracker
from fedsim.identity.resume import archive, can_resume, is_complete, placement
from fedsim.training import events
from fedsim.training.callbacks import Callback, Rows, RunInfo
from fedsim.training.events import ENDINGS, Event, Failed, Job, Lost, Orders, Stopped, Tell
from fedsim.training.signals import handled

if TYPE_CHECKING:
    from fedsim.studies.processes import Processes

TRIES = 3
"""How often a run is tried whose process is lost, the first time included."""
Drivers: TypeAlias = "Here | Processes"
"""Does a run in each of its ``slots``."""


class Follower(Protocol):
    """Is notified of the events of all runs."""

    def happened(self, slot: int, job: Job, event: Event) -> None:
        """Handles an event of the run in a slot. After :class:`Lost` the run is resumed."""

    def stopping(self) -> None:
        """Handles Ctrl-C or SIGTERM, after all runs were asked to stop."""


def control(next_job: Callable[[], Job | None], drivers: Drivers, follower: Follower) -> set[str]:
    """Hands jobs to free slots until there are none; returns the names of those that failed.

    ``next_job`` returns None where there is no job now, and is asked again after the next event. A
    run whose process is lost is resumed before other runs begin. After Interrupted all runs have
    stopped with a checkpoint, or, after a second signal, were killed.
    """
    free, again = deque(drivers.slots), deque[Job]()
    active: dict[int, Job] = {}
    tries, notes, failed = Counter[str](), list[str](), set[str]()
    halting = False

    def happened(slot: int, event: Event) -> None:
        job = active[slot]
        if isinstance(event, Lost):
            tries[job.name] += 1
            if tries[job.name] >= TRIES:
                event = Failed(f"{event.reason}, {TRIES} times")
            else:
                again.append(job)
        if isinstance(event, Failed):
            failed.add(job.name)
        if isinstance(event, Stopped):
            interrupts.number = interrupts.number or event.signal
            notes.extend([f"{job.name}: {event.note}"] if event.note else [])
        if isinstance(event, ENDINGS):
            del active[slot]
            free.append(slot)
        follower.happened(slot, job, event)

    try:
        with handled() as interrupts, interrupts.later():
            while True:
                if interrupts.number and not halting:
                    halting = True
                    drivers.stop()
                    follower.stopping()
                while free and not halting and (job := again.popleft() if again else next_job()):
                    active[free[0]] = job
                    drivers.submit(free.popleft(), job)
                if not active:
                    return failed
                drivers.events(happened)
    except Interrupted as interrupt:
        for note in notes:
            interrupt.add_note(note)
        drivers.close()
        raise


def execute(
    job: Job,
    orders: Orders,
    tell: Tell,
    session: Callable[[], Any] = lambda: None,
    callbacks: Sequence[Callback] = (),
) -> Event:
    """Resumes the run of a job or, after archiving what else its directory holds, begins it.
    ``orders`` are checked before the first round and after each; ``tell`` is called with the events
    before the last one, which is returned."""
    watch = _Watch(orders, tell)
    try:
        if orders.stop:
            return Stopped()
        if is_complete(job.config, job.out):
            return events.Done({}, before=True)
        resumed = can_resume(job.config, job.out, accept_changed_code=job.accept_changed_code)
        tell(events.Begun(resumed))
        ray, followers = session(), [*callbacks, *map(tracker, job.trackers), watch]
        from fedsim.training import driver  # imports torch

        if resumed:
            followers = with_trackers(job.out, followers)
            accept = job.accept_changed_code
            driver.resume(job.out, placement(job.config), followers, ray, accept)
        else:
            archive(job.out)
            driver.run(job.config, job.out, followers, ray)
    except KeyboardInterrupt as interrupt:
        number = getattr(interrupt, "number", signal.SIGINT)
        return Stopped(0 if orders.stop else int(number), _notes(interrupt))
    except Exception as error:  # noqa: BLE001 - a run's failure is an event, the others go on
        return _failure(error)
    return events.Done(watch.summary)


def _failure(error: Exception) -> Failed:
    reason, status = f"unexpected {described(error)}", 1
    if isinstance(error, FedsimError):
        reason, status = str(error), error.exit_status
    line = "; ".join(filter(None, [" ".join(reason.split()), _notes(error)]))
    unusable = status == 2 and not isinstance(error, HeldError)
    lasting = unusable or isinstance(error, DivergedError)
    return Failed(line, "".join(traceback.format_exception(error)), status, lasting)


def _notes(error: BaseException) -> str:
    """The notes of an error in one line."""
    return " ".join("; ".join(getattr(error, "__notes__", [])).split())


class _Watch(Callback):
    """Reports a run's rounds, and passes orders on to the run."""

    reads_files = False

    def __init__(self, orders: Orders, tell: Tell) -> None:
        self.orders, self.tell = orders, tell
        self.summary: Mapping[str, object] = {}

    def on_run_start(self, info: RunInfo) -> None:
        self.tell(events.Started(info.done, info.rounds, info.measures))
        self._stop()

    def on_round_end(self, round: int, rows: Rows) -> Literal["stop"] | None:  # noqa: ARG002
        (row,) = rows["rounds"]
        self.tell(events.RoundEnded(row, rows["timings"][-1]["seconds"]))  # of phase total
        self._stop()
        return "stop" if self.orders.end else None

    def on_run_end(self, summary: Mapping[str, object]) -> None:
        self.summary = dict(summary)

    def _stop(self) -> None:
        if self.orders.stop:
            raise Interrupted(signal.SIGTERM)  # the driver writes a checkpoint of the round


class Here:
    """This process, which does one run after the other. ``session`` is that of Ray, if any;
    ``callbacks`` makes those of a run, such as its display."""

    slots = (0,)

    def __init__(
        self, session: Any = None, callbacks: Callable[[], Sequence[Callback]] = tuple
    ) -> None:
        self.place = "in this process" if session is None else ""
        self._session, self._callbacks = session, callbacks
        self._job: Job | None = None
        self._orders = Orders()

    def submit(self, slot: int, job: Job) -> None:  # noqa: ARG002
        """Takes the job; :meth:`events` does it."""
        self._job, self._orders = job, replace(self._orders, end=False)

    def events(self, tell: Callable[[int, Event], None]) -> None:
        """Executes the run and returns when it has ended."""
        if self._job is None:
            return
        job, self._job = self._job, None
        callbacks = self._callbacks()
        ray = self._session if job.config.engine.kind == "ray" else None
        try:
            with handled():  # Ctrl-C need not wait for the first round
                ended = execute(job, self._orders, lambda e: tell(0, e), lambda: ray, callbacks)
        finally:
            for callback in callbacks:
                callback.close()
        tell(0, ended)

    def stop(self) -> None:
        """Orders the run, and those after it, to stop."""
        self._orders.stop = True

    def end(self, slot: int) -> None:  # noqa: ARG002
        """Orders the run to finish after its round."""
        self._orders.end = True

    def close(self) -> None:
        """Does nothing: whoever made the session closes it."""
