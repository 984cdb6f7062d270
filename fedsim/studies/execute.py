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

from fedsim.config.experiments import OPTIONS, Experiment, Settings
from fedsim.config.run import RunConfig
from fedsim.core import files
from fedsim.core.analysis import analysis
from fedsim.core.errors import ConfigError, FedsimError
from fedsim.core.plurals import counted
from fedsim.display import board
from fedsim.display.descriptions import descriptions
from fedsim.studies import capacity
from fedsim.studies import confirm as confirming
from fedsim.studies import study as studies
from fedsim.studies import sweep as sweeps
from fedsim.studies.capacity import Parallel
from fedsim.studies.parallel import Drivers, Follower, Here, control
from fedsim.studies.search import SearchPlan, check_out, make_plan
from fedsim.studies.study import StudyPlan
from fedsim.studies.sweep import SweepRun
from fedsim.studies.tune import Tuning
from fedsim.training.events import Event, Job

if TYPE_CHECKING:
    import pandas as pd

    from fedsim.training.callbacks import Callback

logger = logging.getLogger("fedsim")


@dataclass(frozen=True, kw_only=True)
class How:
    """How runs are done and shown.

    Args:
        trackers: of every run.
        accept_changed_code: whether runs go on where the user's code has changed.
        verbose: whether tracebacks of failed runs are shown.
        progress: whether the progress of several runs is shown as bars; None: on a terminal, and
            in a notebook.
        displays: makes the display of a run that is done in this process.
    """

    trackers: tuple[str, ...] = ()
    accept_changed_code: bool = False
    verbose: bool = False
    progress: bool | None = None
    displays: Callable[[], Sequence[Callback]] = tuple


