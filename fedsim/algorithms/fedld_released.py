"""FedLD as released: what its code computes (Zeng et al., MICCAI 2024, Zeng-Shuang/FedLD).

    client:  cross-entropy + lambda log(1 + ||softmax(f)||_F^2) over the batch
    server:  per state-dict tensor, statistics included: principal axes with L = int(0.8 m),
             omega_l = lambda_l / sum of all lambda, uniform client weights; the plain mean for
             tensors of one element and while the tensor's history is absent or zero

int(0.8 m) is 0 for one client: its update is lost, as in the released code. A client orthogonal to
an axis contributes 0 there instead of the released NaN. The learning-rate warm-up and the frozen
BatchNorm of the released runs are settings: preset ``fedld_released``.

:client: cross-entropy with a penalty on the batch's softmax
:server: principal axes tensor by tensor, uniform weights
:state: server an average of its past steps (D)
:sends: nothing more
:public code: this is one; it gives NaN where a client is orthogonal to an axis
"""

from dataclasses import dataclass

import numpy as np

from fedsim.algorithms.base import Algorithm
from fedsim.client import MarginControl
from fedsim.core.settings import Fraction, NonNegative
from fedsim.core.types import F64, Array, RoundContext
from fedsim.server import HistoryGram, Server
from fedsim.server.principal import Principal


@dataclass(frozen=True)
class ReleasedPrincipal:
    """Principal aggregation of one tensor."""

    keep: float

    def __call__(self, gram: F64, history: Array | None, dots: F64, ctx: RoundContext) -> F64:
        """Coefficients (m,) from K (m, m) and the tensor's history (d,)."""
        m = len(gram)
        if history is None or history.size == 1 or not history.any():
            return np.full(m, 1.0 / m)
        axes = int(self.keep * m)
        if axes == 0:
            return np.zeros(m)
        rule = Principal(keep=axes / m, norm="l1", scope="all", weights="uniform")
        return rule(gram, np.ones(m), ctx)


def build(margin_weight: NonNegative = 0.03, keep: Fraction = 0.8) -> Algorithm:
    """FedLD, released form.

    Args:
        margin_weight: lambda, >= 0.
        keep: share of the principal axes that is kept.
    """
    return Algorithm(
        server=Server(HistoryGram(ReleasedPrincipal(keep))),
        criterion=MarginControl("softmax_frob", margin_weight),
    )
