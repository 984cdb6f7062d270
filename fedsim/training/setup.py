"""A configuration made concrete: data, partition, model, method and executor."""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from fedsim import algorithms, models
from fedsim.algorithms.base import Algorithm, no_slot
from fedsim.client import LocalRule
from fedsim.client.context import LocalEnv
from fedsim.config.run import RunConfig
from fedsim.config.sections import ClockConfig
from fedsim.config.validation import cohort_size
from fedsim.core.errors import ConfigError
from fedsim.core.imports import users_code
from fedsim.core.layout import FlatModel, not_finite
from fedsim.core.types import (
    Dataset,
    Layout,
    ModelSpec,
    Partition,
    RoundContext,
    Training,
    Vector,
    Vectors,
)
from fedsim.data import partitions, patients
from fedsim.engine import registry as executors
from fedsim.engine.base import Executor
from fedsim.engine.blocks import Stacking
from fedsim.engine.worker import LocalImages, WorkerSpec, array_sha256
from fedsim.metrics.splits import clients_with
from fedsim.models.weights import Loaded
from fedsim.storage.checkpoint import ServerState
from fedsim.systems.clock import BOUNDS, FLOAT_BYTES, TIMED, TRAITS, Clock, LocalSchedule
from fedsim.systems.distributions import parse_within
from fedsim.systems.trace import read_trace
from fedsim.training import stacking
from fedsim.training.features import with_features
from fedsim.training.loading import deal, read_images, with_shifts
from fedsim.training.provenance import Data, Provenance, code_of, data_of


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A configuration made concrete.

    Args:
        config: with what the data decided filled in.
        partition: which samples each client owns.
        layout: of the model's vector.
        initial: (D,) the start vector.
        cohort_size: m.
        alpha: of the partition, None where it has none.
        stacking: how clients train together, None where they train one by one.
        start: what became of the start weights.
        frozen: by name the tensors of the model that ``model.trainable`` leaves out.
        provenance: the user's code, and the data, as digests.
    """

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
    stacking: Stacking | None = None
    start: Loaded = field(default_factory=Loaded)
    frozen: Vectors = field(default_factory=dict)
    provenance: Provenance = field(default_factory=Provenance)

    @property
    def personalised(self) -> bool:
        """Whether clients have models of their own, so that there is no one model to evaluate."""
        personal = any(map(self.algorithm.personal, self.layout.slots))
        return personal and not self.algorithm.one_model

    @property
    def tests_are_owned(self) -> bool:
        """Whether the common test part is nothing but what clients own of it (hospitals, users)."""
        owned = [self.partition.test[c] for c in clients_with(self.partition, "test")]
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
            local_epochs=t.local_epochs,
            batch_size=t.batch_size,
            momentum=t.momentum,
            weight_decay=t.weight_decay,
            frozen_bn=t.frozen_bn,
            clip_norm=t.clip_norm,
            optimizer=t.optimizer,
            lr=t.lr,
            lr_head=t.lr_head,
        )
        return WorkerSpec(
            dataset=self.dataset,
            partition=self.partition,
            model=self.model,
            algorithm=self.algorithm,
            training=training,
            seed=c.seed,
            threads=t.threads,
            batch_size=c.evaluation.batch_size,
            fast=c.engine.fast,
            local_images=self._local_images(),
            clock=self.clock,
            stacking=self.stacking,
            frozen=self.frozen,
        )

    def _local_images(self) -> LocalImages | None:
        """Where each node is to read the images itself, how it does so."""
        if self.config.engine.data_from == "object_store":
            return None
        data = self.config.data
        absolute = {"dir": str(Path(data.dir).absolute())} if data.dir else {}
        config = self.config.model_copy(update={"data": data.model_copy(update=absolute)})
        parts = self.dataset.train, self.dataset.val, self.dataset.test
        return LocalImages(
            partial(read_images, config, self.partition, parts), array_sha256(self.dataset.x)
        )


def start_of(setup: Setup) -> tuple[Setup, ServerState]:
    """The state before the first round, and the setup without the start vector.

    A run lets go of it with its first step, which matters where models are large.
    """
    return replace(setup, initial=setup.initial[:0].copy()), ServerState(params=setup.initial)


def prepare(config: RunConfig) -> Setup:
    """Loads the data, splits them, and builds model and method; starts nothing.

    Raises:
        ConfigError, DataError: something does not fit; the message names key and file.
    """
    executors.check(config.engine)
    if config.engine.client_batch not in (1, "auto"):
        stacking.check(config, algorithm_of(config), "engine.client_batch")
    dataset, partition, kind = deal(config)
    digests = data_of(dataset, config.data.dir)
    dataset = with_shifts(config, dataset, partition)
    _check_owned(config, partition)
    _check_patience(config, dataset)
    epochs = config.evaluation.finetune_epochs
    if epochs and not clients_with(partition, "test"):
        raise ConfigError(
            f"evaluation.finetune_epochs {epochs} given; the clients own no test part to be scored "
            "on: set data.client_test_fraction too"
        )
    return assemble(config, dataset, partition, kind, digests)


def assemble(
    config: RunConfig,
    dataset: Dataset,
    partition: Partition,
    kind: str,
    digests: Data | None = None,
) -> Setup:
    """Builds model and method for data that are loaded; ``digests`` are theirs.

    Raises:
        ConfigError, DataError: as :func:`prepare`.
    """
    model, algorithm = _model(config, dataset), algorithm_of(config)
    with users_code(f"model.name={model.name}, algorithm={config.algorithm}", ConfigError):
        built = models.start(model, config.seed, algorithm.adapt, dataset.class_names)
        flat = FlatModel(built.model, torch.device("cpu"))
        clock = clock_of(config, partition.num_clients, algorithm, flat.layout)
    bad = not_finite(flat.vector(), flat.layout)
    bad += [name for name, array in flat.frozen.items() if not np.isfinite(array).all()]
    if bad:
        raise ConfigError(
            f"model.name={model.name}: the start weights are NaN or infinite in tensor {bad[0]}"
        )
    if not flat.params:
        raise ConfigError(f"model.name={model.name}: no parameter of it is trained")
    trained = [slot.head for slot in flat.layout.slots if slot.role == "param"]
    split = hasattr(built.model, "features") and any(trained) and not all(trained)
    if algorithm.local.needs_features and not split:
        if hasattr(built.model, "features") and flat.frozen:
            raise ConfigError(
                f"model.trainable={model.trainable}: algorithm {config.algorithm} trains "
                "features(x) and a linear head apart, and here one of them is frozen"
            )
        raise ConfigError(
            f"algorithm {config.algorithm} trains features(x) and a linear head apart; "
            f"model {model.name} does not have both"
        )
    keeps = algorithm.personal
    if flat.frozen and keeps is not no_slot and not any(map(keeps, flat.layout.slots)):
        raise ConfigError(
            f"model.trainable={model.trainable}: no tensor that trains is one of those that "
            f"clients of {config.algorithm} keep to themselves"
        )
    if config.train.lr_head is not None:
        given = f"train.lr_head: {config.train.lr_head:g} given"
        if type(algorithm.local).phases is not LocalRule.phases:
            raise ConfigError(
                f"{given}; algorithm {config.algorithm} trains in phases with learning rates of "
                "their own"
            )
        if not any(trained):
            raise ConfigError(f"{given}; no head of model {model.name} is trained")
    if algorithm.local.needs_features and dataset.per_token:
        raise ConfigError(
            f"algorithm {config.algorithm} works with the features of samples that have one label "
            f"each; data set {dataset.name} has a label for every token"
        )
    size = cohort_size(len(partition.participants), config.train.sample_rate)
    blocks = stacking.stacking_of(
        config,
        model=model,
        flat=flat,
        algorithm=algorithm,
        partition=partition,
        cohort_size=size,
    )
    return Setup(
        config=config.resolved(
            num_clients=partition.num_clients,
            partition=kind,
            group=patients.grouping(dataset, kind, config.data.group),
            model=model.name,
            client_batch=1 if blocks is None else blocks.clients,
        ),
        dataset=dataset,
        partition=partition,
        model=model,
        algorithm=algorithm,
        layout=flat.layout,
        initial=flat.vector(),
        cohort_size=size,
        alpha=config.data.alpha if kind in partitions.BY_ALPHA else None,
        clock=clock,
        stacking=blocks,
        start=built.start,
        frozen=flat.frozen,
        provenance=Provenance(code_of(config), digests),
    )


def algorithm_of(config: RunConfig) -> Algorithm:
    """The method, of its client part, server part and margin control.

    Raises:
        ConfigError: they do not go together.
    """
    return algorithms.compose(
        config.algorithm,
        config.hyperparameters,
        server=config.server,
        margin=config.margin,
        margin_weight=config.margin_weight,
        margin_threshold=config.margin_threshold,
    )


def _model(config: RunConfig, dataset: Dataset) -> ModelSpec:
    """The model as data, with the sizes that the data set's samples have."""
    m, width = config.model, dataset.x.shape[1]
    if dataset.pipeline is not None:
        sizes = width, dataset.pipeline.size
    else:
        sizes = (dataset.vocabulary, width) if dataset.vocabulary else (width, 1)
    return ModelSpec(
        name=config.model_name,
        num_classes=dataset.num_classes,
        in_channels=sizes[0],
        image_size=sizes[1],
        norm=m.norm,
        pretrained=m.pretrained,
        weights=m.weights,
        inputs=dataset.inputs,
        per_token=dataset.per_token,
        projection=m.projection,
        trainable=m.trainable,
    )


