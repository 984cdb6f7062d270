"""The plan of a file: what a sweep, a search or a study does, and the files of a study.

In a study each method is tuned on each partition (OUT/tuning), then all are compared on fresh
training seeds (OUT/runs). The settings that were chosen are in OUT/chosen.csv and, as a file of a
sweep, in OUT/comparison.yaml. A search is a study of one cell, and a sweep has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

import yaml

from fedsim.config import experiments
from fedsim.config.experiments import OPTIONS, TRIALS, Experiment, Settings
from fedsim.config.resolve import resolve, to_dict, unused
from fedsim.config.run import RunConfig
from fedsim.core import files
from fedsim.core.errors import ConfigError
from fedsim.core.settings import Scalar
from fedsim.storage.tables import rows_text
from fedsim.storage.trials import Trial, cell_of
from fedsim.studies import left_out, search, sweep, tune
from fedsim.studies.capacity import Parallel, with_engine
from fedsim.studies.search import SearchPlan
from fedsim.studies.tune import Tuning, seeds_after

TUNING, RUNS, REPORT = "tuning", "runs", "report"
CHOSEN, COMPARISON = "chosen.csv", "comparison.yaml"
COLUMNS = {
    "data.name": "dataset",
    "data.alpha": "alpha",
    "data.num_clients": "num_clients",
    "model.name": "model",
    "train.sample_rate": "sample_rate",
    "train.rounds": "rounds",
}
"""Keys whose column in summary.csv has another name."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A method on a partition, by their names in the file; that of a single partition is empty."""

    method: str
    partition: str
    settings: Settings  # of file, partition and method
    plan: SearchPlan | None  # None: not tuned
    examples: Sequence[RunConfig]  # of its runs, without the searched values

    @property
    def name(self) -> str:
        """Of its row in the comparison."""
        return "+".join(filter(None, (self.method, self.partition)))

    @property
    def title(self) -> str:
        """For messages: ``FedAvg on skewed``."""
        return " on ".join(filter(None, (self.method, self.partition)))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is done with a file: the searches of its cells, then other runs."""

    file: Experiment
    source: str  # its name
    overrides: Settings  # the flags, which win over all settings
    parallel: Parallel
    grid: Sequence[sweep.SweepRun] = ()  # of a sweep
    cells: Sequence[Cell] = ()  # of a study, partition by partition; of a search one
    seeds: Sequence[int] = ()  # of the comparison, or of the trials that are confirmed

    @property
    def searches(self) -> list[tuple[Cell, SearchPlan]]:
        """The cells that are tuned."""
        return [(cell, cell.plan) for cell in self.cells if cell.plan is not None]

    @property
    def by(self) -> str:
        """The metric of the searches."""
        return next((plan.proposer.by for _, plan in self.searches), self.file.by or "val_accuracy")

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
        return [out / TUNING / sweep.plain(cell.name) for cell, _ in self.searches]

    def folder(self, out: Path) -> Path:
        """The directory of the runs that are no trials."""
        return out / {"sweep": "", "tune": tune.FOLDER, "study": RUNS}[self.file.kind]

    def runs(self, tunings: Sequence[Tuning], out: Path) -> Sequence[sweep.SweepRun]:
        """The runs after the searches; of a study, its files are written first."""
        if self.file.methods:
            write_chosen(self, best_trials(self, tunings), out)
            loaded = sweep.load(str(out / COMPARISON))
            return sweep.expand(loaded, {}, self.parallel, self.tuning_runs)
        if self.grid:
            return self.grid
        (tuning,) = tunings
        return tuning.confirmations(self.file.confirm, self.seeds)

    def later(self, out: Path) -> int:
        """The number of runs after the searches that are left, as far as it is known."""
        others = len(self.configs) - self.tuning_runs - len(self.grid)
        return max(0, others - len([*self.folder(out).glob("*/summary.csv")]))


def make(
    file: Experiment, overrides: Settings, parallel: Parallel = "auto", source: str = "study"
) -> Plan:
    """The plan of a file or preset; all settings are checked, by a ConfigError or DataError."""
    file = left_out.expanded(file, overrides)
    plan = Plan(file=file, source=source, overrides=overrides, parallel=parallel)
    if file.kind == "study":
        return _study(plan)
    if file.kind == "tune":
        searched = search.make_plan(file, overrides, parallel)
        cell = Cell(method="", partition="", settings={}, plan=searched, examples=searched.examples)
        seeds = seeds_after(searched.seeds, max(tune.FEWEST, len(searched.seeds)))
        return replace(plan, cells=[cell], seeds=seeds)
    for key in OPTIONS & file.origins.keys():
        raise ConfigError(f"{file.origins[key]}: has no effect without 'search:'")
    return replace(plan, grid=sweep.expand(file, overrides, parallel))


def _study(plan: Plan) -> Plan:
    """The plan of a study; the sampler's seed is the same for all methods of a partition."""
    file, overrides, parallel = plan.file, plan.overrides, plan.parallel
    for searched in (file.search, *file.search_of.values()):
        search.check_searched(searched, file.settings)
    _check_repeated(file)
    rows = [(part, method) for part in file.partitions for method in file.methods]
    layers = [{**file.settings, **part.settings, **method.settings} for part, method in rows]
    bases = [resolve(layer, overrides) for layer in layers]
    tuning_seeds = search.seeds_of(file, overrides)
    seeds = _fresh(file, {*tuning_seeds} or {base.seed for base in bases})
    spaces = _spaces(file, [method.label for _, method in rows], bases, overrides)
    each = (file.trials or TRIALS) * max(1, len(tuning_seeds))
    runs = each * len(rows) + len(rows) * len(seeds)
    places = {part.label: place for place, part in enumerate(file.partitions)}
    cells: dict[str, Cell] = {}
    tasks_of: dict[str, search.Record] = {}
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
            made = search.make_plan(of_cell, overrides, parallel, runs - each, row.title, tasks_of)
            row = replace(row, plan=made, examples=made.examples)
        other = cells.setdefault(sweep.plain(row.name), row)
        if other is not row:
            raise ConfigError(f"methods: {other.title} and {row.title} have the same directory")
    return replace(plan, cells=[*cells.values()], seeds=seeds)


