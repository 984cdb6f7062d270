"""Server rules: a reduction of the cohort to one step, and what else a method exchanges.

A reduction sees only the updates, so any of them goes with any method's clients
(``--algorithm fedprox --server fedgh``), and what follows it (a server optimiser) goes with it. An
exchange digests a method's own uploads (heads, prototypes, control variates) and a normalisation
its clients' steps; both stay with the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np

from fedsim.core.types import F64, Array, Layout, RoundContext, ServerStep, Vectors
from fedsim.server.cohort import Cohort, single_threaded_blas
from fedsim.server.gram import GramRule, Weights, shares


@dataclass(frozen=True)
class Reduced:
    """What a reduction gives.

    Args:
        step: (D,) to add to the global vector.
        state: for the next round.
        metrics: numbers about the step for the log.
    """

    step: Array
    state: Vectors = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


class Reduce(Protocol):
    """Turns the updates of a cohort into one step."""

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        """The step and the state for the next round; ``state`` is {} in the first."""


class Then(Protocol):
    """Follows a reduction, as a server optimiser does."""

    def __call__(
        self, step: Array, state: Vectors, cohort: Cohort, ctx: RoundContext
    ) -> tuple[Array, Vectors]:
        """The final step (P,) of the parameters, from the reduction's, and the new state.

        ``step`` is never written to; statistics are not concerned.
        """


class Normalise(Protocol):
    """Puts updates of clients that did unequal work on one scale (FedNova)."""

    def __call__(self, cohort: Cohort) -> tuple[Cohort, float]:
        """The cohort that the reduction sees, and what its step of the parameters is multiplied by.

        Statistics are averaged by samples.
        """


@dataclass(frozen=True)
class Exchanged:
    """What an exchange answers: see :class:`~fedsim.core.types.ServerStep`."""

    state: Vectors = field(default_factory=dict)
    downlink: Vectors = field(default_factory=dict)
    private: Mapping[int, Vectors] = field(default_factory=dict)


class Exchange(Protocol):
    """Digests what clients upload beside their update."""

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Exchanged:
        """The answer to the cohort's extras."""


Blocks = Literal["model", "tensor"]


def blocks_of(layout: Layout, blocks: Blocks) -> list[slice]:
    """The ranges of parameters that a rule treats one by one; statistics are in none of them."""
    if blocks == "model":
        return [slice(0, layout.num_params)]
    return [slot.where for slot in layout.slots if slot.role == "param"]


@dataclass(frozen=True)
class Gram:
    """A rule in coefficient space over the whole model or tensor by tensor.

    Float statistics (running means and variances) are always averaged with the rule's weights.
    """

    rule: GramRule
    blocks: Blocks = "model"

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        """Keeps no state."""
        n, layout = cohort.num_samples, cohort.layout
        ranges = blocks_of(layout, self.blocks)
        coefficients = [self.rule(gram, n, ctx) for gram in cohort.grams(ranges)]
        statistics = slice(layout.num_params, layout.size)
        averaged = shares(n, self.rule.weights)
        return Reduced(cohort.step([*coefficients, averaged], [*ranges, statistics]))


@dataclass(frozen=True)
class Average:
    """The weighted mean of the updates, statistics included (FedAvg): one pass, no Gram matrix."""

    weights: Weights = "samples"

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        """Keeps no state."""
        everything = slice(0, cohort.layout.size)
        return Reduced(cohort.step([shares(cohort.num_samples, self.weights)], [everything]))


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

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        """Keeps the state ``{"history": (D,)}``."""
        history = state.get("history")
        ranges = [slot.where for slot in cohort.layout.slots]
        coefficients = [
            self.rule(gram, None if history is None else history[where], dots, ctx)
            for where, (gram, dots) in zip(ranges, cohort.seen_from(history, ranges), strict=True)
        ]
        step = cohort.step(coefficients, ranges)
        if history is None:
            return Reduced(step, {"history": step.copy()})
        mixed = 0.01 * step
        mixed += 0.99 * history
        return Reduced(step, {"history": mixed.astype(step.dtype, copy=False)})


@dataclass(frozen=True)
class Server:
    """The server part of a method.

    Args:
        reduce: the updates to one step.
        exchange: digests what the method's clients upload beside.
        then: follows the reduction.
        normalise: precedes it.
        fixed: what it does that no other reduction can take the place of, as a sentence without
            its subject; empty where any can.
        whole: the reduction reads whole updates, so that none may be left on the nodes.
    """

    reduce: Reduce
    exchange: Exchange | None = None
    then: Then | None = None
    normalise: Normalise | None = None
    fixed: str = ""
    whole: bool = False

    @property
    def own_clients(self) -> bool:
        """Whether it works with its own method's clients alone."""
        return bool(self.fixed or self.exchange or self.normalise)

    def step(self, state: Vectors, cohort: Cohort, ctx: RoundContext) -> ServerStep:
        """The cohort's step; ``state`` is what this method returned in the round before, or {}."""
        followed: Vectors = {}
        answer = Exchanged()
        with single_threaded_blas():
            reduced = self._reduce(cohort, part(state, "reduce"), ctx)
            step = reduced.step
            if self.then is not None:
                params = slice(0, cohort.layout.num_params)
                step = step.copy()
                step[params], followed = self.then(
                    reduced.step[params], part(state, "then"), cohort, ctx
                )
            if self.exchange is not None:
                answer = self.exchange(cohort, part(state, "exchange"), ctx)
        kept = named("reduce", reduced.state) | named("then", followed)
        kept |= named("exchange", answer.state)
        return ServerStep(step, kept, answer.downlink, answer.private, reduced.metrics)

    def _reduce(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        if self.normalise is None:
            return self.reduce(cohort, state, ctx)
        seen, scale = self.normalise(cohort)
        reduced = self.reduce(seen, state, ctx)
        params = slice(0, cohort.layout.num_params)
        step = np.empty_like(reduced.step)
        np.multiply(reduced.step[params], scale, out=step[params])
        statistics = slice(params.stop, cohort.layout.size)
        cohort.combine(shares(cohort.num_samples, "samples"), statistics, step)
        return replace(reduced, step=step)


def part(state: Vectors, owner: str) -> dict[str, Array]:
    """The entries of a method's state that one of its parts keeps."""
    prefix = f"{owner}."
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def named(owner: str, state: Vectors) -> dict[str, Array]:
    """The opposite of :func:`part`."""
    return {f"{owner}.{key}": value for key, value in state.items()}
