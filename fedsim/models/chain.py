"""Models whose channels can be permuted: chains of linear and convolutional layers.

In such a model the outputs of a layer may change places if the next layer's inputs do so too, and
nothing else changes: the condition for matching the channels of several models.
"""

from collections.abc import Iterator
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


def chain(model: nn.Module, where: str = "the model") -> list[nn.Module]:
    """The layers with weights of a model in the order of the forward pass; refuses other models.

    Decided by the exact types of modules in nested ``nn.Sequential``: linear layers and ungrouped
    convolutions, each with one BatchNorm or none, functions of single numbers, pooling, dropout and
    flattening. ``where`` is the beginning of the message.
    """
    layers: list[tuple[str, Any]] = []
    weights: set[int] = set()
    normed = flat = False
    for name, module in _in_order("", model):
        kind, fault = type(module), ""
        if id(getattr(module, "weight", module)) in weights and kind not in _CHANNELWISE:
            fault = "its weight comes twice"
        elif kind in (nn.Linear, nn.Conv2d, SigmoidLinear):
            fault = _misfit(*layers[-1], module, flat) if layers else ""
            if getattr(module, "groups", 1) != 1:
                fault = f"a convolution in {module.groups} groups"
            layers.append((name, module))
            weights.add(id(module.weight))
            normed = flat = False
        elif kind in (nn.BatchNorm1d, nn.BatchNorm2d):
            if not layers or normed or len(layers[-1][1].weight) != module.num_features:
                fault = "not the one normalisation of the outputs of a layer before it"
            elif module.weight is None:
                fault = "it has no weights of its own"
            normed = True
            weights.add(id(module.weight))
        elif kind is nn.Flatten:
            flat = (module.start_dim, module.end_dim) == (1, -1)
            fault = "" if flat else "it keeps several dimensions"
        elif kind not in _CHANNELWISE:
            fault = "not one of these"
        if fault:
            raise ConfigError(
                f"{where}: a chain of linear and convolutional layers is needed, with BatchNorm, "
                "activations, pooling, dropout and flattening at most; "
                f"{name.removesuffix('.') or 'it'} is {kind.__name__}: {fault}"
            )
    return [layer for _, layer in layers]


def _in_order(prefix: str, module: Any) -> Iterator[tuple[str, Any]]:
    """The modules that are no mere sequence, by ``"name."``; one that comes twice, twice."""
    if type(module) in (SplitModel, nn.Sequential):
        for name, child in module._modules.items():
            yield from _in_order(f"{prefix}{name}.", child)
    else:
        yield prefix, module


def _misfit(name: str, before: Any, layer: Any, flat: bool) -> str:
    """Why a layer cannot follow another one; ``flat``: whose outputs were flattened since."""
    inputs, outputs = layer.weight.shape[1], len(before.weight)
    pixels = type(before) is nn.Conv2d
    if inputs % outputs if pixels and flat else inputs != outputs:
        return f"its {inputs} inputs are not the {outputs} outputs of {name}weight"
    if pixels and not flat and type(layer) is not nn.Conv2d:
        return "it acts on pixels that are not flattened"
    return ""
