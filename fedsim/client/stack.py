"""Which clients can be stacked, and a model whose layers work on a block of clients at once."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsim.client import dropout
from fedsim.client.batched import Padding, prepare, without_vmap
from fedsim.client.criterion import MarginControl, TaskLoss
from fedsim.client.rule import UNDECLARED, LocalRule
from fedsim.core.errors import described
from fedsim.core.layout import FlatModel, Pristine, changed, frozen_names, layout_of, places, values
from fedsim.core.rng import draws, seed_torch, torch_scope


def obstacle(
    model: nn.Module, rule: LocalRule, criterion: MarginControl, samples: Tensor | None = None
) -> str | None:
    """Why clients cannot be trained as a block; None where they can.

    With ``samples`` (n >= 3, ...), model inputs, a model with layers of its own is run on them, for
    two clients at once and for each alone.
    """
    if isinstance(rule.stackable, str) and rule.stackable != UNDECLARED:
        return rule.stackable
    if rule.stackable is not True:
        return f"{type(rule).__name__}: {rule.stackable}"
    if type(rule).phases is not LocalRule.phases:
        return f"{type(rule).__name__}: local training has phases of its own"
    if type(criterion) not in (MarginControl, TaskLoss):
        return f"the loss {type(criterion).__name__} does not say how padding is left out"
    if criterion.couples is not None:
        return criterion.couples
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            return (
                f"the model's {type(module).__name__} ({name}) takes one client's weights at a time"
            )
        if getattr(module, "track_running_stats", False) and module.momentum is None:
            return f"the model's {type(module).__name__} ({name}) has no momentum"
    if any(slot.role == "stat" and not slot.batchnorm for slot in layout_of(model).slots):
        return "the model has float buffers that do not belong to a BatchNorm"
    for name, p in model.named_parameters():
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            return f"the model's parameter {name} has a hook of its own"
    if frozen_names(model) or not all(p.requires_grad for p in model.parameters()):
        return "the model has parameters that are not trained"
    return None if samples is None or without_vmap(model) else _vmap_fault(model, samples)


class Stack:
    """A copy of a model without an :func:`obstacle`, whose layers work on a whole block of at most
    so many clients; made once per worker.

    ``augments``: preprocessing for training draws random numbers; ``draws`` is where the dropout
    layers are in theirs.
    """

    def __init__(
        self, model: nn.Module, rule: LocalRule, clients: int, augments: bool = True
    ) -> None:
        self.model = copy.deepcopy(model).train()
        self.slots = layout_of(self.model).slots
        self.augments = augments
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        self.draws = dropout.count(self.model, device, clients)
        self.vmapped = type(rule).loss is not LocalRule.loss or not without_vmap(self.model)
        self.padding: Padding
        prepare(self.model, lambda: self.padding, self.vmapped)
        norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm)]
        self.norms = [m for m in norms if m.training]
        named = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        tensors = [named[slot.name] for slot in self.slots]
        self._places = places(self.model, tensors)
        self._pristine = Pristine(self.model, tensors)

    def reset(self) -> None:
        """Makes all but parameters and running statistics that of a new model, for a new block."""
        self._pristine.restore()

    def views(self, matrix: Tensor) -> list[Tensor]:
        """The tensors (A, *shape) of the slots, as views of the columns of (A, P) or (A, D)."""
        slots = [s for s in self.slots if s.stop <= matrix.shape[1]]
        parts = matrix.split([s.stop - s.start for s in slots], dim=1)
        return [p.view(len(p), *s.shape) for p, s in zip(parts, slots, strict=True)]

    def load(self, tensors: Sequence[Tensor]) -> None:
        """Puts in the places of the model's parameters and buffers a tensor for each slot."""
        for holders, value in zip(self._places, tensors, strict=True):
            for table, key in holders:
                table[key] = value


