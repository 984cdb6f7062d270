"""Reads the file of a study: methods, partitions, what is searched for each, and the seeds.

Beside the settings at the top, as in the file of a sweep, it has

- ``methods``: by name the settings of each;
- ``partitions``: by name the settings of each, or a list of seeds (``data.seed``); may be left out;
- ``search``: keys with texts as in the file of a search. What stands under the name of a method is
  searched for this method alone, beside the others. A key of a method (``fedprox.mu``) is searched
  for the methods that use it;
- ``trials``: of each method on each partition;
- ``seeds``: training seeds of the comparison, or how many of them;
- ``by``, ``sampler``, ``pruner``: as the flags of ``fedsim tune``;
- ``baseline``: the method that the others are compared with;
- ``grid``: the training seeds of every trial, ``{seed: [0, 1]}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from fedsim.config import experiments, presets
from fedsim.config.experiments import AxisValue, Experiment, Reader, Setting, Settings
from fedsim.core.errors import ConfigError, nearest, spelled
from fedsim.core.searches import METRICS, PRUNERS, SAMPLERS

TRIALS, SEEDS = 25, 3
"""Trials of each method on each partition, and training seeds of the comparison, by default."""
MOST_SEEDS = 1000
KEYS = (
    *("methods", "partitions", "search", "trials", "seeds"),
    *("by", "sampler", "pruner", "baseline"),
)
"""The keys that the file of a study has beside those of a sweep."""


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """The content of the file of a study.

    Args:
        experiment: settings at the top, description, preset and the training seeds of trials.
        methods: by name, in their order.
        partitions: by name; one without a name where the file has none.
        search: keys that are searched for every method.
        own: by method the keys that are searched for it alone.
        trials: of each method on each partition.
        seeds: training seeds of the comparison; a number of them, not yet known, is an int.
        by: the metric by which is chosen.
        sampler: of the trials.
        pruner: of the trials.
        baseline: the method that the others are compared with.
        origins: by key where it was given.
    """

    experiment: Experiment
    methods: tuple[AxisValue, ...]
    partitions: tuple[AxisValue, ...] = (AxisValue("", {}),)
    search: Settings = field(default_factory=dict)
    own: Mapping[str, Settings] = field(default_factory=dict)
    trials: int = TRIALS
    seeds: tuple[int, ...] | int = SEEDS
    by: str = METRICS[0]
    sampler: str = SAMPLERS[0]
    pruner: str = PRUNERS[0]
    baseline: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict)


def read(path: Path) -> StudyFile:
    """The study in a YAML file.

    Raises:
        ConfigError: the file cannot be read, or is not that of a study; names file and line.
    """
    return parse(experiments.text_of(path), str(path))


def parse(text: str, source: str, with_lines: bool = True) -> StudyFile:
    """The study in a YAML text; ``source`` is its name in messages.

    Raises:
        ConfigError: not valid YAML, or not the file of a study.
    """
    with experiments.one_error(source):
        return _StudyReader(text, source, with_lines).study()


class _StudyReader(Reader):
    """Walks the nodes of the file of a study."""

    def study(self) -> StudyFile:
        experiment, nodes = self.experiment(KEYS)
        if "methods" not in nodes:
            raise ConfigError(
                f"{self.source}: a study needs 'methods:' with lines 'NAME: {{algorithm: ...}}'"
            )
        if experiment.preset is not None:
            where = f"{self.source} (preset)"
            experiment = experiment.over(
                replace(presets.load(experiment.preset, where), grid=(), search={})
            )
        methods = self.rows("methods", nodes["methods"])
        shared: dict[str, Setting] = {}
        own: dict[str, Settings] = {}
        names = [method.label for method in methods]
        for key, node in self.pairs(nodes["search"], "search") if "search" in nodes else ():
            if key in names:
                own[key] = self.space(node)
            else:
                self.add(shared, key, node)
        given = {key: self.value(node, key) for key, node in nodes.items() if key in KEYS[3:]}
        origins = {key: self.origin(node, key) for key, node in nodes.items()}
        baseline = given.get("baseline")
        baseline = spelled(str(baseline), names) or baseline
        if baseline is not None and baseline not in names:
            raise ConfigError(
                f"{origins['baseline']}: {baseline!r} given; must be one of the methods, "
                f"{', '.join(names)}{nearest(str(baseline), names)}"
            )
        study = StudyFile(
            experiment=experiment,
            methods=methods,
            search=shared,
            own=own,
            trials=self.whole(given, origins, "trials", TRIALS),
            seeds=self.seeds(given, origins),
            by=self.choice(given, origins, "by", METRICS),
            sampler=self.choice(given, origins, "sampler", SAMPLERS),
            pruner=self.choice(given, origins, "pruner", PRUNERS),
            baseline=baseline,
            origins=origins,
        )
        if "partitions" not in nodes:
            return study
        return replace(study, partitions=self.partitions(nodes["partitions"]))

    def rows(self, key: str, node: yaml.Node) -> tuple[AxisValue, ...]:
        """Named rows of settings, at least one."""
        rows = tuple(self.row(name, row, f"{key}.{name}") for name, row in self.pairs(node, key))
        for row in rows:
            for setting in ("seed", "label"):
                if setting in row.settings:
                    raise ConfigError(f"{row.settings[setting].origin}: {_NOT_IN_ROWS[setting]}")
        if not rows:
            raise ConfigError(f"{self.origin(node, key)}: must have at least one row")
        experiments.check_names([row.label for row in rows], self.origin(node, key))
        return rows

    def partitions(self, node: yaml.Node) -> tuple[AxisValue, ...]:
        """Named rows, or a list of seeds of the partition."""
        if isinstance(node, yaml.MappingNode):
            return self.rows("partitions", node)
        where = self.origin(node, "partitions")
        seeds = _whole_numbers(self.value(node, "partitions"), where, "names, or a list of seeds")
        return tuple(
            AxisValue(f"split-{seed}", {"data.seed": Setting(seed, where)}) for seed in seeds
        )

    def seeds(
        self, given: Mapping[str, object], origins: Mapping[str, str]
    ) -> tuple[int, ...] | int:
        """The training seeds of the comparison, or their number."""
        if not isinstance(given.get("seeds"), list):
            return self.whole(given, origins, "seeds", SEEDS, MOST_SEEDS)
        return _whole_numbers(given["seeds"], origins["seeds"], "a number or a list of seeds")

    def whole(
        self,
        given: Mapping[str, object],
        origins: Mapping[str, str],
        key: str,
        default: int,
        most: int = 10_000,
    ) -> int:
        """A whole number from 1."""
        value = given.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ConfigError(
                f"{origins[key]}: {value!r} given; must be a whole number from 1 to {most:,}"
            )
        return value

    def choice(
        self,
        given: Mapping[str, object],
        origins: Mapping[str, str],
        key: str,
        allowed: Sequence[str],
    ) -> str:
        """One of several words, the first of them by default."""
        value = given.get(key, allowed[0])
        if value not in allowed:
            raise ConfigError(
                f"{origins[key]}: {value!r} given; must be one of {', '.join(allowed)}"
                f"{nearest(str(value), allowed)}"
            )
        return str(value)


def check_given_once(study: StudyFile) -> None:
    """Refuses a key of a method that one of its partitions or its search replaces, or reverse.

    Raises:
        ConfigError: such a key; names both places.
    """
    partitions = [row.settings for row in study.partitions]
    for method in study.methods:
        searched = {**study.search, **study.own.get(method.label, {})}
        for settings, others in (
            (searched, [method.settings, *partitions]),
            (method.settings, partitions),
        ):
            for key, given in settings.items():
                for other in others:
                    if key in other:
                        raise ConfigError(
                            f"{given.origin}: also given at {other[key].origin}, for the same runs "
                            f"of {method.label}; give it in one of the two"
                        )


_NOT_IN_ROWS = {
    "seed": "the training seeds are the same for all: 'grid: {seed: [...]}' of the trials, "
    "'seeds:' of the comparison",
    "label": "the name of the row is the label",
}


def _whole_numbers(value: object, where: str, what: str) -> tuple[int, ...]:
    """A list of different whole numbers from 0, at least one."""
    numbers = value if isinstance(value, list) else []
    whole = all(type(number) is int and number >= 0 for number in numbers)
    if not numbers or not whole or len(numbers) > MOST_SEEDS:
        raise ConfigError(f"{where}: {value!r} given; must be {what}, whole numbers from 0")
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"{where}: a seed is given twice")
    return tuple(numbers)
