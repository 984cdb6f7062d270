"""AFL: the worst mixture of the clients is minimised (Mohri, Sivek, Suresh, ICML 2019, Alg. 1).

    min_w max_lambda  sum_i lambda_i F_i(w),   lambda in the simplex
    w <- w + sum_i lambda_i (w_i - w),   lambda <- Pi(lambda + rate F(w))

All lambda_i start as 1/N; F_i is the loss of the received model on all of client i's training
samples. Pi projects on the simplex; ``ascent=mirror`` takes lambda_i e^(rate F_i) over the sum.
The paper has all clients in every round (``train.sample_rate=1``). Of a cohort, the shares of its
clients among each other count, and the ascent moves these alone: their sum stays as it is. Running
statistics are means by samples. At rate 0 it is FedAvg with uniform weights, bit for bit.

:client: plain SGD, and a pass over its data for the loss of the received model
:server: mean by lambda; projected or mirror ascent on lambda
:state: server lambda (N)
:sends: up one number, the loss of the received model
:public code: there is none of the authors; that of q-FFL takes single steps, lets losses of batches
    move lambda, scores the mean of all models so far, and projects by a sum that leaves out a term,
    so that lambda often adds up to more than 1; FedTorch's keeps every lambda_i above
    0.001, which it starts by samples
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedsim.algorithms.base import Algorithm
from fedsim.algorithms.qffl import WithLoss, losses_of
from fedsim.core.settings import NonNegative
from fedsim.core.types import F64, RoundContext, Vectors
from fedsim.server import Average, Cohort, Received, Server


def projected(y: F64, total: float) -> F64:
    """The nearest point to y (m,) with entries >= 0 and this sum."""
    ordered = np.sort(y)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(y) + 1)
    kept = np.flatnonzero(ordered > excess)[-1]
    return np.maximum(y - excess[kept], 0.0)


def ascended(weights: F64, change: F64, total: float, ascent: str) -> F64:
    """The weights (m,), whose sum is ``total``, after a step of ``change`` (m,)."""
    if not change.any():
        return weights
    if ascent == "projected":
        return projected(weights + change, total)
    grown = weights * np.exp(change - change.max())
    return total * grown / grown.sum()


@dataclass(frozen=True)
class WorstMixture:
    """Scales update i by lambda_i over the mean of the cohort's."""

    rate: float
    ascent: str

    name: ClassVar[str] = "afl"
    needs_own_clients = reads_uploads = rescales = True

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Received:
        """Keeps ``weights`` (N,), N times lambda, by client id, those that are held out too."""
        n, ids = ctx.num_clients, [u.client_id for u in cohort.updates]
        weights = state.get("weights", np.ones(n + ctx.num_held_out)).copy()
        own = weights[ids]
        total = own.sum()
        factors = np.ones_like(own)  # clients that count for nothing count alike
        if total > 0:
            factors = own / own.mean()
            change = self.rate * losses_of(cohort) * (n if self.ascent == "projected" else 1)
            weights[ids] = ascended(own, change, total, self.ascent)
        metrics = {"largest_lambda": float(weights[ids].max()) / n}
        return Received(
            cohort=cohort.scaled(factors),
            state={"weights": weights},
            statistics=cohort,
            metrics=metrics,
        )


def build(
    rate: NonNegative = 0.1, ascent: Literal["projected", "mirror"] = "projected"
) -> Algorithm:
    """AFL.

    Args:
        rate: learning rate of lambda, >= 0; 0 is FedAvg.
        ascent: the gradient step and a projection, or exponentiated gradients.
    """
    server = Server(Average("uniform"), receive=(WorstMixture(rate, ascent),))
    return Algorithm(local=WithLoss(), server=server)
