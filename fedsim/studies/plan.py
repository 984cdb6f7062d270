"""The plan of a file: what a sweep, a search or a study does.

In a study each method is tuned on each partition, then all are compared on fresh training seeds. A
search is a study of one cell, and a sweep has none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

from fedsim.config.experiments import OPTIONS, TRIALS, Experiment, Settings
from fedsim.config.resolve import resolve, unused
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.studies import confirm, search, study, sweep
from fedsim.studies.capacity import Parallel, with_engine
from fedsim.studies.search import SearchPlan
from fedsim.studies.tune import Tuning
from fedsim.training.resume import decisive


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
class Plan:
    """What is done with a file: the searches of its cells, then other runs.

    Args:
        file: its content.
        source: its name.
        overrides: the flags, which win over all settings.
        parallel: how many runs at once.
        grid: the runs of a sweep.
        cells: of a study, every method on every partition, partition by partition; of a search one.
        seeds: training seeds of the comparison of a study, or of the best trials of a search.
    """

    file: Experiment
    source: str
    overrides: Settings
    parallel: Parallel
    grid: Sequence[sweep.SweepRun] = ()
    cells: Sequence[Cell] = ()
    seeds: Sequence[int] = ()

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
        return sum(plan.runs for _, plan in self.searches)

    @property
    def configs(self) -> list[RunConfig]:
        """An example for each run: of the trials, then of the others."""
        trials = [c for _, plan in self.searches for c in islice(cycle(plan.examples), plan.runs)]
        rows = self.cells if self.file.methods else [*self.cells] * self._confirmed
        others = [cell.examples[0] for cell in rows for _ in self.seeds]
        return [*trials, *others, *(run.config for run in self.grid)]

    @property
    def _confirmed(self) -> int:
        """How many trials of a search are trained again."""
        return min([self.file.confirm, *(plan.count for _, plan in self.searches)])

    def folders(self, out: Path) -> list[Path]:
        """The directories of the searches."""
        if not self.file.methods:
            return [out] * len(self.cells)
        return [out / study.TUNING / sweep.plain(cell.name) for cell, _ in self.searches]

    def folder(self, out: Path) -> Path:
        """The directory of the runs that are no trials."""
        return out / {"sweep": "", "tune": confirm.FOLDER, "study": study.RUNS}[self.file.kind]

    def check_out(self, out: Path) -> None:
        """Refuses a directory that holds something else, or other work, by a ConfigError."""
        if self.grid:
            sweep.check_out(out)
        if self.file.methods:
            study.check_out(out)
        for (_, plan), folder in zip(self.searches, self.folders(out), strict=True):
            search.check_out(plan, folder)

    def runs(self, tunings: Sequence[Tuning], out: Path) -> Sequence[sweep.SweepRun]:
        """The runs after the searches; of a study, its files are written first."""
        if self.file.methods:
            study.write_chosen(self, study.best_trials(self, tunings), out)
            return study.comparison_runs(self, out)
        if self.grid:
            return self.grid
        (tuning,) = tunings
        return confirm.runs_of(tuning.plan, tuning.leaders[: self.file.confirm])

    def names(self, tunings: Sequence[Tuning], out: Path) -> list[str]:
        """The runs that are left after the searches; those of trials do not have a name yet."""
        if self.file.methods:
            names = self.compared_names
        elif tunings and tunings[0].left:
            names = [f"confirm {n}" for n in range(self._confirmed * len(self.seeds))]
        else:
            names = [run.name for run in self.runs(tunings, out)]
        return [name for name in names if not (self.folder(out) / name / "summary.csv").exists()]

    @property
    def compared_names(self) -> list[str]:
        """The names of the runs of the comparison of a study."""
        names = [f"method={sweep.plain(cell.name)}" for cell in self.cells]
        return [f"{name},seed={seed}" for name in names for seed in self.seeds]


def make(
    file: Experiment, overrides: Settings, parallel: Parallel = "auto", source: str = "study"
) -> Plan:
    """Makes the plan of a file or preset; all settings are checked.

    Raises:
        ConfigError: settings, a search space or seeds that cannot be used.
        DataError: the data, which may have a validation part, cannot be read.
    """
    plan = Plan(file=file, source=source, overrides=overrides, parallel=parallel)
    if file.kind == "study":
        return _study(plan)
    if file.kind == "tune":
        searched = search.make_plan(file, overrides, parallel)
        cell = Cell(method="", partition="", settings={}, plan=searched, examples=searched.examples)
        return replace(plan, cells=[cell], seeds=confirm.fresh_seeds(searched))
    for key in OPTIONS & file.origins.keys():
        raise ConfigError(f"{file.origins[key]}: has no effect without 'search:'")
    return replace(plan, grid=sweep.expand(file, overrides, parallel))


def _study(plan: Plan) -> Plan:
    """The plan of a study; every method, partition and searched key is checked.

    The sampler's seed is the place of the partition, from 0, and the same for all its methods.
    """
    file, overrides, parallel = plan.file, plan.overrides, plan.parallel
    top = {**file.settings}
    for searched in (file.search, *file.search_of.values()):
        search.check_searched(searched, top)
    check_given_once(file)
    rows = [(part, method) for part in file.partitions for method in file.methods]
    layers = [{**top, **part.settings, **method.settings} for part, method in rows]
    bases = [resolve(layer, overrides) for layer in layers]
    tuning_seeds = search.seeds_of(file, overrides)
    seeds = _fresh(file, {*tuning_seeds} or {base.seed for base in bases})
    spaces = _spaces(file, [method.label for _, method in rows], bases, overrides)
    each = (file.trials or TRIALS) * max(1, len(tuning_seeds))
    runs = each * len(rows) + len(rows) * len(seeds)
    places = {part.label: place for place, part in enumerate(file.partitions)}
    cells = []
    for (part, method), layer, base, space in zip(rows, layers, bases, spaces, strict=True):
        row = Cell(
            method=method.label,
            partition=part.label,
            settings=layer,
            plan=None,
            examples=[with_engine(base, (layer, overrides), runs, parallel)],
        )
        if space:
            place = file.sampler_seed + places[part.label]
            of_cell = replace(file, settings=layer, search=space, sampler_seed=place)
            made = search.make_plan(of_cell, overrides, parallel, runs - each, row.title)
            row = replace(row, plan=made, examples=made.examples)
        cells.append(row)
    _check_different(cells)
    return replace(plan, cells=cells, seeds=seeds)


def check_given_once(file: Experiment) -> None:
    """Refuses a key of a method that one of its partitions or its search replaces, or reverse.

    Raises:
        ConfigError: such a key; names both places.
    """
    partitions = [row.settings for row in file.partitions]
    for method in file.methods:
        searched = {**file.search, **file.search_of.get(method.label, {})}
        for settings, others in (
            (searched, [method.settings, *partitions]),
            (method.settings, partitions),
        ):
            for key, other in ((k, o) for k in settings for o in others if k in o):
                raise ConfigError(
                    f"{settings[key].origin}: also given at {other[key].origin}, for the same runs "
                    f"of {method.label}; give it in one of the two"
                )


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


def _fresh(file: Experiment, used: set[int]) -> list[int]:
    """The training seeds of the comparison; refuses those of the tuning."""
    if isinstance(file.seeds, int):
        return confirm.seeds_after(used, file.seeds)
    searched = file.search or any(file.search_of.values())
    if searched and (twice := used.intersection(file.seeds)):
        others = ", ".join(map(str, confirm.seeds_after(used, len(file.seeds))))
        raise ConfigError(
            f"{file.origins['seeds']}: {min(twice)} is a training seed of the tuning, too; name "
            f"others, such as {others}"
        )
    return [*file.seeds]


def _spaces(
    file: Experiment, methods: Sequence[str], bases: Sequence[RunConfig], overrides: Settings
) -> list[Settings]:
    """What is searched in each cell: the shared keys that have an effect there, and its own."""
    shared = {key: setting for key, setting in file.search.items() if key not in overrides}
    chosen = {"algorithm", "server"} & shared.keys()
    without = [{} if chosen else unused(shared, [base]) for base in bases]
    for key in shared:
        if all(key in keys for keys in without):
            raise ConfigError(f"{without[0][key]}; nothing to search")
    return [
        {
            **{key: setting for key, setting in shared.items() if key not in keys},
            **{k: v for k, v in file.search_of.get(method, {}).items() if k not in overrides},
        }
        for method, keys in zip(methods, without, strict=True)
    ]
