"""The steps of the clients' optimisers: SGD and AdamW."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from fedsim.core.types import Slot, Training

BETAS, EPS = (0.9, 0.999), 1e-8
"""AdamW's decay rates and the constant in its denominator (Loshchilov and Hutter, ICLR 2019)."""


class Optimizer:
    """The optimiser of one phase of local training; its state starts empty.

    Args:
        training: says which one, and its settings.
        slots: of the parameters that the phase trains.
        lr: learning rate of the phase.
    """

    def __init__(self, training: Training, slots: Sequence[Slot], lr: float) -> None:
        kind = AdamW if training.optimizer == "adamw" else Sgd
        of_head = lr if training.lr_head is None else lr / training.lr * training.lr_head
        everything = range(len(slots))
        parts = {
            lr: [i for i in everything if not slots[i].head],
            of_head: [i for i in everything if slots[i].head],
        }
        if of_head == lr:
            parts = {lr: list(everything)}
        self._parts = [(numbers, kind(training, rate)) for rate, numbers in parts.items()]

    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        """One step in place of the parameters that have a gradient, as in ``torch.optim``.

        Args:
            params: contiguous tensors in the order of the slots.
            grads: theirs; None where the loss did not reach one.
        """
        for numbers, optimizer in self._parts:
            used = {i: g for i in numbers if (g := grads[i]) is not None}
            if used:
                optimizer.step([params[i] for i in used], used)


def dense(grad: Tensor | None) -> Tensor | None:
    """A gradient as the steps take it, also of an embedding with ``sparse=True``."""
    return grad.to_dense() if grad is not None and grad.is_sparse else grad


class Sgd:
    """SGD with momentum and L2 penalty as in ``torch.optim.SGD``."""

    def __init__(self, training: Training, lr: float) -> None:
        self._training, self._lr = training, lr
        self._momentum: dict[int, Tensor] = {}

    def step(self, params: list[Tensor], grads: dict[int, Tensor]) -> None:
        """One step in place; the tensors are contiguous, gradients by the parameter's number."""
        each = dict(zip(grads, params, strict=True))
        fresh = [i for i in grads if i not in self._momentum]  # their gradients become the buffers
        for some in (fresh, [i for i in grads if i in self._momentum]):
            if some:
                chosen, own = [each[i] for i in some], [grads[i] for i in some]
                momentum = [self._momentum[i] for i in some if i in self._momentum]
                momentum = sgd(chosen, own, momentum, self._training, self._lr)
                self._momentum.update(zip(some, momentum, strict=False))


class AdamW:
    """AdamW with the defaults and the decoupled weight decay of ``torch.optim.AdamW``."""

    def __init__(self, training: Training, lr: float) -> None:
        self._weight_decay, self._lr = training.weight_decay, lr
        self._state: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def step(self, params: list[Tensor], grads: dict[int, Tensor]) -> None:
        """One step in place; the tensors are contiguous, gradients by the parameter's number."""
        for i, p in zip(grads, params, strict=True):
            if i not in self._state:
                count = torch.zeros((), dtype=torch.float32, device=p.device)
                self._state[i] = torch.zeros_like(p), torch.zeros_like(p), count
        first, second, steps = map(list, zip(*(self._state[i] for i in grads), strict=True))
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            params,
            list(grads.values()),
            first,
            second,
            [],
            steps,
            lr=self._lr,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=self._weight_decay,
            eps=EPS,
            amsgrad=False,
            maximize=False,
        )
        increment_version(params)


def sgd(
    params: list[Tensor], grads: list[Tensor], momentum: list[Tensor], training: Training, lr: float
) -> list[Tensor]:
    """One step of SGD in one pass over the memory; returns the momentum buffers, [] without.

    The first step's gradients become the buffers, so that no memory is taken for them. All tensors
    have to be contiguous: for others the kernel is silently wrong.
    """
    buffers = (momentum or grads) if training.momentum else []
    torch._fused_sgd_(
        params,
        grads,
        buffers,
        weight_decay=training.weight_decay,
        momentum=training.momentum,
        lr=lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=buffers is grads,
    )
    increment_version(params)  # which the kernel leaves out
    return buffers
