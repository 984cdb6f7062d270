"""Models whose channels can be permuted: chains of linear and convolutional layers.

In such a model the outputs of a layer may change places if the next layer's inputs do so too, and
nothing else changes: the condition for matching the channels of several models.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fedsim.core.errors import ConfigError
from fedsim.models.leaf import SigmoidLinear
from fedsim.models.vision import MaxPool2x2, SplitModel

_CHANNELWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish,
    nn.Hardtanh, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Identity, nn.Dropout,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d, nn.Dropout2d,
    MaxPool2x2,
)  # fmt: skip
"""Layers that treat all channels alike."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A layer of a chain, by the names of its slots in the model's vector.

    Args:
        weight: (outputs, inputs) or (outputs, inputs, height, width).
        bias: (outputs,), or None.
        norm: of a BatchNorm after it: weight, bias, running mean and variance, each (outputs,).
        outputs: its units or channels.
        seen: consecutive inputs of the next layer for each output: pixels of a flattened channel.
    """

    weight: str
    bias: str | None
    norm: tuple[str, ...]
    outputs: int
    seen: int = 1

    @property
    def vectors(self) -> tuple[str, ...]:
        """The slots (outputs,) that are permuted with the outputs."""
        return (*([] if self.bias is None else [self.bias]), *self.norm)


def chain(model: nn.Module, where: str = "the model") -> tuple[Link, ...]:
    """The layers of a model in the order of the forward pass.

    Decided by the exact types of modules in nested ``nn.Sequential``: linear layers and ungrouped
    convolutions, each with one BatchNorm or none, functions of single numbers, pooling, dropout and
    flattening. ``where`` is the beginning of the message.
    """
    links: list[Link] = []
    used: set[int] = set()
    pixels = flat = False
    for name, module in _in_order("", model):
        kind, fault = type(module), None
        if kind in (nn.Linear, nn.Conv2d, SigmoidLinear):
            twice = id(module.weight) in used
            fault = "its weight comes twice" if twice else _join(links, name, module, pixels, flat)
            used.add(id(module.weight))
            pixels, flat = kind is nn.Conv2d, False
        elif kind in (nn.BatchNorm1d, nn.BatchNorm2d):
            if links and not links[-1].norm and links[-1].outputs == module.num_features:
                held = ("weight", "bias", "running_mean", "running_var")
                slots = (f"{name}{key}" for key in held if getattr(module, key) is not None)
                links[-1] = replace(links[-1], norm=tuple(slots))
            else:
                fault = "not the one normalisation of the outputs of a layer before it"
        elif kind is nn.Flatten:
            flat = (module.start_dim, module.end_dim) == (1, -1)
            fault = None if flat else "it keeps several dimensions"
        elif kind not in _CHANNELWISE:
            fault = "not one of these"
        if fault:
            raise ConfigError(
                f"{where}: a chain of linear and convolutional layers is needed, with BatchNorm, "
                "activations, pooling, dropout and flattening at most; "
                f"{name.removesuffix('.') or 'it'} is {kind.__name__}: {fault}"
            )
    return tuple(links)


def _in_order(prefix: str, module: Any) -> Iterator[tuple[str, Any]]:
    """The modules that are no mere sequence, by ``"name."``; one that comes twice, twice."""
    if type(module) in (SplitModel, nn.Sequential):
        for name, child in module._modules.items():
            yield from _in_order(f"{prefix}{name}.", child)
    else:
        yield prefix, module


def _join(links: list[Link], name: str, layer: Any, pixels: bool, flat: bool) -> str | None:
    """Appends a layer and sets how the one before is seen by it; or says why that cannot be.

    ``pixels``: the layer before is a convolution; ``flat``: its outputs were flattened since.
    """
    if getattr(layer, "groups", 1) != 1:
        return f"a convolution in {layer.groups} groups"
    outputs, inputs = layer.weight.shape[:2]
    if links:
        before = links[-1]
        seen = inputs // before.outputs if pixels and flat else 1
        if inputs != seen * before.outputs:
            return f"its {inputs} inputs are not the {before.outputs} outputs of {before.weight}"
        if pixels and not flat and not isinstance(layer, nn.Conv2d):
            return "it acts on pixels that are not flattened"
        links[-1] = replace(before, seen=seen)
    bias = None if layer.bias is None else f"{name}bias"
    links.append(Link(weight=f"{name}weight", bias=bias, norm=(), outputs=outputs))
    return None
