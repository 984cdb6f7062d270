"""A configuration made concrete: data, partition, model, method and executor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsim import algorithms, data, models
from fedsim.clock import Clock
from fedsim.config import RunConfig, cohort_size
from fedsim.contracts import Dataset, Layout, ModelSpec, Partition, Training, Vector
from fedsim.data import partitions
from fedsim.engine import Executor
from fedsim.engine.spec import LocalImages, WorkerSpec, array_sha256
from fedsim.errors import ConfigError
from fedsim.plugin import Algorithm
from fedsim.shares import load, read_images
from fedsim.state import ServerState
from fedsim.timekeeping import clock_of
from fedsim.vectors import FlatModel

if TYPE_CHECKING:
    from fedsim.engine.session import Session


@dataclass(frozen=True)
class Setup:
    """A configuration made concrete: data, partition, model and method."""

    config: RunConfig
    dataset: Dataset
    partition: Partition
    model: ModelSpec
    algorithm: Algorithm
    layout: Layout
    initial: Vector
    cohort_size: int
    alpha: float | None
    clock: Clock = field(default_factory=Clock)

    @property
    def personalised(self) -> bool:
        """Whether clients have models of their own, so that there is no one model to evaluate."""
        personal = any(map(self.algorithm.personal, self.layout.slots))
        return personal and not self.algorithm.one_model

    @property
    def tests_are_owned(self) -> bool:
        """Whether the common test part is nothing but what clients own of it (hospitals, users)."""
        owned = self.partition.test
        everything = np.sort(np.concatenate(owned)) if owned else np.empty(0)
        return np.array_equal(everything, np.sort(self.dataset.test))

    @property
    def vector_bytes(self) -> int:
        """Size of a vector (D,) of the model."""
        return self.layout.size * np.dtype(np.float32).itemsize

    @property
    def spec(self) -> WorkerSpec:
        """What the workers need of it."""
        c, t = self.config, self.config.train
        training = Training(
            t.local_epochs, t.batch_size, t.momentum, t.weight_decay, t.frozen_bn, t.clip_norm
        )
        return WorkerSpec(
            self.dataset,
            self.partition,
            self.model,
            self.algorithm,
            training,
            c.seed,
            t.threads,
            c.evaluation.batch_size,
            c.engine.fast,
            self._local_images(),
            self.clock,
        )

    def _local_images(self) -> LocalImages | None:
        """Where each node is to read the images itself, how it does so."""
        if self.config.engine.kind == "serial" or self.config.engine.data_from == "object_store":
            return None
        data = self.config.data
        absolute = {"dir": str(Path(data.dir).absolute())} if data.dir else {}
        config = self.config.model_copy(update={"data": data.model_copy(update=absolute)})
        return LocalImages(
            partial(read_images, config, self.partition), array_sha256(self.dataset.x)
        )


def start_of(setup: Setup) -> tuple[Setup, ServerState]:
    """The state before the first round, and the setup without the start vector.

    A run lets go of it with its first step, which matters where models are large.
    """
    return replace(setup, initial=setup.initial[:0].copy()), ServerState(setup.initial)


def prepare(config: RunConfig) -> Setup:
    """Loads the data, splits them, and builds model and method; starts nothing.

    Raises:
        ConfigError, DataError: something does not fit; the message names key and file.
    """
    dataset, partition, kind = load(config)
    _check_owned(config, partition)
    model = _model(config, dataset)
    algorithm = algorithms.compose(
        config.algorithm,
        config.hyperparameters,
        server=config.server,
        margin=config.margin,
        margin_weight=config.margin_weight,
        margin_threshold=config.margin_threshold,
    )
    built = models.build(model, config.seed, algorithm.adapt)
    flat = FlatModel(built, torch.device("cpu"))
    trained = [slot.head for slot in flat.layout.slots if slot.role == "param"]
    split = hasattr(built, "features") and any(trained) and not all(trained)
    if algorithm.local.needs_features and not split:
        raise ConfigError(
            f"algorithm {config.algorithm} trains features(x) and a linear head apart; "
            f"model {model.name} does not have both"
        )
    if algorithm.local.needs_features and dataset.per_token:
        raise ConfigError(
            f"algorithm {config.algorithm} works with the features of samples that have one label "
            f"each; data set {dataset.name} has a label for every token"
        )
    return Setup(
        config.concrete(num_clients=partition.num_clients, partition=kind, model=model.name),
        dataset,
        partition,
        model,
        algorithm,
        flat.layout,
        flat.vector(),
        cohort_size(partition.num_clients, config.train.sample_rate),
        config.data.alpha if kind in partitions.BY_ALPHA else None,
        clock_of(config, partition.num_clients, algorithm, flat.layout),
    )


def _model(config: RunConfig, dataset: Dataset) -> ModelSpec:
    """The model as data, with the sizes that the data set's samples have."""
    info = {d.name: d for d in data.catalogue()}.get(config.data.name)
    m, width = config.model, dataset.x.shape[1]
    if dataset.pipeline is not None:
        sizes = width, dataset.pipeline.size
    else:
        sizes = (dataset.vocabulary, width) if dataset.vocabulary else (width, 1)
    return ModelSpec(
        m.name or (info.default_model if info else "cnn"),
        dataset.num_classes,
        *sizes,
        m.norm,
        m.pretrained,
        m.weights,
        dataset.inputs,
        dataset.per_token,
        m.projection,
    )


def _check_owned(config: RunConfig, partition: Partition) -> None:
    split = config.evaluation.own_split
    if config.evaluation.decompose_every and not getattr(partition, split):
        raise ConfigError(
            f"evaluation.decompose_split {split!r}: the clients own no {split} part (or, by site, "
            f"not all of them do); set data.client_{split}_fraction, or take train or common_test"
        )


def make_executor(setup: Setup, session: Session | None = None) -> Executor:
    """The executor that section ``engine`` asks for; ``session`` shares Ray with other runs."""
    engine = setup.config.engine
    if engine.kind == "serial":
        from fedsim.engine.serial import SerialExecutor

        return SerialExecutor(setup.spec, engine)
    from fedsim.engine.ray_engine import RayExecutor

    return RayExecutor(setup.spec, engine, setup.vector_bytes, session, needs_whole_updates(setup))


def needs_whole_updates(setup: Setup) -> str | None:
    """The setting for which the driver itself needs every update, None where none does."""
    e = setup.config.evaluation
    if e.decompose_every:
        return f"evaluation.decompose_every={e.decompose_every}"
    if setup.personalised and e.personal == "cohort_after":
        return "evaluation.personal=cohort_after"
    if setup.algorithm.server.whole:
        key = "server" if setup.config.server is not None else "algorithm"
        return f"{key}={getattr(setup.config, key)}"
    return None
