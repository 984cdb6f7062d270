"""Freezes what ``model.trainable`` leaves out, and adds low-rank adapters (LoRA; Hu et al. 2022).

Adapters belong to the weights: whoever reads a layer's ``weight`` gets ``W + alpha / rank B A``,
also ``nn.MultiheadAttention`` and the fused kernels, which never call the layers inside them.
"""

import math
from fnmatch import fnmatchcase
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedsim.core.errors import ConfigError, nearest
from fedsim.core.layout import float_tensors, freeze, frozen_names
from fedsim.core.types import ModelSpec
from fedsim.models.trainable import Lora, parse

_NORMS = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
"""The input projections of ``nn.MultiheadAttention``; its output projection is a layer."""


def frozen_tensors(model: nn.Module, spec: ModelSpec) -> list[Tensor]:
    """The parameters and float buffers that ``spec.trainable`` leaves out; adds its adapters.

    The head trains with all words and with LoRA, as does a projection head, which is new. Of a
    module that trains no parameter no statistic trains either. Adapters are drawn from torch's
    global generator: A uniform as in a new linear layer, B zero.
    """
    wanted = parse(spec.trainable)
    if wanted == "all":
        return []
    where, tensors = f"model.trainable={spec.trainable}", float_tensors(model)
    if isinstance(wanted, tuple):
        for pattern in wanted:
            if not any(fnmatchcase(name, pattern) for name in tensors):
                raise ConfigError(
                    f"{where}: no tensor of the model is called {pattern}"
                    f"{nearest(pattern, tensors)}; it has {', '.join([*tensors][:3])} and "
                    f"{max(len(tensors) - 3, 0)} more"
                )
        trained = (t for n, t in tensors.items() if any(fnmatchcase(n, p) for p in wanted))
        return _others(model, set(map(id, trained)))
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Module):
        raise ConfigError(f"{where}: the model has no module 'head', which trains in any case")
    new = [head, model.get_submodule("features.projection")] if spec.projection else [head]
    kept = {id(t) for module in new for t in module.parameters()}
    if isinstance(wanted, Lora):
        skipped = {id(m) for top in new for m in top.modules()}
        adapters = [
            t for m in list(model.modules()) if id(m) not in skipped for t in _adapters(m, wanted)
        ]
        if not adapters:
            raise ConfigError(
                f"{where}: the model has no linear or attention layer beside its head"
            )
        kept |= set(map(id, adapters))
    elif wanted == "norm":
        norms = [m for m in model.modules() if isinstance(m, _NORMS)]
        if not norms:
            raise ConfigError(f"{where}: the model has no normalisation layers")
        kept |= {id(t) for m in norms for t in (*m.parameters(), *m.buffers())}
    return _others(model, kept)


def cut(model: nn.Module, part: str) -> nn.Module:
    """The model with the identity in place of a frozen module: its outputs are now the input.

    What trains keeps its name. ``part`` is the module's name.
    """
    frozen = frozen_names(model)
    left = {name for name in frozen if not name.startswith(f"{part}.")}
    parent, _, leaf = part.rpartition(".")
    setattr(model.get_submodule(parent), leaf, nn.Identity())
    freeze(model, [t for name, t in float_tensors(model).items() if name in left])
    return model


def _others(model: nn.Module, kept: set[int]) -> list[Tensor]:
    """All tensors but those kept, and but the statistics of modules of which something is kept."""
    for module in model.modules():
        members = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if any(id(t) in kept for t in members):
            kept |= {id(t) for t in module.buffers(recurse=False)}
    return [t for t in float_tensors(model).values() if id(t) not in kept]


def _adapters(module: nn.Module, lora: Lora) -> list[Tensor]:
    """The tensors of new adapters for the weights of a linear or attention layer, else none."""
    adapters: list[Tensor] = []
    names = _PROJECTIONS if isinstance(module, nn.MultiheadAttention) else ("weight",)
    weights = {name: module._parameters.get(name) for name in names}
    weights = {name: weight for name, weight in weights.items() if weight is not None}
    if not weights or not isinstance(module, (nn.Linear, nn.MultiheadAttention)):
        return []
    for name, weight in weights.items():
        outputs, inputs = weight.shape  # type: ignore[union-attr]
        a, b = torch.empty(lora.rank, inputs), torch.zeros(outputs, lora.rank)
        nn.init.kaiming_uniform_(a, a=math.sqrt(5))
        for end, tensor in (("lora_A", a), ("lora_B", b)):
            parameter = nn.Parameter(tensor)
            module.register_parameter(name.removesuffix("weight") + end, parameter)
            adapters.append(parameter)
    module.lora_scale = lora.scale  # type: ignore[assignment]
    kind: type[nn.Module] = type(module)
    module.__class__ = _adapted(kind, tuple(weights))  # type: ignore[assignment, arg-type]
    return adapters


@cache
def _adapted(kind: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """A subclass of a layer's type in which these weights are read with their adapters."""

    def with_adapter(name: str) -> property:
        start = name.removesuffix("weight")

        def adapted(self: nn.Module) -> Tensor:
            parameters = self._parameters
            change = parameters[f"{start}lora_B"] @ parameters[f"{start}lora_A"]  # type: ignore[operator]
            weight: Tensor = parameters[name] + self.lora_scale * change  # type: ignore[operator]
            return weight

        return property(adapted)

    return type(f"Lora{kind.__name__}", (kind,), {name: with_adapter(name) for name in names})


def merged(tensors: dict[str, Tensor], lora: Lora) -> dict[str, Tensor]:
    """A state dict with its adapters added to the weights, and without them."""
    out = {k: v for k, v in tensors.items() if not k.endswith(("lora_A", "lora_B"))}
    for key in tensors.keys() - out.keys():
        start, end = key[:-6], key[-6:]
        if end == "lora_B":
            change = tensors[key] @ tensors[f"{start}lora_A"]
            out[f"{start}weight"] = out[f"{start}weight"] + lora.scale * change
    return out
