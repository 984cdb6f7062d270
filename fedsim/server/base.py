"""The server part of a method: what turns a cohort's updates into one step of the global model.

Cohort transforms change the updates as they are received (clipping), a reduction combines them into
one step, and server optimisers change that step (FedAdam). An exchange answers what the clients
upload beside their updates (heads, control variates). An exchange, and transforms that read what
their method's clients send, stay with these; the rest goes with any clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import count
from typing import ClassVar, Literal, Protocol

import numpy as np

from fedsim.core.types import F64, Array, Layout, RoundContext, Vectors
from fedsim.server.cohort import Cohort
from fedsim.server.gram import GramRule, Weights, shares
from fedsim.server.linalg import single_threaded_blas


@dataclass(frozen=True, kw_only=True)
class RuleState:
    """What each part of a method's server keeps from round to round; empty before the first.
    ``probe`` is of the pass before training, ``receive`` has cohort transforms by their names."""

    probe: Vectors = field(default_factory=dict)
    reduction: Vectors = field(default_factory=dict)
    optimizers: tuple[Vectors, ...] = ()
    exchange: Vectors = field(default_factory=dict)
    receive: Mapping[str, Vectors] = field(default_factory=dict)

    def flatten(self) -> dict[str, Array]:
        """All arrays by their names in a checkpoint: ``probe.<key>``, ``reduce.<key>``,
        ``exchange.<key>``, ``then.<key>``, ``then2.<key>``, ..., ``receive.<name>.<key>``."""
        parts = {"probe": self.probe, "reduce": self.reduction, "exchange": self.exchange}
        for number, state in enumerate(self.optimizers, start=1):
            parts["then" if number == 1 else f"then{number}"] = state
        parts |= {f"receive.{name}": state for name, state in self.receive.items()}
        return {f"{part}.{key}": a for part, state in parts.items() for key, a in state.items()}

    @classmethod
    def unflatten(cls, arrays: Vectors) -> RuleState:
        """The opposite of :meth:`flatten`; trailing optimisers that keep nothing may be missing."""
        parts: dict[str, dict[str, Array]] = {"probe": {}, "reduce": {}, "exchange": {}}
        optimizers: dict[int, dict[str, Array]] = {}
        receive: dict[str, dict[str, Array]] = {}
        for name, array in arrays.items():
            part, _, key = name.partition(".")
            if number := re.fullmatch(r"then(\d*)", part):
                optimizers.setdefault(int(number[1] or 1), {})[key] = array
            elif part == "receive":
                transform, _, key = key.partition(".")
                receive.setdefault(transform, {})[key] = array
            elif part in parts:
                parts[part][key] = array
            else:
                raise ValueError(f"{name!r} belongs to no part of a server")
        return cls(
            probe=parts["probe"],
            reduction=parts["reduce"],
            optimizers=tuple(optimizers.get(i + 1, {}) for i in range(max(optimizers, default=0))),
            exchange=parts["exchange"],
            receive=receive,
        )


@dataclass(frozen=True, kw_only=True)
class ServerStep:
    """The result of a round on the server."""

    step: Array  # (D,) to add to the global vector
    sent: Cohort | None = None  # as clients sent it, after an attack; None: as it was given
    state: RuleState = field(default_factory=RuleState)  # for the next round
    downlink: Vectors = field(default_factory=dict)  # for every client, from the next round on
    private: Mapping[int, Vectors] = field(default_factory=dict)  # replaces clients' entries, by id
    metrics: Mapping[str, float] = field(default_factory=dict)  # about the step, for the log


@dataclass(frozen=True)
class Reduced:
    """The result of a reduction, see :class:`ServerStep`."""

    step: Array
    state: Vectors = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


class Reduction(Protocol):
    """Combines the updates of a cohort into one step."""

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        """The step and the state for the next round; ``state`` is {} in the first."""


class ServerOptimizer(Protocol):
    """Changes the reduction's step of the parameters (FedAdam, server momentum)."""

    def __call__(
        self, step: Array, state: Vectors, cohort: Cohort, ctx: RoundContext
    ) -> tuple[Array, Vectors]:
        """The new step (P,) and the state for the next round; ``state`` is {} in the first.

        ``step`` (P,) must not be written to; running statistics pass through no optimiser.
        """


