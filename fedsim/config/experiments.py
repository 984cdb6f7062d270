"""Reads YAML files of settings, each value with the file and line that it came from.

A file holds the keys of :class:`fedsim.config.run.RunConfig`, nested or dotted, and may add

- ``about``: a description;
- ``preset``: the name of a preset to start from;
- ``grid``: axes of a sweep. An axis is a key with a list of values; a value may also be
  ``label: {key: value, ...}``, several settings that go together;
- ``search``: a search space, keys with texts that :mod:`fedsim.config.search` reads;
- ``trials``, ``by``, ``sampler``, ``sampler_seed``, ``pruner``, ``confirm``: of the search, as the
  flags of ``fedsim tune``;
- ``methods``: of a study, by name the settings of each; what stands under the name of a method in
  ``search`` is searched for this method alone, beside the others;
- ``partitions``: of a study, by name the settings of each, or a list of seeds (``data.seed``);
- ``seeds``: training seeds of the comparison of a study, or how many of them;
- ``baseline``: the method that the others are compared with.
"""

from __future__ import annotations

import reprlib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from fedsim.core.errors import ConfigError, nearest, spelled
from fedsim.core.searches import METRICS, PRUNERS, SAMPLERS

MOST_NAME = 200
"""Characters of the name of a row, which may be the label of a run."""
TRIALS, SEEDS = 25, 3
"""Trials of a search, and training seeds of a comparison, by default."""
MOST_RUNS, MOST_SEEDS = 10_000, 1000
"""The most runs of one sweep or search, and seeds of a comparison."""
WORDS = {"by": METRICS, "sampler": SAMPLERS, "pruner": PRUNERS}
NUMBERS = {
    **dict.fromkeys(("trials", "confirm"), (1, MOST_RUNS)),
    "seeds": (1, MOST_SEEDS),
    "sampler_seed": (0, 2**64 - 1),
}
"""Keys of a search or study: their words, or the smallest and the largest number."""
OPTIONS = {*WORDS, *NUMBERS}
SPECIAL = {*OPTIONS, "about", "preset", "grid", "search", "methods", "partitions", "baseline"}
"""The keys of a file that are no settings."""
NOT_IN_ROWS = {
    "seed": "the training seeds are the same for all: 'grid: {seed: [...]}' of the trials, "
    "'seeds:' of the comparison",
    "label": "the name of the row is the label",
}


@dataclass(frozen=True)
class Setting:
    """A value and its origin: ``--alpha``, ``run.yaml:12 (train.lr)``."""

    value: object
    origin: str


Settings = Mapping[str, Setting]
"""By dotted key, such as ``train.lr``."""


COLUMNS_KEY = "data.columns"
"""The key whose value may be a mapping: a third level of keys."""


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
    all combinations of a grid. ``seeds`` as a number: not yet known which. ``origins`` says where
    a key was given that is no setting.
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
    by: str = METRICS[0]
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
        """This experiment over another one; its own settings, text, grid and search win.

        Of a study neither grid nor search of the other one are taken.
        """
        alone = bool(self.methods)
        return replace(
            self,
            settings={**base.settings, **self.settings},
            about=self.about or base.about,
            grid=self.grid or (() if alone else base.grid),
            search=self.search or ({} if alone else base.search),
        )


def read(path: Path) -> Experiment:
    """The experiment in a YAML file.

    Raises:
        ConfigError: the file is missing or cannot be read; names file and line.
    """
    return parse(text_of(path), str(path), with_lines=True)


