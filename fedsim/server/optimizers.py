"""Server optimisers: what follows the reduction of a cohort to one step.

``Delta`` is the reduction's step of the parameters (P,), m and v are kept from round to round in
its precision. Sources: Reddi et al. 2021 (Adaptive Federated Optimization, Algorithm 2), Hsu et al.
2019 (FedAvgM), Wang et al. 2020 (SlowMo).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedsim.core.types import Array, RoundContext, Vectors
from fedsim.server.cohort import Cohort


@dataclass(frozen=True)
class Multiply:
    """``w <- w + eta Delta``: a server learning rate."""

    eta: float
    blind: ClassVar[bool] = True

    def __call__(
        self, step: Array, state: Vectors, cohort: Cohort, ctx: RoundContext
    ) -> tuple[Array, Vectors]:
        return self.eta * step, state


@dataclass(frozen=True, kw_only=True)
class HeavyBall:
    """``m <- beta m + Delta / unit``, ``w <- w + eta unit m``.

    ``unit`` is 1 (FedAvgM), or the clients' learning rate of the round (SlowMo, FedNova); where
    that is 0 no client moves, and Delta / unit is taken as 0.
    """

    beta: float  # server momentum
    eta: float  # server learning rate
    nesterov: bool = False  # ``w <- w + eta unit (Delta / unit + beta m)`` instead
    unit: Literal["one", "lr"] = "one"
    blind: ClassVar[bool] = True

    def __call__(
        self, step: Array, state: Vectors, cohort: Cohort, ctx: RoundContext
    ) -> tuple[Array, Vectors]:
        """Keeps ``m``."""
        unit = ctx.lr if self.unit == "lr" else 1.0
        fresh = step / (unit or 1.0)
        m = self.beta * state["m"] + fresh if "m" in state else fresh
        direction = fresh + self.beta * m if self.nesterov else m
        return self.eta * unit * direction, {"m": m}


Start = Literal["paper", "zero"]
"""v_0: tau^2 (Reddi et al.), or 0 (most public code)."""


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """``m <- b1 m + (1 - b1) Delta``, ``w <- w + eta m / (sqrt(v) + tau)``.

    With ``s = Delta^2`` and ``m_0 = 0``: v of Adam is ``b2 v + (1 - b2) s``, of Yogi
    ``v - (1 - b2) s sign(v - s)``, of Adagrad ``v + s``.

    ``bias_correction`` multiplies eta by ``sqrt(1 - b2^t) / (1 - b1^t)``, t = 2 in the first round,
    as Flower's FedAdam does; the paper has none.
    The other fields are those of :mod:`~fedsim.algorithms.fedadam`.
    """

    kind: Literal["adam", "yogi", "adagrad"]
    eta: float
    beta1: float
    beta2: float = 0.0
    tau: float
    v0: Start
    bias_correction: bool = False
    blind: ClassVar[bool] = True

    def __call__(
        self, step: Array, state: Vectors, cohort: Cohort, ctx: RoundContext
    ) -> tuple[Array, Vectors]:
        """Keeps ``m`` and ``v``."""
        m = self.beta1 * state.get("m", 0.0) + (1 - self.beta1) * step
        start = self.tau**2 if self.v0 == "paper" else 0.0
        before = state["v"] if "v" in state else np.full_like(step, start)
        v = self._second(before, np.square(step))
        rate, t = self.eta, ctx.round + 2
        if self.bias_correction:
            rate = rate * math.sqrt(1 - self.beta2**t) / (1 - self.beta1**t)
        return rate * m / (np.sqrt(v) + self.tau), {"m": m, "v": v}

    def _second(self, v: Array, square: Array) -> Array:
        if self.kind == "adam":
            return self.beta2 * v + (1 - self.beta2) * square
        if self.kind == "yogi":
            return v - (1 - self.beta2) * square * np.sign(v - square)
        return v + square
