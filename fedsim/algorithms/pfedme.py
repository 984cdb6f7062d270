"""pFedMe: personal models by Moreau envelopes (Dinh, Tran, Nguyen, NeurIPS 2020, Algorithm 1).

    min_w  sum_i p_i min_th F_i(th) + lam/2 ||th - w||^2
    client, for each batch b:  th <- th - personal_lr (grad F_b(th) + lam (th - w_i)),  K times
                               w_i <- w_i - lr lam (w_i - th)
    server:                    w <- (1 - beta) w + beta sum_i p_i w_i

w_i and th begin each round at w, and th goes on from batch to batch. Scored is the client's last
th, with the running statistics of its training; without any it is w. Weight decay belongs to F_b;
clipping is of lam (w_i - th).

:client: K steps on its own model for each batch, one of SGD on the Moreau envelope
:server: mean by samples (the paper: uniform), of which w takes the part beta
:state: client its model th (D)
:sends: nothing more
:public code: paper and official code have all clients train in every round and aggregate some of
    them; the code averages by samples, adds 0.001 th to the gradient in place of weight decay, and
    has our defaults (but lr 0.005 and 20 batches); PFLlib's beta is 0 unless given, at which w
    stays as it was, its lam 1 and personal_lr 0.01; FL-bench scores the first model
"""

from dataclasses import dataclass

import torch
from torch import Tensor

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
    plain_sgd = needs_sgd = capturable = True
    stackable = "its loss takes gradients of its own"

    def begin(self, env: LocalEnv) -> list[Tensor]:
        """th, by tensor."""
        return [p.clone() for p in env.anchors()]

    def loss(self, env: LocalEnv, s: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Changes th; running statistics see the first pass alone, whose loss is logged."""
        ce, decay = x.new_zeros(()), env.training.weight_decay
        for k in range(self.steps):
            leaves = [p.detach().requires_grad_() for p in s]
            logits = env.logits_at(leaves, x, statistics=k == 0)
            objective, now = env.criterion.with_cross_entropy(logits, y)
            gradients = torch.autograd.grad(objective, leaves, materialize_grads=True)
            ce = now.detach() if k == 0 else ce
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
        return Uplink(state={"personal": env.vector_of(s).cpu().numpy()})


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
