"""FedCM: client momentum towards the server's last direction (Xu et al. 2021, arXiv:2106.10874).

    client:  w <- w - lr (alpha grad F_i(w) + (1 - alpha) Delta), K_i times
    server:  Delta <- -(1/|S|) sum_S (w_i - w) / (lr K_i),   w <- w + eta_g mean_S (w_i - w)

Delta starts at 0 and is in units of a gradient; lr is that of the round that makes it. With
momentum lr K_i becomes lr |a_i|_1, the effective local step length (see fednova). Weight decay is
added to the mixed gradient, as in the official code. alpha = 1 is FedAvg with uniform weights.

:client: each gradient is mixed with the direction Delta
:server: uniform mean with server learning rate eta_g; the direction Delta
:state: none; Delta (P) is in the downlink
:sends: down Delta (P), up one number, the effective local step length
:public code: FL-Simulator takes K from the data size of client 0 for every client; in the paper
    eta_g multiplies Delta, so that its eta_g is eta_g lr K here
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, LocalRule, Uplink
from fedsim.core.settings import Fraction, Positive
from fedsim.core.types import RoundContext, Vectors
from fedsim.server import Average, Cohort, Exchanged, Server, Weights
from fedsim.server.optimizers import Multiply


def direction(cohort: Cohort, state: Vectors, ctx: RoundContext) -> Exchanged:
    """Delta (P,), the mean over the cohort of each client's mean gradient."""
    lengths = np.array([u.extras["step_length"][0] for u in cohort.updates])
    params = slice(0, cohort.layout.num_params)
    out = np.empty(cohort.layout.size, cohort.columns.dtype)
    cohort.combine(-1 / (len(lengths) * np.where(lengths > 0, lengths, np.inf)), params, out)
    return Exchanged(downlink={"direction": out[params]})


@dataclass(frozen=True)
class MixedGradient(LocalRule):
    """Steps along the gradient and the server's direction."""

    alpha: float
    needs_sgd: ClassVar[bool] = True
    stackable: ClassVar[bool | str] = True
    capturable: ClassVar[bool | str] = True
    gradients_only: ClassVar[bool] = True

    def begin(self, env: LocalEnv) -> list[Tensor]:
        """The server's direction; zeros in the first round."""
        return env.split(env.received("direction"))

    def adjust_grads(self, env: LocalEnv, s: list[Tensor]) -> None:
        """``g <- alpha g + (1 - alpha) Delta``; nothing at alpha = 1."""
        if self.alpha < 1:
            gradients = env.grads()
            torch._foreach_mul_(gradients, self.alpha)
            torch._foreach_add_(gradients, s, alpha=1 - self.alpha)

    def finish(self, env: LocalEnv, s: list[Tensor]) -> Uplink:
        """lr K_i, which :func:`direction` needs."""
        return Uplink({"step_length": np.array([env.effective_step_length])})


def build(alpha: Fraction = 0.1, eta_g: Positive = 1.0, weights: Weights = "uniform") -> Algorithm:
    """FedCM.

    Args:
        alpha: share of the client's own gradient, in (0, 1].
        eta_g: server learning rate, > 0; this and ``weights`` have no effect with another server
            rule.
        weights: of the models, uniform (the paper) or by samples.
    """
    server = Server(Average(weights), optimizers=(Multiply(eta_g),), exchange=direction, sums=True)
    return Algorithm(local=MixedGradient(alpha), server=server, measures_progress=True)
