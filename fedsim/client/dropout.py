"""Dropout whose random numbers come from a counter, alone and in a block of clients.

Whether an element is kept is a function of (client's key, step, dropout call within the step,
element of the client's batch), see :mod:`fedsim.core.philox`: the same for a client alone and in a
block, on CPU and GPU, and in a CUDA graph, in which only the tensors ``keys`` and ``step`` change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.core.errors import ContractError
from fedsim.core.philox import WORDS, below


class Draws:
    """Where the dropout layers of a model are in their random numbers.

    Steps count from 0: a rule's ``begin`` is step 0, training steps 1 to T, ``finish`` T + 1.

    Args:
        device: of the model.
        layers: how many there are; without one, all methods do nothing.
        clients: the largest number of clients in a block; None: the model is one client's.

    ``keys`` (clients,) and ``step`` () are int64 and stay where they are; ``call`` is the number
    of dropout calls in this step so far.
    """

    def __init__(self, device: torch.device, layers: int, clients: int | None = None) -> None:
        self.layers, self.stacked = layers, clients is not None
        # a lone client of a block is computed twice
        self.keys = torch.zeros(max(clients or 1, 2), dtype=torch.long).to(device)
        self.step = torch.zeros((), dtype=torch.long, device=device)
        self.call = 0
        self._calls: dict[int, list[int]] = {}
        self._repeated: set[int] = set()

    def begin(self, seeds: Sequence[int], step: int = 0) -> None:
        """Goes to a step of clients with these 63-bit seeds."""
        if self.layers:
            self.keys[: len(seeds)].copy_(torch.tensor(seeds))
            self.step.fill_(step)
            self.first()

    def advance(self) -> None:
        """Ends a step."""
        if self.layers:
            self.step.add_(1)
            self.first()

    def first(self) -> None:
        """Goes to the first dropout call of the step."""
        self.call = 0
        self._calls.clear()
        self._repeated.clear()

    def kept(self, layer: int, shape: Sequence[int], p: float) -> Tensor:
        """Booleans of a shape, (A, ...) in a block, each true with probability 1 - p.

        Raises:
            ContractError: activation checkpointing repeats one of several calls of a layer.
        """
        rows = shape[0] if self.stacked else 1
        n, bound = math.prod(shape) // rows, round((1 - p) * WORDS)
        return below(self.keys[:rows], self.step, self._number(layer), n, bound).reshape(shape)

    def _number(self, layer: int) -> int:
        """The number of this call; within a backward pass, which repeats a call, that call's."""
        calls = self._calls.setdefault(layer, [])
        if torch._C._current_graph_task_id() >= 0:
            if len(calls) != 1:
                raise ContractError(
                    f"activation checkpointing repeats a dropout layer that a pass calls "
                    f"{len(calls)} times; give each of these places a layer of its own"
                )
            self._repeated.add(layer)
            return calls[0]
        if layer in self._repeated:  # a second forward pass
            self._repeated.discard(layer)
            calls.clear()
        calls.append(self.call)
        self.call += 1
        return calls[-1]

    def __deepcopy__(self, memo: object) -> Draws:
        """Itself: a copy of a model takes the next numbers."""
        return self


NO_DRAWS = Draws(torch.device("cpu"), 0)
"""Those of a model whose layers draw from the global generator, or not at all."""


class Counted(nn.modules.dropout._DropoutNd):
    """A dropout layer that :func:`count` made draw from ``draws``."""

    draws: Draws
    number: int

    def forward(self, input: Tensor) -> Tensor:
        """As the layer's own: kept elements are divided by 1 - p."""
        if not self.training or self.p == 0 or not input.numel():
            return input
        if input.is_meta:  # sizes alone: the trace of a step's memory
            return self._scaled(input, input.new_empty(self.drawn(input), dtype=torch.bool))
        transformed = torch._C._are_functorch_transforms_active()
        kept = _Kept.apply if transformed else _Kept.forward
        return self._scaled(input, kept(input, self))

    def forward_clients(self, x: Tensor) -> Tensor:
        """(A, W, ...) of all clients of a block."""
        if not self.training or self.p == 0:
            return x
        return self._scaled(x, self.kept_of_each(x))

    def _scaled(self, x: Tensor, kept: Tensor) -> Tensor:
        factors = kept.to(torch.promote_types(x.dtype, torch.float32))
        factors.mul_(0.0 if self.p == 1 else 1 / (1 - self.p))
        return x.mul_(factors) if self.inplace else (x * factors).to(x.dtype)

    def kept_of_each(self, x: Tensor) -> Tensor:
        """What is kept of (A, W, ...), a client or, in vmap, a sample each."""
        return self.draws.kept(self.number, (len(x), *self.drawn(x[0])), self.p)

    def drawn(self, x: Tensor) -> tuple[int, ...]:
        """The shape of what is drawn for an input, which it broadcasts with."""
        return tuple(x.shape)


class Dropout(Counted, nn.Dropout):
    """Drops elements."""


class _OfChannels(Counted):
    """Drops whole channels of (N, C, ...), or of one sample (C, ...) of ``alone`` dimensions."""

    alone = 0

    def drawn(self, x: Tensor) -> tuple[int, ...]:
        """(N, C, 1, ...), or (C, 1, ...)."""
        whole = 1 if x.ndim == self.alone else 2
        return (*x.shape[:whole], *[1] * (x.ndim - whole))


class Dropout1d(_OfChannels, nn.Dropout1d):
    """(N, C, L) or (C, L)."""

    alone = 2


class Dropout2d(_OfChannels, nn.Dropout2d):
    """(N, C, H, W) or, as torch has it, (N, C, L)."""


class Dropout3d(_OfChannels, nn.Dropout3d):
    """(N, C, D, H, W) or (C, D, H, W)."""

    alone = 4


COUNTED: Mapping[type[nn.Module], type[Counted]] = {
    nn.Dropout: Dropout,
    nn.Dropout1d: Dropout1d,
    nn.Dropout2d: Dropout2d,
    nn.Dropout3d: Dropout3d,
}
"""The layers that draw from a counter; subclasses of the user's own are left alone."""


class _Kept(torch.autograd.Function):
    """What a layer keeps; constant. In vmap each client of a block, or sample, has its own."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor, layer: Counted) -> Tensor:
        """Of one client's batch."""
        if layer.draws.stacked:
            raise RuntimeError("dropout of something that all clients of a block have in common")
        return layer.draws.kept(layer.number, layer.drawn(x), layer.p)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Nothing is differentiated."""
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        """No gradient for any input."""
        return None, None

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, layer: Counted) -> tuple[Tensor, int]:
        """Of all at once."""
        return layer.kept_of_each(x.movedim(dims[0], 0)), 0


def active(model: nn.Module) -> bool:
    """Whether a model has layers whose numbers come from the counter."""
    return any(type(m) in COUNTED and vars(m)["p"] > 0 for m in model.modules())


def count(model: nn.Module, device: torch.device, clients: int | None = None) -> Draws:
    """Makes a model's dropout layers draw from a counter that they share, in place.

    Args:
        model: for training, which has not been deployed to a FlatModel yet.
        device: where it is, or is to be.
        clients: of a block at most, see :class:`Draws`.
    """
    kinds = (*COUNTED, *COUNTED.values())
    layers: list[Any] = [m for m in model.modules() if type(m) in kinds]
    draws = Draws(device, len(layers), clients) if layers else NO_DRAWS
    for number, layer in enumerate(layers):
        layer.__class__ = COUNTED.get(type(layer), type(layer))
        layer.draws, layer.number = draws, number
    return draws