def _check_owned(config: RunConfig, partition: Partition) -> None:
    split = config.evaluation.own_split
    if config.evaluation.decompose_every and not getattr(partition, split):
        raise ConfigError(
            f"evaluation.decompose_split {split!r}: the clients own no {split} part (or, by site, "
            f"not all of them do); set data.client_{split}_fraction, or take train or common_test"
        )


def _check_patience(config: RunConfig, dataset: Dataset) -> None:
    if config.train.patience is not None and not len(dataset.val):
        raise ConfigError(
            f"train.patience {config.train.patience} given; data set {dataset.name} has no "
            "validation part to measure accuracy on: set data.val_fraction too, as in 0.1"
        )


def make_executor(setup: Setup, session: Any = None) -> Executor:
    """The executor that section ``engine`` asks for; ``session`` shares Ray with other runs."""
    engine = setup.config.engine
    return executors.start(
        with_features(setup.spec),
        engine,
        update_bytes=setup.vector_bytes,
        whole=needs_whole_updates(setup),
        session=session,
    )


def needs_whole_updates(setup: Setup) -> str | None:
    """The setting for which the driver itself needs every update, None where none does."""
    e = setup.config.evaluation
    if e.decompose_every:
        return f"evaluation.decompose_every={e.decompose_every}"
    if setup.personalised and e.personal == "cohort_after":
        return "evaluation.personal=cohort_after"
    if setup.algorithm.server.needs_whole_updates:
        key = "server" if setup.config.server is not None else "algorithm"
        return f"{key}={getattr(setup.config, key)}"
    return None


