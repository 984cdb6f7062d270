"""Min-sum: ``mu - gamma p``, in sum no farther from the updates than one of these is.

``sum_i |x - x_i|^2 <= min_i sum_j |x_i - x_j|^2``, as the code of Shejwalkar and Houmansadr (NDSS
2021) has it, or the maximum over i, as in the paper.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsim.attacks.base import Attack, Federation
from fedsim.attacks.min_max import Direction, Farthest, along
from fedsim.attacks.omniscient import Knowledge
from fedsim.core.types import F64

Bound = Literal["min", "max"]


@dataclass(frozen=True)
class MinSum(Farthest):
    """``gamma = sqrt(min_i u_i / c)``, or of the maximum: differences from the mean sum to 0."""

    bound: Bound = "min"

    def length(self, u: F64, b: F64, c: float, diameter: float) -> float:
        """The root for one of the sums."""
        one = np.min(u) if self.bound == "min" else np.max(u)
        return float(np.sqrt(max(float(one) / c, 0.0)))


def build(
    federation: Federation,
    knowledge: Knowledge = "benign",
    perturbation: Direction = "unit_vec",
    bound: Bound = "min",
) -> Attack:
    """Min-sum."""
    return along(MinSum(bound, knows=knowledge), perturbation)
