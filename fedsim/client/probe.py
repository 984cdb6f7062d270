"""Tries a user's model before a run: whether its tensors are all that a forward pass remembers.

A worker trains and evaluates clients one after another with one model, into which it loads values
(:meth:`~fedsim.core.layout.FlatModel.load`). That is the same as a new model for each client only
where nothing else of a pass outlives the next load.
"""

import hashlib
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.client.criterion import MarginControl
from fedsim.client.optimizer import Optimizer, dense
from fedsim.core.errors import ContractError, described
from fedsim.core.layout import FlatModel, attributes, float_tensors, frozen_names
from fedsim.core.rng import torch_scope
from fedsim.core.types import Training

DEPTH = 5
"""How far objects within objects are looked into."""
PASSES = 3
"""Passes in a row: some models change in the second step of a client or later."""
LIBRARIES = frozenset(
    {"torch", "torchvision", "timm", "transformers", "fedsim", "numpy", "builtins", "logging",
     "threading", "weakref", "warnings", "functools", "abc", "enum", "typing", "re", "pathlib",
     "os", "io", "time", "tqdm"}
)  # fmt: skip
"""Packages whose own classes and modules keep nothing that decides an output."""


def fault(
    flat: FlatModel, fresh: FlatModel, criterion: MarginControl, training: Training, samples: Tensor
) -> str | None:
    """Why a model cannot be trained as its tensors say; None where it can.

    A training step and an evaluation pass are compared with passes of another such model that has
    seen other values and samples before. The model has its values again in the end.
    """
    here, some = flat.flat.detach().clone(), samples[:2]
    try:
        flat.load(here)
        memory, rest = kept(flat.model), _rest(flat)
        for train in (True, False):
            first = _passed(flat, here, some, train)
            if train:
                _step(flat, criterion, training, first[-2])
            if (why := _of_state(flat, rest)) is not None:
                return why
            flat.load(here)
            if (name := other(memory, kept(flat.model))) is not None:
                return (
                    f"forward keeps something in {name} that is no parameter or buffer, so that "
                    "clients would see each other's; use register_buffer"
                )
            _passed(fresh, 1.1 * here, samples[1:3], train)
            if not all(map(_near, first, _passed(fresh, here, some, train))):
                return (
                    f"two passes in {'training' if train else 'evaluation'} mode with the same "
                    "values, samples and seeds differ: forward remembers something that is no "
                    "parameter or buffer, or draws from a generator of its own"
                )
        if (name := _stale(flat, 1.1 * here, some)) is not None:
            return f"forward uses what {name} keeps of other values (functools.cache)"
    except ContractError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a model may raise anything
        return f"a training step or an evaluation pass fails: {described(error)}"
    finally:
        flat.load(here)
        flat.mode(train=True)
    return None


def _passed(flat: FlatModel, values: Tensor, x: Tensor, train: bool) -> list[Tensor]:
    """The logits of some passes in a row, and the vector (D,) after them."""
    flat.load(values)
    flat.mode(train)
    logits: list[Tensor] = []
    with torch_scope(0), torch.set_grad_enabled(train):
        for _ in range(PASSES):
            logits.append(flat.model(x.clone()))
            flat.settle()
    return [*logits, flat.flat.detach().clone()]


def _step(flat: FlatModel, criterion: MarginControl, training: Training, logits: Tensor) -> None:
    """A step of the optimiser after a pass in training mode."""
    criterion(logits, criterion.example(logits)).backward()
    flat.settle()
    params = [p for _, p in flat.params]
    with torch.no_grad():
        optimizer = Optimizer(training, [slot for slot, _ in flat.params], training.lr)
        optimizer.step(params, [dense(p.grad) for p in params])


def kept(model: nn.Module) -> dict[str, object]:
    """By name what a model remembers beside its tensors, as digests and values to compare."""
    return dict(_memory(model))


def other(before: Mapping[str, object], after: Mapping[str, object]) -> str | None:
    """The first name by which something else is found now."""
    names = (*before, *after)
    return next((name for name in names if before.get(name) != after.get(name)), None)


