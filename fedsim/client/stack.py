"""Which clients can be stacked, and a model whose layers work on a block of clients at once."""

import copy
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fedsim.client.batched import Padding, prepare, without_vmap
from fedsim.client.criterion import MarginControl
from fedsim.client.trainer import UNDECLARED, LocalRule
from fedsim.core.errors import described
from fedsim.core.layout import frozen_names, layout_of
from fedsim.core.rng import TorchStreams, seed_torch, torch_scope


def obstacle(
    model: nn.Module, rule: LocalRule, criterion: MarginControl, samples: Tensor | None = None
) -> str | None:
    """Why clients cannot be trained as a block; None where they can.

    Args:
        model: to be trained; unchanged.
        rule: the client part of the method.
        criterion: the classification loss.
        samples: (n >= 3, ...) model inputs. Where they are given, a model with layers of its own
            is run on them, for two clients at once and for each alone.
    """
    if isinstance(rule.stackable, str) and rule.stackable != UNDECLARED:
        return rule.stackable
    if rule.stackable is not True:
        return f"{type(rule).__name__}: {rule.stackable}"
    if type(rule).phases is not LocalRule.phases:
        return f"{type(rule).__name__}: local training has phases of its own"
    if type(criterion) is not MarginControl:
        return f"the loss {type(criterion).__name__} does not say how padding is left out"
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            return (
                f"the model's {type(module).__name__} ({name}) takes one client's weights at a time"
            )
        if getattr(module, "track_running_stats", False) and module.momentum is None:
            return f"the model's {type(module).__name__} ({name}) has no momentum"
    if any(slot.role == "stat" and not slot.batchnorm for slot in layout_of(model).slots):
        return "the model has float buffers that do not belong to a BatchNorm"
    if frozen_names(model) or not all(p.requires_grad for p in model.parameters()):
        return "the model has parameters that are not trained"
    return None if samples is None or without_vmap(model) else _vmap_fault(model, samples)


class Stack:
    """A copy of a model whose layers work on a whole block; made once per worker.

    Args:
        model: one without an :func:`obstacle`.
        rule: the client part of the method.
        draws: whether preprocessing for training draws random numbers.
    """

    def __init__(self, model: nn.Module, rule: LocalRule, draws: bool = True) -> None:
        self.model = copy.deepcopy(model).train()
        self.slots = layout_of(self.model).slots
        self.draws = draws
        self.vmapped = type(rule).loss is not LocalRule.loss or not without_vmap(self.model)
        self.padding: Padding
        prepare(self.model, lambda: self.padding, self.vmapped)
        self.norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm)]
        self._places = list(_places(self.model, [slot.name for slot in self.slots]))

    def views(self, matrix: Tensor) -> list[Tensor]:
        """The tensors (A, *shape) of the slots, as views of the columns of (A, P) or (A, D)."""
        slots = [s for s in self.slots if s.stop <= matrix.shape[1]]
        parts = matrix.split([s.stop - s.start for s in slots], dim=1)
        return [p.view(len(p), *s.shape) for p, s in zip(parts, slots, strict=True)]

    def load(self, values: Sequence[Tensor]) -> None:
        """Sets the model's parameters and buffers to the values, one for each slot."""
        for places, value in zip(self._places, values, strict=True):
            for table, key in places:
                table[key] = value


def _vmap_fault(model: nn.Module, samples: Tensor) -> str | None:
    """How two clients at once, one of them padded, differ from each alone; None: they do not."""
    stack, n = Stack(model, LocalRule()), len(samples)
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    values = [torch.stack([v, 1.1 * v]) for v in (named[s.name].detach() for s in stack.slots)]
    weights = torch.ones(2, n, dtype=values[0].dtype) / torch.tensor([[n - 1], [n]])
    weights[0, -1] = 0
    streams, alone = TorchStreams(lambda client: client), torch.zeros(2, dtype=torch.bool)
    stack.padding = Padding(weights, alone, [n - 1, n], streams)

    def forward(values: Sequence[Tensor], weights: Tensor, alone: Tensor) -> Tensor:
        stack.load(values)
        stack.padding = replace(stack.padding, weights=weights, alone=alone)
        logits: Tensor = stack.model(samples)
        return logits

    with torch_scope(0), torch.no_grad():
        try:
            logits = torch.vmap(forward)([v.clone() for v in values], weights, alone)
        except (RuntimeError, ValueError, TypeError) as error:
            return f"the model does not run within torch.vmap: {described(error)}"
        for client, count in enumerate((n - 1, n)):
            seed_torch(client)
            own = {s.name: v[client].clone() for s, v in zip(stack.slots, values, strict=True)}
            wanted = functional_call(copy.deepcopy(model).train(), own, (samples[:count],))
            if not torch.allclose(logits[client, :count], wanted, rtol=1e-3, atol=1e-4):
                return "the model's output for a sample depends on the other samples of a batch"
    return None


def _places(
    model: nn.Module, names: Sequence[str]
) -> Iterator[list[tuple[MutableMapping[str, Any], str]]]:
    """The dictionaries that hold each parameter or buffer; several where modules share it."""
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    tables = [table for m in model.modules() for table in (m._parameters, m._buffers)]
    for name in names:
        yield [(t, key) for t in tables for key, value in t.items() if value is named[name]]
