"""q-FFL: a fairer accuracy over clients by q-FedAvg (Li et al., ICLR 2020, Algorithm 2).

    min_w  sum_k p_k F_k(w)^(q+1) / (q+1)
    Delta_k = F_k^q L (w - w_k),   h_k = q F_k^(q-1) ||L (w - w_k)||^2 + L F_k^q,   L = 1 / lr
    w <- w - sum_k Delta_k / sum_k h_k

F_k is the mean loss of the received model on all of client k's training samples, in evaluation
mode, without augmentation. Clients are drawn uniformly and count alike. Running statistics are
means by samples. At q = 0 it is FedAvg with uniform weights, bit for bit; at lr = 0 nobody moves.

:client: plain SGD, and a pass over its data for the loss of the received model
:server: sum of the updates by F_k^q over the sum of the h_k
:state: none
:sends: up one number, the loss of the received model
:public code: the official code adds 1e-10 to F_k, as here, and its q is 0 unless given (0.001 to 5
    in the paper's tables; ours is 1); its lr has no schedule
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, LocalRule, Uplink, mean_losses
from fedsim.core.settings import NonNegative
from fedsim.core.types import F64, RoundContext, Vectors
from fedsim.server import Average, Cohort, Received, Server


class WithLoss(LocalRule):
    """Plain SGD; the loss of the received model goes to the server."""

    stackable = capturable = True

    def begin(self, env: LocalEnv) -> Tensor:
        """That loss, (1,)."""
        return env.start.new_tensor(mean_losses(env)[:1])

    def finish(self, env: LocalEnv, s: Tensor) -> Uplink:
        """``loss`` (1,)."""
        return Uplink({"loss": s.cpu().numpy().copy()})


def losses_of(cohort: Cohort) -> F64:
    """(m,) the losses that the clients sent."""
    return np.array([u.extras["loss"][0] for u in cohort.updates], np.float64)


@dataclass(frozen=True)
class ByLosses:
    """Scales update k by ``F_k^q / mean_j (h_j / L)``, so that their mean is the step."""

    q: float

    name: ClassVar[str] = "qffl"
    needs_own_clients = reads_uploads = rescales = True

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Received:
        """Keeps no state."""
        losses, norms = losses_of(cohort) + 1e-10, cohort.norms(slice(0, cohort.layout.num_params))
        power = losses**self.q
        squares = norms**2 / ctx.lr if ctx.lr > 0 else np.zeros_like(norms)
        h = self.q * losses ** (self.q - 1) * squares + power
        return Received(cohort=cohort.scaled(power / h.mean()), statistics=cohort)


def build(q: NonNegative = 1.0) -> Algorithm:
    """q-FFL.

    Args:
        q: how much clients with a large loss count, >= 0; 0 is FedAvg.
    """
    server = Server(Average("uniform"), receive=(ByLosses(q),))
    return Algorithm(local=WithLoss(), server=server, measures_progress=True)
