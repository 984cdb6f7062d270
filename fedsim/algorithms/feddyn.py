"""FedDyn: dynamic regularisation (Acar et al., ICLR 2021, Algorithm 1).

    client:  th_i = argmin  F_i(th) - <lambda_i, th> + alpha/2 ||th - w||^2,   by SGD
             lambda_i <- lambda_i - alpha (th_i - w)
    server:  h <- h - alpha/N sum_S (th_i - w),   w <- mean_S th_i - h / alpha

Everything starts at 0. At exact minima lambda_i = grad F_i(th_i) and h = (1/N) sum_i lambda_i; with
all clients the rounds converge to the minimum of the mean of the F_i. SGD runs without momentum.

:client: the gradient gains alpha (w - w_t) - lambda_i
:server: uniform mean minus h / alpha
:state: client lambda_i (P), server h (P)
:sends: nothing more
:public code: the official code takes alpha n_mean / n_i on client i
    (``client_alpha=by_samples``) and also evaluates mean th_i; PFLlib adds the norm unsquared;
    FL-bench drops the quadratic term and averages by samples; FedLab computes its two terms on
    detached parameters, so that they carry no gradient and clients train as in FedAvg
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, LocalRule, Uplink
from fedsim.core.settings import Positive
from fedsim.core.types import Array, RoundContext, Vectors
from fedsim.server import Average, Cohort, Server


@dataclass(frozen=True)
class RegularisedObjective(LocalRule):
    """SGD on the regularised objective."""

    alpha: float
    client_alpha: str
    plain_sgd = needs_sgd = stackable = gradients_only = True

    @property
    def capturable(self) -> bool | str:  # type: ignore[override]
        """A replayed step has the weight of the client with which it was recorded."""
        return self.client_alpha == "equal" or "the weight of its regulariser differs by client"

    def client_weight(self, env: LocalEnv) -> float | Tensor:
        """alpha_i, the weight of this client's regulariser; (A,) in a block."""
        return self.alpha / (env.relative_size if self.client_alpha == "by_samples" else 1.0)

    def begin(self, env: LocalEnv) -> list[Tensor]:
        """What is subtracted from the gradient, ``lambda_i + alpha w_t``."""
        params = env.start[: env.flat.layout.num_params]
        return env.split(env.kept("lambda") + self.client_weight(env) * params)

    def adjust_grads(self, env: LocalEnv, s: list[Tensor]) -> None:
        """``p.grad += alpha w - (lambda_i + alpha w_t)``."""
        gradients, weight = env.grads(), self.client_weight(env)
        if isinstance(weight, Tensor):
            for g, p in zip(gradients, env.params, strict=True):
                g += weight.view(-1, *[1] * (p.ndim - 1)) * p
        else:
            torch._foreach_add_(gradients, env.params, alpha=weight)
        torch._foreach_sub_(gradients, s)

    def finish(self, env: LocalEnv, s: list[Tensor]) -> Uplink:
        """The new lambda_i."""
        after = env.kept("lambda") - self.client_weight(env) * env.moved
        return Uplink(state={"lambda": after.cpu().numpy()})


@dataclass(frozen=True)
class DualCorrection:
    """Subtracts h / alpha, the mean of all lambda_i, from the step."""

    alpha: float

    def __call__(
        self, step: Array, state: Vectors, cohort: Cohort, ctx: RoundContext
    ) -> tuple[Array, Vectors]:
        """Keeps h."""
        h = state.get("h", 0.0) - self.alpha * (len(cohort.updates) / ctx.num_clients) * step
        return step - h / self.alpha, {"h": h}


def build(
    alpha: Positive = 0.01, client_alpha: Literal["equal", "by_samples"] = "equal"
) -> Algorithm:
    """FedDyn.

    Args:
        alpha: weight of the regulariser, > 0.
        client_alpha: the same for all clients (the paper), or alpha n_mean / n_i.
    """
    server = Server(
        Average("uniform"),
        optimizers=(DualCorrection(alpha),),
        incompatible_reason="subtracts h / alpha, which the mean of its clients' updates makes",
    )
    local = RegularisedObjective(alpha, client_alpha)
    return Algorithm(local=local, server=server, needs_exact_updates=True)
