"""FedRoD: a generic and a personal predictor on one body (Chen, Chao, ICLR 2022, Algorithm 1).

With features z = phi(x), the generic logits g(z) and client i's residual p_i(z):

    min_{phi, g}  CE(g(z) + log n_i, y)        balanced softmax, n_i (C,) the client's class counts
    min_{p_i}     CE(g(z) + p_i(z), y),        phi and g constant

Both are minimised in the same steps. The client's own model is g + p_i, which is what is scored;
``model.safetensors`` has the generic one, the paper's G-FL. p_i starts at 0: a client that never
trained has the generic model. Margin control (``--margin``) changes the personal loss alone.

:client: balanced softmax for body and generic head, cross-entropy for its residual head
:server: mean by samples of body and generic head
:state: client its residual head (C (d + 1))
:sends: less, nothing of the residual head
:public code: the authors' repository has no code; PFLlib's residual starts as a copy of the head;
    FL-bench's personal head stands for itself, without the generic logits, and trains the body too,
    and class counts have a power gamma; the paper's variant with a hypernetwork is not here
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.algorithms.base import Algorithm, Layers
from fedsim.client import LocalEnv, LocalRule, upcast
from fedsim.models.residual import with_residual
from fedsim.server import Average, Server, Weights

ABSENT = -1e4
"""In place of log 0: its exponential is 0, and the loss of a class that is absent stays finite."""


def balanced(logits: Tensor, labels: Tensor, prior: Tensor) -> Tensor:
    """(B,) cross-entropies of ``logits + prior``, the logarithms (C,) of the class counts."""
    return F.cross_entropy(upcast(logits) + prior, labels, reduction="none")


@dataclass(frozen=True)
class TwoPredictors(LocalRule):
    """SGD on the sum of both losses, each of which has gradients for its own part."""

    balanced: bool
    needs_features = needs_classes = True
    stackable: ClassVar[bool | str] = True
    capturable: ClassVar[bool | str] = True

    def begin(self, env: LocalEnv) -> Tensor:
        """(C,) log n_i."""
        counts = torch.bincount(env.y, minlength=env.num_classes)
        return counts.to(env.start.dtype).log().clamp(min=ABSENT)

    def loss(self, env: LocalEnv, s: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The sum, and the cross-entropy of the client's own model."""
        z, head = env.model.features(x), env.model.head  # type: ignore[operator]
        generic = head.generic(z)  # type: ignore[operator, union-attr]
        residual = head.personal(z.detach())  # type: ignore[operator, union-attr]
        objective, ce = env.criterion.with_cross_entropy(generic.detach() + residual, y)
        shared = env.mean(balanced(generic, y, s)) if self.balanced else env.criterion(generic, y)
        return objective + shared, ce


def build(balanced: bool = True, weights: Weights = "samples") -> Algorithm:
    """FedRoD.

    Args:
        balanced: balanced softmax for the generic part; false: plain cross-entropy, so that the
            generic model is FedAvg's.
        weights: client weights by samples (the paper), or uniform.
    """
    return Algorithm(
        local=TwoPredictors(balanced),
        server=Server(Average(weights)),
        personal=Layers("head.personal.*"),
        adapt=with_residual,
    )
