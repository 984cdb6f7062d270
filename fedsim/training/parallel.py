"""Runs side by side: the loop that keeps run drivers at work, and what a driver does for a job.

One loop for all kinds of drivers, see :mod:`fedsim.engine.drivers`: this process itself
(:class:`Here`), warm processes on this machine (:mod:`fedsim.training.processes`), or Ray's.
"""

from __future__ import annotations

import logging
import signal
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from fedsim.core import files
from fedsim.core.errors import (
    DivergedError,
    EngineLostError,
    FedsimError,
    HeldError,
    Interrupted,
    described,
)
from fedsim.engine.drivers import (
    ENDINGS,
    Begun,
    Done,
    Drivers,
    Event,
    Failed,
    Job,
    Lost,
    Orders,
    RoundEnded,
    Started,
    Stopped,
    Tell,
)
from fedsim.training.callbacks import Callback, Rows, RunInfo
from fedsim.training.signals import handled

logger = logging.getLogger("fedsim")
TRIES = 3
"""How often a run is begun or resumed whose driver is lost."""
HELD_LIMIT, HELD_POLL = 600.0, 0.5
"""Seconds that a run waits at most for another process to leave its directory, and between looks:
drivers whose controller was killed end their round first."""


class Follower(Protocol):
    """Follows all runs; it may ask the drivers to stop or end one."""

    def happened(self, slot: int, job: Job, event: Event) -> None:
        """Something happened to the run in a slot. After :class:`Lost` it is resumed."""

    def stopping(self) -> None:
        """Ctrl-C or SIGTERM came: all runs were asked to stop."""


def control(next_job: Callable[[], Job | None], drivers: Drivers, follower: Follower) -> None:
    """Keeps every slot at work until there are no more jobs.

    A run whose driver is lost is resumed, :data:`TRIES` times in all, before others are begun. The
    drivers are left open.

    Args:
        next_job: asked whenever a slot is free. None: no job now. It is asked again after the next
            event; without active runs the loop ends.
        drivers: all of them without a job.
        follower: told of everything that happens.

    Raises:
        Interrupted: Ctrl-C or SIGTERM came, here or to a run; with the notes of the runs. All have
            stopped with a checkpoint; after a second signal they were killed.
    """
    free, again = deque(drivers.slots), deque[Job]()
    active: dict[int, Job] = {}
    tries, notes = Counter[str](), list[str]()
    halting = False

    def happened(slot: int, event: Event) -> None:
        job = active[slot]
        if isinstance(event, Lost):
            tries[job.name] += 1
            if tries[job.name] >= TRIES:
                event = Failed(f"{event.reason}, {TRIES} times")
            else:
                again.append(job)
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
                while free and not halting:
                    job = again.popleft() if again else next_job()
                    if job is None:
                        break
                    slot = free.popleft()
                    active[slot] = job
                    drivers.submit(slot, job)
                if not active:
                    return
                drivers.events(happened)
    except Interrupted as interrupt:
        for note in notes:
            interrupt.add_note(note)
        if interrupt.again:
            drivers.close(at_once=True)
        raise


def execute(
    job: Job, orders: Orders, tell: Tell, session: Any, callbacks: Sequence[Callback] = ()
) -> Event:
    """Resumes the run of a job, or begins it; what lies in its directory else is archived.

    This is what every driver does. It waits while another process holds the directory, see
    :data:`HELD_LIMIT`. A run that somebody else finished meanwhile is done.

    Args:
        job: what is run.
        orders: looked at before the first round, and after each.
        tell: called with what happens on the way.
        session: of Ray, for the runs of a driver; None for none.
        callbacks: called before ``tell``.

    Returns:
        How the run ended.

    Raises:
        EngineLostError: processes that the next run would need as well are lost.
    """
    from fedsim.training import driver, resume
    from fedsim.training.trackers import tracker

    if orders.stop:
        return Stopped()
    watch = _Watch(orders, tell)
    try:
        _wait_for_lock(job, orders)
        if orders.stop:
            return Stopped()
        if resume.is_complete(job.config, job.out):
            return Done({}, before=True)
        followers = [*callbacks, *(tracker(name) for name in job.trackers), watch]
        resumed = resume.can_resume(job.config, job.out)
        tell(Begun(resumed))
        if resumed:
            placement = resume.placement(job.config)
            driver.resume(job.out, placement, followers, session, progress=False)
        else:
            resume.archive(job.out)
            driver.run(job.config, job.out, followers, session, progress=False)
    except EngineLostError:
        raise
    except KeyboardInterrupt as interrupt:
        number = getattr(interrupt, "number", signal.SIGINT)
        return Stopped(0 if orders.stop else int(number), _notes(interrupt))
    except Exception as error:  # noqa: BLE001 - a run's failure is told, the others go on
        known = isinstance(error, FedsimError)
        reason = str(error) if known else f"unexpected {described(error)}"
        line = "; ".join(filter(None, [" ".join(reason.split()), _notes(error)]))
        status = error.exit_status if isinstance(error, FedsimError) else 1
        unusable = status == 2 and not isinstance(error, HeldError)
        lasting = unusable or isinstance(error, DivergedError)
        return Failed(line, "".join(traceback.format_exception(error)), status, lasting)
    return Done(watch.summary)