def text_of(path: Path) -> str:
    """The text of a file of settings; a ConfigError where it is missing or cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        detail = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {detail}") from error


def as_yaml(content: Mapping[str, Any]) -> str:
    """The text of a file with this content.

    Raises:
        ConfigError: a value that is no text, number, list or mapping.
    """
    try:
        return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"values must be texts, numbers, lists or mappings ({error})") from error


def parse(text: str, source: str, with_lines: bool = True) -> Experiment:
    """The experiment in a YAML text; ``source`` is its name in messages.

    Raises:
        ConfigError: not valid YAML, a key that is given twice, or a malformed grid.
    """
    with one_error(source):
        return Reader(text, source, with_lines).experiment()


@contextmanager
def one_error(source: str) -> Iterator[None]:
    """Raises a ConfigError with file and line for what the YAML in the block does wrong."""
    try:
        yield
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        origin = f"{source}:{mark.line + 1}" if mark else source
        problem = getattr(error, "problem", None) or "unreadable characters"
        raise ConfigError(f"{origin}: not valid YAML: {problem}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: nested too deeply; sections are one level deep") from error


def check_names(names: Sequence[str], origin: str) -> None:
    """Refuses names of rows that are empty, too long or equal but for case and blanks."""
    seen: dict[str, str] = {}
    for name in names:
        if not any(map(str.isalnum, name)) or len(name) > MOST_NAME:
            raise ConfigError(
                f"{origin}: {reprlib.repr(name)} given; a name must have a letter or digit, and "
                f"at most {MOST_NAME} characters"
            )
        spelling = "".join(unicodedata.normalize("NFKC", name).casefold().split())
        if spelling in seen:
            raise ConfigError(
                f"{origin}: the names {seen[spelling]!r} and {name!r} are the same but for "
                "case and blanks"
            )
        seen[spelling] = name


class Reader:
    """Walks the nodes of one YAML document."""

    def __init__(self, text: str, source: str, with_lines: bool) -> None:
        self.loader = yaml.SafeLoader(text)
        self.source, self.with_lines = source, with_lines

    def experiment(self) -> Experiment:
        """The content of the document."""
        root = self.loader.get_single_node()
        if root is None:
            return Experiment()
        settings: dict[str, Setting] = {}
        special: dict[str, yaml.Node] = {}
        for key, node in self.pairs(root, "the file"):
            if key in SPECIAL:
                special[key] = node
            else:
                self.add(settings, key, node)
        methods = self.rows("methods", special["methods"]) if "methods" in special else ()
        search, search_of = self.searches(special, [method.label for method in methods])
        for key in {"partitions", "seeds", "baseline"} & special.keys() if not methods else ():
            raise ConfigError(f"{self.origin(special[key], key)}: is of a study, with 'methods:'")
        content = Experiment(
            settings=settings,
            about=self.text(special, "about") or "",
            preset=self.text(special, "preset"),
            grid=self.axes(special["grid"]) if "grid" in special else (),
            search=search,
            methods=methods,
            search_of=search_of,
            baseline=self.baseline(special, [method.label for method in methods]),
            origins={key: self.origin(node, key) for key, node in special.items()},
            **{key: self.option(key, node) for key, node in special.items() if key in OPTIONS},
        )
        if "partitions" not in special:
            return content
        return replace(content, partitions=self.partitions(special["partitions"]))

    def origin(self, node: yaml.Node, key: str) -> str:
        """Where a key was given: ``FILE:3 (key)``."""
        line = f":{node.start_mark.line + 1}" if self.with_lines else ""
        return f"{self.source}{line} ({key})"

    def value(self, node: yaml.Node, key: str) -> Any:
        """The plain value of a node."""
        try:
            return self.loader.construct_object(node, deep=True)
        except (ValueError, LookupError, AttributeError, OverflowError) as error:
            # 2020-13-45, !!bool x, a sum beyond the largest number
            kind = node.tag.rpartition(":")[2]
            text = reprlib.repr(node.value)
            raise ConfigError(
                f"{self.origin(node, key)}: {text} given; not a {kind} of YAML ({error})"
            ) from error

    def text(self, nodes: Mapping[str, yaml.Node], key: str) -> str | None:
        """The text of a key; None where it is not given."""
        if key not in nodes:
            return None
        value = self.value(nodes[key], key)
        if not isinstance(value, str):
            text = reprlib.repr(value)
            raise ConfigError(f"{self.origin(nodes[key], key)}: {text} given; must be a text")
        return value.strip()

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

    def add(self, settings: dict[str, Setting], key: str, node: yaml.Node) -> None:
        """Adds a key, or all keys of a section."""
        if isinstance(node, yaml.MappingNode):
            for leaf, leaf_node in self.pairs(node, key):
                if isinstance(leaf_node, yaml.MappingNode) and f"{key}.{leaf}" != COLUMNS_KEY:
                    origin = self.origin(leaf_node, f"{key}.{leaf}")
                    raise ConfigError(f"{origin}: sections are one level deep")
                self.add(settings, f"{key}.{leaf}", leaf_node)
            return
        setting = Setting(self.value(node, key), self.origin(node, key))
        if key in settings:
            raise ConfigError(f"{setting.origin}: given twice")
        settings[key] = setting

    def space(self, node: yaml.Node) -> Settings:
        """The settings of a section ``search``."""
        settings: dict[str, Setting] = {}
        for key, value in self.pairs(node, "search"):
            self.add(settings, key, value)
        return settings

    def searches(
        self, nodes: Mapping[str, yaml.Node], methods: Sequence[str]
    ) -> tuple[Settings, dict[str, Settings]]:
        """What is searched for all methods, and for one alone."""
        shared: dict[str, Setting] = {}
        alone: dict[str, Settings] = {}
        for key, node in self.pairs(nodes["search"], "search") if "search" in nodes else ():
            if key in methods:
                alone[key] = self.space(node)
            else:
                self.add(shared, key, node)
        return shared, alone

    def option(self, key: str, node: yaml.Node) -> Any:
        """The value of a key of a search or study."""
        value, origin = self.value(node, key), self.origin(node, key)
        if key in WORDS:
            words = WORDS[key]
            if value not in words:
                raise ConfigError(
                    f"{origin}: {value!r} given; must be one of {', '.join(words)}"
                    f"{nearest(str(value), words)}"
                )
            return value
        if key == "seeds" and isinstance(value, list):
            return _whole_numbers(value, origin, "a number or a list of seeds")
        least, most = NUMBERS[key]
        if type(value) is not int or not least <= value <= most:
            raise ConfigError(
                f"{origin}: {value!r} given; must be a whole number from {least} to {most:,}"
            )
        return value

    def baseline(self, nodes: Mapping[str, yaml.Node], methods: Sequence[str]) -> str | None:
        """The method that the others are compared with."""
        name = self.text(nodes, "baseline")
        name = None if name is None else spelled(name, methods) or name
        if name is not None and name not in methods:
            raise ConfigError(
                f"{self.origin(nodes['baseline'], 'baseline')}: {name!r} given; must be one of "
                f"the methods, {', '.join(methods)}{nearest(name, methods)}"
            )
        return name

    def rows(self, key: str, node: yaml.Node) -> tuple[AxisValue, ...]:
        """Named rows of settings, at least one."""
        rows = tuple(self.row(name, row, f"{key}.{name}") for name, row in self.pairs(node, key))
        for row in rows:
            for setting, reason in NOT_IN_ROWS.items():
                if setting in row.settings:
                    raise ConfigError(f"{row.settings[setting].origin}: {reason}")
        if not rows:
            raise ConfigError(f"{self.origin(node, key)}: must have at least one row")
        check_names([row.label for row in rows], self.origin(node, key))
        return rows

    def partitions(self, node: yaml.Node) -> tuple[AxisValue, ...]:
        """Named rows, or a list of seeds of the partition."""
        if isinstance(node, yaml.MappingNode):
            return self.rows("partitions", node)
        origin = self.origin(node, "partitions")
        seeds = _whole_numbers(self.value(node, "partitions"), origin, "names, or a list of seeds")
        return tuple(
            AxisValue(f"split-{seed}", {"data.seed": Setting(seed, origin)}) for seed in seeds
        )

    def axes(self, node: yaml.Node) -> tuple[Axis, ...]:
        """The axes of a section ``grid``."""
        return tuple(self.axis(name, values) for name, values in self.pairs(node, "grid"))

    def axis(self, name: str, node: yaml.Node) -> Axis:
        """An axis and its values, all different."""
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise ConfigError(f"{self.origin(node, f'grid.{name}')}: must be a list of values")
        values = tuple(self.axis_value(name, entry) for entry in node.value)
        origin = self.origin(node, f"grid.{name}")
        contents = [(v.named, v.label if v.named else v.settings[name].value) for v in values]
        for place, content in enumerate(contents):
            if content in contents[:place]:
                raise ConfigError(f"{origin}: {values[place].label} is given twice")
        check_names([value.label for value in values if value.named], origin)
        return Axis(name, values)

    def axis_value(self, axis: str, node: yaml.Node) -> AxisValue:
        """A value of an axis: plain, or a named row."""
        if not isinstance(node, yaml.MappingNode):
            key = f"grid.{axis}"
            setting = Setting(self.value(node, key), self.origin(node, key))
            value = setting.value
            if isinstance(value, list) and any(isinstance(v, list | dict) for v in value):
                raise ConfigError(f"{setting.origin}: a list in a list of values may not hold more")
            label = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            return AxisValue(label, {axis: setting})
        named = list(self.pairs(node, f"grid.{axis}"))
        if len(named) != 1 or not isinstance(named[0][1], yaml.MappingNode):
            raise ConfigError(
                f"{self.origin(node, f'grid.{axis}')}: a row must be 'name: {{key: value, ...}}'"
            )
        label, row = named[0]
        return self.row(label, row, f"grid.{axis}.{label}")

    def row(self, label: str, node: yaml.Node, origin: str) -> AxisValue:
        """A named row of settings."""
        settings: dict[str, Setting] = {}
        for key, value in self.pairs(node, origin):
            self.add(settings, key, value)
        return AxisValue(label, settings, named=True)


def _whole_numbers(value: object, origin: str, wanted: str) -> tuple[int, ...]:
    """A list of different whole numbers from 0, at least one."""
    numbers = value if isinstance(value, list) else []
    whole = all(type(number) is int and number >= 0 for number in numbers)
    if not numbers or not whole or len(numbers) > MOST_SEEDS:
        raise ConfigError(f"{origin}: {value!r} given; must be {wanted}, whole numbers from 0")
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"{origin}: a seed is given twice")
    return tuple(numbers)
