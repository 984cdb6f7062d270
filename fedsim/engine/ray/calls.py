"""The remote calls that an executor makes, as values that can be made again."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import ray

from fedsim.core.types import ClientUpdate, Part, RoundContext, Vector, Vectors
from fedsim.engine.base import Model
from fedsim.engine.ray.sharded import Held
from fedsim.engine.worker import with_deltas
from fedsim.metrics.splits import name

Send = Callable[[Any], Any]
"""Makes a value an object that many calls can refer to."""


@dataclass(frozen=True, eq=False)
class TrainCall:
    """Some clients' training in one round.

    Args:
        states: of all clients that have one; only those of ``clients`` are sent.
        sizes: training samples by client.
        ranges: what the updates are cut into, to be left on the nodes; none if they are fetched.
        home: the slot that waits for this call, None for any.
        attempt: from 1.
    """

    clients: tuple[int, ...]
    params: Vector
    downlink: Vectors
    states: Mapping[int, Vectors]
    ctx: RoundContext
    sizes: Mapping[int, int]
    ranges: tuple[slice, ...] = ()
    home: int | None = None
    attempt: int = 1
    method: str = "train"

    def begin(self, actor: Any, send: Send) -> list[Any]:
        """Hands the work to an actor; the objects of its answer, the first of which says that it
        is done."""
        own = {c: self.states[c] for c in self.clients if c in self.states}
        args = self.clients, send(self.params), send(self.downlink), own, self.ctx
        if not self.ranges:
            return list(actor.train.remote(*args))
        method = actor.train_split.options(num_returns=1 + len(self.ranges))
        return list(method.remote(self.ranges, *args))

    def fetch(self, refs: Sequence[Any]) -> list[ClientUpdate]:
        """The updates from the objects of :meth:`begin`; deltas in ranges stay where they are."""
        if not self.ranges:
            return with_deltas(*ray.get(list(refs)))
        updates, parts = ray.get(refs[0]), tuple(refs[1:])
        return [replace(update, held=Held(parts, row)) for row, update in enumerate(updates)]

    def again(self, lost: bool) -> list[TrainCall]:
        """One call per client, so that one whose work cannot be done keeps no other from it."""
        attempt = self.attempt + lost
        return [replace(self, clients=(c,), home=None, attempt=attempt) for c in self.clients]

    def size(self, client: int | None = None, /) -> float:
        """Training samples of a client, or of all together."""
        return float(sum(self.sizes[c] for c in self.clients if client in (None, c)))

    def __str__(self) -> str:
        """Whose work it is."""
        alone = len(self.clients) == 1
        return f"client {self.clients[0]}" if alone else f"clients {list(self.clients)}"


@dataclass(frozen=True)
class Piece:
    """A question about a model that a worker's method ``ask`` answers.

    ``batches`` of the part are concerned; all of them where the method wants no range.
    """

    ask: str
    model: Model
    part: Part
    batches: tuple[int, int]

    @property
    def args(self) -> tuple[Any, ...]:
        """What the method is given beside the model."""
        return (self.part,) if self.ask == "scores" else (self.part, *self.batches)


@dataclass(frozen=True, eq=False)
class EvaluationCall:
    """Some models on some parts; the answer is a list, an entry for each piece.

    ``position`` says where the answer belongs.
    """

    position: int
    pieces: tuple[Piece, ...]
    attempt: int = 1
    home: int | None = None
    clients: tuple[int, ...] = ()
    method: str = "evaluate"

    def begin(self, actor: Any, send: Send) -> list[Any]:
        """Hands the work to an actor; the object of its answer."""
        different = {id(piece.model[0]): piece.model[0] for piece in self.pieces}
        place = {key: i for i, key in enumerate(different)}
        tasks = [(p.ask, place[id(p.model[0])], p.model[1], p.args) for p in self.pieces]
        return [actor.evaluate.remote(tasks, *map(send, different.values()))]

    def fetch(self, refs: Sequence[Any]) -> Any:
        """The answers."""
        return ray.get(refs[0])

    def again(self, lost: bool) -> list[EvaluationCall]:
        """The same call once more."""
        return [replace(self, attempt=self.attempt + lost)]

    def size(self, _: int | None = None, /) -> float:
        """Batches."""
        return float(sum(stop - start for start, stop in (p.batches for p in self.pieces)))

    def __str__(self) -> str:
        """What it is."""
        return f"evaluation on the {' and the '.join({name(p.part): '' for p in self.pieces})} part"


Call = TrainCall | EvaluationCall


def groups(sizes: Mapping[int, int], most: int) -> list[tuple[int, ...]]:
    """The clients in at most ``most`` groups of about equal size: the longest first, each to the
    group that has least so far."""
    longest_first = sorted(sizes, key=lambda c: (-sizes[c], c))
    filled: list[tuple[int, int, list[int]]] = [(0, i, []) for i in range(min(most, len(sizes)))]
    for client in longest_first:
        total, i, members = filled[0]
        members.append(client)
        heapq.heapreplace(filled, (total + sizes[client], i, members))
    return [tuple(members) for _, _, members in sorted(filled, key=lambda group: group[1])]


def cut(sizes: Sequence[int], parts: int) -> list[list[tuple[int, tuple[int, int]]]]:
    """Jobs of so many batches each, dealt out in order to ``parts`` workers, about equally.

    Returns:
        Per worker that gets any, the jobs and the range of batches of each.
    """
    stops = np.cumsum(sizes).tolist()
    edges = [stops[-1] * i // parts for i in range(parts + 1)]
    dealt = []
    for low, high in pairwise(edges):
        own = [
            (job, (max(low, stop - size) - (stop - size), min(high, stop) - (stop - size)))
            for job, (size, stop) in enumerate(zip(sizes, stops, strict=True))
            if low < stop and stop - size < high
        ]
        if own:
            dealt.append(own)
    return dealt


def alone(sizes: Mapping[int, int]) -> Sequence[tuple[int, ...]]:
    """A group per client, the longest first."""
    return [(c,) for c in sorted(sizes, key=lambda c: (-sizes[c], c))]
