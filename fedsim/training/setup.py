"""A run made concrete: its data, partition, model, method and schedule, as values."""

from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import torch

from fedsim import tasks
from fedsim.algorithms.base import Algorithm
from fedsim.attacks.base import Attack
from fedsim.compressors.base import Compression
from fedsim.config.run import RunConfig
from fedsim.core.machine import processor
from fedsim.core.measures import Measures
from fedsim.core.rows import RoundRow, metric_column
from fedsim.core.task import Task
from fedsim.core.types import I64, Dataset, Layout, ModelSpec, Partition, Vector, Vectors
from fedsim.data import files
from fedsim.engine.blocks import Stacking
from fedsim.engine.devices import Kind
from fedsim.engine.spec import LocalImages, WorkerSpec, array_sha256
from fedsim.identity.environment import files_of, versions
from fedsim.identity.provenance import Provenance
from fedsim.metrics.splits import clients_with
from fedsim.models.weights import Loaded
from fedsim.schedules.base import Roster, Schedule, Synchronous, lr_at
from fedsim.systems.clock import Clock
from fedsim.training.loading import read_images
from fedsim.training.privacy import Budget, params


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A configuration made concrete."""

    config: RunConfig  # with what the data decided filled in
    dataset: Dataset
    partition: Partition
    model: ModelSpec
    algorithm: Algorithm
    layout: Layout
    initial: Vector  # (D,) the start vector
    cohort_size: int  # m
    alpha: float | None  # of the partition
    clock: Clock = field(default_factory=Clock)
    schedule: Schedule = field(default_factory=Synchronous)
    stacking: Stacking | None = None  # None where clients train one by one
    start: Loaded = field(default_factory=Loaded)  # what became of the start weights
    frozen: Vectors = field(default_factory=dict)  # what model.trainable leaves out, by name
    provenance: Provenance = field(default_factory=Provenance)
    malicious: tuple[int, ...] = ()  # ascending
    attack: Attack = field(default_factory=Attack)
    budget: Budget | None = None  # the epsilon of the rounds, with user-level privacy
    root: I64 = field(default_factory=lambda: np.empty(0, np.int64))  # FLTrust's samples
    server_device: torch.device | None = None  # the GPU that aggregates, where one does
    has_features: bool = False  # whether the model is head(features(x))

    @property
    def personalised(self) -> bool:
        """Whether clients have models of their own, so that there is no one model to evaluate."""
        own = any(map(self.algorithm.owned, self.layout.slots)) and not self.algorithm.one_model
        return own or self.algorithm.predict is not None

    @property
    def tests_are_owned(self) -> bool:
        """Whether the common test part is nothing but what clients own of it (hospitals, users)."""
        owned = [self.partition.test[c] for c in clients_with(self.partition, "test")]
        everything = np.sort(np.concatenate(owned)) if owned else np.empty(0)
        return np.array_equal(everything, np.sort(self.dataset.test))

    @property
    def task(self) -> Task:
        """What is learnt."""
        return tasks.of(self.dataset)

    @property
    def measures(self) -> Measures:
        """The scores of its task, by name."""
        return Measures.of({} if self.dataset.task is None else {"task": self.task.record()})

    @property
    def measure_columns(self) -> tuple[str, ...]:
        """The columns of rounds.csv for measures that it does not always have."""
        names = (metric_column(p, m.name) for p in ("val", "test") for m in self.task.measures)
        return tuple(name for name in names if name not in RoundRow.columns())

    @property
    def num_sent(self) -> int:
        """Number of parameters that clients send."""
        return sum(where.stop - where.start for where in params(self.algorithm, self.layout))

    @property
    def vector_bytes(self) -> int:
        """Size of a vector (D,) of the model."""
        return self.layout.size * np.dtype(np.float32).itemsize

    @cached_property
    def roster(self) -> Roster:
        """The clients, as the schedule knows them; section compress decides their updates' size."""
        compressed = [t for t in self.algorithm.transforms if isinstance(t, Compression)]
        return Roster(
            sizes=[len(samples) for samples in self.partition.train],
            cohort_size=self.cohort_size,
            held_out=self.partition.held_out,
            clock=self.clock,
            assign=self.algorithm.assign,
            lr=partial(lr_at, self.config),
            update_bytes=compressed[-1].size(self.layout) if compressed else None,
        )

    @property
    def spec(self) -> WorkerSpec:
        """What the workers need of it."""
        c = self.config
        return WorkerSpec(
            dataset=self.dataset,
            partition=self.partition,
            model=self.model,
            algorithm=self.algorithm,
            training=c.training,
            seed=c.seed,
            threads=c.train.threads,
            batch_size=c.evaluation.batch_size,
            precision=c.engine.precision,
            deterministic=c.engine.deterministic,
            local_images=self._local_images(),
            finetune_epochs=c.evaluation.finetune_epochs,
            stacking=self.stacking,
            frozen=self.frozen,
            root=self.root,
        )

    def _local_images(self) -> LocalImages | None:
        """Where each node is to read the images itself, how it does so."""
        if self.config.engine.data_from == "object_store":
            return None
        data = self.config.data
        absolute = {"dir": files.absolute(data.dir)} if data.dir else {}
        config = self.config.model_copy(update={"data": data.model_copy(update=absolute)})
        parts = self.dataset.train, self.dataset.val, self.dataset.test
        read = partial(read_images, config, self.partition, parts)
        return LocalImages(read, array_sha256(self.dataset.x))


def needs_whole_updates(setup: Setup) -> str | None:
    """The setting for which the driver itself needs every update, None where none does."""
    e = setup.config.evaluation
    if e.decompose_every:
        return f"evaluation.decompose_every={e.decompose_every}"
    if setup.personalised and e.personal == "cohort_after":
        return "evaluation.personal=cohort_after"
    if setup.config.asynchrony.mixing is not None:
        return f"async.mixing={setup.config.asynchrony.mixing:g}"
    if setup.schedule.asynchronous and setup.layout.num_params < setup.layout.size:
        buffered = setup.config.clock.mode == "async"
        named = "clock.mode=async" if buffered else f"train.schedule={setup.config.train.schedule}"
        return f"{named} with BatchNorm"
    if setup.attack.cohort is not None and not setup.attack.cohort.in_span:
        attack = setup.config.attack
        key = "name" if attack.perturbation is None else "perturbation"
        return f"attack.{key}={getattr(attack, key)}"
    if setup.algorithm.server.needs_whole_updates:
        key = "server" if setup.config.server is not None else "algorithm"
        return f"{key}={getattr(setup.config, key)}"
    return None


def describe(setup: Setup) -> dict[str, object]:
    """What env.json says of the run beside the executor's part; hashes and asks git once."""
    dataset, partition = setup.dataset, setup.partition
    content = versions() | {"processor": processor(), "classes": list(dataset.class_names)}
    content |= setup.provenance.record()
    content["server_device"] = Kind.of(setup.server_device or torch.device("cpu")).name
    if dataset.task is not None:
        content["task"] = setup.task.record()
    if dataset.site is not None and not dataset.sites_are_users:
        content["sites"] = list(dataset.site_names)
    lists = {
        "heldout_clients": partition.held_out,
        "malicious_clients": setup.malicious,
        "head_drawn_anew": sorted(setup.start.drawn),
    }
    content |= {key: list(values) for key, values in lists.items() if values}
    return content | files_of(setup.config, setup.frozen)
