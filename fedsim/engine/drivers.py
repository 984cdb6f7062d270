"""The interface of run drivers, which execute several runs at once, and their events.

A driver is a process with a numbered slot. It executes one job after the other, so that imports and
other start-up costs are paid once. :mod:`fedsim.training.parallel` has the loop that hands out the
jobs, and the function with which every driver executes a job.
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
    """A run to execute, or to resume where it has begun.

    Args:
        name: in messages; unique among the jobs of one control loop.
        config: of the run.
        out: its run directory.
        trackers: their names, as for ``--track``.
        accept_changed_code: whether it goes on where the user's code has changed.
    """

    name: str
    config: RunConfig
    out: Path
    trackers: tuple[str, ...] = ()
    accept_changed_code: bool = False


@dataclass
class Orders:
    """Orders to an active run, which checks them at the end of each round.

    Args:
        stop: stop with a checkpoint, as after Ctrl-C.
        end: finish, as if this had been the last round.
    """

    stop: bool = False
    end: bool = False


@dataclass(frozen=True)
class Begun:
    """The driver has the job, and loads the run's data.

    Args:
        resumed: whether the run continues from a checkpoint.
    """

    resumed: bool


@dataclass(frozen=True)
class Started:
    """The run is about to do its first round, or the first one after a resume.

    Args:
        done: number of complete rounds.
        rounds: of the whole run.
    """

    done: int
    rounds: int


@dataclass(frozen=True)
class RoundEnded:
    """A round is complete, and its rows are on disk.

    Args:
        row: its row of rounds.csv.
        seconds: its duration.
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
        summary: the row of summary.csv; empty for a run that was finished ``before``.
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
        signal: the number of the signal that the driver received; 0: :class:`Orders` said so.
        note: one line on what went wrong, such as a checkpoint that cannot be written.
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
"""Executes a job, reports its events and returns the last one. The last argument is the Ray
session that the runs of a driver share, None for none."""


class Drivers(Protocol):
    """Run drivers, each with a slot."""

    @property
    def slots(self) -> Sequence[int]:
        """The numbers of all slots."""

    @property
    def place(self) -> str:
        """Where the runs are done, such as ``in 2 processes``; may be empty."""

    def submit(self, slot: int, job: Job) -> None:
        """Gives a job to a free slot; a lost driver is replaced."""

    def events(self, tell: Callable[[int, Event], None]) -> None:
        """Waits a fraction of a second for events and reports them with their slots, in order for
        each slot. The loss of a driver without a job is not reported."""

    def stop(self, slot: int | None = None) -> None:
        """Orders the run of a slot to stop after its round, see :class:`Orders`.

        None: all runs, and lost drivers are not replaced any more: the process is about to end.
        """

    def end(self, slot: int) -> None:
        """Orders the run of a slot to finish after its round, see :class:`Orders`."""

    def close(self, at_once: bool = False) -> None:
        """Ends the drivers: active runs stop as after :meth:`stop`, or are killed (``at_once``)."""


def forward_log(tell: Tell) -> None:
    """Reports this process's messages of fedsim's log and Python's warnings as events."""
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