@dataclass(frozen=True, kw_only=True)
class Received:
    """What a cohort transform makes of the updates.

    Args:
        cohort: as the next part sees it.
        state: of the transform, for the next round.
        scale: factor of the reduction's step of the parameters.
        statistics: the cohort over which running statistics are averaged by samples, whatever the
            reduction does; None: the step has what the reduction makes of them.
        metrics: numbers for the log.
    """

    cohort: Cohort
    state: Vectors = field(default_factory=dict)
    scale: float = 1.0
    statistics: Cohort | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def has_trait(part: object, name: str) -> bool:
    """Whether a part of a server declares a trait; one that says nothing has none.

    Of cohort transforms ``needs_own_clients``: it reads what only the clients of its own method
    send; ``by_client``: each client could do it to its own update, which sees no other; ``mixes``:
    a row is no longer one client's; ``reads_uploads``: it reads what clients send beside their
    update and steps; ``rescales``: the step is multiplied by something that is of
    the clients. Of server optimisers ``blind``: it reads the step alone.
    """
    return bool(getattr(part, name, False))


class CohortTransform(Protocol):
    """Changes the updates of a cohort before they are reduced (FedNova, clipping).

    ``name`` is that of its state in checkpoints and has no point in it.
    """

    name: ClassVar[str]

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Received:
        """The cohort that the next part sees; ``state`` is {} in the first round."""


class CohortAttack(Protocol):
    """What malicious clients send in place of their updates; ``name`` as of transforms."""

    name: ClassVar[str]

    def __call__(
        self, cohort: Cohort, state: Vectors, ctx: RoundContext, rule: Callable[[Cohort], Array], /
    ) -> Received:
        """The cohort as it is sent; ``rule`` gives the step (D,) that the server would make of
        another one."""


@dataclass(frozen=True)
class Exchanged:
    """The answer of an exchange, see :class:`ServerStep`."""

    state: Vectors = field(default_factory=dict)
    downlink: Vectors = field(default_factory=dict)
    private: Mapping[int, Vectors] = field(default_factory=dict)


class Exchange(Protocol):
    """Answers what clients upload beside their update."""

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Exchanged:
        """The answer to the cohort's extras; ``state`` is {} in the first round."""


Blocks = Literal["model", "tensor"]


def blocks_of(layout: Layout, blocks: Blocks) -> list[slice]:
    """The ranges of parameters that a rule treats separately, without running statistics."""
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
        everything = slice(0, cohort.layout.size)
        return Reduced(cohort.step([shares(cohort.num_samples, self.weights)], [everything]))


HistoryRule = Callable[[F64, Array | None, F64, RoundContext], F64]
"""Coefficients (m,) of a tensor from K (m, m), its history (d,) and ``G^T history`` (m,)."""


@dataclass(frozen=True)
class HistoryGram:
    """A rule per state-dict tensor, statistics included, with an average of its own past outputs:
    ``h <- 0.99 h + 0.01 step``, from the first step on, as in the released FedLD code."""

    rule: HistoryRule

    def __call__(self, cohort: Cohort, state: Vectors, ctx: RoundContext) -> Reduced:
        """Keeps the state ``{"history": (D,)}``."""
        history = state.get("history")
        ranges = [slot.where for slot in cohort.layout.slots]
        coefficients = [
            self.rule(gram, None if history is None else history[where], dots, ctx)
            for where, (gram, dots) in zip(ranges, cohort.grams_with(history, ranges), strict=True)
        ]
        step = cohort.step(coefficients, ranges)
        mixed = step.copy() if history is None else 0.01 * step + 0.99 * history
        return Reduced(step, {"history": mixed.astype(step.dtype, copy=False)})


