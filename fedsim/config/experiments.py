"""Reads YAML files of settings, each value with the file and line that it came from.

A file holds the keys of :class:`fedsim.config.run.RunConfig`, nested or dotted, and may add

- ``about``: a description;
- ``preset``: the name of a preset to start from;
- ``grid``: axes of a sweep. An axis is a key with a list of values; a value may also be
  ``label: {key: value, ...}``, several settings that go together; ``data.partition:
  leave_one_site_out`` stands for a value per site (:mod:`fedsim.studies.left_out`);
- ``search``: a search space, keys with texts that :mod:`fedsim.config.search` reads;
- ``trials``, ``by``, ``sampler``, ``sampler_seed``, ``pruner``, ``confirm``: as the flags of tune;
- ``methods``: of a study, by name the settings of each; what stands under the name of a method in
  ``search`` is searched for this method alone, beside the others;
- ``partitions``: of a study, by name the settings of each, or a list of seeds (``data.seed``);
- ``seeds``: training seeds of the comparison of a study, or how many of them;
- ``baseline``: the method that the others are compared with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from fedsim.core.errors import ConfigError, nearest, spelled
from fedsim.core.searches import METRIC, PRUNERS, SAMPLERS
from fedsim.core.settings import first_problem

TRIALS, SEEDS = 25, 3
"""Trials of a search, and training seeds of a comparison, by default."""
MOST_RUNS, MOST_SEEDS = 10_000, 1000
"""The most runs of one sweep or search, and seeds of a comparison."""
Runs = Annotated[int, Field(ge=1, le=MOST_RUNS)]
Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=MOST_SEEDS)]
Text = Annotated[str, StringConstraints(strip_whitespace=True)]
OPTIONS: Mapping[str, Any] = {
    "trials": Runs,
    "confirm": Runs,
    "seeds": Annotated[int, Field(ge=1, le=MOST_SEEDS)] | Seeds,
    "by": Annotated[str, StringConstraints(pattern=f"^{METRIC}$")],
    "sampler": Literal[SAMPLERS],
    "sampler_seed": Annotated[int, Field(ge=0, lt=2**64)],
    "pruner": Literal[PRUNERS],
}
"""Types of the keys of a search or study."""
TYPES = {**OPTIONS, "about": Text, "preset": Text, "baseline": Text, "partitions": Seeds}
SPECIAL = {*TYPES, "grid", "search", "methods"}
"""The keys of a file that are no settings."""


@dataclass(frozen=True)
class Setting:
    """A value and its origin: ``--alpha``, ``run.yaml:12 (train.lr)``."""

    value: object
    origin: str


Settings = Mapping[str, Setting]
"""By dotted key, such as ``train.lr``."""


COLUMNS_KEY = "data.columns"
"""The key whose value may be a mapping."""


@dataclass(frozen=True)
class AxisValue:
    """One value of an axis: its label in directory names and the settings that it stands for.

    ``named``: whether the label is a name given by the user, ``label: {key: value}``.
    """

    label: str
    settings: Settings
    named: bool = False


@dataclass(frozen=True)
class Axis:
    """One axis of a grid."""

    name: str
    values: tuple[AxisValue, ...]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The content of one file; the keys are described above.

    ``search`` is for every method, ``search_of`` for one alone. ``trials`` None: :data:`TRIALS`, or
    all combinations of a grid, ``by`` None: the task's primary measure. ``origins`` says where keys
    that are no settings were given.
    """

    settings: Settings = field(default_factory=dict)
    about: str = ""
    preset: str | None = None
    grid: tuple[Axis, ...] = ()
    search: Settings = field(default_factory=dict)
    methods: tuple[AxisValue, ...] = ()
    partitions: tuple[AxisValue, ...] = (AxisValue("", {}),)
    search_of: Mapping[str, Settings] = field(default_factory=dict)
    trials: int | None = None
    seeds: tuple[int, ...] | int = SEEDS
    by: str | None = None
    sampler: str = SAMPLERS[0]
    sampler_seed: int = 0
    pruner: str = PRUNERS[0]
    confirm: int = 0
    baseline: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> Literal["sweep", "tune", "study"]:
        """What is done with the file."""
        return "study" if self.methods else "tune" if self.search else "sweep"

    def over(self, base: Experiment) -> Experiment:
        """This experiment over another one; a study takes neither grid nor search of that."""
        alone = bool(self.methods)
        return replace(
            self,
            settings={**base.settings, **self.settings},
            about=self.about or base.about,
            grid=self.grid or (() if alone else base.grid),
            search=self.search or ({} if alone else base.search),
        )


