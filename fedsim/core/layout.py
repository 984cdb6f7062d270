"""A model as one flat vector: parameters and float buffers are views of a single tensor, which is
loaded by one copy, and read for free.
"""

import copy
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import pairwise
from operator import is_
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.module import _IncompatibleKeys

from fedsim.core.errors import ContractError
from fedsim.core.types import Array, Layout, Slot, Vector

Table = MutableMapping[str, Any]
Place = tuple[Table, str]
"""Where a module holds something: its ``_parameters``, ``_buffers`` or attributes, and the key."""


def layout_of(model: nn.Module) -> Layout:
    """The slots of a model that are not frozen: parameters, tied ones once, then float buffers."""
    frozen = frozen_names(model)
    norms = {id(t) for m in model.modules() if isinstance(m, _BatchNorm) for t in _tensors(m)}
    module = getattr(model, "head", None)
    head = {id(t) for m in module.modules() for t in _tensors(m)} if module is not None else set()
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
    persistent, params = model.state_dict().keys(), dict(model.named_parameters())
    seen = set(map(id, params.values()))
    buffers = {n: b for n, b in model.named_buffers() if b.is_floating_point() and n in persistent}
    return {**params, **{n: b for n, b in buffers.items() if id(b) not in seen}}


def freeze(model: nn.Module, tensors: Collection[Tensor]) -> None:
    """Takes tensors, and norms of which nothing is left, out of training and of the vector."""
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


class Pristine:
    """What the modules of a model hold beside the model's values, to be put back as it was.

    That are the tensor objects under each name, all attributes, and the values of buffers, and of
    tensors, arrays and containers that are plain attributes, which a forward pass may change; not
    the values of the tensors ``values``. A model has no lazy tensors.
    """

    def __init__(self, model: nn.Module, values: Collection[Tensor] = ()) -> None:
        modules = list(model.modules())
        registered = [t for m in modules for t in (m._parameters, m._buffers, m._modules)]
        pairs: list[tuple[Table, Table]] = [(cast(Table, t), {**t}) for t in registered]
        self._tables = [*pairs, *((vars(m), attributes(m)) for m in modules)]
        self._sizes = [len(table) for table, _ in self._tables]
        keys = [(t, key, v) for t, before in self._tables for key, v in before.items()]
        self._lookups = tuple(zip(*keys, strict=True)) or ((), (), ())
        skipped = set(map(id, values))
        held: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
        for m in modules:
            for value in attributes(m).values():
                inside = value.values() if isinstance(value, dict) else value
                for v in (value, *(inside if type(value) in _CONTAINERS else ())):
                    if isinstance(v, Tensor | np.ndarray) or type(v) in _CONTAINERS:
                        held[id(v)] = v
        held = {key: value for key, value in held.items() if key not in skipped}
        every = held.values()
        self._tensors = [(v, v.detach().clone()) for v in every if isinstance(v, Tensor)]
        self._arrays = [(v, v.copy()) for v in every if isinstance(v, np.ndarray)]
        self._containers = [(v, copy.copy(v)) for v in every if type(v) in _CONTAINERS]

    def restore(self) -> None:
        """Puts everything back."""
        tables, keys, held = self._lookups
        same = all(map(is_, map(dict.get, tables, keys), held))
        if not same or [len(table) for table, _ in self._tables] != self._sizes:
            for table, before in self._tables:
                for key in table.keys() - before.keys() - _INTERNAL:
                    del table[key]
                table.update(before)
        for tensor, initial in self._tensors:
            if tensor.shape == initial.shape:
                tensor.data.copy_(initial)
            else:
                tensor.data = initial.clone()
        for array, content in self._arrays:
            array[...] = content
        for value, initial in self._containers:
            if not _same(value, initial):
                value.clear()
                (value.update if isinstance(value, dict | set) else value.extend)(initial)