@dataclass(kw_only=True)
class Ended:
    """Work that has ended.

    Args:
        tunings: the searches.
        runs: all runs of the sweep.
        table: the rows of aggregate.csv, where there are runs; none where no run finished.
        failed: the names of the runs that failed.
        confirmed: the rows of confirm.csv, of a search whose best trials were trained again.
    """

    tunings: Sequence[Tuning]
    runs: Sequence[SweepRun]
    table: pd.DataFrame | None = None
    failed: Sequence[str] = ()
    confirmed: pd.DataFrame | None = None

    def check(self) -> None:
        """Raises a FedsimError where a run failed."""
        if self.failed:
            runs, them = counted(len(self.runs), "run"), "them" if len(self.runs) > 1 else "it"
            raise FedsimError(
                f"{len(self.failed)} of {runs} failed (reasons above); the same command tries "
                f"{them} again: {' '.join(self.failed)}"
            )


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is done with a file; one of grid, search and study is given.

    Args:
        parallel: how many runs at once.
        grid: the runs of a sweep.
        search: the plan of a search.
        confirm: how many of its best trials are trained again on fresh seeds.
        study: the plan of a study.
    """

    parallel: Parallel
    grid: Sequence[SweepRun] = ()
    search: SearchPlan | None = None
    confirm: int = 0
    study: StudyPlan | None = None

    def searches(self, out: Path) -> list[tuple[SearchPlan, Path]]:
        """The searches, and their directories."""
        if self.study is not None:
            folder = out / studies.TUNING
            return [(plan, folder / sweeps.plain(cell.name)) for cell, plan in self.study.searches]
        return [] if self.search is None else [(self.search, out)]

    def folder(self, out: Path) -> Path:
        """The directory of the runs that are no trials."""
        below = studies.RUNS if self.study else confirming.FOLDER if self.search else ""
        return out / below

    @property
    def configs(self) -> list[RunConfig]:
        """An example for each run: of the trials, then of the others."""
        if self.study is not None:
            return self.study.configs
        if self.search is None:
            return [run.config for run in self.grid]
        examples = self.search.examples
        return list(islice(cycle(examples), self.search.runs + self._confirming(self.search)))

    def _confirming(self, plan: SearchPlan) -> int:
        return min(self.confirm, plan.count) * len(confirming.fresh_seeds(plan))

    def check_out(self, out: Path) -> None:
        """Refuses a directory that holds something else, or other work, by a ConfigError."""
        if self.study is not None:
            studies.check_out(out)
        for plan, folder in self.searches(out):
            check_out(plan, folder)
        if self.grid:
            sweeps.check_out(out)

    def runs(self, tunings: Sequence[Tuning], out: Path) -> Sequence[SweepRun]:
        """The runs after the searches; of a study, its files are written first."""
        if self.study is not None:
            studies.write_chosen(self.study, studies.chosen(self.study, tunings), out)
            return studies.compared(self.study, out)
        if self.search is not None:
            return confirming.runs_of(self.search, tunings[0].leaders[: self.confirm])
        return self.grid

    def names(self, tunings: Sequence[Tuning], out: Path) -> list[str]:
        """The runs that are left after the searches; those of trials do not have a name yet."""
        if self.search is not None and tunings[0].left:
            return [f"confirm {number}" for number in range(self._confirming(self.search))]
        if self.study is not None:
            names = self.study.compared_names
        else:
            names = [run.name for run in self.runs(tunings, out)]
        folder = self.folder(out)
        return [name for name in names if not (folder / name / "summary.csv").exists()]


def make(
    experiment: Experiment, overrides: Settings, parallel: Parallel, source: str = "study"
) -> Work:
    """What is done with a file or preset; all settings are checked.

    Args:
        experiment: its content.
        overrides: the flags, which win over all settings.
        parallel: how many runs at once.
        source: the name of the file.

    Raises:
        ConfigError: settings, a search space or seeds that cannot be used.
        DataError: the data, which may have a validation part, cannot be read.
    """
    if experiment.kind == "study":
        plan = studies.make(experiment, overrides, parallel, source)
        return Work(parallel=parallel, study=plan)
    if experiment.kind == "tune":
        search = make_plan(experiment, overrides, parallel)
        return Work(parallel=parallel, search=search, confirm=experiment.confirm)
    for key in OPTIONS & experiment.origins.keys():
        raise ConfigError(f"{experiment.origins[key]}: has no effect without 'search:'")
    return Work(parallel=parallel, grid=sweeps.expand(experiment, overrides, parallel))


def sweep(
    experiment: Experiment, overrides: Settings, out: Path, parallel: Parallel, how: How
) -> Ended:
    """Does what is left of the runs of a file; see :func:`make` and :func:`run`."""
    return run(make(experiment, overrides, parallel), out, how)


def run(work: Work, out: Path, how: How) -> Ended:
    """Does what is left: the searches, then the other runs, and writes their tables.

    Raises:
        ConfigError, DataError, StoreError: see :mod:`fedsim.studies`.
        FedsimError: a search without a complete trial, or a run failed for a reason that is not
            its trial's.
        Interrupted: Ctrl-C or SIGTERM came; the same call continues.
    """
    work.check_out(out)  # refused before it is made
    with ExitStack() as locked, ExitStack() as stack:
        with files.writing(out):
            out.mkdir(parents=True, exist_ok=True)
        locked.enter_context(files.lock(out))
        accept = how.accept_changed_code
        tunings = [
            Tuning(plan, folder, how.trackers, accept) for plan, folder in work.searches(out)
        ]
        trials, later = [n for t in tunings for n in t.names], work.names(tunings, out)
        examples = work.configs if tunings else _left(work, later)
        configs = list(islice(cycle(examples), len(trials) + len(later)))
        drivers = capacity.make_drivers(configs, work.parallel, stack, how.displays)
        if tunings and not trials:
            count = sum(len(tuning.ended) for tuning in tunings)
            logger.info("%s done already", counted(count, "trial"))
        if configs:
            text = _introduction(work, len(trials), len(later))
            logger.info(capacity.introduction(text, drivers, configs))
        shown = _display(stack, work, drivers, how, [*trials, *later])
        if tunings:
            tune(tunings, drivers, shown)
        runs, folder = work.runs(tunings, out), work.folder(out)
        ended = Ended(tunings=tunings, runs=runs)
        if not runs:
            return ended
        missing = sweeps.missing(runs, folder, accept_changed_code=accept)
        if isinstance(shown, board.Board):
            metric = work.search.proposer.by if work.search else "test_accuracy"
            shown.now([run.name for run in missing], metric, lines=work.search is None)
        ended.table, ended.failed = sweeps.run_all(
            runs, missing, folder, drivers, shown, how.trackers, accept_changed_code=accept
        )
        if work.search is not None and len(ended.failed) < len(runs):
            leaders = tunings[0].leaders[: work.confirm]
            ended.confirmed = confirming.write_confirmed(
                work.search, out, leaders, ended.failed, ended.table
            )
        return ended


def _left(work: Work, names: Sequence[str]) -> list[RunConfig]:
    left = {*names}
    return [run.config for run in work.grid if run.name in left]


def _introduction(work: Work, trials: int, later: int) -> str:
    """``18 runs``, ``3 of 18 runs left`` or ``50 runs of trials, then 9 to confirm``."""
    if work.grid:
        runs = counted(len(work.grid), "run")
        return runs if later == len(work.grid) else f"{later} of {runs} left"
    purpose = "compare" if work.study else "confirm"
    then = f", then {later} to {purpose}" if later else ""
    return f"{counted(trials, 'run')} of trials{then}"


def _display(
    stack: ExitStack, work: Work, drivers: Drivers, how: How, waiting: list[str]
) -> Follower:
    """The display of all runs, which the stack closes."""
    if work.grid and isinstance(drivers, Here):
        return board.OneByOne([run.name for run in work.grid], how.verbose)
    kinds = {None: board.board_type(), True: board.Bars, False: board.Board}
    by = [plan.proposer.by for plan, _ in work.searches(Path())]
    shown = kinds[how.progress](
        total=len(work.configs),
        waiting=waiting,
        width=len(drivers.slots),
        group_of=lambda name: sweeps.group_of(name.partition("/")[0]),
        verbose=how.verbose,
        metric=by[0] if by else "test_accuracy",
        lines=not by,
    )
    stack.callback(shown.close)
    return shown


def tune(tunings: Sequence[Tuning], drivers: Drivers, shown: Follower) -> None:
    """Does the trials that are left of all searches; free drivers begin the next search.

    Raises:
        ConfigError: no trial of a search can have a value.
        FedsimError: a run failed for a reason that is not its trial's.
        StoreError: the files of a search cannot be written.
        Interrupted: Ctrl-C or SIGTERM came, see :func:`~fedsim.studies.parallel.control`.
    """
    several = _Searches(tunings, shown)
    for tuning in tunings:
        tuning.begin(drivers)
    control(several.next_job, drivers, several)


class _Searches:
    """Searches by the same drivers; tells a display of all their runs."""

    def __init__(self, tunings: Sequence[Tuning], shown: Follower) -> None:
        self.shown, self.stopping = shown, shown.stopping
        self.tunings = {tuning.out: tuning for tuning in tunings}

    def next_job(self) -> Job | None:
        """The next run of the first search that has one."""
        jobs = (tuning.next_job() for tuning in self.tunings.values())
        return next((job for job in jobs if job is not None), None)

    def happened(self, slot: int, job: Job, event: Event) -> None:
        self.shown.happened(slot, job, event)
        self.tunings[job.out.parents[1]].happened(slot, job, event)  # OUT/trial-0000/seed=0


def report(plan: StudyPlan, out: Path) -> Path:
    """Writes tables and figures of a study's comparison to OUT/report; returns the page.

    Raises:
        AnalysisError: the runs cannot be compared.
    """
    by, unit = studies.grouping(out)
    written = analysis("report").write(
        [out / studies.RUNS],
        out / studies.REPORT,
        by=by,
        baseline=plan.file.baseline,
        title=plan.file.about or None,
        descriptions=descriptions(),
        unit=unit,
    )
    page: Path = written.page
    return page
