"""Does many runs: grid, search, choice and comparison, for the command line and for Python.

The work is that of a file: searches, if it has any, then the runs of a sweep, which are those of
the grid, or follow from what the searches have found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.config.run import RunConfig
from fedsim.core import files
from fedsim.core.analysis import analysis
from fedsim.core.errors import ConfigError, FedsimError
from fedsim.core.text import counted
from fedsim.display import board
from fedsim.display.descriptions import descriptions
from fedsim.storage import directories
from fedsim.storage.run_dir import check_outside_runs
from fedsim.studies import capacity
from fedsim.studies import plan as plans
from fedsim.studies import sweep as sweeps
from fedsim.studies import tune as tuning
from fedsim.studies.parallel import Drivers, Follower, Here, control
from fedsim.studies.plan import Plan
from fedsim.studies.sweep import SweepRun
from fedsim.studies.tune import Tuning
from fedsim.training.events import Event, Job

if TYPE_CHECKING:
    import pandas as pd

    from fedsim.training.callbacks import Callback

logger = logging.getLogger("fedsim")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How runs are done and shown."""

    trackers: tuple[str, ...] = ()
    accept_changed_code: bool = False
    verbose: bool = False  # tracebacks of failed runs are shown
    progress: bool | None = None  # several runs as bars; None: on a terminal, in a notebook
    displays: Callable[[], Sequence[Callback]] = tuple  # makes that of a run in this process


@dataclass(kw_only=True)
class Outcome:
    """Work that has ended: its runs, the names of those that failed, and the searches before."""

    runs: Sequence[SweepRun]
    table: pd.DataFrame | None = None  # aggregate.csv; without rows where no run finished
    failed: Sequence[str] = ()
    tunings: Sequence[Tuning] = ()
    confirmed: pd.DataFrame | None = None  # confirm.csv, if any

    def check(self) -> None:
        """Raises a FedsimError where a run failed."""
        if self.failed:
            runs, them = counted(len(self.runs), "run"), "them" if len(self.runs) > 1 else "it"
            raise FedsimError(
                f"{len(self.failed)} of {runs} failed (reasons above); the same command tries "
                f"{them} again: {' '.join(self.failed)}"
            )


def run(plan: Plan, out: Path, options: RunOptions) -> Outcome:
    """Does what is left: the searches, then the other runs, and writes their tables. After
    Interrupted (Ctrl-C, SIGTERM) or a FedsimError the same call continues."""
    check_outside_runs(out / "sweep")  # nor is it one
    folder = plan.folder(out)
    begun = (folder / directories.GRID).exists()
    if out.is_file() or ((folder / "summary.csv").is_file() and not begun):
        raise ConfigError(f"--out {out}: a file, or tables of something else, are there")
    trackers, accept = options.trackers, options.accept_changed_code
    with ExitStack() as locked, ExitStack() as stack:
        with files.writing(out):
            out.mkdir(parents=True, exist_ok=True)
        locked.enter_context(files.lock(out))
        pairs = zip(plan.searches, plan.folders(out), strict=True)
        tunings = [Tuning(search, at, trackers, accept) for (_, search), at in pairs]
        for each in tunings:
            each.check_runs()
        left = sweeps.missing(plan.grid, out, accept)
        later = len(left) if plan.grid else plan.later(out)
        examples = [run.config for run in left] or plan.configs
        waiting = later + sum(len(each.left) for each in tunings)
        configs = list(islice(cycle(examples), waiting))
        drivers = capacity.make_drivers(configs, plan.parallel, stack, options.displays)
        _introduce(plan, drivers, configs, later)
        shown = _display(stack, plan, drivers, options, waiting)
        if tunings:
            tune(tunings, drivers, shown)
        runs = plan.runs(tunings, out)
        outcome = Outcome(tunings=tunings, runs=runs)
        if not runs:
            return outcome
        if not plan.grid:
            left = sweeps.missing(runs, folder, accept)
        if isinstance(shown, board.Board):
            searched = plan.file.kind == "tune"
            metric = plan.by if searched else ""
            shown.now(len(plan.configs) - len(left), metric, lines=not searched)
        outcome.table, outcome.failed = sweeps.run_all(
            runs, left, folder, drivers, shown, trackers, accept
        )
        if plan.file.kind == "tune" and len(outcome.failed) < len(runs):
            leaders = tunings[0].leaders[: plan.file.confirm]
            outcome.confirmed = tuning.write_confirmed(
                tunings[0].plan, out, leaders, plan.seeds, outcome.failed, outcome.table
            )
        return outcome


def _introduce(plan: Plan, drivers: Drivers, configs: Sequence[RunConfig], later: int) -> None:
    """Says how much is left: ``18 runs``, or ``50 runs of trials, then 9 to confirm``."""
    if not configs:
        return
    if plan.grid:
        runs = counted(len(plan.grid), "run")
        text = runs if later == len(plan.grid) else f"{later} of {runs} left"
    else:
        purpose = "compare" if plan.file.methods else "confirm"
        then = f", then {later} to {purpose}" if later else ""
        text = f"{counted(len(configs) - later, 'run')} of trials{then}"
    logger.info(capacity.introduction(text, drivers, configs))


def _display(
    stack: ExitStack, plan: Plan, drivers: Drivers, options: RunOptions, waiting: int
) -> Follower:
    """The display of all runs, which the stack closes."""
    if plan.grid and isinstance(drivers, Here):
        return board.OneByOne([run.name for run in plan.grid], options.verbose)
    shown = board.make(
        options.progress,
        total=len(plan.configs),
        ended=len(plan.configs) - waiting,
        verbose=options.verbose,
        metric="" if plan.grid else plan.by,
        lines=bool(plan.grid),
    )
    stack.callback(shown.close)
    return shown


def tune(tunings: Sequence[Tuning], drivers: Drivers, shown: Follower) -> None:
    """Does the trials that are left of all searches; free drivers begin the next search."""
    several = _Searches(tunings, shown)
    for each in tunings:
        each.begin(drivers)
    control(several.next_job, drivers, several)


class _Searches:
    """Searches by the same drivers; tells a display of all their runs."""

    def __init__(self, tunings: Sequence[Tuning], shown: Follower) -> None:
        self.shown, self.stopping = shown, shown.stopping
        self.tunings = {each.out: each for each in tunings}

    def next_job(self) -> Job | None:
        """The next run of the first search that has one."""
        jobs = (each.next_job() for each in self.tunings.values())
        return next((job for job in jobs if job is not None), None)

    def happened(self, slot: int, job: Job, event: Event) -> None:
        self.shown.happened(slot, job, event)
        self.tunings[job.out.parents[1]].happened(slot, job, event)  # OUT/trial-0000/seed=0


def report(plan: Plan, out: Path) -> Path:
    """Writes tables and figures of a study's comparison to OUT/report; returns the page."""
    by, unit = plans.grouping(out)
    written = analysis("report.page").write(
        [out / plans.RUNS],
        out / plans.REPORT,
        by=by,
        baseline=plan.file.baseline,
        title=plan.file.about or None,
        descriptions=descriptions(),
        unit=unit,
    )
    page: Path = written.page
    return page
