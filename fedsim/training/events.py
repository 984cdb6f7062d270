"""One run of several: the job, the orders that it takes, and the events that it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.core.measures import Measures

if TYPE_CHECKING:
    from fedsim.config.run import RunConfig


@dataclass(frozen=True)
class Job:
    """A run to execute, or to resume where it has begun.

    ``name`` is unique among the jobs of one control loop, ``out`` the run directory, ``trackers``
    are named as for ``--track``.
    """

    name: str
    config: RunConfig
    out: Path
    trackers: tuple[str, ...] = ()
    accept_changed_code: bool = False


@dataclass
class Orders:
    """Orders to an active run, which checks them at the end of each round: to stop with a
    checkpoint, as after Ctrl-C, or to end, as if this had been the last round."""

    stop: bool = False
    end: bool = False


@dataclass(frozen=True)
class Begun:
    """The run loads its data; ``resumed``: it continues from a checkpoint."""

    resumed: bool


@dataclass(frozen=True)
class Started:
    """The first round of this process begins, of ``rounds`` in all, ``done`` of them before."""

    done: int
    rounds: int
    measures: Measures = field(default_factory=Measures)


@dataclass(frozen=True)
class RoundEnded:
    """A round is complete: its ``row`` of rounds.csv, which is being written, and its duration."""

    row: Mapping[str, Any]
    seconds: float


@dataclass(frozen=True)
class Logged:
    """A message of fedsim's log, or a warning of Python's (``once``), at a level of
    :mod:`logging`."""

    level: int
    text: str
    once: bool = False


@dataclass(frozen=True)
class Done:
    """The run is finished; the row of summary.csv, empty if it was finished ``before``."""

    summary: Mapping[str, Any]
    before: bool = False


@dataclass(frozen=True)
class Failed:
    """The run failed, for a reason of one line; ``lasting``: as it would on any machine.

    ``exit_status`` is that of a process that fails so; 2: settings or data cannot be used.
    """

    reason: str
    traceback: str = ""
    exit_status: int = 1
    lasting: bool = False


@dataclass(frozen=True)
class Stopped:
    """The run stopped with a checkpoint of its newest round, by a signal (0: by :class:`Orders`);
    ``note``: what went wrong, such as a checkpoint that cannot be written."""

    signal: int = 0
    note: str = ""


@dataclass(frozen=True)
class Lost:
    """The process of the run, or a machine of its, was lost; its slot takes another job."""

    reason: str


Event = Begun | Started | RoundEnded | Logged | Done | Failed | Stopped | Lost
ENDINGS = (Done, Failed, Stopped, Lost)
"""Events after which the slot is free."""
Tell = Callable[[Event], None]
