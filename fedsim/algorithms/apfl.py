"""APFL: each client mixes a model of its own with the global one (Deng et al., arXiv 2003.13461).

    client, for each batch b, with vbar = alpha v + (1 - alpha) w_i  (Algorithm 1):
        w_i <- w_i - lr grad F_b(w_i)
        v   <- v - lr alpha grad F_b(vbar)
        alpha <- alpha - lr <v - w_i, grad F_b(vbar)>  in [0, 1], at the first batch of a round
    server:  w <- w + sum_i p_i (w_i - w)                                              FedAvg

The client's model that is scored is vbar after its training, with the running statistics of w_i;
v starts as the first w that the client receives. Weight decay is of w_i and of v; clipping of w_i
alone. At alpha = 0 vbar is w_i, at alpha = 1 it is v, which then trains alone.

:client: SGD as in FedAvg, and for each batch a step on its own model, at the mixture
:server: mean by samples
:state: client v (P), the mixture (D) and alpha
:sends: nothing more
:public code: the official code mixes outputs in place of weights, steps on v after w_i has moved,
    and adds 0.02 alpha to alpha's gradient, which it makes of both models' own; PFLlib trains v
    alone, at v, and replaces it by the mixture after each round; FL-bench moves w_i twice a batch;
    Ditto's authors fix alpha and mix weights, as here, but begin a round at the mixture of the last
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, LocalRule, Uplink
from fedsim.core.settings import Probability
from fedsim.server import Average, Server


@dataclass(frozen=True)
class Mixture(LocalRule):
    """SGD on w_i, and beside it on v."""

    alpha: float
    adaptive: bool
    plain_sgd = needs_sgd = True
    stackable: ClassVar[bool | str] = "its loss takes a gradient of its own"
    capturable: ClassVar[bool | str] = True

    def begin(self, env: LocalEnv) -> dict[str, Any]:
        """v by tensor, alpha, lr, and the rate of alpha, which is 0 after the first step."""
        v = env.kept("v") if "v" in env.state else env.start
        alpha = env.state["alpha"].item() if "alpha" in env.state else self.alpha
        rate = env.ctx.lr if self.adaptive else 0.0
        numbers = {"alpha": alpha, "lr": env.ctx.lr, "rate": rate}
        scalars = {name: env.start.new_tensor(value) for name, value in numbers.items()}
        return {"v": [p.clone() for p in env.split(v)], **scalars}

    def loss(self, env: LocalEnv, s: dict[str, Any], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss at w_i; changes v and alpha. Running statistics are those of w_i."""
        objective, ce = super().loss(env, s, x, y)
        leaves = [p.requires_grad_() for p in self.mixed(env, s)]
        names = [slot.name for slot in env.slots()]
        there = dict(zip(names, leaves, strict=True))
        there |= {name: buffer.clone() for name, buffer in env.model.named_buffers()}
        at_mixture = env.criterion(functional_call(env.model, there, (x,)), y)
        gradients = torch.autograd.grad(at_mixture, leaves, materialize_grads=True)
        with torch.no_grad():
            pairs = zip(s["v"], env.params, gradients, strict=True)
            slope = torch.stack([((v - w) * g).sum() for v, w, g in pairs]).sum()
            for v, g in zip(s["v"], gradients, strict=True):
                v -= s["lr"] * (s["alpha"] * g + env.training.weight_decay * v)
            s["alpha"].sub_(s["rate"] * slope).clamp_(0, 1)
            s["rate"].zero_()
        return objective, ce

    @torch.no_grad()
    def mixed(self, env: LocalEnv, s: dict[str, Any]) -> list[Tensor]:
        """``alpha v + (1 - alpha) w_i``, by tensor."""
        alpha = s["alpha"]
        return [alpha * v + (1 - alpha) * w for v, w in zip(s["v"], env.params, strict=True)]

    def finish(self, env: LocalEnv, s: dict[str, Any]) -> Uplink:
        """Keeps all three."""
        vector = env.flat.flat.detach().clone()
        torch._foreach_copy_(env.split(vector), self.mixed(env, s))
        v = torch.cat([p.flatten() for p in s["v"]])
        kept = {"v": v, "alpha": s["alpha"].view(1), "personal": vector}
        return Uplink(state={name: value.cpu().numpy() for name, value in kept.items()})


def build(alpha: Probability = 0.5, adaptive: bool = False) -> Algorithm:
    """APFL.

    Args:
        alpha: share of the client's own model in the mixture at first, in [0, 1].
        adaptive: whether each client learns its alpha.
    """
    return Algorithm(local=Mixture(alpha, adaptive), server=Server(Average()), owns_model=True)
