"""SCAFFOLD: control variates against client drift (Karimireddy et al., ICML 2020, Algorithm 1).

    client:  y <- y - lr (grad F_i(y) - c_i + c), K times from y = x
             option II:  c_i' = c_i - c + (x - y) / (K lr);   option I:  c_i' = grad F_i(x)
    server:  x <- x + eta_g mean_S (y_i - x);   c <- c + |S|/N mean_S (c_i' - c_i)

All control variates start at 0, so c = (1/N) sum_i c_i over all N clients always. With momentum
K lr becomes the effective local step length lr |a|_1, and (x - y) / (lr |a|_1) is a weighted mean
of the gradients; at lr = 0, as in the first round of a warm-up, option II leaves c_i unchanged.
Weight decay is a part of the gradient. Option I takes the gradient over all of the client's data in
evaluation mode, without augmentation.

:client: the gradient is corrected by c - c_i
:server: uniform mean with server learning rate eta_g; control variate c
:state: client c_i (P), server c (P)
:sends: up c_i' - c_i (P), down c (P)
:public code: NIID-Bench starts c from a random network, averages by samples and treats BatchNorm
    buffers as parameters; FL-bench takes one batch per epoch, so K is the number of epochs, and its
    server never stores the new c_i, which so stays 0; FedLab reads the gradients from detached
    tensors, which have none, so that the correction is never applied; alpemreacar/FedDyn scales c
    by data size, clips at 10 and forgets the decay of lr in c_i'; FLamby, in other variables,
    weighs models and control variates by samples (weights=samples, control=samples)
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, LocalRule, Uplink
from fedsim.core.settings import Positive
from fedsim.core.types import RoundContext, Vectors
from fedsim.server import Average, Cohort, Exchanged, Server, Weights
from fedsim.server.optimizers import Multiply


@dataclass(frozen=True)
class CorrectedGradient(LocalRule):
    """SGD with the correction c - c_i."""

    option: str
    needs_sgd = stackable = capturable = True

    @property
    def gradients_only(self) -> bool:  # type: ignore[override]
        """Option I also takes a gradient over all samples, without noise."""
        return self.option == "II"

    def begin(self, env: LocalEnv) -> tuple[list[Tensor], Tensor | None]:
        """The correction, and the new control variate where it is known before training."""
        fresh = env.gradient() if self.option == "I" else None
        return env.split(env.received("c") - env.kept("c")), fresh

    def adjust_grads(self, env: LocalEnv, s: tuple[list[Tensor], Tensor | None]) -> None:
        """``p.grad += c - c_i``."""
        torch._foreach_add_(env.grads(), s[0])

    def finish(self, env: LocalEnv, s: tuple[list[Tensor], Tensor | None]) -> Uplink:
        """The new control variate to keep, and by how much it changed to send.

        Option II leaves it unchanged without a step or at a learning rate of 0.
        """
        before, fresh, length = env.kept("c"), s[1], env.effective_step_length
        if fresh is None and length > 0:
            fresh = before - env.received("c") - env.moved / length
        after = before if fresh is None else fresh
        change = (after - before).cpu().numpy()
        return Uplink({"c": change}, {"c": after.cpu().numpy()})


def server_control(
    cohort: Cohort, state: Vectors, ctx: RoundContext, *, by_samples: bool = False
) -> Exchanged:
    """``c <- c + (|S|/N) sum_S p_i (c_i' - c_i)``, p_i = 1/|S| or by samples, kept in float64."""
    c = np.zeros(cohort.layout.num_params) + state.get("c", 0.0)
    total = sum(update.num_samples for update in cohort.updates)
    for update in cohort.updates:
        share = update.num_samples / total * len(cohort.updates) / ctx.num_clients
        change = update.extras["c"]
        c += change * share if by_samples else change / ctx.num_clients
    return Exchanged({"c": c}, {"c": c.astype(cohort.columns.dtype)})


def build(
    option: Literal["II", "I"] = "II",
    eta_g: Positive = 1.0,
    weights: Weights = "uniform",
    control: Weights = "uniform",
) -> Algorithm:
    """SCAFFOLD.

    Args:
        option: how clients renew their control variate; I costs a pass over their data.
        eta_g: server learning rate, > 0; this and ``weights`` have no effect with another server
            rule.
        weights: of the models, uniform (the paper) or by samples.
        control: weights of the control variates in the server's, uniform (the paper) or by samples.
    """
    by_samples = partial(server_control, by_samples=True)
    server = Server(Average(weights), optimizers=(Multiply(eta_g),), exchange=by_samples)
    if control == "uniform":
        server = replace(server, exchange=server_control, sums=True, private_sum="c")
    return Algorithm(local=CorrectedGradient(option), server=server)
