"""Server rules: a reduction of the cohort to one step, and what else a method exchanges.

A reduction sees only the updates, so any of them goes with any method's clients
(``--algorithm fedprox --server fedgh``); an exchange digests a method's own uploads (heads,
prototypes) and stays with the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from fedsim.cohort import Cohort, single_threaded_blas
from fedsim.contracts import F64, Array, RoundContext, ServerStep, Vectors
from fedsim.gram import GramRule, shares


class Reduce(Protocol):
    """Turns the updates of a cohort into one step."""

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> tuple[Array, Vectors]:
        """The step (D,) to add to the global vector, and the state for the next round."""


@dataclass(frozen=True)
class Exchanged:
    """What an exchange answers: see :class:`~fedsim.contracts.ServerStep`."""

    state: Vectors = field(default_factory=dict)
    downlink: Vectors = field(default_factory=dict)
    private: Mapping[int, Vectors] = field(default_factory=dict)


class Exchange(Protocol):
    """Digests what clients upload beside their update."""

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Exchanged:
        """The answer to the cohort's extras."""


@dataclass(frozen=True)
class Gram:
    """A rule in coefficient space over the whole model or tensor by tensor.

    Float statistics (running means and variances) are always averaged with the rule's weights.
    """

    rule: GramRule
    blocks: Literal["model", "tensor"] = "model"

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> tuple[Array, Vectors]:
        """The step (D,); keeps no state."""
        n, layout = cohort.num_samples, cohort.layout
        step = np.empty_like(cohort.rows[0])
        params = slice(0, layout.num_params)
        tensors = [s.where for s in layout.slots if s.role == "param"]
        for where in [params] if self.blocks == "model" else tensors:
            cohort.combine(self.rule(cohort.gram(where), n, ctx), where, step)
        stats = slice(layout.num_params, layout.size)
        cohort.combine(shares(n, self.rule.weights), stats, step)
        return step, state


class HistoryRule(Protocol):
    """A rule for one tensor that also looks at the tensor's history (released FedLD code)."""

    def __call__(self, gram: F64, history: Array | None, dots: F64, ctx: RoundContext) -> F64:
        """Coefficients (m,) from K (m, m), the history (d,) and ``G^T history`` (m,)."""


@dataclass(frozen=True)
class HistoryGram:
    """A rule per state-dict tensor, statistics included, with an average of its own past outputs.

    ``h <- 0.99 h + 0.01 step``, starting with the first step, as in the released FedLD code.
    """

    rule: HistoryRule

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> tuple[Array, Vectors]:
        """The step (D,) and the state ``{"history": (D,)}``."""
        history = state.get("history")
        step = np.empty_like(cohort.rows[0])
        for slot in cohort.layout.slots:
            where = slot.where
            past, dots = None, np.zeros(len(cohort.updates))
            if history is not None:
                past, dots = history[where], cohort.dots(history, where)
            cohort.combine(self.rule(cohort.gram(where), past, dots, ctx), where, step)
        mixed = step if history is None else 0.99 * history + 0.01 * step
        return step, {"history": mixed.astype(step.dtype)}


@dataclass(frozen=True)
class Server:
    """The server part of a method: one reduction and, for some, an exchange."""

    reduce: Reduce
    exchange: Exchange | None = None

    def step(self, state: Vectors, cohort: Cohort, ctx: RoundContext) -> ServerStep:
        """The cohort's step; ``state`` is what this method returned in the round before, or {}."""
        answer = Exchanged()
        with single_threaded_blas():
            step, reduced = self.reduce(cohort, _part(state, "reduce"), ctx)
            if self.exchange is not None:
                answer = self.exchange(cohort, _part(state, "exchange"), ctx)
        kept = {f"reduce.{k}": v for k, v in reduced.items()}
        kept |= {f"exchange.{k}": v for k, v in answer.state.items()}
        return ServerStep(step, kept, answer.downlink, answer.private)


def _part(state: Vectors, owner: str) -> Vectors:
    prefix = f"{owner}."
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
