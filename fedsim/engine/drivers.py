"""The interface of run drivers, which do whole runs side by side, and what they tell.

A driver is a warm process with a numbered slot. It does one job after the other, so that imports
and whatever else a run needs are paid for once. :mod:`fedsim.training.parallel` has the loop that
keeps the drivers at work, and the function with which each of them does a job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fedsim.config.run import RunConfig


@dataclass(frozen=True)
class Job:
    """A run that is to be done, or resumed where it was begun.

    Args:
        name: for people; no other job of one control loop has it.
        config: what is run.
        out: its run directory.
        trackers: their names, as for ``--track``.
    """

    name: str
    config: RunConfig
    out: Path
    trackers: tuple[str, ...] = ()


@dataclass
class Orders:
    """What a run that is being done is asked for; it looks at the end of each round.

    Args:
        stop: whether it is to stop with a checkpoint, as after Ctrl-C.
        end: whether it is to end in order, as if this had been its last round.
    """

    stop: bool = False
    end: bool = False


@dataclass(frozen=True)
class Begun:
    """The driver has the job, and reads the run's data.

    Args:
        resumed: whether the run goes on from a checkpoint.
    """

    resumed: bool


@dataclass(frozen=True)
class Started:
    """The run is about to do its first round, or the first one after a resume.

    Args:
        done: rounds that are complete.
        rounds: of the whole run.
    """

    done: int
    rounds: int


@dataclass(frozen=True)
class RoundEnded:
    """A round is on disk.

    Args:
        row: its row of table rounds.
        seconds: that it took.
    """

    row: Mapping[str, Any]
    seconds: float


@dataclass(frozen=True)
class Logged:
    """A message of fedsim's log, or a warning of Python's, in the driver's process.

    Args:
        level: as in :mod:`logging`.
        text: the message.
    """

    level: int
    text: str


@dataclass(frozen=True)
class Done:
    """The run is finished.

    Args:
        summary: the row of summary.csv; empty where the run had been finished ``before``.
    """

    summary: Mapping[str, Any]
    before: bool = False


@dataclass(frozen=True)
class Failed:
    """The run failed.

    Args:
        reason: one line.
        traceback: of the error, empty where there is none.
        exit_status: of a process that fails so; 2: settings or data cannot be used.
        lasting: whether the run would fail again on any machine: it diverged, or its settings or
            data cannot be used.
    """

    reason: str
    traceback: str = ""
    exit_status: int = 1
    lasting: bool = False


@dataclass(frozen=True)
class Stopped:
    """The run stopped with a checkpoint of its newest round.

    Args:
        signal: the number of the signal that the driver got; 0 where :class:`Orders` asked for it.
        note: what went wrong, such as a checkpoint that cannot be written; one line.
    """

    signal: int = 0
    note: str = ""


@dataclass(frozen=True)
class Lost:
    """The driver was lost; its slot takes another job.

    Args:
        reason: one line.
    """

    reason: str


Event = Begun | Started | RoundEnded | Logged | Done | Failed | Stopped | Lost
ENDINGS = (Done, Failed, Stopped, Lost)
"""Events after which the slot is free."""
Tell = Callable[[Event], None]
Execute = Callable[[Job, Orders, Tell, Any], Event]
"""Does a job, tells of what happens and returns how it ended; the last argument is the session of
Ray that the runs of a driver share, None for none."""


class Drivers(Protocol):
    """Run drivers, each with a slot."""

    @property
    def slots(self) -> Sequence[int]:
        """The numbers of all slots."""

    def submit(self, slot: int, job: Job) -> None:
        """Gives a job to a free slot; a driver that was lost is made anew for it."""

    def events(self, tell: Callable[[int, Event], None]) -> None:
        """Waits a fraction of a second for events and tells them with their slots, in the order of
        each slot. A driver that is lost without a job is no event."""

    def stop(self, slot: int | None = None) -> None:
        """Asks the run of a slot to stop after its round, see :class:`Orders`.

        None: those of all slots, and no driver is made any more: the process is about to end.
        """

    def end(self, slot: int) -> None:
        """Asks the run of a slot to end in order after its round, see :class:`Orders`."""

    def close(self, at_once: bool = False) -> None:
        """Ends the drivers; where they are at work, as :meth:`stop` or, ``at_once``, by a kill."""


def forward_log(tell: Tell) -> None:
    """Tells of the messages of fedsim's log, and Python's warnings, of this process."""
    logging.captureWarnings(True)
    for name in ("fedsim", "py.warnings"):
        logging.getLogger(name).addHandler(_Forward(tell))
    logging.getLogger("fedsim").setLevel(logging.INFO)


class _Forward(logging.Handler):
    def __init__(self, tell: Tell) -> None:
        super().__init__(logging.INFO)
        self.tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self.tell(Logged(record.levelno, self.format(record)))
