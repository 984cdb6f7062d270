"""Weights of stale updates in asynchronous rounds.

    step = sum_i p_i s(d_i) Delta_i

The staleness d_i counts the server's steps from the start of client i's training until its update
is aggregated: 0 for an update of the newest model. A round without updates makes no step. The forms
of s are those of FedAsync (Xie et al., OPT 2020, arXiv:1903.03934, Section 5.2):

    constant     1
    polynomial   (1 + d)^-a
    hinge        1 if d <= b, else 1 / (a (d - b) + 1)

polynomial with a = 1/2 is the weight 1 / sqrt(1 + d) of FedBuff (Nguyen et al., AISTATS 2022).
Weights are not normalised to a sum of 1: a buffer of stale updates makes a shorter step.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedsim.core.types import F64, RoundContext, Vectors
from fedsim.server.base import Received
from fedsim.server.cohort import Cohort

Form = Literal["polynomial", "hinge", "constant"]


@dataclass(frozen=True)
class StalenessWeights:
    """Scales updates by s(d), and by ``mixing`` where clients' models are mixed in (FedAsync).

    Running statistics are combined as the method combines fresh ones, without these weights, but
    for mixed models, of which they are a part.

    Args:
        form: of s.
        exponent: a of ``polynomial``.
        slope: a of ``hinge``.
        threshold: b of ``hinge``, in server steps.
        mixing: alpha of FedAsync; None where updates are added (FedBuff).
    """

    form: Form = "polynomial"
    exponent: float = 0.5
    slope: float = 10.0
    threshold: float = 4.0
    mixing: float | None = None
    name: ClassVar[str] = "staleness"
    needs_own_clients: ClassVar[bool] = False

    def weights(self, staleness: F64) -> F64:
        """s(d) (m,) in (0, 1] for a staleness d (m,) in server steps, from 0."""
        if self.form == "polynomial":
            return (1 + staleness) ** -self.exponent
        if self.form == "hinge":
            return 1 / (self.slope * np.maximum(staleness - self.threshold, 0) + 1)
        return np.ones_like(staleness)

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Received:
        """Keeps no state; updates of the newest model alone stay as they are."""
        staleness = np.array([u.staleness for u in cohort.updates], np.float64)
        weights = self.weights(staleness)
        if self.mixing is not None:
            return Received(cohort=cohort.scaled(self.mixing * weights))
        if (weights == 1).all():
            return Received(cohort=cohort)
        return Received(cohort=cohort.scaled_params(weights))
