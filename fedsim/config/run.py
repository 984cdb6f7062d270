"""RunConfig: the whole configuration of a run, frozen and checked.

A value that cannot be used raises :class:`~fedsim.core.settings.InvalidSetting`, which names the
key; :mod:`fedsim.config.resolve` names the file and line or the flag instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationInfo, model_validator

from fedsim import algorithms, data, models
from fedsim.config.keys import conditions
from fedsim.config.section import Section, unknown_key
from fedsim.config.sections import DataConfig, RunSettings, TrainConfig, fields
from fedsim.config.validation import (
    check_data_options,
    check_hyperparameters,
    check_name,
    default_options,
    is_section,
    options_of,
)
from fedsim.core.errors import ConfigError, spelled
from fedsim.core.normalization import OF_DATASET
from fedsim.core.settings import InvalidSetting, checked, with_folder
from fedsim.core.text import counted
from fedsim.core.types import ModelSpec, PrivateSteps, Training
from fedsim.data import partitions
from fedsim.models import trainable
from fedsim.systems.clock import TIMED
from fedsim.tasks import TASKS

if TYPE_CHECKING:
    from fedsim.client import LocalRule


PARTS = (("data", "partition"), ("attack", "name"), ("compress", "name"))
"""Keys of parts that may be functions of the user's, with options of their own."""


