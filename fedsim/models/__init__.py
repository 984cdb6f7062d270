"""Models: ``build(ModelSpec, seed)`` draws the same weights wherever it is called.

A worker that will load a given vector anyway should build without start weights
(``dataclasses.replace(spec, pretrained=False, weights=None)``): nothing is read or downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from fedsim.contracts import ModelSpec
from fedsim.errors import ConfigError, nearest
from fedsim.models import nets, weights
from fedsim.models.nets import SplitModel, has_batchnorm
from fedsim.names import call, resolve
from fedsim.rng import seed_for, torch_scope

__all__ = ["NAMES", "SplitModel", "build", "has_batchnorm"]

Factory = Callable[[int, int, int], nn.Module]
"""(num_classes, in_channels, image_size) -> model."""


@dataclass(frozen=True)
class _Entry:
    make: Factory
    min_size: int
    description: str


_ENTRIES: Mapping[str, _Entry] = {
    "logistic": _Entry(nets.logistic, 1, "logistic regression on the pixels"),
    "mlp": _Entry(nets.mlp, 1, "one hidden layer of 64 ReLU units"),
    "cnn": _Entry(nets.cnn, 4, "three 3x3 convolutions (16, 32, 64) with norm; trains on a CPU"),
    "cnn_reddi": _Entry(nets.cnn_reddi, 6, "two convolutions, 1.2 M parameters (Reddi 2021)"),
    "resnet18": _Entry(nets.resnet18, 8, "ResNet-18, 11.2 M parameters, ImageNet weights"),
    "resnet50": _Entry(nets.resnet50, 8, "ResNet-50, 23.5 M parameters, ImageNet weights"),
    "mobilenetv2_cifar": _Entry(
        nets.mobilenetv2_cifar, 8, "MobileNetV2 for small images, 2.3 M parameters"
    ),
}

NAMES: Mapping[str, str] = {name: entry.description for name, entry in _ENTRIES.items()}
"""The models' names and what each is, in one line."""


def build(
    spec: ModelSpec, seed: int, adapt: Callable[[nn.Module], nn.Module] | None = None
) -> nn.Module:
    """The model of ``spec``; its weights depend on ``spec`` and ``seed`` alone.

    The global random generators and torch's number of threads are left as they were. A grey image
    has one input channel; a pretrained first layer for three colours is summed over them, which
    gives the same output as repeating the image. ``norm="group"`` replaces BatchNorm and is without
    effect in a model that has none. A name ``module:function`` calls your
    function(num_classes, in_channels, image_size).

    Args:
        spec: name, sizes, norm and start weights.
        seed: the run's seed; the stream is "model".
        adapt: a method's change of the model, after the start weights are there.

    Returns:
        The model in training mode on the CPU: (B, channels, H, W) float32 -> (B, C) logits. All
        models of :data:`NAMES` are a :class:`SplitModel`.

    Raises:
        ConfigError: the name is unknown, an image of this size is too small, the start weights
            cannot be had or do not fit, or a function of your own returns no such model.
    """
    with _one_thread(), torch_scope(seed_for(seed, "model")):
        model = _make(spec)
        if spec.norm == "group":
            nets.with_group_norm(model)
        weights.load(model, spec)
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
        return _make_custom(spec)
    entry = _ENTRIES.get(spec.name)
    if entry is None:
        raise ConfigError(
            f"model.name={spec.name}: no such model{nearest(spec.name, _ENTRIES)}; there are "
            f"{', '.join(_ENTRIES)}, or your own as module:function"
        )
    if spec.image_size < entry.min_size:
        raise ConfigError(
            f"model.name={spec.name}: images of {spec.image_size}x{spec.image_size} pixels are "
            f"too small, it needs {entry.min_size}x{entry.min_size}; see data.image_size"
        )
    return entry.make(spec.num_classes, spec.in_channels, spec.image_size)


def _make_custom(spec: ModelSpec) -> nn.Module:
    where = f"model.name={spec.name}"
    function = resolve(spec.name, where)
    model = call(function, where, spec.num_classes, spec.in_channels, spec.image_size)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{where}: returned {type(model).__name__}, not a torch.nn.Module")
    images = torch.zeros(2, spec.in_channels, spec.image_size, spec.image_size)
    try:
        with torch.no_grad():
            logits = model.eval()(images)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{where}: does not take images {tuple(images.shape)} ({reason})"
        ) from error
    model.train()
    if not isinstance(logits, torch.Tensor) or logits.shape != (2, spec.num_classes):
        shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise ConfigError(f"{where}: 2 images give {shape}, not logits (2, {spec.num_classes})")
    return model
