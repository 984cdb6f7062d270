"""The runs, sweeps and searches below a folder; nothing is written, and no run is held up."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedsim.core import files
from fedsim.core.errors import DataError, StoreError
from fedsim.core.measures import Measures
from fedsim.core.reading import parse_json
from fedsim.storage import status, trials
from fedsim.storage.status import DAMAGED, FAILED, FINISHED, INTERRUPTED, RUNNING, RunStatus
from fedsim.storage.trials import Trial

GRID = "sweep.json"
"""The file in which a sweep says which runs its grid has."""
TRIAL = re.compile(r"trial-\d+")
"""Name of the directory of a trial's runs, which gets no tables of its own."""
ARCHIVED = re.compile(r"\.interrupted-\d+$")
"""End of the name of a directory that a sweep archived to start the run again."""


def folder_of(out: str | None, kind: str, experiment: str) -> Path:
    """``out``, by default ``runs/KIND-NAME`` with the name of the preset or file."""
    path = Path(experiment)
    name = path.stem if path.suffix in (".yaml", ".yml") else experiment
    return Path(out) if out else Path("runs") / f"{kind}-{name}"


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """A directory of runs that a sweep began."""

    path: Path
    state: str
    """Running if the sweep or one of its runs is; finished if all runs are and the tables are
    written (a trial of a search has none); failed if all have ended, some with an error."""
    runs: Sequence[RunStatus] = ()  # in the order of their names; without those that were archived
    grid: Sequence[str] | None = None
    """The names of all runs of the grid, some of which may not have begun, if written down."""

    @property
    def counts(self) -> Counter[str]:
        """How many of the grid's runs are in each state, without those that have not begun."""
        return Counter(
            run.state for run in self.runs if self.grid is None or run.path.name in self.grid
        )


@dataclass(frozen=True, kw_only=True)
class SearchStatus:
    """The directory of a search by ``fedsim tune``."""

    path: Path
    state: str
    """Finished if all trials, and the runs on fresh seeds if any, have ended; failed if no trial is
    complete then."""
    study: Mapping[str, object] = field(default_factory=dict)  # what study.json says
    trials: Sequence[Trial] = ()  # those that have ended, by number
    problem: str | None = None  # why a damaged search cannot be read

    @property
    def by(self) -> str:
        """The metric."""
        return str(self.study.get("by"))

    @property
    def measures(self) -> Measures:
        """Those of the task of its runs."""
        return Measures.of(self.study)

    @property
    def planned(self) -> int | None:
        """How many trials there are to be; None of a damaged search."""
        count = self.study.get("trials")
        return count if isinstance(count, int) else None

    @property
    def counts(self) -> dict[str, int]:
        """How many trials are complete, pruned and failed, without zeros."""
        states = Counter(trial.state for trial in self.trials)
        return {state: states[state] for state in trials.STATES if states[state]}

    @property
    def best(self) -> Trial | None:
        """The best complete trial."""
        return next(iter(trials.best(self.trials, self.by, self.measures)), None)


Found = RunStatus | SweepStatus | SearchStatus


def find(folder: Path) -> Iterator[Found]:
    """The runs, sweeps and searches at or below a folder, sorted by path, without what cannot be
    read; a StoreError for the folder itself.

    The runs of a sweep follow it. Those of a search are left out, unless the search itself, or a
    folder in it, is given.
    """
    try:
        yield from _find(folder, given=True)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be read ({error.strerror or error})") from error


