"""The display of several runs at once: a bar for each on a terminal, plain lines in a pipe."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.progress import TaskID

from fedsim.core.measures import Measures
from fedsim.core.terminal import echo, printable
from fedsim.core.text import decimals, duration
from fedsim.display.progress import is_terminal, live_bars
from fedsim.training import events

logger = logging.getLogger("fedsim")
STOPPING = "stopping: every run ends its round and leaves a checkpoint; a second Ctrl-C kills them"


class OneByOne:
    """Prints which run begins and which fails; each run's own display shows its rounds."""

    def __init__(self, names: Sequence[str], verbose: bool = False) -> None:
        self.verbose = verbose
        self.titles = {name: f"[{i}/{len(names)}] {name}" for i, name in enumerate(names, 1)}

    def happened(self, slot: int, job: events.Job, event: events.Event) -> None:
        title = self.titles[job.name]
        if isinstance(event, events.Begun):
            logger.info("%s%s", title, ": resumed after an interruption" if event.resumed else "")
        elif isinstance(event, events.Done) and event.before:
            logger.info("%s: finished before", title)
        elif isinstance(event, events.Failed):
            _show_failure(title, event, self.verbose)

    def stopping(self) -> None:
        """Nothing: the run has stopped by itself."""


@dataclass
class Active:
    """A run in a slot since then: its rounds (0: not known yet), how many are done, the seconds
    of those that were seen, and the newest value of the metric, as text."""

    name: str
    since: float = field(default_factory=time.monotonic)
    rounds: int = 0
    done: int = 0
    took: float = 0.0
    seen: int = 0
    score: str = "-"
    measures: Measures = field(default_factory=Measures)

    @property
    def share(self) -> float:
        """The share of its rounds that are done."""
        return self.done / self.rounds if self.rounds else 0.0


@dataclass(kw_only=True)
class Board:
    """Shows several runs at once; ``metric`` of rounds.csv, by default the primary measure on the
    test part; ``lines`` when a run ends."""

    total: int
    ended: int = 0
    verbose: bool = False
    metric: str = ""
    lines: bool = True

    def __post_init__(self) -> None:
        self.active: dict[int, Active] = {}
        self.start, self.before = time.monotonic(), float(self.ended)
        self.halted = False

    def happened(self, slot: int, job: events.Job, event: events.Event) -> None:
        """Counts what a run reports, and says what ended, went on or was lost."""
        run = self.active.setdefault(slot, Active(job.name))
        if isinstance(event, events.Begun) and event.resumed:
            logger.info("%s: resumed after an interruption", job.name)
        elif isinstance(event, events.Started):
            run.done, run.rounds, run.measures = event.done, event.rounds, event.measures
            self.before += run.share
        elif isinstance(event, events.RoundEnded):
            run.done += 1
            run.seen += 1
            run.took += event.seconds
            value = event.row.get(self.metric or run.measures.column("test"))
            run.score = run.score if value is None else decimals(value)
        elif isinstance(event, events.Logged):
            logger.log(event.level, "%s: %s", job.name, event.text)
        elif isinstance(event, events.ENDINGS):
            del self.active[slot]
            self._ended(run, event)

    def now(self, ended: int, metric: str, lines: bool) -> None:
        """Begins another part of the work, when so many runs have ended."""
        self.before += ended - self.ended
        self.ended, self.metric, self.lines = ended, metric, lines

    def stopping(self) -> None:
        """Says that the runs stop after their round."""
        self.halted = True
        logger.warning(STOPPING)

    def close(self) -> None:
        """Does nothing."""

    def left(self) -> float | None:
        """Seconds until the last run ends, at the pace since the display began; None before."""
        done = self.ended + sum(run.share for run in self.active.values())
        fresh = done - self.before
        elapsed = time.monotonic() - self.start
        return elapsed / fresh * (self.total - done) if fresh > 0 else None

    def _ended(self, run: Active, event: events.Event) -> None:
        title = f"[{self.ended + 1}/{self.total}] {run.name}"
        if isinstance(event, events.Lost):
            again = "" if self.halted else "; resuming it"
            logger.warning("%s: %s%s", run.name, event.reason, again)
        elif isinstance(event, events.Failed):
            self.ended += 1
            _show_failure(title if self.lines else "", event, self.verbose)
        elif isinstance(event, events.Done):
            self.ended += 1
            self.before += event.before
            seconds = time.monotonic() - run.since
            score = decimals(event.summary.get(run.measures.column("test", "final")))
            text = f"{duration(seconds)}, test {run.measures.title} {score}"
            left = self.left() if self.ended < self.total else None
            text += "" if left is None else f"; about {duration(left)} left"
            if self.lines:
                logger.info("%s: %s", title, "finished before" if event.before else text)


@dataclass(kw_only=True)
class Bars(Board):
    """A bar on stderr for the sweep, and below it one for each active run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bars = live_bars(ratio=2)
        self.tasks: dict[int, TaskID] = {}
        self.sweep = self.bars.add_task("runs", total=self.total, completed=self.ended, text="")
        self.bars.start()

    def happened(self, slot: int, job: events.Job, event: events.Event) -> None:
        super().happened(slot, job, event)
        run = self.active.get(slot)
        if run is None and slot in self.tasks:
            self.bars.remove_task(self.tasks.pop(slot))
        elif run is not None:
            if slot not in self.tasks:
                self.tasks[slot] = self.bars.add_task(printable(run.name), total=None, text="")
            name = self.metric or f"test {run.measures.title}".replace("accuracy", "acc")
            text = f"{name} {run.score}  {run.took / run.seen:.2f} s/round" if run.seen else ""
            total = run.rounds or None
            self.bars.update(self.tasks[slot], total=total, completed=run.done, text=text)
        left = self.left() if self.active else None
        text = "" if left is None else f"{duration(left)} left"
        self.bars.update(self.sweep, completed=self.ended, text=text)

    def close(self) -> None:
        self.bars.stop()


def make(bars: bool | None, **values: Any) -> Board:
    """The display of several runs: with bars, or where None is given, on a terminal."""
    return (Bars if bars or (bars is None and is_terminal()) else Board)(**values)


def _show_failure(title: str, event: events.Failed, verbose: bool) -> None:
    """The reason of a failure below a title, if any, and its traceback where those are shown."""
    if verbose and event.traceback:
        echo(event.traceback, file=sys.stderr, nl=False)
    if title:
        logger.info("%s: failed: %s", title, event.reason)