class RunConfig(RunSettings):
    """A whole run. Options of a method or a data set are given in a section of its name.

    ``RunConfig(algorithm="fedprox", fedprox={"mu": 0.1})``. Options that are left out have the
    defaults that their functions declare. A ConfigError, in one line, where a value cannot be used.
    """

    if TYPE_CHECKING:  # sections may be dictionaries, too, and options stand beside them

        def __init__(self, **settings: Any) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, values: Any, info: ValidationInfo) -> Any:
        """Moves sections of methods and data sets to ``hyperparameters``, with their defaults.

        With ``{"build": False}`` as context the methods are not imported, since they import torch:
        their sections stay as they are given.
        """
        if not isinstance(values, Mapping):
            return values
        given, build = dict(values), (info.context or {}).get("build", True)
        if "async_" in given:
            given["async"] = given.pop("async_")
        if isinstance(given.get("data"), Mapping):
            given["data"] = with_folder(given["data"])
        sections = dict(given.get("hyperparameters") or {})
        sections |= {name: given[name] for name in given if is_section(name)}
        algorithm = given.get("algorithm", cls.model_fields["algorithm"].default)
        if isinstance(algorithm, str):
            algorithm = given["algorithm"] = spelled(algorithm, algorithms.names()) or algorithm
        chain, data_name = _chain(given.get("server")), _of_data(given, "name")
        servers = [spelled(name, algorithms.names()) or name for name in chain]
        roles = [("algorithm", algorithm), *(("server", name) for name in servers)]
        roles += [("data.name", data_name)]
        for section, leaf in PARTS:
            if ":" in str(name := _section(given, section).get(leaf)):
                roles += [(f"{section}.{leaf}", name)]
        roles += [("task", given.get("task"))]
        key_of: dict[str, str] = {}
        for key, name in roles:
            if not isinstance(name, str):
                continue
            key_of.setdefault(name, key)
            if key in ("algorithm", "server"):
                check_name(key, name, algorithms.names(), "algorithm", user_defined=True)
            options = sections.get(name) or {}
            if isinstance(options, Mapping):  # else it is refused below
                declared = build or ":" in name or key == "data.name"
                options = (default_options(key, name) if declared else {}) | dict(options)
            sections[name] = options
        kept, rule = {}, None
        for name, section in sections.items():
            if not isinstance(section, Mapping | None):
                raise InvalidSetting(name, f"{section!r} given; must be a section of options")
            options = section or {}
            of_data = name == data_name or data.find(name) is not None
            key = key_of.get(name, "")
            if (not key and ":" in name) or not (build or of_data):
                kept[name] = section
            elif key == "task" or tuple(key.split(".")) in PARTS:
                kept[name] = checked(name, options_of(key, name), options, "option")
            elif name in TASKS.names():
                leaf, value = next(iter(options.items()), ("", None))
                raise InvalidSetting(f"{name}.{leaf}", f"{value!r} given; give task={name} too")
            elif not of_data:
                kept[name], method = check_hyperparameters(name, options)
                rule = method.local if name == algorithm else rule
            elif used := check_data_options(name, options, data_name, _of_data(given, "dir")):
                kept[name] = used
        rest = {name: value for name, value in given.items() if not is_section(name)}
        if servers:
            rest["server"] = ",".join(servers)
        special = {"optimizer", "lr_head"} & _section(rest, "train").keys()
        if special or (rule is not None and rule.plain_sgd):
            rest["train"] = _training(algorithm, rule, rest.get("train", {}))
        return rest | {"hyperparameters": kept}

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        self._check_names()
        self._check_columns()
        self._check_effects()
        try:
            trainable.parse(self.model.trainable)
        except ValueError as error:
            reason = f"{self.model.trainable!r} given; {error}"
            raise InvalidSetting("model.trainable", reason) from None
        for refused, key, reason in self._refusals():
            if refused:
                raise InvalidSetting(key, reason)
        return self

    def _refusals(self) -> Iterator[tuple[bool, str, str]]:
        """Whether a setting is refused beside the others, its key, and why."""
        t, attack, evaluation = self.train, self.attack, self.evaluation
        for one, two in (("test", "val"), ("client_val", "client_test")):
            part, other = (getattr(self.data, f"{name}_fraction") for name in (two, one))
            why = f"{part} given; with data.{one}_fraction={other} nothing is left for training"
            yield part + other >= 1, f"data.{two}_fraction", why
        why = "never given, but evaluation.cosines=true needs the inner products of updates"
        never = evaluation.conflicts == "never"
        yield evaluation.cosines and never, "evaluation.conflicts", why
        steps = t.local_steps is not None
        why = f"{t.local_steps} given with train.local_epochs={t.local_epochs}; give one of them"
        yield steps and t.local_epochs != 1, "train.local_steps", why
        why = "warmup_round given, which counts train.local_epochs, and train.local_steps, too"
        yield steps and t.lr_schedule == "warmup_round", "train.lr_schedule", why
        why = (
            "dataloader given; it needs train.local_steps and train.sample_rate=1: the order "
            "depends on what all clients do in all rounds"
        )
        alone = t.shuffle == "dataloader" and (not steps or t.sample_rate != 1)
        yield alone, "train.shuffle", why
        why = "fixed given; give train.clients too, ids or a CSV file"
        yield t.selection == "fixed" and t.clients is None, "train.selection", why
        dp, clock, k = self.dp, self.clock, self.compress.k
        why = f"{attack.fraction} given beside attack.clients"
        yield None not in (attack.fraction, attack.clients), "attack.fraction", why
        why = f"{self.compress.fraction} given beside compress.k"
        yield k is not None and "fraction" in self.compress.changed, "compress.fraction", why
        why = f"{dp.noise_cohort} given, more than dp.population={dp.population}"
        yield (dp.noise_cohort or 0) > (dp.population or math.inf), "dp.noise_cohort", why
        both = dp.max_samples is not None and dp.noise_cohort is not None
        yield both, "dp.noise_cohort", f"{dp.noise_cohort} given; not possible with dp.max_samples"
        what = "updates (or dp.quantile, to adapt it)" if dp.level == "user" else "gradients"
        unset = dp.level is not None and dp.clip is None and dp.quantile is None
        yield unset, "dp.clip", f"is missing; give the norm to clip {what} to"
        keys = [f"clock.{trait}" for trait in TIMED]
        why = f"async given, but nothing takes time: give {', '.join(keys)} or clock.trace"
        still = clock.trace is None and all(self.value(key) is None for key in keys)
        yield clock.mode == "async" and still, "clock.mode", why
        left = t.rounds - attack.start_round + 1
        why = f"{attack.start_round} given, train.rounds is {t.rounds}: the attack never starts"
        yield attack.name is not None and left < 1, "attack.start_round", why
        why = f"{attack.warmup} given; the attack has {counted(left, 'round')}, it never ends"
        yield (attack.warmup or 0) > left, "attack.warmup", why

    def value(self, key: str) -> Any:
        """The value of a dotted key."""
        section, _, leaf = key.rpartition(".")
        return getattr(getattr(self, section) if section else self, leaf)

    def _check_names(self) -> None:
        """Refuses unknown names of models, partitions, schedules, augmentations and margins."""
        names = {
            "model.name": (models.NAMES, "model"),
            "data.partition": (partitions.NAMES, "partition"),
            "train.schedule": (("synchronous",), "schedule"),
        }
        if self.data.partition == partitions.LEAVE_ONE_OUT:
            reason = (
                f"{partitions.LEAVE_ONE_OUT} stands for several runs, in the grid of a sweep as in "
                f"'data.partition: [by_site, {partitions.LEAVE_ONE_OUT}]'; for one run hold the "
                "site out, --partition by_site --set data.heldout_clients=[SITE]"
            )
            raise InvalidSetting("data.partition", reason)
        for key, (allowed, kind) in names.items():
            check_name(key, self.value(key), allowed, kind, user_defined=True)
        if self.data.augment is not None:
            from fedsim.data.transforms import AUGMENTS  # imports torch, which takes seconds

            check_name("data.augment", self.data.augment, AUGMENTS, "augmentation")
        if self.margin is not None:
            from fedsim.client.criterion import FORMS

            check_name("margin", self.margin, FORMS, "form of margin control")

    def _check_columns(self) -> None:
        """Refuses columns that the data set does not have."""
        info = data.find(self.data.name)
        columns = info.columns if info else ()
        for column in self.data.column_names:
            if column not in columns:
                has = f"{self.data.name} has the columns {', '.join(columns)}"
                if not columns:
                    has = "only data sets csv and hf have named columns"
                raise InvalidSetting("data.columns", f"{self.data.columns} given; {has}")

    def _check_effects(self) -> None:
        """Refuses a key that has no effect beside the others, unless it has its default."""
        for key, field in fields().items():
            value = self.value(key)
            for condition in () if value == field.default else conditions(key):
                other, equals, values = condition.partition("=")
                needed = self.value(other)
                if equals:
                    holds = str(needed) in values.split("|")
                else:
                    holds = needed != fields()[other].default
                if not holds:
                    reason = f"{value} given; it has no effect without {condition}"
                    raise InvalidSetting(key, reason)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods in use: the algorithm, and those that ``server`` names."""
        return tuple(dict.fromkeys((self.algorithm, *algorithms.chain(self.server))))

    @property
    def model_name(self) -> str:
        """The model that is configured, else the data set's default."""
        info = data.find(self.data.name)
        return self.model.name or (info.default_model if info else "cnn")

    def model_spec(self, **sizes: Any) -> ModelSpec:
        """The model as data; ``sizes`` are what the data decide of it."""
        return ModelSpec(name=self.model_name, **self.model.model_dump(exclude={"name"}), **sizes)

    @property
    def training(self) -> Training:
        """What workers are told of section ``train``, and of ``dp`` where samples are protected."""
        dp, private = self.dp, None
        if dp.level == "example":
            private = PrivateSteps(dp.clip_norm, dp.noise)
        shared = self.train.model_dump(include=set(Training.__dataclass_fields__))
        return Training(**shared, private=private)

    @property
    def named_partition(self) -> str | None:
        """The partition that is configured; None: the data set's default."""
        by_file = (self.data.partition_file or "").lower().endswith(".csv")
        return self.data.partition or ("files" if by_file else None)

    @property
    def decides_num_clients(self) -> bool:
        """Whether ``data.num_clients`` is K; else files, sites or users may decide it."""
        if "num_clients" in self.data.model_fields_set:
            return True
        if self.named_partition is not None:
            return self.named_partition not in partitions.FIXED
        info = data.find(self.data.name)
        return info is not None and not (info.needs_folder or (info.generated and self.data.dir))

    def resolved(
        self,
        *,
        model: str,
        client_batch: int | None = None,
        noise: float | None = None,
        **data: Any,
    ) -> RunConfig:
        """This configuration with what data and model decided filled in, for ``config.yaml``."""
        batch = {} if client_batch is None else {"client_batch": client_batch}
        dp = {} if noise is None else {"noise_multiplier": noise}
        normalization = self.data.normalization or OF_DATASET
        parts = {"group": "none", "normalization": normalization, **data}
        return self.model_copy(
            update={
                "data": self.data.model_copy(update=parts),
                "model": self.model.model_copy(update={"name": model}),
                "engine": self.engine.model_copy(update=batch),
                "dp": self.dp.model_copy(update=dp),
            }
        )

    @classmethod
    def unknown(cls, key: str) -> str:
        """Why the dotted ``key`` is refused, with the nearest key that exists."""
        return unknown_key(key, (*fields(), *_option_keys()), fields())


