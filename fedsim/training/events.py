"""One run of several: the job, the orders that it takes, and the events that it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """A round is complete, and its rows are being written.

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
        once: whether it is a warning of Python's, which many runs repeat.
    """

    level: int
    text: str
    once: bool = False


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
