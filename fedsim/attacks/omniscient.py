"""Attacks by malicious clients that know updates of the round, and work together.

Each replaces the parameters of every malicious update by one vector, computed from the h updates
x_i that they see, mu their mean: the benign ones (omniscient), or what the malicious clients
trained themselves. All but those :class:`ByCoordinate` lie in the span of the updates: they need
their Gram matrix alone, and are applied where the updates are. Running statistics stay those of
training.

The factor of an attack may be searched for in each round, against the server's own rule: a line
search that doubles its steps as long as the rule's step gets farther from the benign mean, and then
shortens them. With :data:`EVALUATIONS`, :data:`FIRST` and :data:`SHORTER` it is that of ByzFL's
optimised ALIE and IPM (Allouah et al., AISTATS 2023).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.core.settings import InvalidSetting
from fedsim.core.types import F64, Array, RoundContext, Vectors
from fedsim.server.base import Received
from fedsim.server.cohort import Cohort
from fedsim.server.columns import LocalColumns, MixedColumns
from fedsim.server.linalg import single_threaded_blas

BLOCK = 1 << 16
"""Coordinates whose mean and standard deviation are computed at a time."""
EVALUATIONS, FIRST, SHORTER = 20, 10.0, 0.8
"""Of a line search: factors that are tried, the first step, and what later steps are multiplied by.
"""
Knowledge = Literal["benign", "own"]
Auto = Literal["auto"]
"""A factor that is searched for."""
Rule = Callable[[Cohort], Array]
"""What the server makes of a cohort: the step (D,), before its optimisers."""
Mask = NDArray[np.bool_]
"""(m,) of some updates of a cohort."""


@dataclass(frozen=True)
class Omniscient(ABC):
    """Changes the updates of malicious clients, some of a cohort and not all. ``in_span`` says
    whether what they send are sums of updates; else whole vectors are read. They know the benign
    updates of the round, or their own ones as they trained them."""

    knows: Knowledge = field(default="benign", kw_only=True)
    in_span: ClassVar[bool] = True

    def __call__(
        self,
        cohort: Cohort,
        malicious: Mask,
        state: Vectors,
        ctx: RoundContext,
        rule: Rule | None = None,
    ) -> Received:
        """The cohort as it is sent; keeps what :meth:`prepare` keeps."""
        with single_threaded_blas():
            attack, state = self.prepare(cohort, self.seen(malicious), state, ctx)
            metrics: Mapping[str, float] = {}
            if rule is not None and self.searches:
                factor = attack.strongest(cohort, malicious, rule)
                attack, metrics = attack.with_factor(factor), {"attack_scale": factor}
            return Received(cohort=attack.attack(cohort, malicious), state=state, metrics=metrics)

    @property
    def searches(self) -> bool:
        """Whether its factor is searched for; then :meth:`with_factor` gives it one."""
        return False

    def with_factor(self, factor: float) -> Omniscient:
        """The attack of this strength."""
        raise NotImplementedError

    def strongest(self, cohort: Cohort, malicious: Mask, rule: Rule) -> float:
        """The factor that moves the step of the parameters farthest from the benign mean."""
        params, benign = slice(0, cohort.layout.num_params), ~malicious
        mean = cohort.step([benign / benign.sum()], [slice(0, cohort.layout.size)])[params]

        def distance(factor: float) -> float:
            step = rule(self.with_factor(factor).attack(cohort, malicious))[params]
            return float(np.linalg.norm(step.astype(np.float64) - mean))

        return line_maximum(distance)

    def prepare(
        self, cohort: Cohort, seen: Mask, state: Vectors, ctx: RoundContext
    ) -> tuple[Omniscient, Vectors]:
        """The attack on this round, and the state for the next one; by default itself and {}."""
        return self, {}

    def seen(self, malicious: Mask) -> Mask:
        """(m,) whose updates the malicious clients know."""
        return malicious if self.knows == "own" else ~malicious

    @abstractmethod
    def attack(self, cohort: Cohort, malicious: Mask) -> Cohort:
        """The cohort with other malicious updates: some and not all."""


class InSpan(Omniscient):
    """An attack ``sum_i c_i x_i``."""

    def attack(self, cohort: Cohort, malicious: Mask) -> Cohort:
        """The cohort as a linear combination of itself."""
        mix = np.diag(np.where(malicious, 0.0, 1.0))
        seen = self.seen(malicious)
        mix[np.ix_(malicious, seen)] = self.coefficients(cohort, seen)
        columns = MixedColumns(cohort.columns, mix, cohort.layout.num_params)
        return replace(cohort, columns=columns, _grams={})

    @abstractmethod
    def coefficients(self, cohort: Cohort, seen: Mask) -> F64:
        """(h,) the coefficients of the updates that are seen."""


class ByCoordinate(Omniscient):
    """An attack whose vector is computed coordinate by coordinate, from whole updates."""

    in_span: ClassVar[bool] = False

    def with_vector(self, cohort: Cohort, malicious: Mask, sent: Callable[[F64], F64]) -> Cohort:
        """The cohort with ``sent``, (h, width) to (width,) by blocks, as malicious updates."""
        rows, params = cohort.rows, cohort.layout.num_params
        vector: Array = np.empty(params, rows[0].dtype)
        for block, x in self.blocks(cohort, malicious):
            vector[block] = sent(x)
        changed = [
            np.concatenate([vector, row[params:]]) if attacks else row
            for row, attacks in zip(rows, malicious, strict=True)
        ]
        return replace(cohort, columns=LocalColumns(tuple(changed)), _grams={})

    def blocks(self, cohort: Cohort, malicious: Mask) -> Iterator[tuple[slice, F64]]:
        """Blocks of parameters, each with the updates that are seen (h, width)."""
        params, seen = cohort.layout.num_params, self.seen(malicious)
        rows = [row for row, knows in zip(cohort.rows, seen, strict=True) if knows]
        for start in range(0, params, BLOCK):
            block = slice(start, min(start + BLOCK, params))
            yield block, np.stack([row[block] for row in rows], dtype=np.float64)


def check_search(scale: float | Auto | None, knows: Knowledge) -> None:
    """Refuses to search for a factor without the benign updates, by a ConfigError."""
    if scale == "auto" and knows == "own":
        reason = "own given beside attack.scale=auto, which tries the server's rule on all updates"
        raise InvalidSetting("attack.knowledge", reason)


def line_maximum(value: Callable[[float], float]) -> float:
    """Where ``value`` is largest of the factors from 0 on that a line search tries."""
    best, largest, step, growing = 0.0, value(0.0), FIRST, True
    for _ in range(EVALUATIONS - 1):
        factor, found = best + step, value(best + step)
        better = found > largest
        if better:
            best, largest = factor, found
        growing = growing and better
        step *= 2 if growing else SHORTER
    return best


def deviation(x: F64) -> F64:
    """(width,) the standard deviation of columns (h, width), with h - 1; 0 for one update."""
    return x.std(axis=0, ddof=1) if len(x) > 1 else np.zeros(x.shape[1])
