"""Sharded aggregation: distributed Gram matrix and weighted sum of updates that stay on the nodes.

Clients return their update cut into ranges, which stay in the object stores. An aggregator actor on
each node gets one range of every update, and gives the partial products of its pieces and its range
of the step. Pieces are the driver's own (:func:`fedsim.server.linalg.cut`) and are added in the
same order, so the bits are those of the driver; what reaches it is one vector, not one per client.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any, Literal

import numpy as np
import ray
from ray import cloudpickle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedsim.core.errors import ConfigError, ContractError
from fedsim.core.types import F64, Array, ClientUpdate
from fedsim.engine.base import Incident
from fedsim.engine.blocks import Block
from fedsim.engine.ray.cluster import alive_nodes
from fedsim.engine.ray.faults import failure, fault_of
from fedsim.server.linalg import (
    SHARD,
    ByColumn,
    Piece,
    combine_pieces,
    cut,
    map_pieces,
    partial_products,
    partial_squares,
    summed,
)

MIN_COLUMNS = 8 * SHARD
"""Columns below which a range is not worth a call to another process."""
MEMORY = 1 << 20
"""Bytes of memory that an aggregator asks for: Ray puts an actor that asks for nothing anywhere."""


def plan_shards(size: int, shards: Literal["auto"] | int, nodes: int) -> tuple[slice, ...]:
    """The ranges that vectors of ``size`` entries are cut into, one per aggregator; none where the
    driver does it all. ``shards`` are asked for, ``auto`` is one per node that is alive."""
    wanted = min(nodes if shards == "auto" else shards, size // MIN_COLUMNS)
    if wanted < 2:
        return ()
    units = -(-size // SHARD)
    edges = [min(units * i // wanted * SHARD, size) for i in range(wanted + 1)]
    return tuple(slice(a, b) for a, b in pairwise(edges))


def allowed_shards(setting: Literal["auto"] | int, whole: str | None) -> Literal["auto"] | int:
    """The number of ranges to plan for: one where the driver needs whole updates, for the setting
    ``whole``; a ConfigError where they are to be spread all the same."""
    if whole is not None and setting not in ("auto", 1):
        raise ConfigError(
            f"engine.aggregation_shards={setting} leaves the updates on the nodes, but "
            f"{whole} needs them whole; allowed with it are auto and 1"
        )
    return setting if whole is None else 1


def split(deltas: Array, ranges: Sequence[slice]) -> tuple[Array, ...]:
    """What a client actor returns instead of its deltas (k, D): (k, width) for each range."""
    return tuple(np.ascontiguousarray(deltas[:, where]) for where in ranges)


@dataclass(frozen=True)
class Held:
    """Where a client's update is: of each range an object of :func:`split`, the client's row in it,
    and the block of tasks in which it was computed."""

    parts: tuple[Any, ...]
    row: int
    block: Block


class Aggregator:
    """Sums up one range of the updates. Keeps nothing, so a lost one can be replaced."""

    def ask(
        self, method: str, pieces: Sequence[Piece], payload: Any, rows: Sequence[int], *parts: Array
    ) -> Any:
        """What a method of :class:`Sharded` needs of its pieces; ``parts[i][rows[i]]`` is update i.

        ``combine`` and ``map`` give an array that is 0 outside of the pieces.
        """
        updates = [part[row] for row, part in zip(rows, parts, strict=True)]
        if method == "products":
            return partial_products(updates, pieces, payload)
        if method == "squares":
            return partial_squares(updates, pieces)
        out = np.zeros_like(updates[0])
        if method == "combine":
            combine_pieces(updates, pieces, payload, out)
        else:
            map_pieces(updates, pieces, cloudpickle.loads(payload), out)
        return out


class Aggregators:
    """An actor per range of :func:`plan_shards`, spread over nodes; they hold no CPU."""

    def __init__(self, ranges: Sequence[slice]) -> None:
        self.ranges = tuple(ranges)
        self.actors: list[Any] = []
        self.start()

    def start(self) -> None:
        """Replaces the actors by new ones, on the nodes that are alive now."""
        self.close()
        nodes = alive_nodes() if self.ranges else ()
        options = {"num_cpus": 0, "memory": MEMORY, "max_restarts": 0, "max_task_retries": 0}
        for number, _ in enumerate(self.ranges):
            place = NodeAffinitySchedulingStrategy(nodes[number % len(nodes)], soft=True)
            made = ray.remote(**options, scheduling_strategy=place)(Aggregator)
            self.actors.append(made.remote())

    def close(self) -> None:
        """Ends the actors."""
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []


@dataclass(kw_only=True)
class Sharded:
    """Updates that are spread over nodes; a :class:`~fedsim.server.columns.Columns`."""

    aggregators: Aggregators
    held: dict[int, Held]  # the updates by client id, in order; replaced where some are lost
    again: Callable[[Incident], Sequence[ClientUpdate]]
    """Takes note of a loss, and trains all these clients once more."""
    max_retries: int  # how often that is done in one pass, before a WorkerError

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision of the updates that clients send."""
        return np.dtype(np.float32)

    @property
    def rows(self) -> tuple[Array, ...]:
        """Never here: a ContractError."""
        raise ContractError(
            "this rule reads whole updates, which are spread over the nodes: "
            "use --set engine.aggregation_shards=1"
        )

    def products(self, ranges: Sequence[slice], vector: Array | None = None) -> list[F64]:
        """See :meth:`fedsim.server.columns.Columns.products`."""
        partials = self._partials("products", ranges, vector)
        return summed(cut(ranges), partials, len(ranges), len(self.held))

    def squares(self, where: slice) -> F64:
        """See :meth:`fedsim.server.columns.Columns.squares`."""
        return sum(self._partials("squares", [where]), start=np.zeros(len(self.held)))

    def combine(self, weights: Sequence[F64], ranges: Sequence[slice], out: Array) -> None:
        """See :meth:`fedsim.server.columns.Columns.combine`."""
        self._write("combine", weights, ranges, out)

    def map(self, rule: ByColumn, where: slice, out: Array) -> None:
        """See :meth:`fedsim.server.columns.Columns.map`; the rule travels by value."""
        self._write("map", cloudpickle.dumps(rule), [where], out)

    def _write(self, method: str, payload: Any, ranges: Sequence[slice], out: Array) -> None:
        """Writes the aggregators' columns of the ranges into ``out``."""
        for span, columns in self._ask(method, ranges, lambda _: payload):
            for piece in _within(ranges, span):
                at = slice(piece.start - span.start, piece.stop - span.start)
                out[piece.start : piece.stop] = columns[at]

    def _partials(
        self, method: str, ranges: Sequence[slice], vector: Array | None = None
    ) -> list[F64]:
        """The aggregators' results for all pieces, in the order of the columns."""
        answers = self._ask(method, ranges, lambda span: None if vector is None else vector[span])
        partials_of = {
            (piece.of, piece.start): partial
            for span, partials in answers
            for piece, partial in zip(_within(ranges, span), partials, strict=True)
        }
        return [partials_of[piece.of, piece.start] for piece in cut(ranges)]

    def _ask(
        self, method: str, ranges: Sequence[slice], payload: Callable[[slice], Any]
    ) -> list[tuple[slice, Any]]:
        """Each aggregator's columns, and its answer; lost actors are replaced, and where updates
        are lost all are computed again."""
        spans = self.aggregators.ranges
        for attempt in count(1):
            held = list(self.held.values())
            rows = [where.row for where in held]
            calls = [
                actor.ask.remote(
                    *(method, _pieces(ranges, span), payload(span), rows),
                    *(where.parts[number] for where in held),
                )
                for number, (actor, span) in enumerate(
                    zip(self.aggregators.actors, spans, strict=True)
                )
            ]
            try:
                return list(zip(spans, ray.get(calls), strict=True))
            except RayError as error:
                fault = fault_of(error)
                if not fault.lost or attempt > self.max_retries:
                    raise failure("aggregation over the nodes", fault) from error
            self.aggregators.start()
            if fault.objects:
                self.held = held_of(self.again(Incident(None, attempt, "", fault.error)))
        raise AssertionError


def _pieces(ranges: Sequence[slice], span: slice) -> list[Piece]:
    """The pieces of an aggregator in its own columns."""
    return [Piece(p.of, p.start - span.start, p.stop - span.start) for p in _within(ranges, span)]


def _within(ranges: Sequence[slice], span: slice) -> list[Piece]:
    """The pieces of an aggregator; none crosses its edges, which are multiples of ``SHARD``."""
    return [piece for piece in cut(ranges) if span.start <= piece.start < span.stop]


def held_of(updates: Sequence[ClientUpdate]) -> dict[int, Held]:
    """By client where the updates are that were left on the nodes."""
    return {u.client_id: u.held for u in updates if isinstance(u.held, Held)}
