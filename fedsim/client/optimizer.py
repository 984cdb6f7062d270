"""The steps of the clients' optimisers: SGD and AdamW."""

from collections.abc import Mapping, Sequence
from typing import Any

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
        fixed: those parameters, where the optimiser serves one phase after the other, see
            :meth:`restart`, with state and rates in tensors that stay where they are.
    """

    def __init__(
        self, training: Training, slots: Sequence[Slot], lr: float, fixed: Sequence[Tensor] = ()
    ) -> None:
        kind = AdamW if training.optimizer == "adamw" else Sgd
        self._parts = [
            (numbers, kind(training, rate, {i: fixed[i] for i in numbers} if fixed else {}))
            for numbers, rate in groups(training, slots, lr)
        ]

    def restart(self, rates: Sequence[float]) -> None:
        """Makes it a new one with other learning rates of its groups; for fixed ones."""
        self.begun = frozenset()
        for rate, (_, optimizer) in zip(rates, self._parts, strict=True):
            if optimizer.fixed:
                optimizer.lr.fill_(rate)
        for v in self.tensors:
            v.zero_()

    @property
    def tensors(self) -> list[Tensor]:
        """What steps change, for fixed ones."""
        return [v for _, optimizer in self._parts for v in optimizer.tensors]

    @property
    def begun(self) -> frozenset[int]:
        """The parameters that have had a step with momentum: their next one is another kernel."""
        return frozenset(i for _, optimizer in self._parts for i in optimizer.begun)

    @begun.setter
    def begun(self, numbers: frozenset[int]) -> None:
        for some, optimizer in self._parts:
            optimizer.begun = numbers.intersection(some)

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


def groups(training: Training, slots: Sequence[Slot], lr: float) -> list[tuple[list[int], float]]:
    """The slots' numbers with their learning rate: all in one group, or the head's apart.

    Args:
        training: has the head's rate, which follows the schedule of the others'.
        slots: of the parameters that are trained.
        lr: learning rate of the phase.
    """
    everything = list(range(len(slots)))
    of_head = lr if training.lr_head is None else lr / training.lr * training.lr_head
    if of_head == lr:
        return [(everything, lr)]
    body = [i for i in everything if not slots[i].head]
    return [(body, lr), ([i for i in everything if slots[i].head], of_head)]


def rate(lr: float, like: Tensor, fixed: bool = False) -> float | Tensor:
    """A learning rate as the fused steps take it: on a GPU a float32 tensor.

    A ``fixed`` one is a tensor on the CPU too, whose float64 gives the bits of the number.
    """
    if like.is_cuda:
        return torch.full((), lr, dtype=torch.float32, device=like.device)
    return torch.tensor(lr, dtype=torch.float64) if fixed else lr


def dense(grad: Tensor | None) -> Tensor | None:
    """A gradient as the steps take it, also of an embedding with ``sparse=True``."""
    return grad.to_dense() if grad is not None and grad.is_sparse else grad


class _Steps:
    """The steps of parameters with one learning rate.

    Args:
        training: the settings.
        lr: learning rate.
        fixed: the parameters by number, where ``tensors`` and ``lr`` are to stay where they are.
    """

    def __init__(self, training: Training, lr: float, fixed: Mapping[int, Tensor]) -> None:
        self.training, self.fixed = training, fixed
        self.lr: Any = rate(lr, next(iter(fixed.values())), fixed=True) if fixed else lr
        self.tensors: list[Tensor] = []
        self.begun: frozenset[int] = frozenset()

    def rate(self, params: list[Tensor]) -> float | Tensor:
        """The learning rate, from the first step on where the parameters are."""
        if not isinstance(self.lr, Tensor):
            self.lr = rate(self.lr, params[0])
        return self.lr


class Sgd(_Steps):
    """SGD with momentum and L2 penalty as in ``torch.optim.SGD``."""

    def __init__(self, training: Training, lr: float, fixed: Mapping[int, Tensor]) -> None:
        super().__init__(training, lr, fixed)
        buffers = fixed if training.momentum else {}
        self._momentum = {i: torch.zeros_like(p) for i, p in buffers.items()}
        self.tensors = list(self._momentum.values())

    def step(self, params: list[Tensor], grads: dict[int, Tensor]) -> None:
        """One step in place; the tensors are contiguous, gradients by the parameter's number."""
        each = dict(zip(grads, params, strict=True))
        fresh = [i for i in grads if i not in self.begun]  # their gradients become the buffers
        for numbers in (fresh, [i for i in grads if i in self.begun]):
            if numbers:
                buffers = [self._momentum[i] for i in numbers if i in self._momentum]
                momentum = sgd(
                    [each[i] for i in numbers],
                    [grads[i] for i in numbers],
                    buffers,
                    self.training,
                    self.rate(params),
                    numbers is fresh,
                )
                if not self.fixed:
                    self._momentum.update(zip(numbers, momentum, strict=False))
        if fresh and self.training.momentum:
            self.begun |= set(fresh)


class AdamW(_Steps):
    """AdamW with the defaults and the decoupled weight decay of ``torch.optim.AdamW``."""

    def __init__(self, training: Training, lr: float, fixed: Mapping[int, Tensor]) -> None:
        super().__init__(training, lr, fixed)
        self._state = {i: self._empty(p) for i, p in fixed.items()}
        self.tensors = [v for some in self._state.values() for v in some]

    @staticmethod
    def _empty(p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Both moments of a parameter and the number of its steps."""
        count = torch.zeros((), dtype=torch.float32, device=p.device)
        return torch.zeros_like(p), torch.zeros_like(p), count

    def step(self, params: list[Tensor], grads: dict[int, Tensor]) -> None:
        """One step in place; the tensors are contiguous, gradients by the parameter's number."""
        for i, p in zip(grads, params, strict=True):
            if i not in self._state:
                self._state[i] = self._empty(p)
        first, second, steps = map(list, zip(*(self._state[i] for i in grads), strict=True))
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            params,
            list(grads.values()),
            first,
            second,
            [],
            steps,
            lr=self.rate(params),
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=self.training.weight_decay,
            eps=EPS,
            amsgrad=False,
            maximize=False,
        )
        increment_version(params)


def sgd(
    params: list[Tensor],
    grads: list[Tensor],
    momentum: list[Tensor],
    training: Training,
    lr: float | Tensor,
    first: bool | None = None,
) -> list[Tensor]:
    """One step of SGD in one pass over the memory; returns the momentum buffers, [] without.

    Without buffers the first step's gradients become them, so that no memory is taken for them; a
    ``first`` step with buffers writes them. All tensors have to be contiguous: for others the
    kernel is silently wrong.
    """
    buffers = (momentum or grads) if training.momentum else []
    first = not momentum if first is None else first
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
        is_first_step=bool(buffers) and first,
    )
    increment_version(params)  # which the kernel leaves out
    return buffers
