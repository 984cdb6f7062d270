"""Federated averaging of any model in plain PyTorch: nothing is ever used twice.

A fresh module for each client and round, and for each batch of an evaluation, gets the global state
and trains by ``torch.optim.SGD`` on all of the client's samples at once. The global state is the
mean, by samples in float64, of the float tensors of the clients' state dicts; all others are those
that a fresh module has. Modules are built, and compute, in float64 unless they say another type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = Mapping[str, Tensor]
Samples = tuple[Tensor, Tensor]
"""(n, ...) float32 inputs and (n,) labels."""


@contextmanager
def in_float64() -> Iterator[None]:
    """Modules and tensors that are made inside are float64 where they do not say a type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Plain PyTorch's clients.

    Args:
        make: builds a module; in float32 its parameters are those of the start.
        clients: their training samples.
        epochs: of one step each.
    """

    make: Callable[[], nn.Module]
    clients: Sequence[Samples]
    epochs: int
    lr: float
    momentum: float
    weight_decay: float

    def start(self) -> dict[str, Tensor]:
        """The state before the first round."""
        return averaged(self.make())

    def fresh(self, state: State, train: bool) -> nn.Module:
        """A module with the state."""
        module = self.make()
        module.load_state_dict(state, strict=False)
        return module.train(train)

    def train(self, state: State, samples: Samples) -> dict[str, Tensor]:
        """What of a client's state after its training is averaged."""
        with in_float64():
            module, (x, y) = self.fresh(state, train=True), samples
            optimizer = torch.optim.SGD(
                module.parameters(), self.lr, self.momentum, weight_decay=self.weight_decay
            )
            for _ in range(self.epochs):
                optimizer.zero_grad()
                F.cross_entropy(module(x.double()), y).backward()
                for p in module.parameters():
                    if p.grad is not None and p.grad.is_sparse:  # SGD cannot decay the others
                        p.grad = p.grad.to_dense()
                optimizer.step()
            return averaged(module)

    def round(self, state: State) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
        """The state after a round, and those of the clients."""
        locals_ = [self.train(state, samples) for samples in self.clients]
        sizes = [len(y) for _, y in self.clients]
        pairs = [*zip(sizes, locals_, strict=True)]
        new = {
            name: sum(n / sum(sizes) * local[name].to(_wide(local[name])) for n, local in pairs)
            for name in locals_[0]
        }
        return new, locals_

    def evaluate(self, state: State, samples: Samples, batch_size: int) -> tuple[Tensor, Tensor]:
        """(n,) cross-entropies, and whether the prediction is right; a fresh module a batch."""
        losses, right = [], []
        with in_float64(), torch.no_grad():
            for x, y in zip(*(t.split(batch_size) for t in samples), strict=True):
                logits = self.fresh(state, train=False)(x.double())
                losses.append(F.cross_entropy(logits, y, reduction="none").double())
                right.append(logits.argmax(1) == y)
        return torch.cat(losses), torch.cat(right)


def averaged(module: nn.Module) -> dict[str, Tensor]:
    """Copies of what is averaged of a module's state: float tensors, and complex parameters."""
    parameters = dict(module.named_parameters())
    return {
        name: tensor.detach().clone()
        for name, tensor in module.state_dict().items()
        if isinstance(tensor, Tensor)
        and (tensor.is_floating_point() or (tensor.is_complex() and name in parameters))
    }


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64
