"""FedProx: FedAvg with a proximal term on the clients (Li et al., MLSys 2020, Eq. 2).

    min_w  F_i(w) + mu/2 ||w - w_t||^2,   so the gradient gains mu (w - w_t)

``squared`` is the paper. ``l2_per_tensor`` is the released FedLD code, ``mu sum_k ||w_k - w_t,k||``
over tensors k (not squared, no half); its gradient is mu times a unit vector per tensor, 0 at w_t.

:client: the gradient gains mu (w - w_t)
:server: mean by samples
:state: none
:sends: nothing more
:public code: the released FedLD code adds the norm, not squared, tensor by tensor
    (``prox_form=l2_per_tensor``)
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, LocalRule
from fedsim.core.settings import NonNegative

Form = Literal["squared", "l2_per_tensor"]


@dataclass(frozen=True)
class Proximal(LocalRule):
    """Adds the gradient of the proximal term; the start values are the anchor."""

    mu: float
    form: Form
    stackable = capturable = gradients_only = True

    def begin(self, env: LocalEnv) -> list[Tensor]:
        """The received parameters w_t."""
        return env.split(env.start)

    def adjust_grads(self, env: LocalEnv, s: list[Tensor]) -> None:
        """``p.grad += mu (w - w_t)``; nothing at mu = 0, which is FedAvg bit for bit."""
        if self.mu == 0:
            return
        pull = list(torch._foreach_sub(env.params, s))
        if self.form == "l2_per_tensor":
            norms = map(env.norm, pull)
            pull = [d / torch.where(n > 0, n, 1.0) for d, n in zip(pull, norms, strict=True)]
        torch._foreach_add_(env.grads(), pull, alpha=self.mu)


def build(mu: NonNegative = 0.1, prox_form: Form = "squared") -> Algorithm:
    """FedProx.

    Args:
        mu: weight of the proximal term, >= 0.
        prox_form: the paper's squared norm, or the released FedLD code's norm per tensor.
    """
    return Algorithm(local=Proximal(mu, prox_form))
