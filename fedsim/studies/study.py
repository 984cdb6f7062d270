"""Studies: each method is tuned on each partition, then all are compared on fresh training seeds.

A study is made of searches (:mod:`fedsim.studies.tune`) in OUT/tuning, and of a sweep
(:mod:`fedsim.studies.sweep`) in OUT/runs. What the searches have chosen is in OUT/chosen.csv and,
as an ordinary file of a sweep, in OUT/comparison.yaml. All of it follows from the file of the study
and the finished trials, so that an interrupted study continues where it was.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedsim.config import experiments
from fedsim.config.experiments import Experiment, Settings
from fedsim.config.resolve import resolve, to_dict, unused
from fedsim.config.run import RunConfig
from fedsim.config.study import StudyFile, check_given_once
from fedsim.core import files
from fedsim.core.errors import ConfigError, FedsimError
from fedsim.core.settings import Scalar
from fedsim.identity.resume import decisive
from fedsim.storage.run_dir import check_outside_runs
from fedsim.storage.trials import Trial, best, cell_of
from fedsim.studies import sweep
from fedsim.studies.capacity import Parallel, with_engine
from fedsim.studies.confirm import seeds_after
from fedsim.studies.grid_file import grid_text
from fedsim.studies.parallel import Drivers, Follower, control
from fedsim.studies.search import SearchPlan, check_searched, make_plan, seeds_of
from fedsim.studies.tune import Tuning
from fedsim.training.events import Event, Job

TUNING, RUNS, REPORT = "tuning", "runs", "report"
CHOSEN, COMPARISON = "chosen.csv", "comparison.yaml"
OWN = {TUNING, RUNS, REPORT, CHOSEN, COMPARISON, files.LOCK_FILE}
"""What lies in the directory of a study."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A method on a partition.

    Args:
        method: its name in the file.
        partition: its name in the file; empty where there is one alone.
        settings: of the file, the partition and the method; a later one wins.
        plan: of its search; None: it is not tuned.
        examples: configurations of its runs, without the searched values.
    """

    method: str
    partition: str
    settings: Settings
    plan: SearchPlan | None
    examples: Sequence[RunConfig]

    @property
    def name(self) -> str:
        """Of its row in the comparison."""
        return f"{self.method}+{self.partition}" if self.partition else self.method

    @property
    def title(self) -> str:
        """For messages: ``FedAvg on skewed``."""
        return f"{self.method} on {self.partition}" if self.partition else self.method


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """What a study does.

    Args:
        file: its file.
        cells: every method on every partition, partition by partition.
        seeds: training seeds of the comparison.
        overrides: the flags, which win over all settings.
        parallel: how many runs at once.
    """

    file: StudyFile
    cells: Sequence[Cell]
    seeds: Sequence[int]
    overrides: Settings
    parallel: Parallel

    @property
    def searches(self) -> list[tuple[Cell, SearchPlan]]:
        """The cells that are tuned."""
        return [(cell, cell.plan) for cell in self.cells if cell.plan is not None]

    @property
    def untuned(self) -> list[str]:
        """The methods that are not tuned anywhere."""
        tuned = {cell.method for cell, _ in self.searches}
        return [row.label for row in self.file.methods if row.label not in tuned]

    @property
    def tuning_runs(self) -> int:
        """The number of runs of all searches."""
        return sum(plan.count * len(plan.seeds) for _, plan in self.searches)

    @property
    def compared_runs(self) -> int:
        """The number of runs of the comparison."""
        return len(self.cells) * len(self.seeds)

    @property
    def configs(self) -> list[RunConfig]:
        """For each run, of a search or of the comparison, the first example of its cell."""
        searched = [
            cell for cell, plan in self.searches for _ in range(plan.count * len(plan.seeds))
        ]
        compared = [cell for cell in self.cells for _ in self.seeds]
        return [cell.examples[0] for cell in (*searched, *compared)]


def make(file: StudyFile, overrides: Settings, parallel: Parallel = "auto") -> StudyPlan:
    """Makes the plan of a study; every method, partition and searched key is checked.

    The sampler's seed is the place of the partition, from 0, and the same for all its methods.

    Raises:
        ConfigError: settings, a search space or seeds that cannot be used.
        DataError: the data, which may have a validation part, cannot be read.
    """
    top = {**file.experiment.settings}
    for searched in (file.search, *file.own.values()):
        check_searched(searched, top)
    check_given_once(file)
    rows = [(part, method) for part in file.partitions for method in file.methods]
    layers = [{**top, **part.settings, **method.settings} for part, method in rows]
    bases = [resolve(layer, overrides) for layer in layers]
    tuning_seeds = seeds_of(file.experiment, overrides)
    used = {*tuning_seeds} or {base.seed for base in bases}
    seeds = _fresh(file, used)
    spaces = _spaces(file, [method.label for _, method in rows], bases, overrides)
    others = file.trials * max(1, len(tuning_seeds)) * (len(rows) - 1) + len(rows) * len(seeds)
    places = {part.label: place for place, part in enumerate(file.partitions)}
    plans = [
        make_plan(
            Experiment(settings=layer, search=space, grid=file.experiment.grid),
            overrides,
            {},
            by=file.by,
            sampler=file.sampler,
            pruner=file.pruner,
            sampler_seed=places[part.label],
            count=file.trials,
            parallel=parallel,
            others=others,
        )
        if space
        else None
        for (part, _), layer, space in zip(rows, layers, spaces, strict=True)
    ]
    runs = others + file.trials * max(1, len(tuning_seeds))
    cells = [
        Cell(
            method=method.label,
            partition=part.label,
            settings=layer,
            plan=plan,
            examples=plan.examples
            if plan is not None
            else [with_engine(base, (layer, overrides), runs, parallel)],
        )
        for (part, method), layer, plan, base in zip(rows, layers, plans, bases, strict=True)
    ]
    _check_different(cells)
    return StudyPlan(file=file, cells=cells, seeds=seeds, overrides=overrides, parallel=parallel)


def _check_different(cells: Sequence[Cell]) -> None:
    """Refuses, by a ConfigError, rows that have one directory and rows that do the same."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        space = {} if cell.plan is None else cell.plan.proposer.space
        searched = {key: str(dimension) for key, dimension in sorted(space.items())}
        settings = json.dumps([decisive(cell.examples[0]), searched])
        for text, alike in ((sweep.plain(cell.name), "directory"), (settings, "settings")):
            other = seen.setdefault(text, cell)
            if other is not cell:
                raise ConfigError(
                    f"methods, partitions: {other.title} and {cell.title} have the same {alike}"
                )