def read(path: Path) -> Experiment:
    """The experiment in a YAML file; a ConfigError names file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        detail = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {detail}") from error
    return parse(text, str(path))


def as_yaml(content: Mapping[str, Any]) -> str:
    """The text of a file with this content; a ConfigError where a value is no plain one."""
    try:
        return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        raise ConfigError(f"values must be texts, numbers, lists or mappings ({error})") from error


def parse(text: str, source: str, with_lines: bool = True) -> Experiment:
    """The experiment in a YAML text, whose name in messages is ``source``; or a ConfigError."""
    try:
        return _Document(text, source, with_lines).experiment()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        origin = f"{source}:{mark.line + 1}" if mark else source
        problem = getattr(error, "problem", None) or "unreadable characters"
        raise ConfigError(f"{origin}: not valid YAML: {problem}") from error


class _Document:
    """The nodes of a YAML document, each with its line."""

    def __init__(self, text: str, source: str, with_lines: bool) -> None:
        self.loader = yaml.SafeLoader(text)
        self.source, self.with_lines = source, with_lines

    def experiment(self) -> Experiment:
        """The content of the document."""
        root = self.loader.get_single_node()
        nodes = dict(self.pairs(root, "the file")) if root else {}
        special = {key: nodes[key] for key in nodes if key in SPECIAL}
        origins = {key: self.origin(node, key) for key, node in special.items()}
        options = {
            key: self.option(key, special[key])
            for key in special
            if key in TYPES and key != "partitions"
        }
        methods = self.rows("methods", special["methods"]) if "methods" in special else ()
        names = [method.label for method in methods]
        for key in {"partitions", "seeds", "baseline"} & special.keys() if not methods else ():
            raise ConfigError(f"{origins[key]}: is of a study, with 'methods:'")
        baseline = options.get("baseline")
        if baseline is not None:
            options["baseline"] = spelled(baseline, names)
            if options["baseline"] is None:
                raise ConfigError(
                    f"{origins['baseline']}: {baseline!r} given; must be one of the methods, "
                    f"{', '.join(names)}{nearest(baseline, names)}"
                )
        if "partitions" in special:
            options["partitions"] = self.partitions(special["partitions"])
        search = dict(self.pairs(special["search"], "search")) if "search" in special else {}
        grid = self.pairs(special["grid"], "grid") if "grid" in special else ()
        return Experiment(
            settings=self.settings((key, nodes[key]) for key in nodes if key not in special),
            grid=tuple(self.axis(name, values) for name, values in grid),
            search=self.settings((key, search[key]) for key in search if key not in names),
            methods=methods,
            search_of={
                key: self.settings(self.pairs(search[key], key)) for key in search if key in names
            },
            origins=origins,
            **options,
        )

    def origin(self, node: yaml.Node, key: str) -> str:
        """Where a key was given: ``FILE:3 (key)``."""
        line = f":{node.start_mark.line + 1}" if self.with_lines else ""
        return f"{self.source}{line} ({key})"

    def value(self, node: yaml.Node, key: str) -> Any:
        """The plain value of a node."""
        try:
            return self.loader.construct_object(node, deep=True)
        except ValueError as error:  # 2020-13-45
            raise ConfigError(f"{self.origin(node, key)}: not a value of YAML ({error})") from error

    def pairs(self, node: yaml.Node, title: str) -> Iterator[tuple[str, yaml.Node]]:
        """Keys and value nodes of a mapping whose keys are texts, each given once."""
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{self.origin(node, title)}: must hold lines 'key: value'")
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key = self.value(key_node, title)
            if not isinstance(key, str):
                raise ConfigError(f"{self.origin(key_node, str(key))}: a key must be a text")
            if key in seen:
                raise ConfigError(f"{self.origin(key_node, key)}: given twice")
            seen.add(key)
            yield key, value_node

    def settings(self, pairs: Iterable[tuple[str, yaml.Node]]) -> dict[str, Setting]:
        """The settings of keys and sections, by dotted key."""
        settings: dict[str, Setting] = {}
        for key, node in pairs:
            self.add(settings, key, node)
        return settings

    def add(self, settings: dict[str, Setting], section: str, node: yaml.Node) -> None:
        """Adds a key, or all keys of a section."""
        pairs: Iterable[tuple[str, yaml.Node]] = [(section, node)]
        if isinstance(node, yaml.MappingNode):
            pairs = ((f"{section}.{leaf}", value) for leaf, value in self.pairs(node, section))
        for key, value in pairs:
            origin = self.origin(value, key)
            if isinstance(value, yaml.MappingNode) and key != COLUMNS_KEY:
                raise ConfigError(f"{origin}: sections are one level deep")
            if key in settings:
                raise ConfigError(f"{origin}: given twice")
            settings[key] = Setting(self.value(value, key), origin)

    def option(self, key: str, node: yaml.Node) -> Any:
        """The value of a key that is no setting, by its type."""
        try:
            value = TypeAdapter(TYPES[key]).validate_python(self.value(node, key), strict=True)
        except ValidationError as error:
            raise ConfigError(f"{self.origin(node, key)}: {first_problem(error)}") from None
        if isinstance(value, list) and len(set(value)) < len(value):
            raise ConfigError(f"{self.origin(node, key)}: a seed is given twice")
        return tuple(value) if isinstance(value, list) else value

    def rows(self, key: str, node: yaml.Node) -> tuple[AxisValue, ...]:
        """Named rows of settings, at least one."""
        rows = tuple(self.row(name, row, f"{key}.{name}") for name, row in self.pairs(node, key))
        for row in rows:
            if "seed" in row.settings:
                why = "the training seeds are the same for all: 'grid: {seed: [...]}' of the trials"
                raise ConfigError(
                    f"{row.settings['seed'].origin}: {why}, 'seeds:' of the comparison"
                )
        if not rows:
            raise ConfigError(f"{self.origin(node, key)}: must have at least one row")
        _check_names([row.label for row in rows], self.origin(node, key))
        return rows

    def partitions(self, node: yaml.Node) -> tuple[AxisValue, ...]:
        """Named rows, or a list of seeds of the partition."""
        if isinstance(node, yaml.MappingNode):
            return self.rows("partitions", node)
        origin = self.origin(node, "partitions")
        return tuple(
            AxisValue(f"split-{seed}", {"data.seed": Setting(seed, origin)})
            for seed in self.option("partitions", node)
        )

    def axis(self, name: str, node: yaml.Node) -> Axis:
        """An axis of a grid and its values, all different."""
        origin = self.origin(node, f"grid.{name}")
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise ConfigError(f"{origin}: must be a list of values")
        values = tuple(self.axis_value(name, entry) for entry in node.value)
        contents = [v.label if v.named else v.settings[name].value for v in values]
        for place, content in enumerate(contents):
            if content in contents[:place]:
                raise ConfigError(f"{origin}: {values[place].label} is given twice")
        _check_names([value.label for value in values if value.named], origin)
        return Axis(name, values)

    def axis_value(self, axis: str, node: yaml.Node) -> AxisValue:
        """A value of an axis: plain, or a named row."""
        key = f"grid.{axis}"
        if not isinstance(node, yaml.MappingNode):
            value = self.value(node, key)
            label = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            return AxisValue(label, {axis: Setting(value, self.origin(node, key))})
        named = list(self.pairs(node, key))
        if len(named) != 1 or not isinstance(named[0][1], yaml.MappingNode):
            raise ConfigError(
                f"{self.origin(node, key)}: a row must be 'name: {{key: value, ...}}'"
            )
        label, row = named[0]
        return self.row(label, row, f"{key}.{label}")

    def row(self, label: str, node: yaml.Node, title: str) -> AxisValue:
        """A named row of settings."""
        return AxisValue(label, self.settings(self.pairs(node, title)), named=True)


def _check_names(names: Sequence[str], origin: str) -> None:
    """Refuses names of rows that are empty, or equal but for case and blanks."""
    seen: dict[str, str] = {}
    for name in names:
        if not any(map(str.isalnum, name)):
            raise ConfigError(f"{origin}: {name!r} given; a name must have a letter or digit")
        before = seen.setdefault("".join(name.casefold().split()), name)
        if before is not name:
            raise ConfigError(
                f"{origin}: the names {before!r} and {name!r} are the same but for case and blanks"
            )
