"""Inner product manipulation: ``-scale mu`` (Xie et al., UAI 2019)."""

from dataclasses import dataclass

import numpy as np

from fedsim.attacks.base import Attack, Federation
from fedsim.attacks.omniscient import InSpan, Knowledge, Mask
from fedsim.core.settings import Positive
from fedsim.core.types import F64
from fedsim.server import Cohort


@dataclass(frozen=True)
class Ipm(InSpan):
    """The opposite of the mean."""

    scale: float = 0.5

    def coefficients(self, cohort: Cohort, seen: Mask) -> F64:
        """``-scale / h`` each."""
        h = int(seen.sum())
        return np.full(h, -self.scale / h)


def build(federation: Federation, scale: Positive = 0.5, knowledge: Knowledge = "benign") -> Attack:
    """IPM of strength ``scale``."""
    return Attack(cohort=Ipm(scale, knows=knowledge))