@dataclass(frozen=True)
class Server:
    """The server part of a method.

    Args:
        reduction: combines the updates into one step.
        optimizers: change that step, one after the other.
        receive: change the updates before that, one after the other.
        exchange: answers what the method's clients upload beside their updates.
        sums: the exchange reads nothing but sums over the clients, as of secure aggregation.
        private_sum: the upload whose sum is all that the exchange reads, so that it can be clipped
            and noised; empty: there is none.
        incompatible_reason: why no other reduction can serve its clients and it can serve no
            others, such as "mixes its clients' models one by one"; empty where they can.
        needs_same_start: it takes all clients of a cohort to start from the newest model: it mixes
            their models, or answers single clients.
        needs_whole_updates: the reduction reads whole vectors, so that none may stay on the nodes.
        root_samples: validation samples on which the server itself trains in each round, for a
            reduction that reads ``Cohort.reference``; 0: it does not.
        attack: the first of all cohort transforms: what malicious clients send, which know updates
            of the round.
    """

    reduction: Reduction
    _: KW_ONLY
    optimizers: tuple[ServerOptimizer, ...] = ()
    receive: tuple[CohortTransform, ...] = ()
    exchange: Exchange | None = None
    sums: bool = False
    private_sum: str = ""
    incompatible_reason: str = ""
    needs_same_start: bool = False
    needs_whole_updates: bool = False
    root_samples: int = 0
    attack: CohortAttack | None = None

    @property
    def needs_own_clients(self) -> bool:
        """Whether it works with its own method's clients alone."""
        reads = any(has_trait(transform, "needs_own_clients") for transform in self.receive)
        return bool(self.incompatible_reason or self.exchange or reads)

    def check(self, m: int) -> None:
        """Refuses a cohort of m clients that is too small for a part, by a ConfigError.

        A part may have ``check(m, clients)``: how many updates it hands on, of m that it gets.
        """
        clients = m
        for part in (*self.receive, self.reduction):
            if hasattr(part, "check"):
                m = part.check(m, clients)

    def step(self, state: RuleState, cohort: Cohort, ctx: RoundContext) -> ServerStep:
        """The cohort's step; ``state`` is what the round before returned."""
        answer = Exchanged()
        with single_threaded_blas():
            attacked = self.sent(state, cohort, ctx)
            cohort = attacked.cohort
            received, kept = self._receive(cohort, state.receive, ctx)
            reduced = self.reduction(received.cohort, state.reduction, ctx)
            step = _scaled(reduced.step, received)
            step, states = self._optimize(step, state.optimizers, cohort, ctx)
            if self.exchange is not None:
                answer = self.exchange(cohort, state.exchange, ctx)
        return ServerStep(
            step=step,
            sent=cohort,
            state=replace(
                state,
                reduction=reduced.state,
                optimizers=states,
                exchange=answer.state,
                receive=kept if self.attack is None else {self.attack.name: attacked.state} | kept,
            ),
            downlink=answer.downlink,
            private=answer.private,
            metrics=_beside(_beside(received.metrics, reduced.metrics), attacked.metrics),
        )

    def sent(self, state: RuleState, cohort: Cohort, ctx: RoundContext) -> Received:
        """The updates as clients send them, and what the attack keeps."""
        if self.attack is None:
            return Received(cohort=cohort)

        def rule(other: Cohort) -> Array:
            received, _ = self._receive(other, state.receive, ctx)
            reduced = self.reduction(received.cohort, state.reduction, ctx)
            return _scaled(reduced.step, received)

        return self.attack(cohort, state.receive.get(self.attack.name, {}), ctx, rule)

    def _receive(
        self, cohort: Cohort, states: Mapping[str, Vectors], ctx: RoundContext
    ) -> tuple[Received, dict[str, Vectors]]:
        """What all transforms together make of the cohort, and their states."""
        received, kept = Received(cohort=cohort), {}
        for transform in self.receive:
            changed = transform(received.cohort, states.get(transform.name, {}), ctx)
            kept[transform.name] = changed.state
            received = replace(
                changed,
                scale=received.scale * changed.scale,
                statistics=received.statistics or changed.statistics,
                metrics=_beside(received.metrics, changed.metrics),
            )
        return received, kept

    def _optimize(
        self, step: Array, states: tuple[Vectors, ...], cohort: Cohort, ctx: RoundContext
    ) -> tuple[Array, tuple[Vectors, ...]]:
        if not self.optimizers:
            return step, ()
        params = slice(0, cohort.layout.num_params)
        changed, kept = step[params], []
        before = (*states, *({} for _ in self.optimizers))  # those that keep nothing may be missing
        for optimizer, state in zip(self.optimizers, before, strict=False):
            changed, after = optimizer(changed, state, cohort, ctx)
            kept.append(after)
        whole = step.copy()
        whole[params] = changed
        return whole, tuple(kept)


def _beside(metrics: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """The numbers of two parts; what a later one calls the same has a number: ``clipped2``."""
    both = dict(metrics)
    for name, value in more.items():
        names = (f"{name}{number}" if number > 1 else name for number in count(1))
        both[next(free for free in names if free not in both)] = value
    return both


def _scaled(step: Array, received: Received) -> Array:
    """The reduction's step (D,) with the scale and the statistics of the transforms."""
    layout = received.cohort.layout
    params, statistics = slice(0, layout.num_params), slice(layout.num_params, layout.size)
    if received.scale == 1.0 and received.statistics is None:
        return step
    scaled = step.copy()
    np.multiply(step[params], received.scale, out=scaled[params])
    if received.statistics is not None:
        cohort = received.statistics
        cohort.combine(shares(cohort.num_samples, "samples"), statistics, scaled)
    return scaled
