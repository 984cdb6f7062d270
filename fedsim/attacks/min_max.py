"""Min-max: ``mu - gamma p``, no farther from an update than two of these are apart.

``max_i |x - x_i|^2 <= max_ij |x_i - x_j|^2`` (Shejwalkar and Houmansadr, NDSS 2021).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsim.attacks.base import Attack, Federation
from fedsim.attacks.omniscient import ByCoordinate, InSpan, Knowledge, Mask, deviation
from fedsim.core.types import F64
from fedsim.server import Cohort

Direction = Literal["unit_vec", "std", "sign"]


class Farthest(InSpan):
    """``mu - gamma p``, as far as a bound on its distances from the seen updates x_i allows.

    Here ``p = mu / |mu|`` (``unit_vec``); for others see :class:`Perturbed`. ``|mu - gamma p -
    x_i|^2 = u_i - 2 gamma b_i + gamma^2 c`` with ``u_i = |mu - x_i|^2``, ``b_i = <mu - x_i, p>``
    and ``c = |p|^2`` gives the largest gamma in closed form; the authors find it by bisection,
    below twice a start value.
    """

    def coefficients(self, cohort: Cohort, seen: Mask) -> F64:
        """``(1 - gamma / |mu|) / h`` each."""
        gram = _gram(cohort, seen)
        h, inner = len(gram), gram.mean(axis=1)  # <mu, x_i>
        norm = np.sqrt(max(inner.mean(), 0.0))
        if norm == 0.0:
            return np.full(h, 1.0 / h)
        u = norm**2 - 2 * inner + gram.diagonal()
        gamma = self.length(u, (norm**2 - inner) / norm, 1.0, _diameter(gram))
        return np.full(h, (1 - gamma / norm) / h)

    @abstractmethod
    def length(self, u: F64, b: F64, c: float, diameter: float) -> float:
        """The largest gamma for u, b (h,) and c of the class, c > 0, where ``diameter`` is the
        largest squared distance of two seen updates."""


@dataclass(frozen=True)
class MinMax(Farthest):
    """``gamma = min_i (b_i + sqrt(b_i^2 + c (max_ij |x_i - x_j|^2 - u_i))) / c``."""

    def length(self, u: F64, b: F64, c: float, diameter: float) -> float:
        """The smallest root, of all i."""
        return float(np.min(b + np.sqrt(np.maximum(b**2 + c * (diameter - u), 0.0)))) / c


@dataclass(frozen=True)
class Perturbed(ByCoordinate):
    """:class:`Farthest` along ``p``, the seen updates' standard deviation or the sign of ``mu``."""

    bound: Farthest
    perturbation: Direction = "std"

    def attack(self, cohort: Cohort, malicious: Mask) -> Cohort:
        """Reads whole updates."""
        seen = self.seen(malicious)
        h = int(seen.sum())
        u, b, c = np.zeros(h), np.zeros(h), 0.0
        for _, x in self.blocks(cohort, malicious):
            mu, p = x.mean(axis=0), self._direction(x)
            away = mu - x
            u += (away**2).sum(axis=1)
            b += away @ p
            c += float(p @ p)
        gamma = self.bound.length(u, b, c, _diameter(_gram(cohort, seen))) if c else 0.0
        return self.with_vector(
            cohort, malicious, lambda x: x.mean(axis=0) - gamma * self._direction(x)
        )

    def _direction(self, x: F64) -> F64:
        return np.sign(x.mean(axis=0)) if self.perturbation == "sign" else deviation(x)


def along(bound: Farthest, direction: Direction) -> Attack:
    """The attack along a direction."""
    if direction == "unit_vec":
        return Attack(cohort=bound)
    return Attack(cohort=Perturbed(bound, direction, knows=bound.knows))


def _gram(cohort: Cohort, seen: Mask) -> F64:
    """(h, h) of the parameters of the updates that are seen."""
    whole = cohort.gram(slice(0, cohort.layout.num_params))
    return whole[np.ix_(seen, seen)]


def _diameter(gram: F64) -> float:
    """The largest squared distance of two updates."""
    squares = gram.diagonal()
    return float(np.max(squares[:, None] + squares - 2 * gram))


def build(
    federation: Federation, knowledge: Knowledge = "benign", perturbation: Direction = "unit_vec"
) -> Attack:
    """Min-max."""
    return along(MinMax(knows=knowledge), perturbation)
