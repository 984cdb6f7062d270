"""Models: ``build(ModelSpec, seed)`` draws the same weights wherever it is called.

A worker that will load a given vector anyway should build without start weights
(``dataclasses.replace(spec, pretrained=False, weights=None)``): nothing is read or downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from fedsim.contracts import ModelSpec
from fedsim.models import catalogue, custom, nets, weights
from fedsim.models.catalogue import CATALOGUE, NAMES
from fedsim.models.chain import Link, chain
from fedsim.models.nets import SplitModel, has_batchnorm
from fedsim.models.probabilistic import ProbabilisticModel, probabilistic
from fedsim.rng import seed_for, torch_scope

__all__ = [
    "CATALOGUE", "NAMES", "Link", "ProbabilisticModel", "SplitModel", "build", "chain",
    "has_batchnorm", "probabilistic",
]  # fmt: skip


def build(
    spec: ModelSpec, seed: int, adapt: Callable[[nn.Module], nn.Module] | None = None
) -> nn.Module:
    """The model of ``spec``; its weights depend on ``spec`` and ``seed`` alone.

    The global random generators and torch's number of threads are left as they were. A grey image
    has one input channel; a pretrained first layer for three colours is summed over them, which
    gives the same output as repeating the image. ``norm="group"`` replaces BatchNorm and is without
    effect in a model that has none. Start weights are those of the model without a projection
    head. A name ``module:function`` calls your function(num_classes, in_channels, image_size).

    Args:
        spec: name, sizes, kind of input, norm, start weights and projection head.
        seed: the run's seed; the stream is "model".
        adapt: a method's change of the model, after the start weights are there.

    Returns:
        The model in training mode on the CPU: images (B, channels, H, W) or features (B, d)
        float32, or tokens (B, T) int64 -> (B, C) logits, (B, T, C) where every token has a label.
        All models of :data:`NAMES` are a :class:`SplitModel`.

    Raises:
        ConfigError: the name is unknown, the model takes other inputs or larger images, the start
            weights cannot be had or do not fit, there is no place for a projection head, or a
            function of your own returns no such model.
    """
    with _one_thread(), torch_scope(seed_for(seed, "model")):
        model = _make(spec)
        if spec.norm == "group":
            nets.with_group_norm(model)
        weights.load(model, spec)
        if spec.projection:
            nets.with_projection(model, spec.projection, f"model.name={spec.name}")
        return model if adapt is None else adapt(model)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for torch inside: the number can change the last bits of an initialiser.

    ``orthogonal_``, for one, takes a QR decomposition, whose sums are split among the threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _make(spec: ModelSpec) -> nn.Module:
    if ":" in spec.name:
        return custom.make(spec)
    return catalogue.find(spec).make(spec.num_classes, spec.in_channels, spec.image_size)