def _fresh(file: StudyFile, used: set[int]) -> list[int]:
    """The training seeds of the comparison; refuses those of the tuning."""
    if isinstance(file.seeds, int):
        return seeds_after(used, file.seeds)
    searched = file.search or any(file.own.values())
    if searched and (twice := used.intersection(file.seeds)):
        raise ConfigError(
            f"{file.origins['seeds']}: {min(twice)} is a training seed of the tuning, too; "
            f"name others, such as {', '.join(map(str, seeds_after(used, len(file.seeds))))}"
        )
    return [*file.seeds]


def _spaces(
    file: StudyFile, methods: Sequence[str], bases: Sequence[RunConfig], overrides: Settings
) -> list[Settings]:
    """What is searched in each cell: the shared keys that have an effect there, and its own."""
    shared = {key: given for key, given in file.search.items() if key not in overrides}
    chosen = {"algorithm", "server"} & shared.keys()
    without = [{} if chosen else unused(shared, [base]) for base in bases]
    for key in shared:
        if all(key in keys for keys in without):
            raise ConfigError(f"{without[0][key]}; nothing to search")
    return [
        {
            **{key: given for key, given in shared.items() if key not in keys},
            **{k: v for k, v in file.own.get(method, {}).items() if k not in overrides},
        }
        for method, keys in zip(methods, without, strict=True)
    ]


