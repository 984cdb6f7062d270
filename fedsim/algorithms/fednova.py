"""FedNova: normalised averaging of unequal local work (Wang et al., NeurIPS 2020).

    w <- w + tau_eff sum_i p_i Delta_i / |a_i|_1,    tau_eff = sum_i p_i |a_i|_1

|a_i|_1 is by how many learning rates client i's optimiser moves under a constant gradient of one:
tau_i steps of plain SGD, (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho) with momentum rho,
(1 - (1 - lr mu)^tau) / (lr mu) with a proximal term; both together by their joint recursion. With
mu > 0 tau_eff is sum_i p_i tau_i, as in the official code. Running statistics are plain means. With
another server rule its reduction sees the updates tau_eff Delta_i / |a_i|_1 (``normalised``), or
sees the original updates and the weights p_i tau_eff / |a_i|_1 (``delta``; a rule that weighs
its clients uniformly does not look at these). The server momentum is replaced by the server
optimisers of the other rule.

:client: SGD, with mu > 0 and a proximal term as in FedProx
:server: mean by samples of the normalised updates, or another reduction of them; server momentum
:state: none; with gmf > 0 the server's momentum (P)
:sends: up one number, the normaliser of the client
:public code: NIID-Bench and FedDecorr also normalise the running statistics, FedDecorr's copy
    indexes p by client id; the official code counts momentum and proximal term twice where both are
    on
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedsim.algorithms.base import Algorithm
from fedsim.algorithms.fedprox import Proximal
from fedsim.client import LocalEnv, Uplink, normaliser
from fedsim.core.settings import Decay, NonNegative
from fedsim.core.types import RoundContext, Vectors
from fedsim.server import Average, Cohort, Received, Server, shares
from fedsim.server.optimizers import HeavyBall


class WithNormaliser(Proximal):
    """Also uploads the normaliser |a|_1, the effective number of its steps."""

    needs_sgd = stackable = capturable = gradients_only = True

    def finish(self, env: LocalEnv, s: object) -> Uplink:
        """The normaliser |a|_1."""
        a = normaliser(env.steps, env.training.momentum, env.ctx.lr * self.mu)
        return Uplink({"normaliser": np.array([a])})


@dataclass(frozen=True)
class NormalisedUpdates:
    """Scales every update to tau_eff steps."""

    proximal: bool
    gh_on: str

    name: ClassVar[str] = "normalise"
    needs_own_clients = by_client = rescales = True

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Received:
        """Keeps no state; a client without a step adds nothing. Statistics are plain means."""
        steps = np.array([u.num_steps for u in cohort.updates], np.float64)
        normalisers = [u.extras.get("normaliser", [u.num_steps])[0] for u in cohort.updates]
        a = np.array(normalisers, np.float64)
        p = shares(cohort.num_samples, "samples")
        factors = p @ (steps if self.proximal else a) / np.where(a > 0, a, np.inf)
        if self.gh_on == "normalised":
            return Received(cohort=cohort.scaled(factors), statistics=cohort)
        total = float(p @ factors)  # 0 if no client made a step; then no client moved
        weighted = cohort.weighted(p * factors if total > 0 else p)
        return Received(cohort=weighted, scale=total, statistics=cohort)


def build(
    mu: NonNegative = 0.0, gmf: Decay = 0.0, gh_on: Literal["normalised", "delta"] = "normalised"
) -> Algorithm:
    """FedNova.

    Args:
        mu: weight of the clients' proximal term, >= 0.
        gmf: server momentum in [0, 1); without effect with another server rule.
        gh_on: what another server rule (``--server fedgh``) sees.
    """
    momentum = (HeavyBall(beta=gmf, eta=1.0, unit="lr"),) if gmf > 0 else ()
    server = Server(Average(), optimizers=momentum, receive=(NormalisedUpdates(mu > 0, gh_on),))
    return Algorithm(local=WithNormaliser(mu, "squared"), server=server, measures_progress=True)