def _of_data(given: Mapping[str, Any], leaf: str) -> Any:
    """The value of a key of section ``data``."""
    return _section(given, "data").get(leaf, DataConfig.model_fields[leaf].default)


def _section(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A section as it was given; empty where it is none."""
    section = given.get(name, {})
    return dict(section) if isinstance(section, Mapping | Section) else {}


def _chain(server: Any) -> tuple[str, ...]:
    """The methods in a text or a list; none in anything else."""
    text = ",".join(map(str, server)) if isinstance(server, list | tuple) else server
    try:
        return algorithms.chain(text) if isinstance(text, str) else ()
    except ConfigError as error:
        raise InvalidSetting("server", str(error)) from error


def _training(algorithm: str, rule: LocalRule | None, section: Any) -> TrainConfig:
    """Section ``train``, if the client part of ``algorithm`` allows it; AdamW has no momentum."""
    train = TrainConfig.model_validate(section)
    for key, plain, what in (("optimizer", "sgd", "SGD"), ("lr_head", None, "one learning rate")):
        value = getattr(train, key)
        if rule is not None and rule.needs_sgd and value != plain:
            reason = f"{value} given; the equations of {algorithm} hold for {what} only"
            raise InvalidSetting(f"train.{key}", reason)
    if train.optimizer == "adamw":
        why = "AdamW has no momentum"
    elif rule is not None and rule.plain_sgd:
        why = f"clients of {algorithm} train without momentum"
    else:
        return train
    if "momentum" in train.model_fields_set and train.momentum > 0:
        reason = f"{train.momentum} given; {why}: leave it out, or set it to 0"
        raise InvalidSetting("train.momentum", reason)
    return train.model_copy(update={"momentum": 0.0})


def _option_keys() -> Iterator[str]:
    """Every dotted key of the options of fedsim's methods, data sets and tasks."""
    for method in algorithms.names():
        yield from (f"{method}.{leaf}" for leaf in algorithms.parameters(method))
    for info in data.catalogue():
        yield from (f"{info.name}.{leaf}" for leaf in data.options(info.name))
    for task in TASKS.names():
        yield from (f"{task}.{leaf}" for leaf in TASKS.parameters(task))
