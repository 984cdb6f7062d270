"""FedIIR: invariant relationships by equal head gradients (Guo et al., ICML 2023, Algorithm 1).

    before training, with the model as received:
        client:  g_i = sum of grad_head CE over its b_i batches
        server:  gm <- ema gm + (1 - ema) sum_i g_i / sum_i b_i        (starts at 0)
    training:    CE + gamma || grad_head CE(batch) - gm ||^2

For a linear head grad_head CE = (softmax - onehot)^T [h, 1] / B, a function of logits and features
that is differentiated without a second backward pass. The pass before training goes through a
client's data in their order, in evaluation mode, without augmentation. gamma is 1e-2 for
RotatedMNIST, 5e-3 for VLCS, 1e-3 for PACS and 5e-4 for OfficeHome.

:client: CE + gamma times the squared distance of the head's gradient to the common one, which takes
    one more pass over the data
:server: uniform mean; running mean of the head's gradient
:state: server gm (C, d + 1)
:sends: before training up g_i and b_i (C (d + 1) + 1), then down gm (C (d + 1))
:public code: the official code averages uniformly (``weights=uniform``, the default); FL-bench
    never keeps the new gm, which so stays at 0.05 of the round's own gradient
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.algorithms.base import Algorithm, Probe
from fedsim.client import Batch, FeaturePenalty, LocalEnv, NoTraining, Uplink, matmul, upcast
from fedsim.core.errors import ConfigError
from fedsim.core.layout import as_tensor
from fedsim.core.settings import Decay, NonNegative
from fedsim.core.types import RoundContext, Vectors
from fedsim.server import Average, Cohort, Exchanged, Server, Weights


def head_gradient(
    features: Tensor, logits: Tensor, labels: Tensor, weights: Tensor | None = None
) -> Tensor:
    """(C, d + 1) gradient of the cross-entropy by the weight and, last, the bias of a linear head.

    ``(softmax - onehot)^T [h, 1] / B``, a differentiable function of logits and features. With
    ``weights`` (B,) these take the place of 1 / B.
    """
    h, logits = upcast(features), upcast(logits)
    wrong = logits.softmax(dim=1) - nn.functional.one_hot(labels, logits.shape[1])
    inputs = torch.cat([h, torch.ones_like(h[:, :1])], dim=1)
    if weights is not None:
        return matmul((weights.unsqueeze(1) * wrong).T, inputs)
    return matmul(wrong.T, inputs) / len(labels)


@dataclass(frozen=True)
class HeadGradient(NoTraining):
    """The pass before training."""

    @torch.no_grad()
    def finish(self, env: LocalEnv, s: Any) -> Uplink:
        """The sum of the batches' gradients (C, d + 1), and how many batches there are."""
        size = env.training.batch_size
        pairs = zip(env.features().split(size), env.y.split(size), strict=True)
        gradients = [head_gradient(h, env.model.head(h), y) for h, y in pairs]  # type: ignore[operator]
        total = torch.stack(gradients).sum(dim=0).cpu().numpy()
        return Uplink({"gradient": total, "batches": np.array([len(gradients)])})


def running_gradient(ema: float, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Exchanged:
    """gm, the running mean of the gradient over all batches of the cohort, kept in float64."""
    total = np.sum([u.extras["gradient"] for u in cohort.updates], axis=0, dtype=np.float64)
    batches = sum(int(u.extras["batches"][0]) for u in cohort.updates)
    gm = np.asarray(ema * state.get("gm", 0.0) + (1 - ema) * total / batches)
    return Exchanged({"gm": gm}, {"gm": gm.astype(np.float32)})


@dataclass(frozen=True)
class Invariant(FeaturePenalty):
    """Adds the squared distance of the batch's head gradient to the running mean gm."""

    gamma: float
    stackable = capturable = needs_classes = True

    def begin(self, env: LocalEnv) -> Tensor:
        """gm (C, d + 1); 0 before any client answered."""
        return as_tensor(env.downlink.get("gm", np.zeros(1, np.float32))).to(env.start.device)

    def penalty(self, env: LocalEnv, s: Tensor, batch: Batch) -> Tensor:
        """At gamma = 0 it is FedAvg bit for bit."""
        away = head_gradient(batch.h, batch.logits, batch.y, env.weights) - s
        return self.gamma * away.square().sum()


def linear_head(model: nn.Module) -> nn.Module:
    """The model; its head must be what the formula of the gradient holds for."""
    head = getattr(model, "head", None)
    if type(head) is not nn.Linear or head.bias is None:
        raise ConfigError(
            "fediir knows the gradient of a head that is a linear layer with a bias and nothing "
            f"after it; the head of this model is {head}"
        )
    return model


def build(gamma: NonNegative = 1e-3, ema: Decay = 0.95, weights: Weights = "uniform") -> Algorithm:
    """FedIIR.

    Args:
        gamma: weight of the invariance term, >= 0.
        ema: what the running mean of the head's gradient keeps each round, in [0, 1).
        weights: of the models, uniform (the official code) or by samples.
    """
    probe = Probe(HeadGradient(), partial(running_gradient, ema))
    server = Server(Average(weights))
    return Algorithm(local=Invariant(gamma), server=server, probe=probe, adapt=linear_head)
