"""Server optimisers: what follows the reduction of a cohort to one step.

``Delta`` is the reduction's step of the parameters (P,), m and v are kept from round to round in
its precision. Sources: Reddi et al. 2021 (Adaptive Federated Optimization, Algorithm 2), Hsu et al.
2019 (FedAvgM), Wang et al. 2020 (SlowMo).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsim.cohort import Cohort
from fedsim.contracts import Array, RoundContext, Vectors


@dataclass(frozen=True)
class Multiply:
    """``w <- w + eta Delta``: a server learning rate."""

    eta: float

    def __call__(
        self, step: Array, state: Vectors, cohort: Cohort, ctx: RoundContext
    ) -> tuple[Array, Vectors]:
        """See :class:`fedsim.server.Then`; keeps no state."""
        return self.eta * step, state


@dataclass(frozen=True)
class HeavyBall:
    """``m <- beta m + Delta / unit``, ``w <- w + eta unit m``.

    Args:
        beta: server momentum.
        eta: server learning rate.
        nesterov: ``w <- w + eta unit (Delta / unit + beta m)`` instead.
        unit: 1 (FedAvgM), or the clients' learning rate of the round (SlowMo, FedNova).
    """

    beta: float
    eta: float
    nesterov: bool = False
    unit: Literal["one", "lr"] = "one"

    def __call__(
        self, step: Array, state: Vectors, cohort: Cohort, ctx: RoundContext
    ) -> tuple[Array, Vectors]:
        """See :class:`fedsim.server.Then`; keeps ``m``."""
        unit = ctx.lr if self.unit == "lr" else 1.0
        fresh = step / unit
        m = self.beta * state["m"] + fresh if "m" in state else fresh
        way = fresh + self.beta * m if self.nesterov else m
        return self.eta * unit * way, {"m": m}


@dataclass(frozen=True)
class Adaptive:
    """``m <- b1 m + (1 - b1) Delta``, ``w <- w + eta m / (sqrt(v) + tau)``, no bias correction.

    With ``s = Delta^2``: v of Adam is ``b2 v + (1 - b2) s``, of Yogi ``v - (1 - b2) s sign(v - s)``,
    of Adagrad ``v + s``; ``m_0 = 0``.

    Args:
        kind: the rule for v.
        eta: server learning rate.
        beta1: b1.
        beta2: b2, without effect in Adagrad.
        tau: degree of adaptivity.
        start: v_0, tau^2 in the paper.
    """

    kind: Literal["adam", "yogi", "adagrad"]
    eta: float
    beta1: float
    beta2: float
    tau: float
    start: float

    def __call__(
        self, step: Array, state: Vectors, cohort: Cohort, ctx: RoundContext
    ) -> tuple[Array, Vectors]:
        """See :class:`fedsim.server.Then`; keeps ``m`` and ``v``."""
        m = self.beta1 * state.get("m", 0.0) + (1 - self.beta1) * step
        v = self._second(state.get("v", np.full_like(step, self.start)), np.square(step))
        return self.eta * m / (np.sqrt(v) + self.tau), {"m": m, "v": v}

    def _second(self, v: Array, square: Array) -> Array:
        if self.kind == "adam":
            return self.beta2 * v + (1 - self.beta2) * square
        if self.kind == "yogi":
            return v - (1 - self.beta2) * square * np.sign(v - square)
        return v + square
