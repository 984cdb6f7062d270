"""The steps of the clients' optimisers: SGD and AdamW."""

from collections.abc import Sequence

import torch
from torch import Tensor

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

    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """One step of all parameters, in place; contiguous tensors in the order of the slots."""
        for numbers, optimizer in self._parts:
            if numbers:
                optimizer.step([params[i] for i in numbers], [grads[i] for i in numbers])


class Sgd:
    """SGD with momentum and L2 penalty as in ``torch.optim.SGD``."""

    def __init__(self, training: Training, lr: float) -> None:
        self._training, self._lr = training, lr
        self._momentum: list[Tensor] = []

    def step(self, params: list[Tensor], grads: list[Tensor]) -> None:
        """One step in place; the tensors are contiguous."""
        self._momentum = sgd(params, grads, self._momentum, self._training, self._lr)


class AdamW:
    """AdamW with the defaults and the decoupled weight decay of ``torch.optim.AdamW``."""

    def __init__(self, training: Training, lr: float) -> None:
        self._weight_decay, self._lr = training.weight_decay, lr
        self._state: list[list[Tensor]] = []

    def step(self, params: list[Tensor], grads: list[Tensor]) -> None:
        """One step in place; the tensors are contiguous."""
        if not self._state:
            first, second = ([torch.zeros_like(p) for p in params] for _ in range(2))
            steps = [torch.zeros((), dtype=torch.float32, device=p.device) for p in params]
            self._state = [first, second, steps]
        first, second, steps = self._state
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            params,
            grads,
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
    return buffers