_CONTAINERS = (list, dict, set, deque)
_HALVES = (torch.bfloat16, torch.float16)
"""What else may come into the place of a float buffer: under autocast."""
_INTERNAL = frozenset(vars(nn.Module()))
"""Attributes that torch makes, the mode among them."""


def attributes(module: nn.Module) -> dict[str, Any]:
    """A module's attributes but the tensors and modules that it registered, and torch's own."""
    return {name: value for name, value in vars(module).items() if name not in _INTERNAL}


def _same(a: Any, b: Any) -> bool:
    """Whether two containers hold the same objects."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(
            x is y for x, y in zip(a.values(), b.values(), strict=True)
        )
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


class FlatModel:
    """A model on a device whose parameters and float buffers are views of ``flat`` (D,).

    Other buffers and all attributes are those of a new model again at every :meth:`load`.
    ``tensors`` are those of the slots by name, ``params`` lists the parameters that require
    gradients, with their slots, ``norms`` the BatchNorm modules that train with the model.
    ``frozen`` are values of the tensors that :func:`freeze` took out; on the CPU the model shares
    their memory.
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
        views = [self.flat[slot.where].view(slot.shape) for slot in self.layout.slots]
        tensors = [named[slot.name] for slot in self.layout.slots]
        with torch.no_grad():
            for tensor, view in zip(tensors, views, strict=True):
                view.copy_(tensor)
                tensor.data = view
            for name, array in (frozen or {}).items():
                named[name].data = as_tensor(array).to(device).view(named[name].shape)
        pairs = zip(tensors, views, strict=True)
        self._views = [(tensor, view, view.data_ptr()) for tensor, view in pairs]
        self._frozen = {name: named[name] for name in sorted(frozen_names(model))}
        params = [(s, named[s.name]) for s in self.layout.slots if s.role == "param"]
        self.params = [(slot, p) for slot, p in params if p.requires_grad]
        self._still = self._frozen_norms()
        still = [t for m in self._still for t in _floats(m)]
        everything = [p for _, p in self.model.named_parameters()]
        self._pristine = Pristine(self.model, [*everything, *tensors, *still])
        self.tensors = dict(zip((s.name for s in self.layout.slots), tensors, strict=True))
        self._on_load = [
            partial(hook, m, _IncompatibleKeys([], []))
            for m in self.model.modules()
            for hook in m._load_state_dict_post_hooks.values()
        ]
        self._places = places(self.model, tensors)
        self._held = [
            (table.get, key, tensor, tensor.data_ptr, view.data_ptr())
            for tensor, view, holders in zip(tensors, views, self._places, strict=True)
            for table, key in holders
        ]
        self._modules = [m for m in self.model.modules() if m not in self._still]
        self._told = any(_listens(m) for m in self._modules)
        self._changed = True
        self.mode(train=True)
        norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm)]
        self.norms = [m for m in norms if m.training]

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
        """Copies ``vector`` (D,) into the model, resets all else and drops gradients."""
        self._pristine.restore()
        for tensor, view, pointer in self._views:
            if tensor.data_ptr() != pointer:
                tensor.data = view
        self.flat.copy_(vector)
        increment_version(tensor for tensor, _, _ in self._views)
        self.changing()
        for _, parameter in self.params:
            parameter.grad = None
        for hook in self._on_load:
            hook()

    def changing(self) -> None:
        """Says that the model's values change, so that :meth:`mode` tells the modules."""
        self._changed = self._told

    def settle(self) -> None:
        """Takes in what a forward pass put in the place of tensors, or raises a ContractError."""
        for get, key, tensor, data_ptr, pointer in self._held:
            if get(key) is not tensor or data_ptr() != pointer:
                self._take()
                return

    def _take(self) -> None:
        each = zip(self.layout.slots, self._views, self._places, strict=True)
        for slot, (tensor, view, pointer), holders in each:
            table, key = holders[0]
            now = table.get(key)
            if any(t.get(k) is not now for t, k in holders):
                raise ContractError(f"forward unties the tensor {slot.name} from its other names")
            if now is not tensor and slot.role == "param":
                raise ContractError(f"forward replaces the parameter {slot.name} by another object")
            if now is None or now.shape != view.shape or now.dtype not in (view.dtype, *_HALVES):
                other = "nothing" if now is None else f"{tuple(now.shape)} {str(now.dtype)[6:]}"
                raise ContractError(
                    f"forward replaces the tensor {slot.name}, {slot.shape} float32, by {other}"
                )
            if now is not tensor or tensor.data_ptr() != pointer:
                view.copy_(now.detach().clone())
                tensor.data = view
                for t, k in holders:
                    t[k] = tensor

    def mode(self, train: bool) -> None:
        """Switches training on or off, off for frozen norms; free where it is so already."""
        if self._changed or any(module.training != train for module in self._modules):
            self._changed = False
            self.model.train() if train else self.model.eval()
            for norm in self._still:
                norm.eval()

    def vector(self) -> Vector:
        """A copy (D,) of the current values on the CPU."""
        return self.flat.detach().cpu().numpy().copy()


