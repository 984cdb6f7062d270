"""The plan of a search (space, settings, training seeds), and the files of its directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedsim import data
from fedsim.config import search
from fedsim.config.experiments import MOST_RUNS, TRIALS, Experiment, Setting, Settings
from fedsim.config.keys import FREE
from fedsim.config.resolve import resolve, to_yaml, unused, warn_unused
from fedsim.config.run import RunConfig
from fedsim.core import files
from fedsim.core.errors import ConfigError, nearest
from fedsim.core.measures import Measures
from fedsim.core.rows import metric_column
from fedsim.core.settings import Scalar
from fedsim.core.text import counted
from fedsim.identity.resume import decisive
from fedsim.storage import trials
from fedsim.storage.trials import Trial
from fedsim.studies.capacity import Parallel, with_engine
from fedsim.studies.proposals import Proposer
from fedsim.studies.sweep import varied_axes
from fedsim.training import loading

BEST, CONFIRMED = "best.yaml", "confirm.csv"
NO_VALIDATION = (
    "there is no validation part to judge trials by: set data.val_fraction, such as 0.1 "
    "(the test part is never looked at)"
)
Record = Mapping[str, Any]
FIXED = ("by", "sampler", "sampler_seed", "pruner", "seeds", "search")
"""Keys of study.json, beside the settings, that stay the same when a search continues."""
HELD = {
    *("data", "evaluation", "clock", "attack", "compress", "dp"),
    *("train.sample_rate", "train.cohort", "train.clients", "async.concurrency"),
}
"""Sections and keys that are not searched: the validation part does not show what they cost."""
SEARCHED = {
    *("data.augment", "compress.error_feedback", "dp.clip", "dp.quantile", "dp.clip_lr"),
    *("dp.count_noise", "dp.clip_control", "dp.max_samples"),
}
"""Keys of these sections that may be searched."""
SPENT = {
    "user": ("train.rounds",),
    "example": ("train.rounds", "train.batch_size", "train.local_epochs", "train.local_steps"),
}
"""By ``dp.level`` the keys of training on which epsilon depends."""


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """The plan of a search."""

    proposer: Proposer
    task: Record  # that of the data, as env.json has it; nothing for classes
    settings: Settings  # of the file or preset; the searched keys win over them
    overrides: Settings  # the flags, which win over all
    seeds: tuple[int, ...]  # the training seeds of every trial
    count: int  # of trials
    parallel: Parallel = "auto"
    others: int = 0  # other runs by the same drivers
    title: str = ""  # of one search of several, for messages

    @property
    def runs(self) -> int:
        """Their number."""
        return self.count * len(self.seeds)

    def config(self, params: Mapping[str, Scalar], seed: int) -> RunConfig:
        """The configuration of one run of a trial; a ConfigError where values are incompatible."""
        last = {"seed": Setting(seed, f"seed {seed}")}
        layers = self.settings, search.point(self.proposer.space, params), self.overrides, last
        return with_engine(resolve(*layers), layers, self.runs + self.others, self.parallel)

    @property
    def examples(self) -> list[RunConfig]:
        """Example configurations: the first value of every key, then one with each other value."""
        first = {key: dimension.examples[0] for key, dimension in self.proposer.space.items()}
        others = [{k: v} for k, d in self.proposer.space.items() for v in d.examples[1:]]
        return [self.config(first | other, self.seeds[0]) for other in ({}, *others)]

    @property
    def record(self) -> dict[str, Any]:
        """The part of study.json that must not change when a search continues."""
        proposer = self.proposer
        return {
            "by": proposer.by,
            "sampler": proposer.sampler,
            "sampler_seed": proposer.seed,
            "pruner": proposer.pruner,
            "seeds": list(self.seeds),
            "search": {key: str(dimension) for key, dimension in proposer.space.items()},
            "settings": decisive(self.examples[0]),
            **self.task,
        }


def make_plan(
    experiment: Experiment,
    overrides: Settings,
    parallel: Parallel = "auto",
    others: int = 0,
    title: str = "",
    tasks_of: dict[str, Record] | None = None,
) -> SearchPlan:
    """Makes the plan of the search of a file; the arguments are those of :class:`SearchPlan`, and
    the tasks that are known, by their data."""
    settings, searched = experiment.settings, experiment.search
    check_searched(searched, {**settings, **overrides})
    space = search.make_space(searched, settings, overrides)
    first = {key: dimension.examples[0] for key, dimension in space.items()}
    base = resolve(settings, search.point(space, first), overrides)
    task = _task(base, {} if tasks_of is None else tasks_of)
    measures = Measures.of(task)
    proposer = Proposer(
        space=space,
        by=_metric(experiment, measures),
        measures=measures,
        sampler=experiment.sampler,
        pruner=experiment.pruner,
        seed=experiment.sampler_seed,
        rounds=base.train.rounds,
    )
    if "train.rounds" in space and experiment.pruner != "none":
        raise ConfigError(
            f"{space['train.rounds'].origin}: a pruner compares trials round by round, with the "
            "same number of rounds in all; give --pruner none to search over train.rounds"
        )
    plan = SearchPlan(
        proposer=proposer,
        task=task,
        settings=settings,
        overrides=overrides,
        seeds=seeds_of(experiment, overrides) or (base.seed,),
        count=min(experiment.trials or proposer.size or TRIALS, proposer.size or MOST_RUNS),
        parallel=parallel,
        others=others,
        title=title,
    )
    if plan.runs > MOST_RUNS:
        raise ConfigError(
            f"trials: {plan.count:,} trials of {counted(len(plan.seeds), 'run')}; a search has at "
            f"most {MOST_RUNS:,} runs: give fewer with --trials"
        )
    if base.data.val_fraction == 0 and not len(loading.load(base)[0].val):
        raise ConfigError(f"data.val_fraction 0: {NO_VALIDATION}")
    examples = plan.examples
    for key, reason in unused(searched, examples).items():
        if key in space:
            raise ConfigError(f"{reason}; nothing to search")
    warn_unused({**settings, **searched, **overrides}, examples)
    return plan


def _task(config: RunConfig, known: dict[str, Record]) -> Record:
    """The entry ``task`` of env.json of such a run, which its data decide."""
    place = config.data.name, config.data.dir, config.data.columns
    key = repr((place, config.task, config.evaluation.measures))
    if key not in known:
        task = loading.load(config)[0].task
        known[key] = {} if task is None else {"task": task.record()}
    return known[key]


def _metric(experiment: Experiment, measures: Measures) -> str:
    """The column of rounds.csv that trials are judged by."""
    allowed = [metric_column("val", name) for name in measures.scores]
    by = experiment.by or measures.column("val")
    if by not in allowed:
        where = experiment.origins.get("by", "--by")
        raise ConfigError(
            f"{where}: {by!r} given; trials of {measures.task} are judged by one of "
            f"{', '.join(allowed)}{nearest(by, allowed)}"
        )
    return by


def check_searched(wanted: Settings, settings: Settings) -> None:
    """Refuses ``wanted`` keys that trials, and the methods of a study, must have in common."""
    names = {settings[k].value for k in ("data.name", "data.partition") if k in settings}
    level = settings["dp.level"].value if "dp.level" in settings else None
    for key, setting in wanted.items():
        if key == "seed":
            raise ConfigError(
                f"{setting.origin}: seeds are not searched; 'grid: {{seed: [0, 1, 2]}}' gives the "
                "training seeds of every trial"
            )
        if key in FREE:
            raise ConfigError(f"{setting.origin}: {key} changes no result; nothing to search")
        section = key.rpartition(".")[0].removesuffix(".columns")
        if data.find(section) is not None or section in names:
            section = "data"
        spent = SPENT.get(str(level), ())
        if key in spent or key in HELD or (section in HELD and key not in SEARCHED):
            raise ConfigError(
                f"{setting.origin}: {key} is not searched: trials are compared under it, or pay "
                "for it in what the validation part does not show; give its value outside of the "
                "search"
            )


def seeds_of(experiment: Experiment, overrides: Settings) -> tuple[int, ...]:
    """The training seeds in the grid; none where it has no axis of them."""
    seeds: list[int] = []
    for axis in varied_axes(experiment, overrides):
        for point in axis.values:
            if set(point.settings) != {"seed"}:
                raise ConfigError(
                    f"grid.{axis.name}: of a grid, fedsim tune takes the seeds alone; search over "
                    "the key with choice(...), or give its value by a flag"
                )
            seeds.append(resolve(point.settings).seed)
    return tuple(dict.fromkeys(seeds))


def write_best(plan: SearchPlan, out: Path, trial: Trial, value: str) -> None:
    """Writes best.yaml: the configuration of a trial with its first training seed, below a comment
    with its value; where and how runs are placed is left out, unless it was given."""
    values = yaml.safe_load(to_yaml(plan.config(trial.params, plan.seeds[0])))
    fixed = {*plan.settings, *plan.overrides}
    values["engine"] = {
        leaf: value
        for leaf, value in values["engine"].items()
        if f"engine.{leaf}" not in FREE or f"engine.{leaf}" in fixed
    }
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    files.write(out / BEST, f"# trial {trial.number}: {value}\n{text}".encode())


def begun_in(out: Path, plan: SearchPlan) -> dict[str, Any] | None:
    """What the search in a directory was begun with, if any; refuses another search."""
    begun = trials.read_study(out)
    if begun is None:
        return None
    before, now = (
        {**{key: study.get(key) for key in FIXED}, **study.get("settings", {})}
        for study in (begun, plan.record)
    )
    for key, value in now.items():  # the order of the searched keys counts as well
        if json.dumps(before.get(key)) != json.dumps(value):
            raise ConfigError(
                f"{out}: its search was begun with {key} {before.get(key)}, not {value}; give "
                "another --out or move it away"
            )
    return begun
