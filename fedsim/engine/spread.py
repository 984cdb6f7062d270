"""Updates that are spread over nodes: what the server asks of them, asked where they are.

Each aggregator gives its share: the partial products of its pieces, and its range of the step.
Pieces are the driver's own (:func:`fedsim.columns.cut`) and are added in the same order, so the
bits are those of the driver; what reaches it is one vector, not one per client.

A lost node takes ranges of updates with it, and maybe an aggregator. Both are made again, which
gives the same bits, and the pass over the updates is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray.exceptions import RayError

from fedsim.columns import Piece, cut, summed
from fedsim.contracts import F64, Array
from fedsim.engine import Incident, Result
from fedsim.engine.faults import failure, fault_of
from fedsim.engine.shards import Aggregators, Held
from fedsim.errors import ContractError

Again = Callable[[Sequence[Incident]], Sequence[Result]]


@dataclass
class Sharded:
    """Updates that are spread over nodes; a :class:`~fedsim.columns.Columns`.

    Args:
        aggregators: one per range.
        held: the updates by client id, in order; replaced where they are lost.
        again: takes note of what was lost, and trains those clients once more.
        max_retries: how often that is done in one pass.
    """

    aggregators: Aggregators
    held: dict[int, Held]
    again: Again
    max_retries: int

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision of the updates that clients send."""
        return np.dtype(np.float32)

    @property
    def rows(self) -> tuple[Array, ...]:
        """Never here.

        Raises:
            ContractError: always.
        """
        raise ContractError(
            "this rule reads whole updates, which are spread over the nodes: "
            "use --set engine.aggregation_shards=1"
        )

    def products(self, ranges: Sequence[slice], vector: Array | None = None) -> list[F64]:
        """See :meth:`fedsim.columns.Columns.products`.

        Raises:
            WorkerError: aggregators or updates were lost again and again.
        """
        cuts = self.aggregators.ranges
        args = [(_pieces(ranges, own), None if vector is None else vector[own]) for own in cuts]
        found = {
            (piece.of, piece.start): partial
            for own, partials in zip(cuts, self._ask("products", args), strict=True)
            for piece, partial in zip(_within(ranges, own), partials, strict=True)
        }
        pieces = cut(ranges)
        partials = [found[piece.of, piece.start] for piece in pieces]
        return summed(pieces, partials, len(ranges), len(self.held))

    def combine(self, weights: Sequence[F64], ranges: Sequence[slice], out: Array) -> None:
        """See :meth:`fedsim.columns.Columns.combine`.

        Raises:
            WorkerError: aggregators or updates were lost again and again.
        """
        cuts = self.aggregators.ranges
        args = [(_pieces(ranges, own), weights) for own in cuts]
        for own, sums in zip(cuts, self._ask("combine", args), strict=True):
            for piece in _within(ranges, own):
                at = slice(piece.start - own.start, piece.stop - own.start)
                out[piece.start : piece.stop] = sums[at]

    def _ask(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The aggregators' answers; what is lost is made again, and all of them asked again."""
        attempt = 1
        while True:
            try:
                return self.aggregators.ask(method, args, list(self.held.values()))
            except RayError as error:
                fault = fault_of(error)
                if not fault.lost or attempt > self.max_retries:
                    raise failure("aggregation over the nodes", fault) from error
            self._replace_lost(attempt, fault.error)
            attempt += 1

    def _replace_lost(self, attempt: int, error: str) -> None:
        """Starts new aggregators, and has the clients trained again whose updates are gone."""
        self.aggregators.start()
        lost = self.aggregators.missing(self.held)
        incidents = [Incident(client, attempt, "", why) for client, why in lost.items()]
        self.held |= held_of(self.again(incidents or [Incident(None, attempt, "", error)]))


def _pieces(ranges: Sequence[slice], own: slice) -> list[Piece]:
    """The pieces of an aggregator in its own columns."""
    return [Piece(p.of, p.start - own.start, p.stop - own.start) for p in _within(ranges, own)]


def _within(ranges: Sequence[slice], own: slice) -> list[Piece]:
    """The pieces of an aggregator; none crosses its edges, which are multiples of ``SHARD``."""
    return [piece for piece in cut(ranges) if own.start <= piece.start < own.stop]


def held_of(results: Sequence[Result]) -> dict[int, Held]:
    """By client where the updates are that were left on the nodes."""
    return {r.update.client_id: r.held for r in results if r.held is not None}
