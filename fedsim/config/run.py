"""RunConfig: everything that decides a run, as one frozen value that checks itself.

The sections and keys are the same in YAML files, in ``--set`` and here. A value that cannot be
used raises :class:`~fedsim.core.settings.InvalidSetting`, one line that names the key; where
the key came from a file or a flag, :mod:`fedsim.config.resolve` puts that place instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from fedsim import algorithms, models
from fedsim.client import criterion
from fedsim.config.sections import DataConfig, EvaluationConfig, RunSettings, TrainConfig, fields
from fedsim.config.validation import (
    check_hyperparameters,
    check_name,
    cohort_size,
    default_hyperparameters,
    is_method,
)
from fedsim.core.errors import ConfigError, nearest
from fedsim.core.settings import InvalidSetting
from fedsim.data import partitions, transforms
from fedsim.data.registry import catalogue

FIXED_PARTITIONS = ("by_site", "natural", "files")
"""Partitions in which the data decide the number of clients."""

OF_DECOMPOSITION = ("decompose_split", "decompose_scope", "decompose_max_samples", "loss_matrix")
"""Keys of section evaluation that mean nothing without ``decompose_every``."""
OF_DRAWN = {
    "synthetic": ("synthetic_alpha", "synthetic_beta", "synthetic_iid"),
    "shortcut": ("correlation", "samples_per_client"),
}
"""By data set keys of section data that mean nothing where it is not drawn."""


class RunConfig(RunSettings):
    """A whole run. Hyperparameters of a method are given under its name.

    ``RunConfig(algorithm="fedprox", fedprox={"mu": 0.1})``; those of the methods in use are filled
    up with the defaults of their ``build`` function.

    Raises:
        ConfigError: a value that cannot be used, in one line.
    """

    @model_validator(mode="before")
    @classmethod
    def _gather_hyperparameters(cls, values: Any) -> Any:
        """Moves the methods' sections into ``hyperparameters``, checked and filled up."""
        if not isinstance(values, Mapping):
            return values
        sections = dict(values.get("hyperparameters") or {})
        sections |= {name: values[name] for name in values if is_method(name)}
        algorithm = values.get("algorithm", cls.model_fields["algorithm"].default)
        servers = _chain(values.get("server"))
        for role, name in (("algorithm", algorithm), *(("server", name) for name in servers)):
            if isinstance(name, str):
                check_name(role, name, algorithms.names(), "algorithm", user_defined=True)
                sections[name] = default_hyperparameters(role, name) | dict(
                    sections.get(name) or {}
                )
        checked = {name: check_hyperparameters(name, given) for name, given in sections.items()}
        rest = {name: value for name, value in values.items() if not is_method(name)}
        if servers:
            rest["server"] = ",".join(servers)
        if algorithm in checked and algorithms.load(algorithm, checked[algorithm]).local.plain_sgd:
            rest["train"] = _without_momentum(rest.get("train", TrainConfig()))
        return rest | {"hyperparameters": checked}

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        data_sets = [info.name for info in catalogue()]
        self._check_momentum()
        check_name("data.name", self.data.name, data_sets, "data set", user_defined=True)
        check_name("model.name", self.model.name, models.NAMES, "model", user_defined=True)
        check_name("data.partition", self.data.partition, partitions.NAMES, "partition")
        check_name("data.augment", self.data.augment, transforms.AUGMENTS, "augmentation")
        check_name("margin", self.margin, criterion.FORMS, "form of margin control")
        if self.data.val_fraction + self.data.test_fraction >= 1:
            raise InvalidSetting(
                "data.val_fraction",
                f"{self.data.val_fraction} given; with data.test_fraction="
                f"{self.data.test_fraction} nothing is left for training",
            )
        if self.data.client_val_fraction + self.data.client_test_fraction >= 1:
            raise InvalidSetting(
                "data.client_test_fraction",
                f"{self.data.client_test_fraction} given; with data.client_val_fraction="
                f"{self.data.client_val_fraction} nothing is left for training",
            )
        for key in () if self.evaluation.decompose_every else OF_DECOMPOSITION:
            if getattr(self.evaluation, key) != EvaluationConfig.model_fields[key].default:
                raise InvalidSetting(
                    f"evaluation.{key}",
                    "it is part of the decomposition; give evaluation.decompose_every too",
                )
        for name, keys in OF_DRAWN.items():
            drawn = self.data.name == name and self.data.dir is None
            for key in () if drawn else keys:
                if getattr(self.data, key) != DataConfig.model_fields[key].default:
                    raise InvalidSetting(
                        f"data.{key}", f"only data set {name} is drawn with it, without data.dir"
                    )
        if self.decides_num_clients:
            self._check_cohort()
        return self

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods in use: the algorithm, and those that ``server`` names."""
        return tuple(dict.fromkeys((self.algorithm, *algorithms.chain(self.server))))

    @property
    def named_partition(self) -> str | None:
        """The partition that is named, ``files`` with a CSV file, None for the data set's own."""
        by_file = (self.data.partition_file or "").lower().endswith(".csv")
        return self.data.partition or ("files" if by_file else None)

    @property
    def decides_num_clients(self) -> bool:
        """Whether ``data.num_clients`` holds whatever is in the data's files."""
        if "num_clients" in self.data.model_fields_set:
            return True
        if self.named_partition is not None:
            return self.named_partition not in FIXED_PARTITIONS
        info = {info.name: info for info in catalogue()}.get(self.data.name)
        return info is not None and not (info.needs_folder or (info.generated and self.data.dir))

    def concrete(self, *, num_clients: int, partition: str, model: str) -> RunConfig:
        """The configuration with what the data decided filled in, for ``config.yaml``."""
        data = {"num_clients": num_clients, "partition": partition}
        return self.model_copy(
            update={
                "data": self.data.model_copy(update=data),
                "model": self.model.model_copy(update={"name": model}),
            }
        )

    def _check_momentum(self) -> None:
        algorithm = algorithms.load(self.algorithm, self.hyperparameters[self.algorithm])
        if self.train.momentum > 0 and algorithm.local.plain_sgd:
            raise InvalidSetting(
                "train.momentum",
                f"{self.train.momentum} given; the clients of {self.algorithm} train without: "
                "leave it out, or say 0",
            )

    def _check_cohort(self) -> None:
        rate_given = "sample_rate" in self.train.model_fields_set
        try:
            cohort_size(self.data.num_clients, self.train.sample_rate)
        except ConfigError as error:
            key = "train.sample_rate" if rate_given else "data.num_clients"
            raise InvalidSetting(key, str(error)) from None

    @classmethod
    def unknown(cls, key: str) -> str:
        """Why the dotted ``key`` is refused, with the nearest key that exists."""
        same_leaf = [known for known in fields() if known.rpartition(".")[2] == key]
        if same_leaf:
            return f"unknown key {key!r} (did you mean {same_leaf[0]!r}?)"
        methods = [f"{m}.{leaf}" for m in algorithms.names() for leaf in algorithms.parameters(m)]
        return f"unknown key {key!r}{nearest(key, (*fields(), *methods))}"


def _chain(server: Any) -> tuple[str, ...]:
    """The methods in a text or a list; none in anything else."""
    text = ",".join(map(str, server)) if isinstance(server, list | tuple) else server
    try:
        return algorithms.chain(text) if isinstance(text, str) else ()
    except ConfigError as error:
        raise InvalidSetting("server", str(error)) from error


def _without_momentum(train: Any) -> Any:
    """Section ``train`` with no momentum where none is given."""
    if isinstance(train, TrainConfig) and "momentum" not in train.model_fields_set:
        return train.model_copy(update={"momentum": 0.0})
    if isinstance(train, Mapping):
        return {"momentum": 0.0, **train}
    return train