def _wait_for_lock(job: Job, orders: Orders) -> None:
    """Waits until nobody holds the run's directory, at most :data:`HELD_LIMIT` seconds."""
    until, said = time.monotonic() + HELD_LIMIT, False
    while not orders.stop and time.monotonic() < until:
        holder = files.lock_holder(job.out)
        if holder is None or not holder.held:
            return
        if not said:
            logger.info("waiting for %s, which still holds %s", holder.process, job.out)
            said = True
        time.sleep(HELD_POLL)


def _notes(error: BaseException) -> str:
    """The notes of an error in one line."""
    return " ".join("; ".join(getattr(error, "__notes__", [])).split())


class _Watch(Callback):
    """Tells of a run's rounds, and passes orders on to it."""

    def __init__(self, orders: Orders, tell: Tell) -> None:
        self.orders, self.tell = orders, tell
        self.summary: Mapping[str, object] = {}

    def on_run_start(self, info: RunInfo) -> None:
        self.tell(Started(info.done, info.rounds))
        self._stop()

    def on_round_end(self, round: int, rows: Rows) -> Literal["stop"] | None:  # noqa: ARG002
        (row,) = rows["rounds"]
        self.tell(RoundEnded(row, rows["timings"][-1]["seconds"]))  # of phase total
        self._stop()
        return "stop" if self.orders.end else None

    def on_run_end(self, summary: Mapping[str, object]) -> None:
        self.summary = dict(summary)

    def _stop(self) -> None:
        if self.orders.stop:
            raise Interrupted(signal.SIGTERM)  # the driver writes a checkpoint of the round


class Here:
    """One driver: this process, in which the runs are done one after the other.

    Args:
        session: of Ray, shared by the runs; None for none.
        callbacks: makes those of a run, such as its display.
    """

    slots = (0,)

    def __init__(
        self, session: Any = None, callbacks: Callable[[], Sequence[Callback]] = tuple
    ) -> None:
        self._session, self._callbacks = session, callbacks
        self._job: Job | None = None
        self._orders = Orders()

    def submit(self, slot: int, job: Job) -> None:  # noqa: ARG002
        """See :class:`~fedsim.engine.drivers.Drivers`."""
        self._job, self._orders = job, replace(self._orders, end=False)

    def events(self, tell: Callable[[int, Event], None]) -> None:
        """Does the run, in which it differs from other drivers."""
        if self._job is None:
            return
        job, self._job = self._job, None
        callbacks = self._callbacks()
        ray = self._session if job.config.engine.kind == "ray" else None
        try:
            with handled():  # Ctrl-C need not wait for the first round
                ended = execute(job, self._orders, lambda e: tell(0, e), ray, callbacks)
        finally:
            for callback in callbacks:
                callback.close()
        tell(0, ended)

    def stop(self, slot: int | None = None) -> None:  # noqa: ARG002
        """See :class:`~fedsim.engine.drivers.Drivers`."""
        self._orders.stop = True

    def end(self, slot: int) -> None:  # noqa: ARG002
        """See :class:`~fedsim.engine.drivers.Drivers`."""
        self._orders.end = True

    def close(self, at_once: bool = False) -> None:
        """Nothing to end; the session is its owner's."""