def check_out(out: Path) -> None:
    """Refuses a directory that holds anything but a study.

    Raises:
        ConfigError: it is a file, a run or inside one, or holds other files.
    """
    check_outside_runs(out)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is not a directory")
    others = sorted({path.name for path in out.iterdir()} - OWN) if out.exists() else []
    if others:
        raise ConfigError(
            f"--out {out}: holds {others[0]}, which is not of a study; give a new or empty "
            "directory"
        )


def searches_in(
    plan: StudyPlan, out: Path, trackers: Sequence[str] = (), *, accept_changed_code: bool = False
) -> list[Tuning]:
    """The searches of a study, in the order of the cells, with what has ended of them.

    Raises:
        ConfigError: another search was begun in one of their directories, or other code.
        DataError, StoreError: as :class:`~fedsim.studies.tune.Tuning`.
    """
    tunings = [
        Tuning(search, out / TUNING / sweep.plain(c.name), trackers, accept_changed_code, c.title)
        for c, search in plan.searches
    ]
    for tuning in tunings:
        tuning.check_trials(accept_changed_code)
    return tunings


def names_of(tunings: Sequence[Tuning]) -> list[str]:
    """The names under which the runs that are left of searches are shown."""
    return [_shown_as(tuning, name) for tuning in tunings for name in tuning.names]


def tune(tunings: Sequence[Tuning], drivers: Drivers, shown: Follower) -> None:
    """Does the trials that are left of all searches; free drivers begin the next search.

    Raises:
        ConfigError: no trial of a search can have a value.
        FedsimError: a run failed for a reason that is not its trial's.
        StoreError: the files of a search cannot be written.
        Interrupted: Ctrl-C or SIGTERM came, see :func:`~fedsim.studies.parallel.control`.
    """
    several = _Several(tunings, shown)
    for tuning in tunings:
        tuning.begin(drivers)
    control(several.next_job, drivers, several)


class _Several:
    """Several searches by the same drivers; tells a display of all their runs."""

    def __init__(self, tunings: Sequence[Tuning], shown: Follower) -> None:
        self.shown, self.stopping = shown, shown.stopping
        self.tunings = {tuning.out: tuning for tuning in tunings}

    def next_job(self) -> Job | None:
        """The next run of the first search that has one."""
        jobs = (tuning.next_job() for tuning in self.tunings.values())
        return next((job for job in jobs if job is not None), None)

    def happened(self, slot: int, job: Job, event: Event) -> None:
        """See :class:`~fedsim.studies.parallel.Follower`."""
        tuning = self.tunings[job.out.parents[1]]  # OUT/trial-0000/seed=0
        self.shown.happened(slot, replace(job, name=_shown_as(tuning, job.name)), event)
        tuning.happened(slot, job, event)


def _shown_as(tuning: Tuning, name: str) -> str:
    return f"{tuning.out.name}/{name}"


def chosen(plan: StudyPlan, tunings: Sequence[Tuning]) -> dict[str, Trial]:
    """The best trial of each search, by the name of its cell.

    Raises:
        FedsimError: no trial of a search is complete.
    """
    found: dict[str, Trial] = {}
    for (cell, _), tuning in zip(plan.searches, tunings, strict=True):
        leaders = best(tuning.ended, plan.file.by)
        if not leaders:
            reason = next((f": {trial.error}" for trial in tuning.ended if trial.error), "")
            raise FedsimError(f"{tuning.out}: {cell.title}: no trial is complete{reason}")
        found[cell.name] = leaders[0]
    return found


def chosen_rows(plan: StudyPlan, trials: Mapping[str, Trial]) -> list[dict[str, Scalar]]:
    """A row per cell: method, partition, trial, searched keys, metric, value, number of trials."""
    keys = dict.fromkeys(key for trial in trials.values() for key in trial.params)
    rows = []
    for cell in plan.cells:
        row: dict[str, Scalar] = {"method": cell.method, "partition": cell.partition}
        trial = trials.get(cell.name)
        row["trial"] = None if trial is None else trial.number
        row |= {key: None if trial is None else trial.params.get(key) for key in keys}
        row |= {"metric": plan.file.by, "value": None if trial is None else trial.value}
        rows.append(row | {"trials": 0 if cell.plan is None else cell.plan.count})
    return rows