def _check_repeated(file: Experiment) -> None:
    """Refuses a key of a method that one of its partitions or its search replaces, or reverse."""
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


def _fresh(file: Experiment, used: set[int]) -> list[int]:
    """The training seeds of the comparison; refuses those of the tuning."""
    if isinstance(file.seeds, int):
        return seeds_after(used, file.seeds)
    searched = file.search or any(file.search_of.values())
    if searched and (twice := used.intersection(file.seeds)):
        others = ", ".join(map(str, seeds_after(used, len(file.seeds))))
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


def best_trials(plan: Plan, tunings: Sequence[Tuning]) -> dict[str, Trial]:
    """The best trial of each search, by the name of its cell."""
    pairs = zip(plan.searches, tunings, strict=True)
    return {cell.name: tuning.leaders[0] for (cell, _), tuning in pairs}


def chosen_rows(plan: Plan, trials: Mapping[str, Trial]) -> list[dict[str, Scalar]]:
    """A row per cell: method, partition, trial, searched keys, metric, value, number of trials."""
    keys = dict.fromkeys(key for trial in trials.values() for key in trial.params)
    rows = []
    for cell in plan.cells:
        row: dict[str, Scalar] = {"method": cell.method, "partition": cell.partition}
        trial = trials.get(cell.name)
        row["trial"] = None if trial is None else trial.number
        row |= {key: None if trial is None else trial.params.get(key) for key in keys}
        row |= {"metric": plan.by, "value": None if trial is None else trial.value}
        rows.append(row | {"trials": 0 if cell.plan is None else cell.plan.count})
    return rows


def write_chosen(plan: Plan, trials: Mapping[str, Trial], out: Path) -> None:
    """Writes chosen.csv and comparison.yaml, in which settings of all rows stand at the top."""
    table = [
        {key: "" if value is None else cell_of(value) for key, value in row.items()}
        for row in chosen_rows(plan, trials)
    ]
    files.write(out / CHOSEN, rows_text(list(table[0]), table, header=True).encode())
    rows = {
        cell.name: {
            **{key: setting.value for key, setting in cell.settings.items()},
            **(trials[cell.name].params if cell.name in trials else {}),
            **_typed(plan.overrides, cell.examples[0]),
            "label": cell.method,
        }
        for cell in plan.cells
    }
    first = rows[plan.cells[0].name]
    same = {key for key in first if all(key in r and r[key] == first[key] for r in rows.values())}
    same -= {"label"}
    methods = [{name: {k: row[k] for k in row if k not in same}} for name, row in rows.items()]
    content = {
        "about": plan.file.about or f"the comparison of {plan.source}",
        **{key: first[key] for key in first if key in same},
        "grid": {"method": methods, "seed": [*plan.seeds]},
    }
    head = f"# {plan.source}: each method with the settings that were chosen in {out / TUNING}\n"
    dumped = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=math.inf)
    files.write(out / COMPARISON, f"{head}{dumped}".encode())


def _typed(flags: Settings, config: RunConfig) -> dict[str, object]:
    """The values of flags, which are texts, as a configuration made with them has them."""
    values, typed = to_dict(config), {}
    for key, setting in flags.items():
        section, _, leaf = key.rpartition(".")
        typed[key] = (values.get(section, {}) if section else values).get(leaf, setting.value)
    return typed


def grouping(out: Path) -> tuple[list[str], str]:
    """By which columns of summary.csv the comparison is grouped in tables, and the unit:
    partitions where they differ in their seeds alone."""
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
