"""A model as one flat vector: parameters and float buffers are views of a single tensor.

Loading a global vector is then one copy, reading the local one is free, and a client's update is
one subtraction, whatever the number of tensors.
"""

import math
from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedsim.core.types import Array, Layout, Slot, Vector


def layout_of(model: nn.Module) -> Layout:
    """The slots of a model: parameters in ``named_parameters()`` order, then float buffers.

    Tied parameters appear once. Integer buffers (``num_batches_tracked``) are not federated, nor is
    what :func:`freeze` took out.
    """
    frozen = frozen_names(model)
    norms = {id(t) for m in model.modules() if isinstance(m, _BatchNorm) for t in _tensors(m)}
    head = {id(t) for t in _tensors(getattr(model, "head", None))}
    slots, start = [], 0
    for name, tensor in float_tensors(model).items():
        if name in frozen:
            continue
        stop = start + tensor.numel()
        slots.append(
            Slot(
                name=name,
                shape=tuple(tensor.shape),
                start=start,
                stop=stop,
                role="param" if isinstance(tensor, nn.Parameter) else "stat",
                batchnorm=id(tensor) in norms,
                head=id(tensor) in head,
            )
        )
        start = stop
    return Layout(tuple(slots))


def float_tensors(model: nn.Module) -> dict[str, Tensor]:
    """By name the parameters, then the float buffers that are part of the model's state."""
    persistent = model.state_dict().keys()
    buffers = {n: b for n, b in model.named_buffers() if b.is_floating_point() and n in persistent}
    return {**dict(model.named_parameters()), **buffers}


def freeze(model: nn.Module, tensors: Collection[Tensor]) -> None:
    """Takes tensors of a model out of training and out of its vector, in place.

    A BatchNorm or InstanceNorm of which nothing is left stays in evaluation mode.
    """
    ids = {id(t) for t in tensors}
    names = [name for name, t in float_tensors(model).items() if id(t) in ids]
    for t in tensors:
        t.requires_grad_(False)
    model.frozen_names = frozenset(names)  # type: ignore[assignment]


def frozen_names(model: nn.Module) -> frozenset[str]:
    """The names of the tensors that :func:`freeze` took out."""
    names: frozenset[str] = getattr(model, "frozen_names", frozenset())
    return names


def _tensors(module: nn.Module | None) -> list[Tensor]:
    if module is None:
        return []
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _floats(module: nn.Module) -> list[Tensor]:
    return [t for t in _tensors(module) if t.is_floating_point()]


def select(layout: Layout, wanted: Callable[[Slot], bool]) -> np.ndarray:
    """Boolean mask (D,) of the coordinates whose slot is wanted."""
    mask = np.zeros(layout.size, dtype=bool)
    for slot in layout.slots:
        mask[slot.where] = wanted(slot)
    return mask


class FlatModel:
    """A model on a device whose parameters and float buffers are views of ``flat`` (D,).

    Integer buffers keep their initial values at every :meth:`load`. ``params`` lists the
    parameters that require gradients, with their slots, ``norms`` the BatchNorm modules that are
    not frozen. The model starts in training mode.

    Args:
        model: the model.
        device: where it is to be.
        dtype: of ``flat``.
        frozen: values of the tensors that :func:`freeze` took out; on the CPU the model shares
            their memory. None leaves them as they are.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        frozen: Mapping[str, Array] | None = None,
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
            for name, array in (frozen or {}).items():
                named[name].data = as_tensor(array).to(device).view(named[name].shape)
        self._frozen = {name: named[name] for name in sorted(frozen_names(model))}
        params = [(s, named[s.name]) for s in self.layout.slots if s.role == "param"]
        self.params = [(slot, p) for slot, p in params if p.requires_grad]
        self._still = self._frozen_norms()
        norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm)]
        self.norms = [m for m in norms if m not in self._still]
        floats = {slot.name for slot in self.layout.slots}
        still = {id(t) for m in self._still for t in _floats(m)}
        named_buffers = self.model.named_buffers()
        kept = [b for name, b in named_buffers if name not in floats and id(b) not in still]
        self._counters = [(buffer, buffer.clone()) for buffer in kept]
        self._modules = [m for m in self.model.modules() if m not in self._still]
        self._switch(train=True)

    def _frozen_norms(self) -> list[nn.Module]:
        """The modules that keep running statistics, where all of their tensors are frozen."""
        norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm | _InstanceNorm)]
        ids = {id(t) for t in self._frozen.values()}
        return [m for m in norms if _floats(m) and ids.issuperset(map(id, _floats(m)))]

    @property
    def frozen(self) -> dict[str, Array]:
        """By name the tensors that are not part of the vector; on the CPU they share memory."""
        return {name: t.detach().cpu().numpy() for name, t in self._frozen.items()}

    def load(self, vector: Tensor) -> None:
        """Copies ``vector`` (D,) into the model, resets integer buffers and drops gradients."""
        self.flat.copy_(vector)
        for _, parameter in self.params:
            parameter.grad = None
        for buffer, initial in self._counters:
            buffer.copy_(initial)

    def mode(self, train: bool) -> None:
        """Switches to training or evaluation mode; free if every module is in it already.

        Frozen BatchNorm and InstanceNorm stay in evaluation mode.
        """
        if any(module.training != train for module in self._modules):
            self._switch(train)

    def _switch(self, train: bool) -> None:
        self.model.train(train)
        for norm in self._still:
            norm.eval()

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
