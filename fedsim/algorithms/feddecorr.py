"""FedDecorr: decorrelated features on the clients (Shi et al., ICLR 2023).

    code:   CE + beta (B-1)^2/B mean_{i != j} rho_ij^2
    paper:  CE + beta 1/d^2 ||rho||_F^2

rho (d, d) are the correlations of the head's inputs over a batch of B samples; a batch of one
sample has no such term. The gradients of the two forms differ by the factor (B-1)^2/B d/(d-1),
about B; the experiments of FedDecorr and FedGH ran with ``code`` and beta = 0.1.

:client: CE + beta times the squared correlations of the features
:server: mean by samples
:state: none
:sends: nothing more
:public code: the released code is about B times stronger than the paper's formula
    (``form=code``, the default, against ``form=paper``)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedsim.algorithms.base import Algorithm
from fedsim.client import Batch, FeaturePenalty, LocalEnv, matmul, upcast
from fedsim.core.settings import NonNegative

Decorrelation = Literal["code", "paper"]
_VARIANCE: Mapping[Decorrelation, float] = {"code": 1e-8, "paper": 1e-12}


def decorrelation(
    features: Tensor, form: Decorrelation = "code", weights: Tensor | None = None
) -> Tensor:
    """How much the features correlate over the batch (FedDecorr); 0 for a single sample.

    With the correlations rho over the batch, those of a constant feature being 0: ``code`` is
    ``(B - 1)^2 / B`` times the mean of rho_ij^2 over pairs i != j, ``paper`` the mean of rho_ij^2
    over all i and j. The released code adds 1e-8 to variances; the paper's form has only what
    keeps it finite. With ``weights`` (B,) only the samples count whose weight, one over their
    number, is not 0.
    """
    n, d = features.shape
    if n == 1:
        return features.new_zeros(())
    x = upcast(features)
    b: float | Tensor = n
    freedom: float | Tensor = n - 1
    if weights is None:
        centred, variance = x - x.mean(dim=0), x.var(dim=0)
    else:
        b = 1 / weights.amax()
        freedom = (b - 1).clamp(min=1)
        centred = (x - weights @ x) * (weights > 0).unsqueeze(1)
        variance = centred.square().sum(dim=0) / freedom
    z = centred / (variance + _VARIANCE[form]).sqrt()
    products = matmul(z.T, z)
    if form == "paper":
        return (products / freedom).square().mean()
    others = products - torch.diag_embed(products.diagonal())
    return others.square().sum() / max(1, d * (d - 1)) / b


@dataclass(frozen=True)
class Decorrelated(FeaturePenalty):
    """Adds the decorrelation of the head's inputs."""

    beta: float
    form: Decorrelation
    stackable = capturable = True

    def penalty(self, env: LocalEnv, s: Any, batch: Batch) -> Tensor:
        """At beta = 0 it is FedAvg bit for bit."""
        return self.beta * decorrelation(batch.h, self.form, env.weights)


def build(beta: NonNegative = 0.1, form: Decorrelation = "code") -> Algorithm:
    """FedDecorr.

    Args:
        beta: weight of the term, >= 0.
        form: as the released code computes it, or the paper's formula.
    """
    return Algorithm(local=Decorrelated(beta, form))
