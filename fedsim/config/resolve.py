"""The layers of a configuration: flags over file over preset over defaults."""

import logging
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from fedsim import data
from fedsim.config import experiments, presets
from fedsim.config.experiments import COLUMNS_KEY, Setting, Settings
from fedsim.config.run import RunConfig
from fedsim.config.sections import SECTIONS, SHORTHANDS, fields
from fedsim.config.validation import is_section
from fedsim.core.errors import ConfigError
from fedsim.core.settings import InvalidSetting, column_names

_LOGGER = logging.getLogger("fedsim")


def load_config(
    *, preset: str | None = None, file: Path | None = None, overrides: Settings | None = None
) -> RunConfig:
    """The configuration of one run, from the layers that :func:`read_layers` reads.

    Raises:
        ConfigError: a setting cannot be used; one line that says what, where, and what is allowed.
    """
    return resolve(*read_layers(preset=preset, file=file, overrides=overrides))


def read_layers(
    *, preset: str | None = None, file: Path | None = None, overrides: Settings | None = None
) -> tuple[Settings, Settings, Settings]:
    """The settings of preset, file and flags; a later layer wins.

    ``preset`` takes the place of the own ``preset`` of ``file``, a YAML file without a grid or a
    search; ``overrides`` are the flags, see :func:`from_flags`.

    Raises:
        ConfigError: there is no such preset, or the file cannot be read or has a grid or search.
    """
    written = experiments.read(file) if file is not None else experiments.Experiment()
    if written.methods:
        raise ConfigError(f"{file} (methods): a study is run by 'fedsim study {file}'")
    if written.search:  # a search may have a grid of seeds
        raise ConfigError(f"{file} (search): a search is run by 'fedsim tune {file}'")
    if written.grid:
        raise ConfigError(f"{file} (grid): a grid is run by 'fedsim sweep {file}'")
    name, origin = written.preset, f"{file} (preset)"
    if preset is not None:
        name, origin = preset, "--preset"
    base = {} if name is None else presets.load(name, origin).settings
    return base, written.settings, overrides or {}


def resolve(*layers: Settings, build: bool = True) -> RunConfig:
    """Merges layers of settings to a configuration; a later layer wins.

    ``build=False`` is for a first look, without importing torch: the methods are not built, so what
    they themselves refuse is not found, and ``train.momentum`` is what was given.

    Raises:
        ConfigError: as :func:`load_config`.
    """
    merged = _merged(layers)
    nested: dict[str, Any] = {}
    known = fields()
    for key, setting in merged.items():
        section, _, leaf = key.rpartition(".")
        if not section and (leaf in SECTIONS or is_section(leaf)):
            if setting.value is not None:
                given = reprlib.repr(setting.value)
                raise ConfigError(f"{setting.origin}: {given} given; {leaf} is a section of keys")
        elif not section and key in known:
            nested[key] = setting.value
        elif key in known or is_section(section):
            nested.setdefault(section, {})[leaf] = setting.value
        else:
            raise ConfigError(f"{setting.origin}: {RunConfig.unknown(key)}")
    try:
        return RunConfig.model_validate(nested, context={"build": build})
    except InvalidSetting as error:
        below = (s.origin for key, s in merged.items() if key.startswith(f"{error.key}."))
        origin = merged[error.key].origin if error.key in merged else next(below, error.key)
        raise ConfigError(f"{origin}: {error.reason}") from None


def _merged(layers: Iterable[Settings]) -> dict[str, Setting]:
    """All settings; those of single columns, ``data.columns.label``, as one of ``data.columns``.

    Raises:
        ConfigError: a column that is none.
    """
    merged: dict[str, Setting] = {}
    for layer in layers:
        for key, setting in layer.items():
            section, _, leaf = key.rpartition(".")
            if section != COLUMNS_KEY:
                merged[key] = setting
                continue
            before = merged.get(COLUMNS_KEY, setting)
            try:
                one = {leaf: setting.value}
                column_names(one)
                others = {} if before is setting else column_names(before.value or "")
            except ValueError as error:
                raise ConfigError(f"{setting.origin}: {error}") from None
            merged[COLUMNS_KEY] = Setting(others | one, setting.origin)
    return merged


def warn_unused(given: Settings, runs: Iterable[RunConfig]) -> None:
    """Warns of hyperparameters of methods that none of the runs uses; those of presets may be."""
    for key, reason in unused(given, runs).items():
        of_method = data.find(key.rpartition(".")[0]) is None
        if of_method and not given[key].origin.startswith("preset "):
            _LOGGER.warning(reason)


def unused(given: Settings, runs: Iterable[RunConfig]) -> dict[str, str]:
    """The keys of methods and data sets that none of the runs uses, each with a line that says so.

    The line names where the key was given.
    """
    methods: dict[str, None] = {}
    data_sets: dict[str, None] = {}
    split: set[str | None] = set()
    for run in runs:
        methods |= dict.fromkeys(run.methods)
        data_sets |= {run.data.name: None}
        split |= {run.data.partition}
    reasons = {}
    for key, setting in given.items():
        section = key.rpartition(".")[0]
        if is_section(section) and section not in {*methods, *data_sets, *split}:
            what, used = (
                ("method", methods) if data.find(section) is None else ("data set", data_sets)
            )
            reasons[key] = f"{setting.origin} has no effect: the {what} used is {', '.join(used)}"
    return reasons


def from_flags(flags: Mapping[str, tuple[str, object]], sets: Iterable[str] = ()) -> Settings:
    """The settings on a command line.

    ``flags`` are by dotted key the flag and its value, None where the flag is absent; ``sets`` are
    of ``--set``, each ``key=value``; ``null`` is None.

    Raises:
        ConfigError: a text without ``=``, or a key that is given twice.
    """
    settings = {
        key: Setting(None if value == "null" else value, flag)
        for key, (flag, value) in flags.items()
        if value is not None and key not in SHORTHANDS
    }
    for key, meant in SHORTHANDS.items():
        flag, switched_on = flags.get(key, ("", None))
        for full_key, value in meant.items() if switched_on else ():
            if full_key in settings:
                raise ConfigError(
                    f"{flag}: {full_key} is also given by {settings[full_key].origin}"
                )
            settings[full_key] = Setting(value, flag)
    for text in sets:
        key, equals, value = text.partition("=")
        if not (equals and key):
            raise ConfigError(f"--set {text}: must be key=value, such as --set train.lr=0.05")
        if key in settings:
            raise ConfigError(f"--set {text}: {key} is also given by {settings[key].origin}")
        settings[key] = Setting(None if value == "null" else value, f"--set {key}")
    return settings


def to_yaml(config: RunConfig) -> str:
    """The configuration as YAML; ``fedsim run --config`` on it repeats the run."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def to_dict(config: RunConfig) -> dict[str, Any]:
    """The configuration as nested texts and numbers, as config.yaml holds it."""
    values = config.model_dump(mode="json")
    return values | {name: own for name, own in values.pop("hyperparameters").items() if own}
