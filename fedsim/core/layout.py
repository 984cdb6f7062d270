"""A model as one flat vector: parameters and float buffers are views of a single tensor.

Loading a global vector is then one copy, reading the local one is free, and a client's update is
one subtraction, whatever the number of tensors.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsim.core.types import Array, Layout, Slot, Vector


def layout_of(model: nn.Module) -> Layout:
    """The slots of a model: parameters in ``named_parameters()`` order, then float buffers.

    Tied parameters appear once. Integer buffers (``num_batches_tracked``) are not federated.
    """
    norms = {id(t) for m in model.modules() if isinstance(m, _BatchNorm) for t in _tensors(m)}
    head = {id(t) for t in _tensors(getattr(model, "head", None))}
    persistent = model.state_dict().keys()
    entries: list[tuple[str, Tensor, bool]] = [(n, p, True) for n, p in model.named_parameters()]
    entries += [
        (n, b, False) for n, b in model.named_buffers() if b.is_floating_point() and n in persistent
    ]
    slots, start = [], 0
    for name, tensor, trained in entries:
        stop = start + tensor.numel()
        slots.append(
            Slot(
                name=name,
                shape=tuple(tensor.shape),
                start=start,
                stop=stop,
                role="param" if trained else "stat",
                batchnorm=id(tensor) in norms,
                head=id(tensor) in head,
            )
        )
        start = stop
    return Layout(tuple(slots))


def _tensors(module: nn.Module | None) -> list[Tensor]:
    if module is None:
        return []
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def select(layout: Layout, wanted: Callable[[Slot], bool]) -> np.ndarray:
    """Boolean mask (D,) of the coordinates whose slot is wanted."""
    mask = np.zeros(layout.size, dtype=bool)
    for slot in layout.slots:
        mask[slot.where] = wanted(slot)
    return mask


class FlatModel:
    """A model on a device whose parameters and float buffers are views of ``flat`` (D,).

    Integer buffers keep their initial values at every :meth:`load`. ``params`` lists the
    parameters that require gradients, with their slots, ``norms`` the BatchNorm modules. The model
    starts in training mode.
    """

    def __init__(
        self, model: nn.Module, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self.layout = layout_of(model)
        self.model = model.to(device)
        self.flat = torch.empty(self.layout.size, dtype=dtype, device=device)
        named = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        with torch.no_grad():
            for slot in self.layout.slots:
                view = self.flat[slot.where].view(slot.shape)
                view.copy_(named[slot.name])
                named[slot.name].data = view
        params = [(s, named[s.name]) for s in self.layout.slots if s.role == "param"]
        self.params = [(slot, p) for slot, p in params if p.requires_grad]
        self.norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm)]
        floats = {slot.name for slot in self.layout.slots}
        kept = [b for name, b in self.model.named_buffers() if name not in floats]
        self._counters = [(buffer, buffer.clone()) for buffer in kept]
        self._modules = list(self.model.train().modules())

    def load(self, vector: Tensor) -> None:
        """Copies ``vector`` (D,) into the model, resets integer buffers and drops gradients."""
        self.flat.copy_(vector)
        for _, parameter in self.params:
            parameter.grad = None
        for buffer, initial in self._counters:
            buffer.copy_(initial)

    def mode(self, train: bool) -> None:
        """Switches to training or evaluation mode; free if every module is in it already."""
        if any(module.training != train for module in self._modules):
            self.model.train(train)

    def vector(self) -> Vector:
        """A copy (D,) of the current values on the CPU."""
        return self.flat.detach().cpu().numpy().copy()


def as_tensor(vector: Array) -> Tensor:
    """A CPU tensor that shares the memory of a NumPy array, read-only or not; never write to it."""
    return torch.utils.dlpack.from_dlpack(np.ascontiguousarray(vector))


def subtract(a: Tensor, b: Tensor, out: Tensor) -> None:
    """``out = a - b`` for (D,) tensors; ``out`` lies on the CPU, ``a`` may be overwritten."""
    if a.device == out.device:
        torch.sub(a, b, out=out)
    else:
        out.copy_(a.sub_(b))


def not_finite(vector: Vector, layout: Layout) -> list[str]:
    """The names of the tensors of a vector (D,) in which a value is NaN or infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        square = np.dot(vector, vector)  # one fast read; may overflow
    if math.isfinite(square):
        return []
    return [s.name for s in layout.slots if not np.isfinite(vector[s.where]).all()]