def write_chosen(
    plan: StudyPlan, trials: Mapping[str, Trial], out: Path, source: str
) -> list[dict[str, Scalar]]:
    """Writes chosen.csv and comparison.yaml; returns the rows of chosen.csv.

    Args:
        plan: of the study.
        trials: by name of the cell what was chosen.
        out: the directory of the study.
        source: the name of its file, for the first line of comparison.yaml.

    Raises:
        StoreError: a file cannot be written.
    """
    rows = chosen_rows(plan, trials)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: "" if value is None else cell_of(value) for key, value in row.items()} for row in rows
    )
    files.write(out / CHOSEN, text.getvalue().encode())
    values = {
        cell.name: {
            **{key: given.value for key, given in cell.settings.items()},
            **(trials[cell.name].params if cell.name in trials else {}),
            **_typed(plan.overrides, cell.examples[0]),
            "label": cell.method,
        }
        for cell in plan.cells
    }
    about = plan.file.experiment.about or f"the comparison of {source}"
    head = f"# {source}: each method with the settings that were chosen in {out / TUNING}\n"
    grid = grid_text(values, plan.seeds, about)
    files.write(out / COMPARISON, f"{head}{grid}".encode())
    return rows


def _typed(flags: Settings, config: RunConfig) -> dict[str, object]:
    """The values of flags, which are texts, as a configuration made with them has them."""
    values, found = to_dict(config), {}
    for key, given in flags.items():
        section, _, leaf = key.rpartition(".")
        found[key] = (values.get(section, {}) if section else values).get(leaf, given.value)
    return found


def compared_left(plan: StudyPlan, out: Path) -> list[str]:
    """The names of the runs of the comparison that are not finished."""
    names = [
        f"method={sweep.plain(cell.name)},seed={seed}" for cell in plan.cells for seed in plan.seeds
    ]
    return [name for name in names if not (out / RUNS / name / "summary.csv").exists()]


def compared(plan: StudyPlan, out: Path) -> list[sweep.SweepRun]:
    """The runs of OUT/comparison.yaml, the comparison of the study.

    Raises:
        ConfigError: see :func:`fedsim.studies.sweep.expand`.
    """
    experiment = sweep.load(str(out / COMPARISON))
    return sweep.expand(experiment, {}, parallel=plan.parallel, others=plan.tuning_runs)


COLUMNS = {
    "data.name": "dataset",
    "data.alpha": "alpha",
    "data.num_clients": "num_clients",
    "model.name": "model",
    "train.sample_rate": "sample_rate",
    "train.rounds": "rounds",
}
"""Keys whose column in summary.csv has another name."""


def grouping(out: Path) -> tuple[list[str], str]:
    """By which columns of summary.csv the comparison is grouped in tables, and the unit.

    Partitions that differ in their seeds alone are the unit; others are columns to group by.

    Raises:
        ConfigError: OUT/comparison.yaml cannot be read.
        StoreError: OUT/chosen.csv cannot be read.
    """
    with files.reading(out / CHOSEN) as path:
        searched = path.read_text(encoding="utf-8").partition("\n")[0].split(",")
    rows = [row.settings for row in experiments.read(out / COMPARISON).grid[0].values]
    first = [row for row in rows if row["label"].value == rows[0]["label"].value]
    keys = dict.fromkeys(key for row in first for key in row if key not in searched)
    varied = [
        k for k in keys if len({repr(row[k].value) if k in row else None for row in first}) > 1
    ]
    if varied == ["data.seed"]:
        return ["label"], "partition"
    return ["label", *(COLUMNS.get(key, key) for key in varied)], "seed"
