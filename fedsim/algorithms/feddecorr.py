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

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedsim.algorithms.base import Algorithm
from fedsim.client.criterion import Decorrelation, decorrelation
from fedsim.client.trainer import LocalEnv, LocalRule
from fedsim.core.errors import ConfigError


@dataclass(frozen=True)
class Decorrelated(LocalRule):
    """Adds the decorrelation of the head's inputs."""

    beta: float
    form: Decorrelation
    needs_features: ClassVar[bool] = True

    def loss(self, env: LocalEnv, s: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """At beta = 0 it is FedAvg bit for bit."""
        h, logits = env.outputs(x)
        objective, ce = env.criterion.with_cross_entropy(logits, y)
        return objective + self.beta * decorrelation(h, self.form), ce


def build(beta: float = 0.1, form: Decorrelation = "code") -> Algorithm:
    """FedDecorr.

    Args:
        beta: weight of the term, >= 0.
        form: as the released code computes it, or the paper's formula.
    """
    if not beta >= 0:
        raise ConfigError(f"feddecorr.beta is {beta}; it must be >= 0")
    return Algorithm(local=Decorrelated(beta, form))
