"""A little is enough: ``mu - z sigma`` in each coordinate (Baruch et al., NeurIPS 2019).

sigma is the standard deviation over the updates that are seen. In the paper malicious clients know
their own honest updates only.
"""

from dataclasses import dataclass
from statistics import NormalDist

from fedsim.attacks.base import Attack, Federation
from fedsim.attacks.omniscient import ByCoordinate, Knowledge, Mask, deviation
from fedsim.core.settings import Positive
from fedsim.server import Cohort


@dataclass(frozen=True)
class Alie(ByCoordinate):
    """``mu - z sigma``; z None: that of :func:`alie_z` for the cohort."""

    z: float | None = None

    def attack(self, cohort: Cohort, malicious: Mask) -> Cohort:
        z = alie_z(len(malicious), int(malicious.sum())) if self.z is None else self.z
        return self.with_vector(cohort, malicious, lambda x: x.mean(axis=0) - z * deviation(x))

    def has_effect(self, m: int, malicious: int) -> bool:
        """With z = 0 the malicious ones of m clients send the mean that they start from."""
        alone = self.knows == "own" and malicious == 1  # no deviation
        return not alone and bool(self.z or alie_z(m, malicious))


def alie_z(n: int, f: int) -> float:
    """``Phi^-1((n - f - s) / (n - f))`` with ``s = floor(n / 2 + 1) - f`` supporters, at least one.

    As in Baruch et al. (NeurIPS 2019). A majority of malicious clients needs no supporters,
    for which the formula has no finite value; one is assumed then. 0 for a single benign client.
    n are the clients of the cohort, f of them malicious.
    """
    benign, supporters = n - f, max(n // 2 + 1 - f, 1)
    return NormalDist().inv_cdf((benign - supporters) / benign) if benign > supporters else 0.0


def build(
    federation: Federation, scale: Positive | None = None, knowledge: Knowledge = "benign"
) -> Attack:
    """ALIE; ``scale`` is z."""
    return Attack(cohort=Alie(scale, knows=knowledge))
