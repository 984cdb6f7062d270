"""What a worker is made of, as data that travels once per node."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from fedsim.algorithms.base import Algorithm, Work
from fedsim.client.block import num_steps
from fedsim.core.errors import DataError
from fedsim.core.settings import Arithmetic
from fedsim.core.types import (
    I64,
    Array,
    ClientTask,
    Dataset,
    Kind,
    ModelSpec,
    Partition,
    Training,
    Vectors,
)
from fedsim.engine.blocks import Block, Stacking


@dataclass(frozen=True)
class LocalImages:
    """Images that each node reads itself, instead of getting them from the driver."""

    read: Callable[[], Array]  # gives (N, channels, H, W) uint8, on whatever machine it is called
    sha256: str  # of the driver's

    def __call__(self) -> Array:
        """The images of this machine; a DataError where they are not the driver's."""
        images = self.read()
        if array_sha256(images) != self.sha256:
            raise DataError(
                f"engine.data_from=node: {platform.node()} reads other images than the driver; "
                "data.dir must hold the same files on every machine, and data.feature_shift may "
                "give other pixels on another kind of processor"
            )
        return images


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What a worker is made of; travels once per node."""

    dataset: Dataset
    partition: Partition
    model: ModelSpec
    algorithm: Algorithm
    training: Training
    seed: int
    threads: int  # of torch on the CPU; part of the result's bits
    batch_size: int  # images per forward pass of an evaluation
    precision: Arithmetic
    deterministic: bool
    local_images: LocalImages | None = None
    """How a node gets the images itself; None where ``dataset`` brings them."""
    finetune_epochs: int = 0  # of the fine-tuning after the last round, 0 for none
    stacking: Stacking | None = None  # how clients train together; None where they train one by one
    frozen: Vectors = field(default_factory=dict)
    """By name the tensors of the model that do not train."""
    cut: str | None = None
    """The frozen module, by name, whose outputs the samples of ``dataset`` are, so that workers
    leave it out; None where the samples are the model's input."""
    root: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    """(n,) indices into ``dataset.x`` of the samples that the server itself trains on."""

    @property
    def frozen_bytes(self) -> int:
        """Size of the frozen tensors."""
        return sum(array.nbytes for array in self.frozen.values())

    @cached_property
    def works(self) -> Mapping[Kind, Work]:
        """What each kind of client work is."""
        return self.algorithm.works(self.training, self.finetune_epochs)

    def stacking_of(self, task: ClientTask) -> Stacking | None:
        """How tasks of this kind are done together; None where they are done one by one."""
        alone = self.algorithm.pools or not self.works[task.work].aggregated
        return None if alone else self.stacking

    def blocks(self, tasks: Sequence[ClientTask]) -> list[Block]:
        """Tasks of one kind in blocks; those of a block start from one version of the model."""
        stacking = self.stacking_of(tasks[0]) if tasks else None
        if stacking is None:
            return [(task,) for task in sorted(tasks, key=lambda task: task.client)]
        steps: dict[int, list[tuple[ClientTask, int]]] = {}
        for task in tasks:
            n = len(self.partition.train[task.client])
            planned = num_steps(n, self.training, stacking.batchnorm, task.max_steps)
            steps.setdefault(task.version, []).append((task, planned))
        return [block for _, pairs in sorted(steps.items()) for block in stacking.blocks(pairs)]

    def to_send(self) -> WorkerSpec:
        """What has to travel: no names and lists of clients, no images where nodes read them."""
        bare = replace(
            self.dataset, clients=None, patient=None, patient_names=(), files=(), prepare=None
        )
        if self.local_images is not None:
            bare = replace(bare, x=bare.x[:0])
        return replace(self, dataset=bare)


def array_sha256(array: Array) -> str:
    """The SHA-256 of an array's bytes, in hex."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
