"""The plan of a search by ``fedsim tune`` (space, settings, training seeds), and its directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedsim import data
from fedsim.config import search
from fedsim.config.experiments import Experiment, Setting, Settings
from fedsim.config.keys import FREE
from fedsim.config.resolve import resolve, to_yaml, unused, warn_unused
from fedsim.config.run import RunConfig
from fedsim.core import files
from fedsim.core.errors import ConfigError
from fedsim.core.settings import Scalar
from fedsim.core.text import counted
from fedsim.storage import trials
from fedsim.storage.run_dir import check_outside_runs
from fedsim.storage.trials import Trial
from fedsim.studies.capacity import Parallel, check_trainable, with_engine
from fedsim.studies.proposals import Proposer
from fedsim.studies.sweep import MOST_RUNS, check_stackable, varied_axes
from fedsim.training import loading
from fedsim.training.resume import decisive

BEST, CONFIRMED = "best.yaml", "confirm.csv"
COUNT = 25
"""Trials of a search for which no number is given."""
NO_VALIDATION = (
    "there is no validation part to judge trials by: set data.val_fraction, such as 0.1 "
    "(the test part is never looked at)"
)


@dataclass(frozen=True)
class Held:
    """Keys that a search holds fixed, since the validation part does not show what they cost.

    Args:
        reason: what they decide.
        besides: keys of the section that may be searched.
    """

    reason: str
    besides: tuple[str, ...] = ()


DATA = Held("decides which data are trained on and scored", ("augment",))
WHO, PRIVACY = Held("decides how many clients take part"), "decides how much privacy is spent"
HELD: Mapping[str, Held] = {
    "data": DATA,
    "evaluation": Held("decides how models are scored"),
    "clock": Held("decides how fast clients are and which of them answer"),
    "attack": Held("decides what malicious clients do"),
    "compress": Held("decides how much clients send", ("error_feedback",)),
    "dp": Held(
        PRIVACY, ("clip", "quantile", "clip_lr", "count_noise", "clip_control", "max_samples")
    ),
    **dict.fromkeys(
        ("train.sample_rate", "train.cohort", "train.clients", "async.concurrency"), WHO
    ),
}
"""By section or key what is not searched."""
SPENT = {
    "user": ("train.rounds",),
    "example": ("train.rounds", "train.batch_size", "train.local_epochs", "train.local_steps"),
}
"""By ``dp.level`` the keys of training on which epsilon depends."""


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """The plan of a search.

    Args:
        proposer: of the trials: space, metric, sampler and pruner.
        settings: of the file or preset; the searched keys win over them.
        overrides: the flags, which win over all.
        seeds: the training seeds of every trial.
        count: number of trials.
        parallel: how many runs at once.
        others: how many other runs are done by the same drivers.
    """

    proposer: Proposer
    settings: Settings
    overrides: Settings
    seeds: tuple[int, ...]
    count: int
    parallel: Parallel = "auto"
    others: int = 0

    def config(self, params: Mapping[str, Scalar], seed: int) -> RunConfig:
        """The configuration of one run of a trial.

        Raises:
            ConfigError: the values are incompatible.
        """
        given = {"seed": Setting(seed, f"seed {seed}")}
        layers = self.settings, search.point(self.proposer.space, params), self.overrides, given
        runs = self.count * len(self.seeds) + self.others
        return with_engine(resolve(*layers), layers, runs, self.parallel)

    @property
    def examples(self) -> list[RunConfig]:
        """Example configurations: the first value of every key, then one with each other value."""
        first = {key: dimension.examples[0] for key, dimension in self.proposer.space.items()}
        others = [{k: v} for k, d in self.proposer.space.items() for v in d.examples[1:]]
        return [self.config(first | other, self.seeds[0]) for other in ({}, *others)]


def make_plan(
    experiment: Experiment,
    overrides: Settings,
    searched: Settings,
    *,
    by: str,
    sampler: str = "tpe",
    pruner: str = "none",
    sampler_seed: int = 0,
    count: int | None = None,
    parallel: Parallel = "auto",
    others: int = 0,
) -> SearchPlan:
    """Makes the plan of a file or preset; ``searched``, from ``--search``, wins over it.

    ``count`` None: :data:`COUNT` trials, or all combinations of a grid. ``others`` is the number of
    other runs that the same drivers do.

    Raises:
        ConfigError: a space, setting or grid that cannot be used, no validation part, or Optuna is
            not installed.
        DataError: the data, which may have a validation part, cannot be read.
    """
    for key in searched:
        if key in overrides:
            raise ConfigError(f"{searched[key].origin}: {key} is also given by a flag")
    wanted = {**experiment.search, **searched}
    check_searched(wanted, {**experiment.settings, **overrides})
    space = search.make_space(wanted, experiment.settings, overrides)
    seeds = seeds_of(experiment, overrides)
    settings = experiment.settings
    first = {key: dimension.examples[0] for key, dimension in space.items()}
    base = resolve(settings, search.point(space, first), overrides)
    proposer = Proposer(
        space=space,
        by=by,
        sampler=sampler,
        pruner=pruner,
        seed=sampler_seed,
        rounds=base.train.rounds,
    )
    if "train.rounds" in space and pruner != "none":
        raise ConfigError(
            f"{space['train.rounds'].origin}: a pruner compares trials round by round, with the "
            "same number of rounds in all; give --pruner none to search over train.rounds"
        )
    seeds = seeds or (base.seed,)
    wanted_count = min(count or proposer.size or COUNT, proposer.size or count or COUNT)
    if wanted_count * len(seeds) > MOST_RUNS:
        trials_of_runs = f"{wanted_count:,} trials of {counted(len(seeds), 'run')}"
        raise ConfigError(
            f"{'--sampler grid' if count is None else '--trials'}: {trials_of_runs}; a search has "
            f"at most {MOST_RUNS:,} runs: give fewer with --trials"
        )
    plan = SearchPlan(
        proposer=proposer,
        settings=settings,
        overrides=overrides,
        seeds=seeds,
        count=wanted_count,
        parallel=parallel,
        others=others,
    )
    if base.data.val_fraction == 0 and not len(loading.load(base)[0].val):
        raise ConfigError(f"data.val_fraction 0: {NO_VALIDATION}")
    examples, layers = plan.examples, ({**settings, **wanted}, overrides)
    for key, reason in unused(wanted, examples).items():
        if key in space:
            raise ConfigError(f"{reason}; nothing to search")
    warn_unused({**settings, **wanted, **overrides}, examples)
    for example in examples:
        check_stackable(example, layers)
    check_trainable(examples)
    return plan


def check_searched(wanted: Settings, settings: Settings) -> None:
    """Refuses keys that trials, and the methods of a study, must have in common.

    Args:
        wanted: the searched keys.
        settings: all others, which say what the data set, its partition and ``dp.level`` are.

    Raises:
        ConfigError: such a key; names where it was given, and the reason.
    """
    used = {k: settings[k].value for k in ("data.name", "data.partition") if k in settings}
    level = settings["dp.level"].value if "dp.level" in settings else None
    for key, given in wanted.items():
        section, _, leaf = key.rpartition(".")
        if key == "seed":
            raise ConfigError(
                f"{given.origin}: seeds are not searched; 'grid: {{seed: [0, 1, 2]}}' gives the "
                "training seeds of every trial"
            )
        if key in FREE:
            raise ConfigError(f"{given.origin}: {key} changes no result; nothing to search")
        held = HELD.get(key) or HELD.get(section.removesuffix(".columns"))
        if data.find(section) is not None or section in used.values():
            held = DATA
        if key in SPENT.get(str(level), ()):
            held = Held(f"with dp.level={level} {PRIVACY}")
        if held is not None and leaf not in held.besides:
            raise ConfigError(
                f"{given.origin}: {key} is not searched: it {held.reason}, which must be the same "
                "in all trials; give its value outside of the search"
            )


def seeds_of(experiment: Experiment, overrides: Settings) -> tuple[int, ...]:
    """The training seeds in the grid; none where it has no axis of them."""
    seeds: list[Any] = []
    for axis in varied_axes(experiment, overrides):
        for point in axis.values:
            if set(point.settings) != {"seed"}:
                raise ConfigError(
                    f"grid.{axis.name}: of a grid, fedsim tune takes the seeds alone; search over "
                    "the key with choice(...), or give its value by a flag"
                )
            seeds.append(resolve(point.settings).seed)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"grid: seeds given twice: {', '.join(map(str, seeds))}")
    return tuple(seeds)


def write_best(plan: SearchPlan, out: Path, trial: Trial, what: str) -> None:
    """Writes best.yaml: the configuration of a trial with its first training seed.

    Where and how runs are placed is left out, unless it was given.

    Args:
        plan: of the search.
        out: the directory of the search.
        trial: whose configuration it is.
        what: its value, for the comment in the first line.

    Raises:
        StoreError: it cannot be written.
    """
    values = yaml.safe_load(to_yaml(plan.config(trial.params, plan.seeds[0])))
    given = {*plan.settings, *plan.overrides}
    values["engine"] = {
        leaf: value
        for leaf, value in values["engine"].items()
        if f"engine.{leaf}" not in FREE or f"engine.{leaf}" in given
    }
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    files.write(out / BEST, f"# trial {trial.number}: {what}\n{text}".encode())


def check_out(plan: SearchPlan, out: Path) -> int | None:
    """Refuses a directory that holds another search, or other files.

    Returns:
        How many trials the search there may have in progress; None where there is no search.

    Raises:
        ConfigError: the directory is refused; names the setting that differs.
        StoreError: it cannot be read.
    """
    check_outside_runs(out)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is not a directory")
    begun = trials.read_study(out)
    if begun is None:
        others = sorted(p.name for p in out.iterdir()) if out.exists() else []
        if set(others) - {files.LOCK_FILE}:
            raise ConfigError(
                f"--out {out}: holds {others[-1]} and no search; give a new or empty directory"
            )
        return None
    wanted = _fixed_settings(plan)
    for key, value in wanted.items():  # the order of the searched keys counts as well
        if key != "settings" and json.dumps(begun.get(key)) != json.dumps(value):
            raise _another(out, f"{key} {begun.get(key)}", value)
    before = begun["settings"]
    for key, value in wanted["settings"].items():
        if before.get(key) != value:
            raise _another(out, f"{key} {before.get(key)}", value)
    return int(begun["ahead"])


def write_study(plan: SearchPlan, out: Path, most_at_once: int) -> None:
    """Writes study.json when a search begins or continues, perhaps with more trials.

    Args:
        plan: of the search.
        out: the directory of the search.
        most_at_once: how many trials may be in progress.

    Raises:
        StoreError: it cannot be written.
    """
    study = trials.read_study(out) or _fixed_settings(plan)
    trials.write_study(out, study | {"ahead": most_at_once, "trials": plan.count})


def _another(out: Path, was: str, wanted: object) -> ConfigError:
    return ConfigError(
        f"{out}: its search was begun with {was}, not {wanted}; give another --out or move it away"
    )


def _fixed_settings(plan: SearchPlan) -> dict[str, Any]:
    """The settings that must not change when a search continues."""
    proposer = plan.proposer
    return {
        "by": proposer.by,
        "sampler": proposer.sampler,
        "sampler_seed": proposer.seed,
        "pruner": proposer.pruner,
        "seeds": list(plan.seeds),
        "search": {key: str(dimension) for key, dimension in proposer.space.items()},
        "settings": decisive(plan.examples[0]),
    }
