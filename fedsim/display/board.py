"""The display of several runs at once: a bar for each on a terminal, plain lines in a pipe."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.progress import TaskID

from fedsim.core.terminal import echo, printable
from fedsim.core.text import decimals, duration
from fedsim.display.progress import in_notebook, live_bars
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
        """Says that a run begins, was finished before, or failed."""
        if isinstance(event, Begun):
            self.say(job, ": resumed after an interruption" if event.resumed else "")
        elif isinstance(event, Done) and event.before:
            self.say(job, ": finished before")
        elif isinstance(event, Failed):
            show_traceback(event, self.verbose)
            self.say(job, f": failed: {event.reason}")

    def say(self, job: Job, text: str) -> None:
        """A line about a run."""
        logger.info("[%d/%d] %s%s", self.positions[job.name], len(self.names), job.name, text)

    def stopping(self) -> None:
        """Nothing: the run has stopped by itself."""


@dataclass
class Active:
    """A run in a slot: its rounds, 0 while their number is not known, and what is known of them.

    ``since`` is when it got the slot; ``took`` are the seconds of the ``seen`` rounds that were
    reported; ``accuracy`` is the newest value of the metric, as text.
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
        """Counts what a run reports, and says what ended, went on or was lost."""
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
        seconds = [*self.took.values(), *(left for left in now if left is not None)]
        if not seconds:
            return None
        usual = sum(seconds) / len(seconds)
        active = [
            self._usual(run.name, usual) if left is None else left
            for run, left in zip(self.active.values(), now, strict=True)
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
        title = f"[{self.ended}/{self.total}] {run.name}"
        if isinstance(event, Failed):
            logger.info("%s: failed: %s", title, event.reason)
        elif isinstance(event, Done) and event.before:
            logger.info("%s: finished before", title)
        elif isinstance(event, Done):
            seconds = time.monotonic() - run.since
            accuracy = decimals(event.summary.get("final_test_accuracy"))
            logger.info(
                "%s: %s, test accuracy %s%s", title, duration(seconds), accuracy, self._rest()
            )

    def _rest(self) -> str:
        left = self.left() if self.ended < self.total else None
        return "" if left is None else f"; about {duration(left)} left"


@dataclass(kw_only=True)
class Bars(Board):
    """A bar on stderr for the sweep, and below it one for each active run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bars = live_bars(ratio=2)
        self.tasks: dict[int, TaskID] = {}
        self.sweep = self.bars.add_task("runs", total=self.total, completed=self.ended, text="")
        self.bars.start()

    def happened(self, slot: int, job: Job, event: Event) -> None:
        """Also moves the bars."""
        super().happened(slot, job, event)
        run = self.active.get(slot)
        if run is None and slot in self.tasks:
            self.bars.remove_task(self.tasks.pop(slot))
        elif run is not None:
            if slot not in self.tasks:
                self.tasks[slot] = self.bars.add_task(printable(run.name), total=None, text="")
            name = self.metric.replace("test_accuracy", "test acc")
            text = f"{name} {run.accuracy}  {run.took / run.seen:.2f} s/round" if run.seen else ""
            total = run.rounds or None
            self.bars.update(self.tasks[slot], total=total, completed=run.done, text=text)
        left = self.left() if self.active else None
        text = "" if left is None else f"{duration(left)} left"
        self.bars.update(self.sweep, completed=self.ended, text=text)

    def close(self) -> None:
        """Stops the display, so that the cursor is back."""
        self.bars.stop()


def board_type() -> type[Board]:
    """Bars on a terminal and in a notebook, plain lines elsewhere."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return Bars if terminal or in_notebook() else Board


def show_traceback(event: Failed, verbose: bool) -> None:
    """The traceback of a failure, where tracebacks are shown."""
    if verbose and event.traceback:
        echo(event.traceback, file=sys.stderr, nl=False)
