"""Server rules: a reduction of the cohort to one step, and what else a method exchanges.

A reduction sees only the updates, so any of them goes with any method's clients
(``--algorithm fedprox --server fedgh``); an exchange digests a method's own uploads (heads,
prototypes) and stays with the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from fedsim.cohort import Cohort, single_threaded_blas
from fedsim.contracts import F64, Array, RoundContext, ServerStep, Vectors
from fedsim.gram import GramRule, Weights, shares


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
        ranges = [slice(0, layout.num_params)]
        if self.blocks == "tensor":
            ranges = [s.where for s in layout.slots if s.role == "param"]
        coefficients = [self.rule(gram, n, ctx) for gram in cohort.grams(ranges)]
        statistics = slice(layout.num_params, layout.size)
        averaged = shares(n, self.rule.weights)
        return cohort.step([*coefficients, averaged], [*ranges, statistics]), state


@dataclass(frozen=True)
class Average:
    """The weighted mean of the updates, statistics included (FedAvg): one pass, no Gram matrix."""

    weights: Weights = "samples"

    def __call__(
        self,
        cohort: Cohort,
        state: Vectors,
        ctx: RoundContext,  # noqa: ARG002 - the signature of a reduction
    ) -> tuple[Array, Vectors]:
        """The step (D,); keeps no state."""
        everything = slice(0, cohort.layout.size)
        return cohort.step([shares(cohort.num_samples, self.weights)], [everything]), state


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
        ranges = [slot.where for slot in cohort.layout.slots]
        coefficients = [
            self.rule(gram, None if history is None else history[where], dots, ctx)
            for where, (gram, dots) in zip(ranges, cohort.seen_from(history, ranges), strict=True)
        ]
        step = cohort.step(coefficients, ranges)
        if history is None:
            return step, {"history": step.copy()}
        mixed = 0.01 * step
        mixed += 0.99 * history
        return step, {"history": mixed.astype(step.dtype, copy=False)}


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
