"""Ditto: a model of each client's own, held near the global one (Li et al., ICML 2021, Alg. 1).

    w_i <- E epochs of SGD on F_i from w,   w <- w + sum_i p_i (w_i - w)              FedAvg
    v_i <- E epochs of SGD on F_i(v) + lam/2 ||v - w||^2 from v_i,   w as received

v_i is the client's model that is scored; it starts as the first w that the client receives, and a
client that never took part has the global model. Both trainings of a round see the same batches, so
that at lam = 0 and a sample rate of 1 the v_i are those of ``local``, byte for byte; w is FedAvg's.
Simulated time (section ``clock``) is that of w's training alone.

:client: SGD as in FedAvg; then SGD on its own model with a proximal term towards the received one
:server: mean by samples
:state: client its model v_i (D)
:sends: nothing more
:public code: the official code averages uniformly over clients that are drawn by their samples
    (``ditto.weights=uniform``), starts all v_i from the first model of all, whenever a client is
    first drawn, takes single steps in turns, without momentum, and may choose lam among 0.1, 1 and
    2 by validation loss; its lam and PFLlib's are 0 unless given, FL-bench's is 1
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, LocalRule
from fedsim.core.settings import NonNegative
from fedsim.server import Average, Server, Weights


@dataclass(frozen=True)
class TowardsReceived(LocalRule):
    """Adds the gradient of the proximal term, whose anchor is the received model."""

    lam: float
    stackable = capturable = gradients_only = True

    def begin(self, env: LocalEnv) -> list[Tensor]:
        """The received parameters w."""
        return env.split(env.sent)

    def adjust_grads(self, env: LocalEnv, s: list[Tensor]) -> None:
        """``p.grad += lam (v - w)``; nothing at lam = 0, which is ``local`` bit for bit."""
        if self.lam:
            torch._foreach_add_(env.grads(), torch._foreach_sub(env.params, s), alpha=self.lam)


def build(lam: NonNegative = 1.0, weights: Weights = "samples") -> Algorithm:
    """Ditto.

    Args:
        lam: weight of the proximal term of the clients' own models, >= 0.
        weights: of the global model, by samples, or uniform (the official code).
    """
    server = Server(Average(weights))
    return Algorithm(server=server, owns_model=True, beside=TowardsReceived(lam))