def clock_of(config: RunConfig, num_clients: int, algorithm: Algorithm, layout: Layout) -> Clock:
    """The clock that section ``clock`` asks for; the algorithm says how often clients pass over
    their data, and what of the model stays with them.

    Raises:
        ConfigError: a trait is given twice, or there is a deadline but nothing takes time.
        DataError: the trace cannot be used; names file and row.
    """
    c = config.clock
    shared = [s.stop - s.start for s in layout.slots if not algorithm.personal(s)]
    if algorithm.pooled:
        if c != ClockConfig():
            key = next(key for key, value in ClockConfig() if getattr(c, key) != value)
            raise ConfigError(
                f"clock.{key}: {getattr(c, key)} given; algorithm {config.algorithm} trains on "
                "pooled data in one place, without clients that take time or stay away"
            )
        return Clock()  # no model is sent
    if c == ClockConfig():
        return Clock(vector_bytes=FLOAT_BYTES * sum(shared))
    trace = {} if c.trace is None else read_trace(Path(c.trace), num_clients)
    given = {name: getattr(c, name) for name in TRAITS if getattr(c, name) is not None}
    for name in given.keys() & trace.keys():
        raise ConfigError(f"clock.{name}: {given[name]} given; clock.trace {c.trace} has it too")
    clock = Clock(
        seed=config.seed,
        distributions={name: parse_within(v, *BOUNDS[name]) for name, v in given.items()},
        trace=trace,
        work=parse_within(c.work, *BOUNDS["work"]),
        deadline=math.inf if c.deadline is None else c.deadline,
        late=c.late,
        schedule=LocalSchedule(
            epochs=_epochs(config, num_clients, algorithm),
            batch_size=config.train.batch_size,
            skips_single=not config.train.frozen_bn and any(s.batchnorm for s in layout.slots),
        ),
        vector_bytes=FLOAT_BYTES * sum(shared),
    )
    if c.deadline is not None and not clock.timed:
        raise ConfigError(
            f"clock.deadline: {c.deadline:g} given, but nothing takes time; give "
            f"{', '.join(f'clock.{name}' for name in TIMED)} or columns of that name in clock.trace"
        )
    return clock


def _epochs(config: RunConfig, num_clients: int, algorithm: Algorithm) -> int:
    """The passes over its data that a client's training makes, all phases together."""
    t = config.train
    ctx = RoundContext(
        round=0, num_rounds=t.rounds, num_clients=num_clients, lr=t.lr, seed=config.seed
    )
    known = SimpleNamespace(training=config.train, ctx=ctx)
    try:
        phases = algorithm.local.phases(cast(LocalEnv, known))
    except AttributeError as error:
        raise ConfigError(
            f"clock: algorithm {config.algorithm} plans its training with more than the settings "
            f"({error}), so that its time is not known before"
        ) from error
    return sum(phase.epochs for phase in phases)
