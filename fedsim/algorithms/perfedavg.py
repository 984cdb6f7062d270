"""Per-FedAvg: a model that one step personalises (Fallah et al., NeurIPS 2020, Algorithm 1).

    min_w  sum_i p_i F_i(w - alpha grad F_i(w))
    client, on the parts b, b' and b'' of each batch, with g = grad F_b'(w - alpha grad F_b(w)):
        w <- w - lr g                                                    first-order (``fo``)
        w <- w - lr (g - alpha H g),                                     Hessian-free (``hf``)
        H g = (grad F_b''(w + delta g) - grad F_b''(w - delta g)) / (2 delta)

Every client is scored with w - alpha grad F_i(w), the gradient over all of its training samples. A
batch of fewer than two samples for each part is taken whole for all. lr, momentum and weight decay
of ``train`` are the outer step's; running statistics see b alone. At alpha = 0 it is FedAvg.

:client: the gradient is that of the loss after an inner step, with two or three parts of a batch
:server: mean by samples (the paper: uniform)
:state: none
:sends: nothing more
:public code: there is none of the authors; pFedMe's official code and PFLlib (alpha = lr) have
    ``fo`` with a batch each for b and b', and score after one step or two on batches; FL-bench has
    both variants, weighs clients uniformly and fine-tunes by epochs before a test
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, LocalRule, NoTraining, Uplink
from fedsim.core.settings import NonNegative, Positive
from fedsim.server import Average, Server, Weights


@dataclass(frozen=True)
class MetaGradient(LocalRule):
    """The objective has the meta-gradient as its gradient; logged is the loss at w."""

    alpha: float
    variant: str
    delta: float
    needs_sgd = capturable = True
    stackable = "its loss takes a gradient of its own"

    def loss(self, env: LocalEnv, s: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """At alpha = 0 that of the whole batch at w."""
        parts = 1 if self.alpha == 0 else 2 if self.variant == "fo" else 3
        size = len(x) // parts if len(x) >= 2 * parts else 0
        xs, ys = (list(t[: size * parts].split(size)) if size else [t] * parts for t in (x, y))
        objective, ce = super().loss(env, s, xs[0], ys[0])
        if parts == 1:
            return objective, ce

        def at(moves: tuple[Tensor, ...], scale: float, part: int) -> Tensor:
            moved = torch._foreach_add(env.params, moves, alpha=scale)
            return env.criterion(env.logits_at(moved, xs[part]), ys[part])

        inner = torch.autograd.grad(objective, env.params, materialize_grads=True)
        outer = at(inner, -self.alpha, 1)
        if self.variant == "hf":
            g = torch.autograd.grad(outer, env.params, retain_graph=True, materialize_grads=True)
            curved = at(g, self.delta, 2) - at(g, -self.delta, 2)
            outer = outer - self.alpha / (2 * self.delta) * curved
        return outer, ce.detach()


@dataclass(frozen=True)
class InnerStep(NoTraining):
    """The step that personalises."""

    alpha: float

    def finish(self, env: LocalEnv, s: Any) -> Uplink:
        """``w - alpha grad F_i(w)``, without weight decay."""
        gradient = env.gradient()
        params = env.flat.flat[: len(gradient)]
        with torch.no_grad():
            params -= self.alpha * (gradient - env.training.weight_decay * params)
        return Uplink()


def build(
    alpha: NonNegative = 0.01,
    variant: Literal["fo", "hf"] = "fo",
    delta: Positive = 1e-3,
    weights: Weights = "samples",
) -> Algorithm:
    """Per-FedAvg.

    Args:
        alpha: learning rate of the inner step, >= 0.
        variant: without second derivatives, or with differences of gradients in their place.
        delta: length of these differences, in gradients, > 0.
        weights: of the models, by samples, or uniform (the paper).
    """
    rule = MetaGradient(alpha, variant, delta)
    return Algorithm(local=rule, server=Server(Average(weights)), personalise=InnerStep(alpha))