def _listens(module: nn.Module) -> bool:
    """Whether a module has a ``train`` or ``eval`` of its own."""
    usual = type(module).train is nn.Module.train and type(module).eval is nn.Module.eval
    return not usual or not vars(module).keys().isdisjoint(("train", "eval"))


def places(model: nn.Module, tensors: Sequence[Tensor]) -> list[list[Place]]:
    """Where each parameter or buffer of a model is held: in several modules where they share it."""
    held: dict[int, list[Place]] = {id(t): [] for t in tensors}
    for m in model.modules():
        for table in (m._parameters, m._buffers):
            for key, value in table.items():
                if id(value) in held:
                    held[id(value)].append((table, key))
    return [held[id(t)] for t in tensors]


def values(model: nn.Module) -> dict[str, Tensor]:
    """By name copies of all parameters and buffers."""
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: t.detach().clone() for name, t in named}


def changed(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> list[str]:
    """The names of the tensors that are not the same in both."""
    names = dict.fromkeys((*before, *now))
    both = [name for name in names if name in before and name in now]
    same = {name for name in both if _equal(before[name], now[name])}
    return [name for name in names if name not in same]


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether dtype, shape and every value agree, NaN being NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def unsuitable(model: nn.Module, before: Collection[Any]) -> str | None:
    """What of a model's tensors fits no vector of float32; ``before``: attributes at first."""
    if set(map(id, model.parameters())) != {id(p) for _, p in model.named_parameters()}:
        return "parameters() gives others than named_parameters()"
    for name, t in float_tensors(model).items():
        if t.dtype != torch.float32:
            kind = "parameter" if isinstance(t, nn.Parameter) else "buffer"
            return f"the {kind} {name} is {str(t.dtype)[6:]}, and models train in float32"
    named: dict[int, tuple[str, Tensor]] = {}
    made = set(map(id, before))
    for prefix, m in model.named_modules():
        for name, t in (*m._parameters.items(), *m._buffers.items(), *attributes(m).items()):
            if isinstance(t, Tensor) and (id(t) in made or name not in attributes(m)):
                named.setdefault(id(t), (f"{prefix}.{name}".removeprefix("."), t))
    state = {id(t) for t in float_tensors(model).values()}
    spans = sorted(
        (t.untyped_storage().data_ptr(), *_span(t), id(t) in state, name)
        for name, t in named.values()
        if t.layout == torch.strided and t.numel()
    )
    for (storage, _, stop, one, name), (other, start, _, two, second) in pairwise(spans):
        if storage == other and start < stop and (one or two):
            return f"{name} and {second} share memory without being one tensor"
    return None


def _span(t: Tensor) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the one after the last."""
    extent = 1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    first = int(t.storage_offset())
    return first * t.itemsize, (first + int(extent)) * t.itemsize


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
