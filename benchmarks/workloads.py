"""The workloads: synthetic data of stated sizes, and the run that a user would configure for them.

All of them: SGD with learning rate 0.01, momentum 0.5, weight decay 5e-4, batches of 50, one local
epoch; the run evaluates after its last round alone, which is not timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.config.run import RunConfig
from fedsim.core.types import Dataset, Pipeline

METHODS = ("fedavg", "fedld")
TEST_SAMPLES = 10


@dataclass(frozen=True)
class Workload:
    """A federation of equal clients and the network that it trains.

    Args:
        key: the name under which this module has the workload's loader.
        title: what it is, in a few words.
        clients: K.
        cohort: m, the clients of a round.
        samples: training images of each client.
        side: height and width of an image in pixels.
        model: a function of :mod:`benchmarks.models`.
        block: rounds that are timed together, long enough for the clock and short enough for
            several blocks of each side in a run.
        channels: of an image.
    """

    key: str
    title: str
    clients: int
    cohort: int
    samples: int
    side: int
    model: str
    block: int
    channels: int = 1
    num_classes: int = 10


WORKLOADS = {
    w.key: w
    for w in (
        Workload("w1", "50 of 50 clients, MLP 64-32-10, 20 samples", 50, 50, 20, 8, "mlp", 20),
        Workload("w2", "5 of 50 clients, CNN 1.66 M, 120 samples", 50, 5, 120, 28, "cnn", 4),
        Workload("w3", "10 of 10 clients, 25.6 M parameters, 1 step", 10, 10, 20, 32, "wide", 2),
        Workload("w4_1000", "100 of 1,000, logistic", 1000, 100, 20, 8, "logistic", 10),
        Workload("w4_10000", "100 of 10,000, logistic", 10000, 100, 20, 8, "logistic", 10),
        Workload("w5", "1,000 of 100,000, logistic", 100_000, 1000, 20, 8, "logistic", 2),
        Workload("w3_small", "3 of 3 clients, 2.1 M parameters", 3, 3, 20, 32, "wide_small", 2),
        Workload("m1", "100 of 1,000, MNIST-sized, CNN 1.66 M", 1000, 100, 60, 28, "cnn", 1),
        Workload("p", "pfl-research's CIFAR-10 job", 1000, 50, 50, 32, "reddi", 10, 3),
        Workload("p_small", "the same in miniature", 5, 2, 20, 32, "reddi", 2, 3),
        Workload("r", "8 of 8 clients, ResNet-50, 100 images", 8, 8, 100, 224, "resnet50", 2, 3),
        Workload("r_small", "2 of 2 clients, CNN, 8 images", 2, 2, 8, 16, "cnn", 2, 3),
        Workload("g2", "50 of 50 clients, CNN 1.66 M, 120 samples", 50, 50, 120, 28, "cnn", 4),
    )
}  # fmt: skip
"""Every workload by its key."""


def run_config(
    workload: Workload, method: str, rounds: int, *, train: Any = None, **engine: Any
) -> RunConfig:
    """The configuration of a run on the workload, everything else at its default."""
    return RunConfig(
        algorithm=method,
        data={"name": f"benchmarks.workloads:{workload.key}"},
        model={"name": f"benchmarks.models:{workload.model}"},
        train={"rounds": rounds, "sample_rate": workload.cohort / workload.clients} | (train or {}),
        evaluation={"every": rounds},
        engine=engine,
    )


def dataset(workload: Workload) -> Dataset:
    """Random uint8 images and labels, the first ``samples`` of them of client 0, and so on."""
    rng = np.random.default_rng(0)
    trained = workload.clients * workload.samples
    total = trained + TEST_SAMPLES
    shape = (total, workload.channels, workload.side, workload.side)
    owned = np.arange(trained).reshape(workload.clients, workload.samples)
    return Dataset(
        name=workload.key,
        x=rng.integers(0, 256, shape, dtype=np.uint8),
        y=rng.integers(0, workload.num_classes, total),
        class_names=tuple(map(str, range(workload.num_classes))),
        train=np.arange(trained),
        val=np.arange(0),
        test=np.arange(trained, total),
        pipeline=Pipeline(
            size=workload.side, mean=(0.5,) * workload.channels, std=(0.5,) * workload.channels
        ),
        clients={f"{client:05d}": indices for client, indices in enumerate(owned)},
    )


def __getattr__(name: str) -> Callable[[Path | None], Dataset]:
    """The loader of a workload by its key, as ``data.name`` calls it."""
    if name not in WORKLOADS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return lambda folder: dataset(WORKLOADS[name])