def _vmap_fault(model: nn.Module, samples: Tensor) -> str | None:
    """How two clients at once, one of them padded, differ from each alone; None: they do not."""
    try:
        copied, device = copy.deepcopy(model), torch.device("cpu")
        own_draws = dropout.count(copied, device)
        flat = FlatModel(copied, device)
        stack = Stack(model, LocalRule(), clients=2)
    except Exception as error:  # noqa: BLE001 - of a lock, or of torch.nn.utils.weight_norm
        return f"the model cannot be copied: {described(error)}"
    n = len(samples)
    others = _others(flat)
    with torch_scope(0):
        flat.model(samples.clone()).sum().backward()
        flat.settle()
    if idle := [slot.name for slot, p in flat.params if p.grad is None]:
        return f"the loss does not reach the parameter {idle[0]}"
    if counted := changed(others, _others(flat)):
        return f"training changes the model's buffer {counted[0]}, which is not averaged"
    flat.load(flat.flat.clone())
    rows = torch.stack([flat.flat, 1.1 * flat.flat])
    counts = torch.tensor([[n - 1], [n]])
    real = torch.arange(n) < counts
    alone, weights = torch.zeros(2, dtype=torch.bool), real.to(rows) / counts
    stack.padding = Padding(weights, alone)
    stack.draws.begin(range(2))

    def forward(tensors: Sequence[Tensor], weights: Tensor, alone: Tensor) -> Tensor:
        stack.load(tensors)
        stack.padding = replace(stack.padding, weights=weights, alone=alone)
        logits: Tensor = stack.model(samples.clone())
        return logits

    P = flat.layout.num_params
    stats = [v.clone() for v in stack.views(rows)[len(flat.params) :]]
    logits: list[Tensor] = []
    gradients: list[Tensor] = []
    with torch_scope(0):
        draws_before = draws()
        try:
            for step in range(2):  # the second with other parameters
                leaf = (rows[:, :P] * 1.05**step).requires_grad_()
                logits.append(torch.vmap(forward)([*stack.views(leaf), *stats], weights, alone))
                gradients += torch.autograd.grad(logits[-1][real].sum(), leaf)
                stack.draws.advance()
        except (RuntimeError, ValueError, TypeError) as error:
            return f"the model does not run within torch.vmap: {described(error)}"
        if draws() != draws_before:
            return "the model draws from Python's or NumPy's generator, one number for all clients"
        return _unlike_alone(flat, own_draws, rows, samples, logits, gradients, stats)


def _unlike_alone(
    flat: FlatModel,
    alone_draws: dropout.Draws,
    rows: Tensor,
    samples: Tensor,
    logits: Sequence[Tensor],
    gradients: Sequence[Tensor],
    stats: Sequence[Tensor],
) -> str | None:
    """How two steps within vmap, one of a padded batch, differ from those of each client alone."""
    n = len(samples)
    for client, count in enumerate((n - 1, n)):
        seed_torch(client)
        alone_draws.begin([client])
        flat.load(rows[client])
        for step in range(2):
            wanted = flat.model(samples[:count].clone())
            if not _near(logits[step][client, :count], wanted):
                return "the model's output for a sample depends on the other samples of a batch"
            wanted.sum().backward()
            flat.settle()
            for slot, p in flat.params:
                got = gradients[step][client, slot.where].view(slot.shape)
                if p.grad is None or not _near(got, p.grad):
                    return f"the gradient of {slot.name} is another one within torch.vmap"
                p.grad = None
            alone_draws.advance()
            with torch.no_grad():
                for _, p in flat.params:
                    p.mul_(1.05)
        for slot, statistic in zip(flat.layout.slots[len(flat.params) :], stats, strict=True):
            if not _near(statistic[client], flat.flat[slot.where].view(slot.shape)):
                return f"training changes the model's tensor {slot.name} by a rule of its own"
    return None


def _near(a: Tensor, b: Tensor) -> bool:
    largest = float(b.detach().abs().amax()) if b.numel() else 0.0
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * max(1.0, largest))


def _others(flat: FlatModel) -> dict[str, Tensor]:
    """By name the buffers that are no part of the vector; those of BatchNorm count only."""
    slots = {slot.name for slot in flat.layout.slots}
    return {
        name: t
        for name, t in values(flat.model).items()
        if name not in slots and not name.endswith("num_batches_tracked")
    }
