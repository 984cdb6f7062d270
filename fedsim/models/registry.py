"""Models by their specification: ``build(ModelSpec, seed)`` gives the same weights everywhere."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedsim.core.errors import ConfigError, nearest
from fedsim.core.imports import call, resolve, users_code
from fedsim.core.layout import Pristine, attributes, freeze, unsuitable
from fedsim.core.rng import one_torch_thread, seed_for, torch_scope
from fedsim.core.types import ModelSpec
from fedsim.models import leaf, libraries, unet, vision, weights
from fedsim.models.catalogue import CATALOGUE, LIBRARIES, ModelInfo
from fedsim.models.frozen import frozen_tensors
from fedsim.models.trainable import ALL
from fedsim.models.weights import Loaded


@dataclass(frozen=True)
class Built:
    """A model, in training mode on the CPU, and what became of its start weights."""

    model: nn.Module
    start: Loaded = field(default_factory=Loaded)


Adapt = Callable[[nn.Module], nn.Module] | None


def build(spec: ModelSpec, seed: int, adapt: Adapt = None) -> nn.Module:
    """The model of ``spec``, see :func:`start`."""
    return start(spec, seed, adapt).model


def start(spec: ModelSpec, seed: int, adapt: Adapt = None, classes: Sequence[str] = ()) -> Built:
    """The model of ``spec``; its weights depend on ``spec`` and ``seed`` alone.

    A name ``module:function`` calls your function(num_classes, in_channels, image_size),
    ``timm:NAME`` and ``torchvision:NAME`` are networks of these libraries. ``norm="group"``
    replaces BatchNorm, where there is any. What ``spec.trainable`` leaves out is frozen and no part
    of the model's vector; what ``adapt``, a method's change of the model after the start weights
    are there, adds trains. Generators and threads are left as they were. ``classes`` are the names
    of the data's classes, which the head of start weights must have.
    """
    drawn = seed if spec.init == "torch" else seed_for(seed, "model")
    with one_torch_thread(), torch_scope(drawn):
        sizes = spec.num_classes, spec.in_channels, spec.image_size
        where = f"model.name={spec.name}"
        model: nn.Module
        if libraries.library_of(spec.name) is not None:
            model = checked(libraries.build(spec), spec)
        elif ":" in spec.name:
            model = checked(call(resolve(spec.name, where), where, *sizes), spec)
        else:
            module = {"vision": vision, "leaf": leaf, "unet": unet}[find(spec).module]
            model = getattr(module, spec.name)(*sizes)
        if spec.norm == "group":
            vision.with_group_norm(model)
        loaded = weights.apply(model, spec, classes)
        if spec.projection:
            vision.with_projection(model, spec.projection, where)
        frozen = frozen_tensors(model, spec)
        for change in (None, adapt):
            model = model if change is None else change(model)
            if spec.trainable != ALL:
                freeze(model, frozen)  # for the method to see, and again: names may have changed
        return Built(model, loaded)


def find(spec: ModelSpec) -> ModelInfo:
    """The entry of ``spec.name``; a ConfigError where there is none that fits the data."""
    where, info = f"model.name={spec.name}", CATALOGUE.get(spec.name)
    if info is None:
        names = [*CATALOGUE, *(f"{library}:NAME" for library in LIBRARIES)]
        raise ConfigError(
            f"{where}: no such model{nearest(spec.name, CATALOGUE)}; there are "
            f"{', '.join(names)}, or your own as module:function"
        )
    if not _fits(info, spec):
        fitting = [name for name, other in CATALOGUE.items() if _fits(other, spec)]
        taken = _kind(" or ".join(info.inputs), info)
        raise ConfigError(
            f"{where}: takes {taken}, and the data are {_kind(spec.inputs, spec)}; for "
            f"them there are {', '.join([*fitting, 'your own'])} as module:function"
        )
    if spec.image_size < info.min_size:
        raise ConfigError(
            f"{where}: images of {spec.image_size}x{spec.image_size} pixels are too small, it "
            f"needs {info.min_size}x{info.min_size}; see data.image_size"
        )
    return info


def _fits(info: ModelInfo, spec: ModelSpec) -> bool:
    kind = info.per_token, info.per_pixel
    return spec.inputs in info.inputs and (spec.per_token, spec.per_pixel) == kind


def _kind(inputs: str, of: ModelInfo | ModelSpec) -> str:
    """In words, ``"tokens with one label each"``."""
    each = "a label for every token" if of.per_token else "one label each"
    return f"{inputs} with {'a mask' if of.per_pixel else each}"


def zeros(spec: ModelSpec) -> Tensor:
    """Two samples: images (2, channels, H, W) or features (2, d) float32, tokens (2, T) int64."""
    if spec.inputs == "tokens":
        return torch.zeros(2, spec.image_size, dtype=torch.long)
    if spec.inputs == "features":
        return torch.zeros(2, spec.in_channels)
    return torch.zeros(2, spec.in_channels, spec.image_size, spec.image_size)


def checked(model: object, spec: ModelSpec) -> nn.Module:
    """The model in training mode, as it was given but for lazy tensors, which have their shapes.

    A ConfigError where it does not turn samples into outputs, or has tensors that cannot be
    trained.
    """
    where = f"model.name={spec.name}"
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{where}: returned {type(model).__name__}, not a torch.nn.Module")
    samples = zeros(spec)
    takes = f"{where}: does not take {spec.inputs} {tuple(samples.shape)}"
    if any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        raise ConfigError(f"{where}: has scripted modules (torch.jit)")
    with users_code(takes, ConfigError), torch.no_grad():
        if any(map(nn.parameter.is_lazy, (*model.parameters(), *model.buffers()))):
            model.eval()(samples)
        pristine = Pristine(model)
        before = [value for m in model.modules() for value in attributes(m).values()]
        logits = model.eval()(samples)
        fault = unsuitable(model, before)
        pristine.restore()
    model.train()
    if fault is not None:
        raise ConfigError(f"{where}: {fault}")
    needed = spec.output_shape(2)
    given = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if given != needed:
        raise ConfigError(f"{where}: 2 samples give {given}, not outputs {needed}")
    return model
