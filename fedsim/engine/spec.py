"""What a worker is made of: the value that travels to it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from fedsim.clock import Clock
from fedsim.contracts import Array, Dataset, ModelSpec, Partition, Training
from fedsim.errors import DataError
from fedsim.plugin import Algorithm


@dataclass(frozen=True)
class LocalImages:
    """Images that each node reads itself, instead of getting them from the driver.

    Args:
        read: gives (N, channels, H, W) uint8, on whatever machine it is called.
        sha256: of the driver's.
    """

    read: Callable[[], Array]
    sha256: str

    def __call__(self) -> Array:
        """The images of this machine.

        Raises:
            DataError: they are not the driver's.
        """
        found = self.read()
        if array_sha256(found) != self.sha256:
            raise DataError(
                f"engine.data_from=node: {platform.node()} reads other images than the driver; "
                "data.dir must hold the same files on every machine, and data.feature_shift may "
                "give other pixels on another kind of processor"
            )
        return found


@dataclass(frozen=True)
class WorkerSpec:
    """Everything a worker is made of; travels once per node.

    Args:
        local_images: how a node gets the images itself; None where ``dataset`` brings them.
        seed: of the run, for the start weights.
        threads: torch threads on the CPU; part of the result's bits.
        batch_size: images per forward pass of an evaluation.
        fast: on a GPU bfloat16 forward passes, TF32, autotuned kernels and images with channels
            last; bits may differ between runs and from those of an exact run.
        clock: says after how many steps a client stops.
    """

    dataset: Dataset
    partition: Partition
    model: ModelSpec
    algorithm: Algorithm
    training: Training
    seed: int
    threads: int
    batch_size: int
    fast: bool
    local_images: LocalImages | None = None
    clock: Clock = field(default_factory=Clock)

    def to_send(self) -> WorkerSpec:
        """What has to travel: without the images where nodes read them."""
        if self.local_images is None:
            return self
        return replace(self, dataset=replace(self.dataset, x=self.dataset.x[:0]))


def array_sha256(array: Array) -> str:
    """The SHA-256 of an array's bytes, in hex."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
