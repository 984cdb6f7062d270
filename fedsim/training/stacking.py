"""How many clients train together as one stacked model: ``engine.client_batch``."""

from __future__ import annotations

import torch
from torch.autograd.graph import saved_tensors_hooks

from fedsim.algorithms.base import Algorithm
from fedsim.client.block import obstacle
from fedsim.config.run import RunConfig
from fedsim.config.sections import TrainConfig
from fedsim.core.errors import ConfigError
from fedsim.core.layout import FlatModel
from fedsim.core.machine import BLOCK_COPIES
from fedsim.core.types import ModelSpec, Partition
from fedsim.engine.blocks import Stacking
from fedsim.models.registry import zeros

FEWEST, MOST = 5, 50
"""The smallest and the largest block of ``auto``; smaller ones are no faster than one by one."""
MOST_FLOPS = 100e6
"""Operations of a client's step, forward and backward, beyond which stacking it gains nothing."""
MEMORY = 32 << 20
"""Bytes that a block of ``auto`` takes: about what caches hold."""


def stacking_of(
    config: RunConfig,
    *,
    model: ModelSpec,
    flat: FlatModel,
    algorithm: Algorithm,
    partition: Partition,
    cohort_size: int,
) -> Stacking | None:
    """How clients train together; None where they train one by one.

    Follows from configuration and data alone, never from the machine: it decides the bytes.

    Raises:
        ConfigError: a number above 1 is asked for, and these clients cannot be stacked.
    """
    asked = config.engine.client_batch
    if asked == 1:
        return None
    largest = max(len(partition.train[client]) for client in partition.participants)
    width = min(config.train.batch_size, largest)
    why = _of_training(config.train) or obstacle(
        flat.model, algorithm.local, algorithm.criterion, examples(model)
    )
    if asked == "auto":
        fits = why is None and cohort_size >= FEWEST
        clients = min(automatic(model, flat, width), cohort_size) if fits else 1
    elif why is None:
        clients = int(asked)
    else:
        raise ConfigError(
            f"engine.client_batch={asked}: algorithm {config.algorithm} with model {model.name} "
            f"cannot be stacked: {why}; with 1 or auto these clients train one by one"
        )
    batchnorm = bool(flat.norms) and not config.train.frozen_bn
    return None if clients == 1 else Stacking(clients, width, batchnorm)


def _of_training(train: TrainConfig) -> str | None:
    """What blocks of clients cannot do in training."""
    if train.optimizer != "sgd":
        return f"train.optimizer={train.optimizer}; blocks train by SGD"
    return None if train.lr_head is None else "train.lr_head; blocks have one learning rate"


def examples(model: ModelSpec) -> torch.Tensor:
    """Four samples of random numbers, such as the model takes."""
    shape, g = (4, *zeros(model).shape[1:]), torch.Generator().manual_seed(0)
    if model.inputs == "tokens":
        return torch.randint(model.in_channels, shape, generator=g)
    return torch.rand(shape, generator=g)


def automatic(model: ModelSpec, flat: FlatModel, width: int) -> int:
    """The size of a block of clients with ``width`` samples in a batch; 1: one by one."""
    flops, activations = costs(model, flat)
    if 3 * flops * width > MOST_FLOPS:  # the backward pass takes about twice the forward pass
        return 1
    memory = BLOCK_COPIES * flat.flat.nbytes + activations * width
    return int(min(max(MEMORY // memory, FEWEST), MOST))


def costs(model: ModelSpec, flat: FlatModel) -> tuple[float, float]:
    """Of one sample, the operations of the forward pass and the bytes kept for the backward one."""
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
