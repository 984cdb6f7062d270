"""Summing up where the updates are: each node takes a range of the parameters.

Clients return their update cut into ranges, which stay in the object stores. An aggregator on each
node gets one range of every update and gives its share of what the server needs: the partial
products of its pieces, and its range of the step. Pieces are the driver's own
(:func:`fedsim.columns.cut`) and are added in the same order, so the bits are those of the driver;
what reaches it is one vector, not one per client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedsim.columns import SHARD, Piece, combine_pieces, cut, partial_products, summed
from fedsim.contracts import F64, Array
from fedsim.errors import WorkerError

LEAST = 4 * SHARD
"""Columns below which a range is not worth a call to another process."""


def plan_shards(size: int, shards: Literal["auto"] | int, nodes: int) -> tuple[slice, ...]:
    """The ranges that vectors are cut into, one per aggregator; none where the driver does it all.

    Args:
        size: entries of a vector.
        shards: how many ranges are asked for; ``auto`` is one per node.
        nodes: alive nodes.
    """
    wanted = min(nodes if shards == "auto" else shards, size // LEAST)
    if wanted < 2:
        return ()
    units = -(-size // SHARD)
    edges = [min(units * i // wanted * SHARD, size) for i in range(wanted + 1)]
    return tuple(slice(a, b) for a, b in pairwise(edges))


def split(deltas: Array, ranges: Sequence[slice]) -> tuple[Array, ...]:
    """What a client actor returns instead of its updates (k, D): (k, width) for each range."""
    return tuple(np.ascontiguousarray(deltas[:, where]) for where in ranges)


@dataclass(frozen=True)
class Held:
    """Where a client's update is.

    Args:
        parts: of each range the object with the updates (k, width) of one call's clients.
        row: the client's place among them.
    """

    parts: tuple[Any, ...]
    row: int


class Aggregator:
    """Sums up one range of the updates. Keeps nothing, so a lost one can be asked again."""

    def products(
        self, pieces: Sequence[Piece], vector: Array | None, rows: Sequence[int], *parts: Array
    ) -> list[F64]:
        """Partial products (m, m + 1) of its pieces; row ``rows[i]`` of part i is update i."""
        return partial_products(_rows(rows, parts), pieces, vector)

    def combine(
        self, pieces: Sequence[Piece], weights: Sequence[F64], rows: Sequence[int], *parts: Array
    ) -> Array:
        """The weighted sum over its pieces; 0 elsewhere in its range."""
        updates = _rows(rows, parts)
        out = np.zeros_like(updates[0])
        combine_pieces(updates, pieces, weights, out)
        return out


def _rows(rows: Sequence[int], parts: Sequence[Array]) -> list[Array]:
    return [part[row] for row, part in zip(rows, parts, strict=True)]


@dataclass(frozen=True)
class Sharded:
    """Updates that are spread over nodes; a :class:`~fedsim.columns.Columns`.

    Args:
        aggregators: actors, one per range.
        ranges: as of :func:`plan_shards`.
        held: the updates in order of client id.
    """

    aggregators: Sequence[Any]
    ranges: Sequence[slice]
    held: Sequence[Held]

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision of the updates that clients send."""
        return np.dtype(np.float32)

    def products(self, ranges: Sequence[slice], vector: Array | None = None) -> list[F64]:
        """See :meth:`fedsim.columns.Columns.products`.

        Raises:
            WorkerError: an aggregator or an update was lost.
        """
        calls = []
        for number, own in enumerate(self.ranges):
            part = None if vector is None else vector[own]
            calls.append(self._call("products", number, self._pieces(ranges, own), part))
        found = {
            (piece.of, piece.start): partial
            for own, partials in zip(self.ranges, _get(calls), strict=True)
            for piece, partial in zip(_within(ranges, own), partials, strict=True)
        }
        pieces = cut(ranges)
        partials = [found[piece.of, piece.start] for piece in pieces]
        return summed(pieces, partials, len(ranges), len(self.held))

    def combine(self, weights: Sequence[F64], ranges: Sequence[slice], out: Array) -> None:
        """See :meth:`fedsim.columns.Columns.combine`.

        Raises:
            WorkerError: an aggregator or an update was lost.
        """
        calls = [
            self._call("combine", number, self._pieces(ranges, own), weights)
            for number, own in enumerate(self.ranges)
        ]
        for own, sums in zip(self.ranges, _get(calls), strict=True):
            for piece in _within(ranges, own):
                at = slice(piece.start - own.start, piece.stop - own.start)
                out[piece.start : piece.stop] = sums[at]

    def _pieces(self, ranges: Sequence[slice], own: slice) -> list[Piece]:
        """The pieces of an aggregator in its own columns."""
        return [Piece(p.of, p.start - own.start, p.stop - own.start) for p in _within(ranges, own)]

    def _call(self, method: str, number: int, *args: Any) -> Any:
        parts = [held.parts[number] for held in self.held]
        rows = [held.row for held in self.held]
        return getattr(self.aggregators[number], method).remote(*args, rows, *parts)


def _within(ranges: Sequence[slice], own: slice) -> list[Piece]:
    """The pieces of an aggregator; none crosses its edges, which are multiples of ``SHARD``."""
    return [piece for piece in cut(ranges) if own.start <= piece.start < own.stop]


def _get(calls: Sequence[Any]) -> list[Any]:
    try:
        return ray.get(list(calls))
    except RayError as error:
        raise WorkerError(f"aggregation over the nodes: {type(error).__name__}: {error}") from error


def start_aggregators(count: int) -> list[Any]:
    """Actors without resources of their own, spread over the alive nodes.

    One that dies is started again, on another node if its own is gone, and asked again.
    """
    nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    aggregator = ray.remote(num_cpus=0, max_restarts=3, max_task_retries=3)(Aggregator)
    places = [
        NodeAffinitySchedulingStrategy(nodes[i % len(nodes)], soft=True) for i in range(count)
    ]
    return [aggregator.options(scheduling_strategy=place).remote() for place in places]
