"""Freezes what ``model.trainable`` leaves out, and adds low-rank adapters (LoRA).

LoRA: Hu et al., ICLR 2022. The adapters belong to the weights, not to the layers' forward passes:
whoever reads a layer's ``weight`` gets ``W + alpha / rank B A``, also ``nn.MultiheadAttention`` and
the fused kernels of ``nn.TransformerEncoder``, which never call the layers inside them.
"""

import math
from collections.abc import Collection, Iterator
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
    module that trains no parameter no statistic trains either.

    Args:
        model: its adapters are drawn from torch's global generator, A uniform as in a new linear
            layer, B zero.
        spec: of it.

    Raises:
        ConfigError: the model has no such tensors, or no head.
    """
    wanted = parse(spec.trainable)
    if wanted == "all":
        return []
    where = f"model.trainable={spec.trainable}"
    tensors = float_tensors(model)
    if isinstance(wanted, tuple):
        _check_patterns(wanted, tensors, where)
        trained = {n for n in tensors if any(fnmatchcase(n, pattern) for pattern in wanted)}
        return _others(model, tensors, {id(tensors[name]) for name in trained})
    new = _new_modules(model, spec, where)
    kept = {id(t) for module in new for t in module.parameters()}
    if isinstance(wanted, Lora):
        kept |= {id(t) for t in _add_adapters(model, wanted, new, where)}
    elif wanted == "norm":
        norms = [m for m in model.modules() if isinstance(m, _NORMS)]
        if not norms:
            raise ConfigError(f"{where}: the model has no normalisation layers")
        kept |= {id(t) for m in norms for t in (*m.parameters(), *m.buffers())}
    return _others(model, float_tensors(model), kept)


def cut(model: nn.Module, part: str) -> nn.Module:
    """Puts the identity in the place of a frozen module, in place: its outputs are now the input.

    Args:
        model: as :func:`~fedsim.core.layout.freeze` leaves it; what trains keeps its name.
        part: the module's name.

    Returns:
        The model.
    """
    frozen = frozen_names(model)
    left = {name for name in frozen if not name.startswith(f"{part}.")}
    parent, _, leaf = part.rpartition(".")
    setattr(model.get_submodule(parent), leaf, nn.Identity())
    freeze(model, [t for name, t in float_tensors(model).items() if name in left])
    return model


def _others(model: nn.Module, tensors: dict[str, Tensor], kept: set[int]) -> list[Tensor]:
    """All tensors but those kept, and but the statistics of modules of which something is kept."""
    for module in model.modules():
        members = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if any(id(t) in kept for t in members):
            kept |= {id(t) for t in module.buffers(recurse=False)}
    return [t for t in tensors.values() if id(t) not in kept]


def _check_patterns(patterns: Collection[str], names: Collection[str], where: str) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"{where}: no tensor of the model is called {pattern}{nearest(pattern, names)}; "
                f"it has {', '.join([*names][:3])} and {max(len(names) - 3, 0)} more"
            )


def _new_modules(model: nn.Module, spec: ModelSpec, where: str) -> list[nn.Module]:
    """The head, and the projection head before it where there is one."""
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Module):
        raise ConfigError(f"{where}: the model has no module 'head', which trains in any case")
    return [head, model.get_submodule("features.projection")] if spec.projection else [head]


def _add_adapters(
    model: nn.Module, lora: Lora, new: Collection[nn.Module], where: str
) -> list[Tensor]:
    """Adapters for all linear and attention layers but the new ones; their tensors."""
    skipped = {id(m) for top in new for m in top.modules()}
    modules = {m: list(_weights(m)) for m in model.modules() if id(m) not in skipped}
    sides = [side for m, names in modules.items() for n in names for side in m._parameters[n].shape]  # type: ignore[union-attr]
    if not sides:
        raise ConfigError(f"{where}: the model has no linear or attention layer beside its head")
    if lora.rank > max(sides):
        raise ConfigError(
            f"{where}: rank {lora.rank} is larger than every side of the weights that it would be "
            f"added to; the largest has {max(sides)}"
        )
    adapters: list[Tensor] = []
    for module, names in modules.items():
        for name in names:
            outputs, inputs = module._parameters[name].shape  # type: ignore[union-attr]
            a, b = torch.empty(lora.rank, inputs), torch.zeros(outputs, lora.rank)
            nn.init.kaiming_uniform_(a, a=math.sqrt(5))
            for end, tensor in (("lora_A", a), ("lora_B", b)):
                parameter = nn.Parameter(tensor)
                module.register_parameter(name.removesuffix("weight") + end, parameter)
                adapters.append(parameter)
        if names:
            module.lora_scale = lora.scale  # type: ignore[assignment]
            module.__class__ = _adapted(type(module), tuple(names))  # type: ignore[arg-type]
    return adapters


def _weights(module: nn.Module) -> Iterator[str]:
    """The names of a module's own weights that get adapters."""
    names: tuple[str, ...] = ("weight",) if isinstance(module, nn.Linear) else ()
    if isinstance(module, nn.MultiheadAttention):
        names = _PROJECTIONS
    yield from (name for name in names if module._parameters.get(name) is not None)


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
