"""Does the runs of a sweep or a study, with the display, for the command line and for Python."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.config.experiments import Experiment, Settings
from fedsim.core import files
from fedsim.core.analysis import analysis
from fedsim.core.errors import FedsimError
from fedsim.core.machine import cores
from fedsim.core.text import counted
from fedsim.display import board
from fedsim.display.descriptions import descriptions
from fedsim.studies import capacity
from fedsim.studies import study as studies
from fedsim.studies import sweep as sweeps
from fedsim.studies.capacity import Parallel
from fedsim.studies.parallel import Drivers, Follower, Here
from fedsim.studies.study import StudyPlan
from fedsim.studies.sweep import SweepRun

if TYPE_CHECKING:
    import pandas as pd

    from fedsim.core.settings import Scalar
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


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A sweep that has ended.

    Args:
        runs: all of them.
        table: the rows of aggregate.csv; none where no run finished.
        failed: the names of the runs that failed.
    """

    runs: Sequence[SweepRun]
    table: pd.DataFrame
    failed: Sequence[str]

    def check(self) -> None:
        """Raises a FedsimError where a run failed."""
        if self.failed:
            runs, them = counted(len(self.runs), "run"), "them" if len(self.runs) > 1 else "it"
            raise FedsimError(
                f"{len(self.failed)} of {runs} failed (reasons above); the same command tries "
                f"{them} again: {' '.join(self.failed)}"
            )


def sweep(
    experiment: Experiment, overrides: Settings, out: Path, parallel: Parallel, how: How
) -> Ended:
    """Does the runs of a sweep that are not finished, and writes its tables.

    Raises:
        ConfigError, DataError, StoreError: see :mod:`fedsim.studies.sweep`.
        Interrupted: Ctrl-C or SIGTERM came; the same call continues.
    """
    with ExitStack() as locked, ExitStack() as stack:
        some = sweeps.expand(experiment, overrides, cores(), parallel, build=False)
        ahead = capacity.start_ahead([run.config for run in some], parallel, stack)
        runs = sweeps.expand(experiment, overrides, parallel=parallel)
        missing = sweeps.missing(runs, out, accept_changed_code=how.accept_changed_code)
        took = sweeps.seconds_of_groups(runs, out)
        missing.sort(key=lambda run: -took.get(run.group, 0.0))  # the longest first
        configs = [run.config for run in missing]
        drivers = capacity.make_drivers(configs, parallel, stack, how.displays, ahead)
        with files.writing(out):
            out.mkdir(parents=True, exist_ok=True)
        locked.enter_context(files.lock(out))
        if missing:
            logger.info(capacity.introduction(_left(len(missing), len(runs)), drivers, configs))
        if isinstance(drivers, Here):
            follower: Follower = board.OneByOne([run.name for run in runs], how.verbose)
        else:
            follower = _board(
                stack,
                how,
                total=len(runs),
                waiting=[run.name for run in missing],
                width=len(drivers.slots),
                group_of={run.name: run.group for run in runs}.__getitem__,
                took=took,
            )
        table, failed = _run_all(runs, missing, out, drivers, follower, how)
        return Ended(runs=runs, table=table, failed=failed)


@dataclass(frozen=True, kw_only=True)
class EndedStudy(Ended):
    """A study that has ended; ``chosen`` are the rows of chosen.csv."""

    chosen: Sequence[dict[str, Scalar]]


def study(plan: StudyPlan, out: Path, source: str, how: How) -> EndedStudy:
    """Does what is left of a study: the searches, then the comparison, without the report.

    Args:
        plan: of the study.
        out: its directory.
        source: the name of its file, for comparison.yaml.
        how: the runs are done.

    Raises:
        ConfigError, DataError, StoreError: see :mod:`fedsim.studies.study`.
        FedsimError: a search without a complete trial, or a run failed for a reason that is not
            its trial's.
        Interrupted: Ctrl-C or SIGTERM came; the same call continues.
    """
    studies.check_out(out)
    accept = how.accept_changed_code
    studies.searches_in(plan, out, accept_changed_code=accept)  # refused before it is made
    with ExitStack() as locked, ExitStack() as stack:
        with files.writing(out):
            out.mkdir(parents=True, exist_ok=True)
        locked.enter_context(files.lock(out))
        tunings = studies.searches_in(plan, out, how.trackers, accept_changed_code=accept)
        trials, later = studies.names_of(tunings), studies.compared_left(plan, out)
        examples = cycle(config for cell in plan.cells for config in cell.examples)
        configs = list(islice(examples, len(trials) + len(later)))
        drivers = capacity.make_drivers(configs, plan.parallel, stack)
        if configs:
            left = f"{counted(len(trials), 'run')} of trials, then {len(later)} to compare"
            logger.info(capacity.introduction(left, drivers, configs))
        shown = _board(
            stack,
            how,
            total=plan.tuning_runs + plan.compared_runs,
            waiting=[*trials, *later],
            width=len(drivers.slots),
            group_of=lambda name: name.partition("/")[0],
            metric=plan.file.by,
            lines=False,
        )
        studies.tune(tunings, drivers, shown)
        rows = studies.write_chosen(plan, studies.chosen(plan, tunings), out, source)
        runs = studies.compared(plan, out)
        missing = sweeps.missing(runs, out / studies.RUNS, accept_changed_code=accept)
        shown.now([run.name for run in missing], metric="test_accuracy", lines=True)
        table, failed = _run_all(runs, missing, out / studies.RUNS, drivers, shown, how)
        return EndedStudy(runs=runs, table=table, failed=failed, chosen=rows)


def report(plan: StudyPlan, out: Path) -> Path:
    """Writes tables and figures of a study's comparison to OUT/report; returns the page.

    Raises:
        AnalysisError: the runs cannot be compared.
    """
    by, unit = studies.grouping(out)
    written = analysis("report.page").write(
        [out / studies.RUNS],
        out / studies.REPORT,
        by=by,
        baseline=plan.file.baseline,
        title=plan.file.experiment.about or None,
        descriptions=descriptions(),
        unit=unit,
    )
    page: Path = written.page
    return page


def _run_all(
    runs: Sequence[SweepRun],
    missing: Sequence[SweepRun],
    out: Path,
    drivers: Drivers,
    follower: Follower,
    how: How,
) -> tuple[pd.DataFrame, list[str]]:
    return sweeps.run_all(
        runs,
        missing,
        out,
        drivers,
        follower,
        how.trackers,
        accept_changed_code=how.accept_changed_code,
    )


def _board(stack: ExitStack, how: How, **given: Any) -> board.Board:
    """The display of several runs, which the stack closes."""
    kinds = {None: board.board_type(), True: board.Bars, False: board.Board}
    shown = kinds[how.progress](verbose=how.verbose, **given)
    stack.callback(shown.close)
    return shown


def _left(left: int, count: int) -> str:
    """``18 runs``, or ``3 of 18 runs left`` where the others are finished."""
    runs = counted(count, "run")
    return runs if left == count else f"{left} of {runs} left"
