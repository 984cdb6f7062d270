"""pFedMe: personal models by Moreau envelopes (Dinh, Tran, Nguyen, NeurIPS 2020, Algorithm 1).

    min_w  sum_i p_i min_th F_i(th) + lam/2 ||th - w||^2
    client, for each batch b:  th <- th - personal_lr (grad F_b(th) + lam (th - w_i)),  K times
                               w_i <- w_i - lr lam (w_i - th)
    server:                    w <- (1 - beta) w + beta sum_i p_i w_i

w_i and th begin each round at w, and th goes on from batch to batch. The client's model that is
scored is its last th, with the running statistics of its training; without any it is w. lr is
``train.lr``. Weight decay belongs to F_b; clipping is of lam (w_i - th).

:client: K steps on its own model for each batch, one of SGD on the Moreau envelope
:server: mean by samples, of which w takes the part beta
:state: client its model th (D)
:sends: nothing more
:public code: the official code has all clients train in every round and aggregates some of them,
    adds 0.001 th to the gradient in place of weight decay, and its defaults (lr 0.005, 20 batches)
    are ours but for those of ``train``; PFLlib's beta is 0 unless given, at which w stays as it
    was, its lam 1 and personal_lr 0.01; FL-bench never stores th, so that it scores the first model
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, LocalRule, Uplink
from fedsim.core.settings import Count, NonNegative, Positive
from fedsim.server import Average, Server
from fedsim.server.optimizers import Multiply


@dataclass(frozen=True)
class MoreauEnvelope(LocalRule):
    """The objective is ``lam/2 ||w - th||^2``, with th from steps on the batch."""

    lam: float
    steps: int
    personal_lr: float
    plain_sgd = needs_sgd = True
    stackable: ClassVar[bool | str] = "its loss takes gradients of its own"
    capturable: ClassVar[bool | str] = True

    def begin(self, env: LocalEnv) -> list[Tensor]:
        """th, by tensor."""
        return [p.clone() for p in env.anchors()]

    def loss(self, env: LocalEnv, s: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Changes th; running statistics see the first pass alone, whose loss is logged."""
        names, ce = [slot.name for slot in env.slots()], x.new_zeros(())
        decay, statistics = env.training.weight_decay, dict[str, Tensor]()
        for k in range(self.steps):
            leaves = [p.detach().requires_grad_() for p in s]
            there = dict(zip(names, leaves, strict=True)) | statistics
            logits = functional_call(env.model, there, (x,))
            objective, now = env.criterion.with_cross_entropy(logits, y)
            gradients = torch.autograd.grad(objective, leaves, materialize_grads=True)
            ce = now.detach() if k == 0 else ce
            statistics = {name: buffer.clone() for name, buffer in env.model.named_buffers()}
            with torch.no_grad():
                for p, g, w in zip(s, gradients, env.params, strict=True):
                    p -= self.personal_lr * (g + decay * p + self.lam * (p - w))
        gaps = [(w - p.detach()).square().sum() for w, p in zip(env.params, s, strict=True)]
        return self.lam / 2 * torch.stack(gaps).sum(), ce

    def adjust_grads(self, env: LocalEnv, s: list[Tensor]) -> None:
        """Takes back the weight decay of the step, which th has seen."""
        torch._foreach_sub_(env.grads(), env.params, alpha=env.training.weight_decay)

    def finish(self, env: LocalEnv, s: list[Tensor]) -> Uplink:
        """Keeps th."""
        vector = env.flat.flat.detach().clone()
        torch._foreach_copy_(env.split(vector), s)
        return Uplink(state={"personal": vector.cpu().numpy()})


def build(
    lam: NonNegative = 15.0, steps: Count = 5, personal_lr: Positive = 0.09, beta: Positive = 1.0
) -> Algorithm:
    """pFedMe.

    Args:
        lam: weight of the distance to the global model, >= 0.
        steps: K, those on the client's own model for each batch.
        personal_lr: learning rate of these, > 0.
        beta: what the global model takes of the mean, > 0.
    """
    server = Server(Average(), optimizers=(Multiply(beta),) if beta != 1 else ())
    rule = MoreauEnvelope(lam, steps, personal_lr)
    return Algorithm(local=rule, server=server, owns_model=True)