def _find(folder: Path, given: bool = False) -> Iterator[Found]:
    with os.scandir(folder) as entries:
        names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    if status.is_run(names):
        yield status.read(folder)
        return
    below: list[Found] = []
    for name in sorted(name for name, is_folder in names.items() if is_folder):
        if not name.startswith("."):
            try:
                below += _find(folder / name)
            except OSError:  # somebody else's folder, or gone meanwhile
                continue
    if trials.STUDY in names:
        yield _search(folder, below)
        yield from below if given else ()
        return
    inside = [run for run in below if isinstance(run, RunStatus) and run.path.parent == folder]
    runs = [run for run in inside if not ARCHIVED.search(run.path.name)]
    grid = read_grid(folder) if GRID in names else None
    # a trial of a search has no tables, but names its runs by settings
    named = bool(runs) and all("=" in run.path.name for run in runs)
    if "aggregate.csv" in names or grid is not None or named:
        complete = "aggregate.csv" in names or TRIAL.fullmatch(folder.name) is not None
        state = _state(folder, runs, complete, grid)
        yield SweepStatus(path=folder, state=state, runs=runs, grid=grid)
        yield from (replace(run, sweep=folder) for run in inside)
        below = [b for b in below if not isinstance(b, RunStatus) or b.path.parent != folder]
    yield from below


def newest(folder: Path, *, sweeps: bool, searches: bool) -> Path | None:
    """The run below a folder that was written last.

    With ``sweeps`` a sweep takes the place of its runs; with ``searches`` it may be a search, whose
    runs never count.
    """
    times: dict[Path, float] = {}
    for each in find(folder) if folder.is_dir() else ():
        if isinstance(each, RunStatus):
            path = each.sweep if sweeps and each.sweep else each.path
            times[path] = max(times.get(path, 0.0), each.changed or 0.0)
        elif searches and isinstance(each, SearchStatus):
            times[each.path] = max(file.stat().st_mtime for file in each.path.iterdir())
    return max(times, key=times.__getitem__, default=None)


def search_in(folder: Path) -> SearchStatus | None:
    """The search in a directory, None where there is none."""
    search = next(find(folder), None) if (folder / trials.STUDY).is_file() else None
    return search if isinstance(search, SearchStatus) else None


def _search(folder: Path, below: Sequence[Found]) -> SearchStatus:
    """The search in a directory, in which ``below`` lie."""
    try:
        study, ended = trials.read_study(folder) or {}, trials.read(folder)
    except (DataError, StoreError) as error:
        return SearchStatus(path=folder, state=DAMAGED, problem=str(error))
    search = SearchStatus(path=folder, state=INTERRUPTED, study=study, trials=ended)
    if _is_held(folder) or any(each.state == RUNNING for each in below):
        return replace(search, state=RUNNING)
    folders = {trial.folder for trial in ended}
    sweeps = [s for s in below if isinstance(s, SweepStatus) and s.path.parent == folder]
    begun = {sweep.path.name for sweep in sweeps if TRIAL.fullmatch(sweep.path.name)}
    confirmed = all(s.state in (FINISHED, FAILED) for s in sweeps if s.path.name not in begun)
    if len(ended) < (search.planned or 1) or not begun <= folders or not confirmed:
        return search
    return replace(search, state=FINISHED if search.best else FAILED)


def write_grid(folder: Path, runs: Mapping[str, Mapping[str, str]]) -> None:
    """Writes sweep.json: the names of all runs of a sweep in the order of its file, and ``rows``,
    by run the names of the grid's rows that it is made of, by axis."""
    content: dict[str, object] = {"runs": list(runs)}
    if any(runs.values()):
        content["rows"] = [dict(rows) for rows in runs.values()]
    files.write(folder / GRID, (json.dumps(content, indent=1) + "\n").encode())


def read_grid(folder: Path) -> list[str] | None:
    """The names of all runs of a sweep; None where they are not written down, or damaged."""
    try:
        return [str(name) for name in parse_json((folder / GRID).read_bytes())["runs"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_held(folder: Path) -> bool:
    """Whether a live process of this machine runs the sweep or search in a directory."""
    lock = files.lock_holder(folder)
    return lock is not None and lock.held


def _state(
    folder: Path, runs: Sequence[RunStatus], complete: bool, grid: Sequence[str] | None
) -> str:
    states_of = {run.path.name: run.state for run in runs}
    if RUNNING in states_of.values() or _is_held(folder):
        return RUNNING
    states = {states_of.get(name, INTERRUPTED) for name in (states_of if grid is None else grid)}
    if FAILED in states and states <= {FINISHED, FAILED}:
        return FAILED
    return FINISHED if complete and states <= {FINISHED} else INTERRUPTED