def _near(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding, as compiled code may differ from the code that compiles it."""
    a, b = a.detach(), b.detach()
    scale = float(a.nan_to_num().abs().amax()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=1e-5, atol=1e-6 * scale, equal_nan=True)


def _stale(flat: FlatModel, values: Tensor, x: Tensor) -> str | None:
    """The name of a cached function that gives for new values what it gave for others."""
    for title, owner in _owners(flat.model).items():
        for name, function in dict(vars(owner)).items():
            if hasattr(function, "cache_clear"):
                kept = _passed(flat, values, x, train=False)
                function.cache_clear()
                if not all(map(_near, kept, _passed(flat, values, x, train=False))):
                    return f"{title}.{name}"
    return None


def _rest(flat: FlatModel) -> dict[str, Tensor]:
    """By name copies of the tensors that training has to leave alone: frozen and complex ones."""
    slots = set(map(id, flat.tensors.values()))
    named = (*flat.model.named_parameters(), *flat.model.named_buffers())
    state = flat.model.state_dict().keys()
    return {
        name: t.detach().clone()
        for name, t in named
        if id(t) not in slots
        and (isinstance(t, nn.Parameter) or (t.is_complex() and name in state))
    }


def _of_state(flat: FlatModel, rest: dict[str, Tensor]) -> str | None:
    """What a training step has done to a model's tensors that it may not do."""
    now = float_tensors(flat.model)
    for name in {**flat.tensors, **now}.keys() - frozen_names(flat.model):
        if flat.tensors.get(name) is not now.get(name):
            return f"forward adds, removes or replaces the parameter or buffer {name}"
    for name, t in _rest(flat).items():
        if name not in rest or not torch.equal(t, rest[name]):
            return f"training changes the tensor {name}, which is {str(t.dtype)[6:]} or frozen"
    return None


def _memory(model: nn.Module) -> Iterator[tuple[str, object]]:
    """By name what a model can remember beside its tensors: a digest or the value itself.

    That are its modules' attributes, those of their classes, and the variables of the files that
    define these.
    """
    seen = {id(t) for t in (*model.parameters(), *model.buffers(), *model.modules())}
    for prefix, module in model.named_modules():
        for name, value in attributes(module).items():
            yield from _content(f"{prefix}.{name}".removeprefix("."), value, seen, DEPTH)
    for title, owner in _owners(model).items():
        for name, value in dict(vars(owner)).items():
            if not name.startswith("__"):
                yield from _content(f"{title}.{name}", value, seen, DEPTH)


def _owners(model: nn.Module) -> dict[str, Any]:
    """By name the classes of a model's modules, and the files that define them; not libraries'."""
    owners: dict[str, Any] = {}
    for kind in dict.fromkeys(k for module in model.modules() for k in type(module).__mro__):
        if kind.__module__.partition(".")[0] not in LIBRARIES:
            owners[kind.__qualname__] = kind
            if kind.__module__ in sys.modules:
                owners[kind.__module__] = sys.modules[kind.__module__]
    return owners


def _content(name: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, object]]:
    if value is None or isinstance(value, int | float | complex | str | bytes):
        yield name, repr(value)
        return
    if id(value) in seen or not depth or isinstance(value, type):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        if value.layout == torch.strided and not value.is_meta:
            flat = value.detach().cpu().resolve_conj().flatten()
            flat = torch.view_as_real(flat) if flat.is_complex() else flat
            digest = _digest(flat.contiguous().view(torch.uint8).numpy())
            yield name, (str(value.dtype), tuple(value.shape), digest)
    elif isinstance(value, np.ndarray):
        if not value.dtype.hasobject:
            yield name, (value.dtype.str, value.shape, _digest(np.ascontiguousarray(value)))
    elif isinstance(value, torch.Generator):
        yield name, _digest(value.get_state().numpy())
    elif isinstance(value, np.random.Generator):
        yield name, repr(value.bit_generator.state)
    elif isinstance(value, random.Random):
        yield name, hash(value.getstate())
    elif isinstance(value, set | frozenset):
        yield name, sorted(map(repr, value))
    elif isinstance(value, dict):
        yield f"{name} (its length)", len(value)
        for key, item in list(value.items()):
            yield from _content(f"{name}[{key!r}]", item, seen, depth - 1)
    elif type(value).__name__ == "deque" or isinstance(value, list | tuple):
        yield f"{name} (its length)", len(value)
        for i, item in enumerate(value):
            yield from _content(f"{name}[{i}]", item, seen, depth - 1)
    elif type(value).__module__ == "itertools":
        yield name, repr(value)
    elif isinstance(value, nn.Module) or (
        type(value).__module__.partition(".")[0] not in LIBRARIES and hasattr(value, "__dict__")
    ):
        for key, item in list(vars(value).items()):
            yield from _content(f"{name}.{key}", item, seen, depth - 1)


def _digest(array: np.ndarray) -> str:
    return hashlib.blake2b(array.data, digest_size=16).hexdigest()
