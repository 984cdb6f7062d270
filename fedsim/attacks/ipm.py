"""Inner product manipulation: ``-scale mu`` (Xie et al., UAI 2019).

With ``auto`` the scale is searched for in each round, see :mod:`fedsim.attacks.omniscient`.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedsim.attacks.base import Attack, Federation
from fedsim.attacks.omniscient import Auto, InSpan, Knowledge, Mask, Omniscient, check_search
from fedsim.core.settings import Positive
from fedsim.core.types import F64
from fedsim.server import Cohort


@dataclass(frozen=True)
class Ipm(InSpan):
    """The opposite of the mean."""

    scale: float | Auto = 0.5

    @property
    def searches(self) -> bool:
        return self.scale == "auto"

    def with_factor(self, factor: float) -> Omniscient:
        return replace(self, scale=factor)

    def coefficients(self, cohort: Cohort, seen: Mask) -> F64:
        """``-scale / h`` each."""
        h, scale = int(seen.sum()), 0.5 if self.scale == "auto" else self.scale
        return np.full(h, -scale / h)


def build(
    federation: Federation, scale: Positive | Auto = 0.5, knowledge: Knowledge = "benign"
) -> Attack:
    """IPM of strength ``scale``."""
    check_search(scale, knowledge)
    return Attack(cohort=Ipm(scale, knows=knowledge))
