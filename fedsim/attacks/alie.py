"""A little is enough: ``mu - z sigma`` in each coordinate (Baruch et al., NeurIPS 2019).

sigma is the standard deviation over the updates that are seen. In the paper malicious clients know
their own honest updates only. With ``auto`` z is searched for in each round, see
:mod:`fedsim.attacks.omniscient`.
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

from fedsim.attacks.base import Attack, Federation
from fedsim.attacks.omniscient import (
    Auto,
    ByCoordinate,
    Knowledge,
    Mask,
    Omniscient,
    check_search,
    deviation,
)
from fedsim.core.settings import Positive
from fedsim.server import Cohort


@dataclass(frozen=True)
class Alie(ByCoordinate):
    """``mu - z sigma``; z None: that of :func:`alie_z` for the cohort, auto: searched for."""

    z: float | Auto | None = None

    @property
    def searches(self) -> bool:
        return self.z == "auto"

    def with_factor(self, factor: float) -> Omniscient:
        return replace(self, z=factor)

    def attack(self, cohort: Cohort, malicious: Mask) -> Cohort:
        known = alie_z(len(malicious), int(malicious.sum()))
        z = known if self.z is None or self.z == "auto" else self.z
        return self.with_vector(cohort, malicious, lambda x: x.mean(axis=0) - z * deviation(x))

    def factor(self, m: int, malicious: int) -> float:
        """z for so many malicious of m clients: at 0 they send the mean that they start from,
        below on its other side; NaN where it is searched for."""
        if self.knows == "own" and malicious == 1:  # no deviation
            return 0.0
        z = alie_z(m, malicious) if self.z is None else self.z
        return math.nan if z == "auto" else z


def alie_z(n: int, f: int) -> float:
    """``Phi^-1((n - f - s) / (n - f))`` with ``s = floor(n / 2 + 1) - f`` supporters, at least one.

    As in Baruch et al. (NeurIPS 2019). A majority of malicious clients needs no supporters,
    for which the formula has no finite value; one is assumed then. 0 for a single benign client.
    n are the clients of the cohort, f of them malicious.
    """
    benign, supporters = n - f, max(n // 2 + 1 - f, 1)
    return NormalDist().inv_cdf((benign - supporters) / benign) if benign > supporters else 0.0


def build(
    federation: Federation, scale: Positive | Auto | None = None, knowledge: Knowledge = "benign"
) -> Attack:
    """ALIE; ``scale`` is z."""
    check_search(scale, knowledge)
    return Attack(cohort=Alie(scale, knows=knowledge))
