"""FedSAM: sharpness-aware steps on the clients (Qu et al., ICML 2022; Caldarola et al., ECCV 2022).

    g  = grad F_i(w),   e = rho g / ||g||,   w <- w - lr grad F_i(w + e)          SAM
    e = rho T^2 g / ||T g||,  T = |w| + eta on weights, 1 elsewhere               ASAM
    w <- w - lr (alpha grad F_i(w + e) + (1 - alpha) Delta)                       MoFedSAM

Both gradients are of the same batch (dropout draws anew), the norm is over all parameters, and
weight decay, momentum and clipping belong to the step. Running statistics of BatchNorm are updated
at w alone. A weight is a parameter called so, BatchNorm's scale included. Delta is FedCM's
direction of the server. rho = 0 is FedAvg, and FedCM where alpha < 1.

:client: the gradient is taken at w + e, with two passes for each batch
:server: mean by samples; MoFedSAM (``alpha`` < 1) also the direction Delta
:state: none
:sends: nothing more; MoFedSAM as FedCM, down Delta (P), up one number
:public code: debcaldarola/fedsam updates running statistics in both passes; rho is 0.05 in
    FedDecorr's copy and 0.1 in FL-Simulator
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from fedsim.algorithms.base import Algorithm
from fedsim.algorithms.fedcm import MixedGradient, direction
from fedsim.client import LocalEnv, LocalRule
from fedsim.core.settings import Fraction, NonNegative
from fedsim.server import Average, Server, Weights

Tensors = tuple[Tensor, ...]


def ascent(gradients: Tensors, scales: Tensors, rho: float) -> Tensors:
    """``e = rho T^2 g / (||T g|| + 1e-12)``, the scales T by tensor; the norm is over all."""
    scaled = torch._foreach_mul(gradients, scales)
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(scaled)))
    return torch._foreach_mul(torch._foreach_mul(scaled, scales), rho / (norm + 1e-12))


@dataclass(frozen=True)
class SharpnessAware(LocalRule):
    """The objective at w + e, a function of w with e constant."""

    rho: float
    variant: str
    eta: float
    needs_sgd: ClassVar[bool] = True
    stackable: ClassVar[bool | str] = "its loss takes a gradient of its own"
    capturable: ClassVar[bool | str] = True

    def loss(self, env: LocalEnv, s: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss at w for the log; at rho = 0 the objective too."""
        objective, ce = super().loss(env, s, x, y)
        if self.rho == 0:
            return objective, ce
        gradients = torch.autograd.grad(objective, env.params, materialize_grads=True)
        names = [slot.name for slot in env.slots()]
        with torch.no_grad():
            scales = tuple(self._scale(n, p) for n, p in zip(names, env.params, strict=True))
            e = ascent(gradients, scales, self.rho)
        there = dict(zip(names, torch._foreach_add(env.params, e), strict=True))
        # copies of the buffers: running statistics are updated at w alone
        there |= {name: buffer.clone() for name, buffer in env.model.named_buffers()}
        return env.criterion(functional_call(env.model, there, (x,)), y), ce.detach()

    def _scale(self, name: str, p: Tensor) -> Tensor:
        adaptive = self.variant == "asam" and "weight" in name.rpartition(".")[2]
        return p.abs() + self.eta if adaptive else torch.ones_like(p)


@dataclass(frozen=True)
class WithMomentum(SharpnessAware, MixedGradient):
    """MoFedSAM: the gradient at w + e is mixed with the server's direction."""

    stackable: ClassVar[bool | str] = SharpnessAware.stackable
    capturable: ClassVar[bool | str] = True


def build(
    rho: NonNegative = 0.05,
    variant: Literal["sam", "asam"] = "sam",
    eta: NonNegative = 0.01,
    alpha: Fraction = 1.0,
    weights: Weights = "samples",
) -> Algorithm:
    """FedSAM.

    Args:
        rho: length of the ascent, >= 0.
        variant: ascent along the gradient, or scaled by the size of the weights (ASAM).
        eta: what ASAM adds to the size of a weight, >= 0.
        alpha: share of the client's own gradient in (0, 1]; below 1 it is MoFedSAM.
        weights: of the models, by samples or uniform.
    """
    if alpha == 1:
        server = Server(Average(weights))
        return Algorithm(local=SharpnessAware(rho, variant, eta), server=server)
    local = WithMomentum(rho=rho, variant=variant, eta=eta, alpha=alpha)
    return Algorithm(local=local, server=Server(Average(weights), exchange=direction, sums=True))
