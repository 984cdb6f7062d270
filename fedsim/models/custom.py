"""A model of the user's own, ``module:function``, tried out on two samples of zeros."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedsim.contracts import ModelSpec
from fedsim.errors import ConfigError
from fedsim.names import call, resolve


def zeros(spec: ModelSpec) -> Tensor:
    """Two samples of the kind and shape that a model of ``spec`` takes.

    Images (2, channels, H, W) or features (2, d) float32, or tokens (2, T) int64.
    """
    if spec.inputs == "tokens":
        return torch.zeros(2, spec.image_size, dtype=torch.long)
    if spec.inputs == "features":
        return torch.zeros(2, spec.in_channels)
    return torch.zeros(2, spec.in_channels, spec.image_size, spec.image_size)


def make(spec: ModelSpec) -> nn.Module:
    """The model that the function returns for (num_classes, in_channels, image_size).

    Raises:
        ConfigError: there is no such function, or what it returns is no model for such data.
    """
    where = f"model.name={spec.name}"
    function = resolve(spec.name, where)
    model = call(function, where, spec.num_classes, spec.in_channels, spec.image_size)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{where}: returned {type(model).__name__}, not a torch.nn.Module")
    samples = zeros(spec)
    try:
        with torch.no_grad():
            logits = model.eval()(samples)
    except (RuntimeError, ValueError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{where}: does not take {spec.inputs} {tuple(samples.shape)} ({reason})"
        ) from error
    model.train()
    tokens = (spec.image_size,) if spec.per_token else ()
    needed = (2, *tokens, spec.num_classes)
    if not isinstance(logits, Tensor) or logits.shape != needed:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ConfigError(f"{where}: 2 samples give {shape}, not logits {needed}")
    return model
