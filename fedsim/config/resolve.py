"""The layers of a configuration: flags over file over preset over defaults."""

import logging
import reprlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from fedsim import data
from fedsim.config import experiments, presets
from fedsim.config.experiments import COLUMNS_KEY, Setting, Settings
from fedsim.config.run import RunConfig
from fedsim.config.sections import SECTIONS, fields
from fedsim.config.validation import is_section
from fedsim.core.errors import ConfigError
from fedsim.core.normalization import OF_DATASET
from fedsim.core.settings import InvalidSetting, column_names

_LOGGER = logging.getLogger("fedsim")
FAST = {"engine.precision": "bf16", "engine.deterministic": False}
"""What the switch ``--fast`` stands for; its key is ``engine.fast``."""


def load_config(
    *, preset: str | None = None, file: Path | None = None, overrides: Settings | None = None
) -> RunConfig:
    """The configuration of one run; a ConfigError says what, where, and what is allowed."""
    return resolve(*read_layers(preset=preset, file=file, overrides=overrides))


def read_layers(
    *, preset: str | None = None, file: Path | None = None, overrides: Settings | None = None
) -> tuple[Settings, Settings, Settings]:
    """The settings of preset (before that of the file), file and flags; a later layer wins."""
    written = experiments.read(file) if file is not None else experiments.Experiment()
    for key, command in (("methods", "study"), ("search", "tune"), ("grid", "sweep")):
        if getattr(written, key):
            raise ConfigError(f"{file} ({key}): is done by 'fedsim {command} {file}'")
    name, origin = written.preset, f"{file} (preset)"
    if preset is not None:
        name, origin = preset, "--preset"
    base = {} if name is None else presets.load(name, origin).settings
    return base, written.settings, overrides or {}


def resolve(*layers: Settings, build: bool = True) -> RunConfig:
    """Merges layers of settings to a configuration; a later layer wins.

    ``build=False`` is for a first look, without importing torch: hyperparameters of methods are not
    checked, and ``train.momentum`` is what was given. A ConfigError as of :func:`load_config`.
    """
    merged = {key: setting for layer in layers for key, setting in layer.items()}
    nested: dict[str, Any] = {}
    columns: dict[str, object] = {}
    keys = fields()
    for key, setting in merged.items():
        section, _, leaf = key.rpartition(".")
        if not section and (leaf in SECTIONS or is_section(leaf)):
            if setting.value is not None:
                value = reprlib.repr(setting.value)
                raise ConfigError(f"{setting.origin}: {value} given; {leaf} is a section of keys")
        elif section == COLUMNS_KEY:  # data.columns.label
            columns[leaf] = setting.value
        elif not section and key in keys:
            nested[key] = setting.value
        elif key in keys or is_section(section):
            nested.setdefault(section, {})[leaf] = setting.value
        else:
            raise ConfigError(f"{setting.origin}: {RunConfig.unknown(key)}")
    if columns:
        values = nested.setdefault("data", {})
        with suppress(ValueError):  # data.columns is refused below
            values["columns"] = column_names(values.get("columns") or {}) | columns
    try:
        return RunConfig.model_validate(nested, context={"build": build})
    except InvalidSetting as error:
        below = (s.origin for key, s in merged.items() if key.startswith(f"{error.key}."))
        origin = merged[error.key].origin if error.key in merged else next(below, error.key)
        raise ConfigError(f"{origin}: {error.reason}") from None


def warn_unused(settings: Settings, runs: Iterable[RunConfig]) -> None:
    """Warns of hyperparameters of methods that none of the runs uses; those of presets may be."""
    for key, reason in unused(settings, runs).items():
        of_method = data.find(key.rpartition(".")[0]) is None
        if of_method and not settings[key].origin.startswith("preset "):
            _LOGGER.warning(reason)


def unused(settings: Settings, runs: Iterable[RunConfig]) -> dict[str, str]:
    """The keys of methods and data sets that none of the runs uses, each with a line on it."""
    methods: dict[str, None] = {}
    data_sets: dict[str, None] = {}
    split: set[str | None] = set()
    for run in runs:
        methods |= dict.fromkeys(run.methods)
        data_sets |= {run.data.name: None}
        split |= {run.data.partition, run.attack.name, run.compress.name, run.task}
    reasons = {}
    for key, setting in settings.items():
        section = key.rpartition(".")[0]
        if is_section(section) and section not in {*methods, *data_sets, *split}:
            what, used = (
                ("method", methods) if data.find(section) is None else ("data set", data_sets)
            )
            reasons[key] = f"{setting.origin} has no effect: the {what} used is {', '.join(used)}"
    return reasons


def from_flags(flags: Mapping[str, tuple[str, object]], sets: Iterable[str] = ()) -> Settings:
    """The settings of flags, by key the flag and its value (None: absent), and of ``--set``."""
    settings = {
        key: Setting(None if value == "null" else value, flag)
        for key, (flag, value) in flags.items()
        if value is not None and key != "engine.fast"
    }
    flag, fast = flags.get("engine.fast", ("", None))
    for key, value in FAST.items() if fast else ():
        if key in settings:
            raise ConfigError(f"{flag}: {key} is also given by {settings[key].origin}")
        settings[key] = Setting(value, flag)
    for key, setting in pairs("--set", sets, "train.lr=0.05").items():
        if key in settings:
            text = f"--set {key}={setting.value}"
            raise ConfigError(f"{text}: {key} is also given by {settings[key].origin}")
        settings[key] = Setting(None if setting.value == "null" else setting.value, setting.origin)
    return settings


def pairs(flag: str, texts: Iterable[str], example: str) -> dict[str, Setting]:
    """The settings of a flag that is given several times, each ``key=value``."""
    settings: dict[str, Setting] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (equals and key):
            raise ConfigError(f"{flag} {text}: must be key=value, such as {flag} '{example}'")
        if key in settings:
            raise ConfigError(f"{flag} {text}: {key} is also given by {settings[key].origin}")
        settings[key] = Setting(value, f"{flag} {key}")
    return settings


def to_yaml(config: RunConfig) -> str:
    """The configuration as YAML; ``fedsim run --config`` on it repeats the run."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def to_dict(config: RunConfig) -> dict[str, Any]:
    """The configuration as nested texts and numbers, as config.yaml holds it."""
    values = config.model_dump(mode="json")
    sections = values.pop("hyperparameters").items()
    return values | {name: options for name, options in sections if options}


def with_normalization(config: RunConfig) -> RunConfig:
    """The configuration with ``data.normalization`` where it was left open.

    That of the network's pretraining where it starts from weights that timm or torchvision
    publish, with its image size where ``data.image_size`` is open as well; else the data set's.
    """
    c, normalization = config.data, None
    if c.normalization is not None:
        return config
    if config.model.pretrained and config.model.weights is None:
        from fedsim.models import libraries  # imports torch

        normalization = libraries.preprocessing(config.model_name)
    if normalization is not None and c.image_size is not None:
        normalization = replace(normalization, size=None)
    value = OF_DATASET if normalization is None else str(normalization)
    return config.model_copy(update={"data": c.model_copy(update={"normalization": value})})
