"""The display of several runs at once: a bar for each on a terminal, plain lines in a pipe."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from fedsim.core.terminal import echo, printable
from fedsim.core.text import decimals, duration
from fedsim.display.progress import in_notebook
from fedsim.training.events import (
    ENDINGS,
    Begun,
    Done,
    Event,
    Failed,
    Job,
    Logged,
    Lost,
    RoundEnded,
    Started,
)

logger = logging.getLogger("fedsim")
STOPPING = "stopping: every run ends its round and leaves a checkpoint; a second Ctrl-C kills them"


class OneByOne:
    """Prints which run begins and which fails; each run's own display shows its rounds.

    Args:
        names: of all runs of the sweep, in its order.
        verbose: whether tracebacks are shown.
    """

    def __init__(self, names: Sequence[str], verbose: bool = False) -> None:
        self.names, self.verbose = names, verbose
        self.positions = {name: position for position, name in enumerate(names, start=1)}

    def happened(self, slot: int, job: Job, event: Event) -> None:  # noqa: ARG002
        """See :class:`~fedsim.studies.parallel.Follower`."""
        if isinstance(event, Begun):
            self.say(job, ": resumed after an interruption" if event.resumed else "")
        elif isinstance(event, Done) and event.before:
            self.say(job, ": finished before")
        elif isinstance(event, Failed):
            show_traceback(event, self.verbose)
            self.say(job, f": failed: {event.reason}")

    def say(self, job: Job, what: str) -> None:
        """A line about a run."""
        logger.info("[%d/%d] %s%s", self.positions[job.name], len(self.names), job.name, what)

    def stopping(self) -> None:
        """Nothing: the run has stopped by itself."""


@dataclass
class Active:
    """A run in a slot.

    Args:
        name: its own.
        since: when it got the slot, on the clock of ``time.monotonic``.
        rounds: of the whole run, 0 while their number is not known.
        done: complete rounds.
        took: seconds of the rounds that were reported.
        seen: number of rounds that were reported.
        accuracy: the newest value of the metric, as text.
    """

    name: str
    since: float = field(default_factory=time.monotonic)
    rounds: int = 0
    done: int = 0
    took: float = 0.0
    seen: int = 0
    accuracy: str = "-"

    @property
    def left(self) -> float | None:
        """Estimated seconds until its end, None before the first reported round."""
        return (self.rounds - self.done) * self.took / self.seen if self.seen else None


@dataclass(kw_only=True)
class Board:
    """Shows several runs at once as plain lines, one when a run ends.

    Args:
        total: number of runs of the whole sweep, including those that are finished.
        waiting: the names of the runs that have not begun.
        width: how many runs at once.
        group_of: returns the group of a run's name; runs of a group take about equally long.
        took: known seconds of a run, by group.
        verbose: whether tracebacks are shown.
        metric: column of rounds.csv that the line of a run shows.
        lines: whether a line is printed when a run ends; for warnings and lost runs it always is.
    """

    total: int
    waiting: list[str]
    width: int
    group_of: Callable[[str], str] = str
    took: dict[str, float] = field(default_factory=dict)
    verbose: bool = False
    metric: str = "test_accuracy"
    lines: bool = True

    def __post_init__(self) -> None:
        self.ended = self.total - len(self.waiting)
        self.active: dict[int, Active] = {}
        self.halted = False

    def happened(self, slot: int, job: Job, event: Event) -> None:
        """See :class:`~fedsim.studies.parallel.Follower`."""
        run = self.active.setdefault(slot, Active(job.name))
        if isinstance(event, Begun) and event.resumed:
            logger.info("%s: resumed after an interruption", job.name)
        elif isinstance(event, Started):
            run.done, run.rounds = event.done, event.rounds
        elif isinstance(event, RoundEnded):
            run.done += 1
            run.seen += 1
            run.took += event.seconds
            if event.row[self.metric] is not None:
                run.accuracy = decimals(event.row[self.metric])
        elif isinstance(event, Logged):
            logger.log(event.level, "%s: %s", job.name, event.text)
        if job.name in self.waiting:
            self.waiting.remove(job.name)
        if isinstance(event, ENDINGS):
            self._ended(run, event)
            del self.active[slot]

    def now(self, waiting: list[str], metric: str, lines: bool) -> None:
        """Begins another part of the work; all runs that are not ``waiting`` have ended."""
        self.waiting, self.metric, self.lines = waiting, metric, lines
        self.ended = self.total - len(waiting)

    def stopping(self) -> None:
        """Says that the runs stop after their round."""
        self.halted = True
        logger.warning(STOPPING)

    def close(self) -> None:
        """Does nothing."""

    def left(self) -> float | None:
        """Estimated seconds until the last run ends, None before the first reported round."""
        now = [run.left for run in self.active.values()]
        known = [*self.took.values(), *(seconds for seconds in now if seconds is not None)]
        if not known:
            return None
        usual = sum(known) / len(known)
        active = [
            self._usual(run.name, usual) if seconds is None else seconds
            for run, seconds in zip(self.active.values(), now, strict=True)
        ]
        later = sum(self._usual(name, usual) for name in self.waiting)
        return max([*active, (sum(active) + later) / self.width])

    def _usual(self, name: str, otherwise: float) -> float:
        return self.took.get(self.group_of(name), otherwise)

    def _ended(self, run: Active, event: Event) -> None:
        if isinstance(event, Lost):
            again = "" if self.halted else "; resuming it"
            logger.warning("%s: %s%s", run.name, event.reason, again)
            self.waiting.insert(0, run.name)
            return
        self.ended += isinstance(event, Done | Failed)
        if isinstance(event, Done) and not event.before:
            self.took.setdefault(self.group_of(run.name), time.monotonic() - run.since)
        if isinstance(event, Failed):
            show_traceback(event, self.verbose)
        if not self.lines:
            return
        where = f"[{self.ended}/{self.total}] {run.name}"
        if isinstance(event, Failed):
            logger.info("%s: failed: %s", where, event.reason)
        elif isinstance(event, Done) and event.before:
            logger.info("%s: finished before", where)
        elif isinstance(event, Done):
            seconds = time.monotonic() - run.since
            accuracy = decimals(event.summary.get("final_test_accuracy"))
            logger.info(
                "%s: %s, test accuracy %s%s", where, duration(seconds), accuracy, self._rest()
            )

    def _rest(self) -> str:
        left = self.left() if self.ended < self.total else None
        return "" if left is None else f"; about {duration(left)} left"


@dataclass(kw_only=True)
class Bars(Board):
    """A bar on stderr for the sweep, and below it one for each active run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bars = Progress(
            TextColumn(
                "{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=2)
            ),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
            console=Console(stderr=True),
            expand=True,
        )
        self.tasks: dict[int, TaskID] = {}
        self.sweep = self.bars.add_task("runs", total=self.total, completed=self.ended, text="")
        self.bars.start()

    def happened(self, slot: int, job: Job, event: Event) -> None:
        """See :class:`Board`."""
        super().happened(slot, job, event)
        run = self.active.get(slot)
        if run is None:
            self._remove(slot)
        else:
            self._show(slot, run)
        left = self.left() if self.active else None
        text = "" if left is None else f"{duration(left)} left"
        self.bars.update(self.sweep, completed=self.ended, text=text)

    def close(self) -> None:
        """Stops the display, so that the cursor is back."""
        self.bars.stop()

    def _show(self, slot: int, run: Active) -> None:
        if slot not in self.tasks:
            self.tasks[slot] = self.bars.add_task(printable(run.name), total=None, text="")
        what = self.metric.replace("test_accuracy", "test acc")
        text = f"{what} {run.accuracy}  {run.took / run.seen:.2f} s/round" if run.seen else ""
        self.bars.update(self.tasks[slot], total=run.rounds or None, completed=run.done, text=text)

    def _remove(self, slot: int) -> None:
        if slot in self.tasks:
            self.bars.remove_task(self.tasks.pop(slot))


def board_type() -> type[Board]:
    """Bars on a terminal and in a notebook, plain lines elsewhere."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return Bars if terminal or in_notebook() else Board


def show_traceback(event: Failed, verbose: bool) -> None:
    """The traceback of a failure, where tracebacks are shown."""
    if verbose and event.traceback:
        echo(event.traceback, file=sys.stderr, nl=False)
