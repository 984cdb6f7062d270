"""How many clients train together as one stacked model: ``engine.client_batch``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from fedsim.client import LocalRule, MarginControl
from fedsim.client.block import obstacle
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.layout import FlatModel
from fedsim.core.machine import BLOCK_COPIES
from fedsim.core.types import ModelSpec, Partition
from fedsim.engine.blocks import Stacking
from fedsim.engine.devices import trains_on_gpu
from fedsim.models.registry import zeros

FEWEST, MOST = 5, 50
"""The smallest and the largest block of ``auto``; smaller ones are no faster than one by one."""


class Limits(NamedTuple):
    """Up to where ``auto`` stacks clients on a kind of device."""

    flops: float  # of a client's step, forward and backward; with more, nothing is gained
    memory: int  # bytes of a block
    fewest: int  # clients of a block, also where that takes more memory


CPU = Limits(100e6, 32 << 20, FEWEST)
"""32 MiB are about the size of a CPU's caches."""
GPU = Limits(10e9, 4 << 30, 1)
"""10 GFLOP take a GPU of 50 TFLOP/s in float32 0.2 ms, about what launching the kernels of a small
step takes as one CUDA graph (0.28 ms on an H200). 4 GiB are a sixteenth of a large GPU, whatever
fraction of it an actor has, on which results must not depend."""


def stacking_of(
    config: RunConfig,
    model: ModelSpec,
    flat: FlatModel,
    rules: Sequence[LocalRule],
    criterion: MarginControl,
    partition: Partition,
    cohort_size: int,
) -> Stacking | None:
    """How clients train together; None where they train one by one.

    Depends on configuration, data and kind of device alone, since results depend on it.
    """
    wanted = config.engine.client_batch
    if wanted == 1:
        return None
    largest = max(len(partition.train[client]) for client in partition.participants)
    width = min(config.train.batch_size, largest)
    why = _of_training(config)
    for rule in rules:
        why = why or obstacle(flat.model, rule, criterion, examples(model))
    if wanted == "auto":
        fits = why is None and cohort_size >= FEWEST
        limits = GPU if trains_on_gpu(config.engine) else CPU
        clients = min(automatic(model, flat, width, limits), cohort_size) if fits else 1
    elif why is None:
        clients = int(wanted)
    else:
        raise ConfigError(
            f"engine.client_batch: {wanted} given, but algorithm {config.algorithm} with model "
            f"{model.name} cannot be stacked: {why}; 1 and auto train these clients one by one"
        )
    batchnorm = bool(flat.norms) and not config.train.frozen_bn
    return None if clients == 1 else Stacking(clients, width, batchnorm)


def _of_training(config: RunConfig) -> str | None:
    """What blocks of clients cannot do in training."""
    train = config.train
    if config.dp.level == "example":
        return "dp.level=example; blocks have no gradients of samples"
    if train.optimizer != "sgd":
        return f"train.optimizer={train.optimizer}; blocks train by SGD"
    return None if train.lr_head is None else "train.lr_head; blocks have one learning rate"


def examples(model: ModelSpec) -> torch.Tensor:
    """Four samples of random numbers, such as the model takes."""
    shape, g = (4, *zeros(model).shape[1:]), torch.Generator().manual_seed(0)
    if model.inputs == "tokens":
        return torch.randint(model.in_channels, shape, generator=g)
    return torch.rand(shape, generator=g)


def automatic(model: ModelSpec, flat: FlatModel, width: int, limits: Limits) -> int:
    """The size of a block of clients with ``width`` samples in a batch; 1: one by one."""
    flops, activations = costs(model, flat)
    if 3 * flops * width > limits.flops:  # the backward pass takes about twice the forward pass
        return 1
    memory = BLOCK_COPIES * flat.flat.nbytes + activations * width
    return int(min(max(limits.memory // memory, limits.fewest), MOST))


def costs(model: ModelSpec, flat: FlatModel) -> tuple[float, float]:
    """Operations of a sample's forward pass, and bytes kept for its backward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    samples = zeros(model).to(flat.flat.device)
    weights = flat.flat.untyped_storage().data_ptr()
    kept = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        if tensor.untyped_storage().data_ptr() != weights:
            kept += tensor.nbytes
        return tensor

    flat.mode(train=False)
    counter = FlopCounterMode(display=False)
    with counter, saved_tensors_hooks(keep, lambda tensor: tensor):
        flat.model(samples)
    flat.mode(train=True)
    return counter.get_total_flops() / len(samples), kept / len(samples)
