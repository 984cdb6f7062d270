"""The remote calls that an executor makes, as values that can be made again."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, cast

import numpy as np
import ray

from fedsim.core.types import ClientUpdate, Part, Vectors
from fedsim.engine.base import Measure, Model, Models
from fedsim.engine.blocks import Block, clients_of, named
from fedsim.engine.ray.sharded import Held
from fedsim.engine.worker import with_deltas
from fedsim.metrics.splits import name

Send = Callable[[Any], Any]
"""Makes a value an object that many calls can refer to."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskCall:
    """Some tasks of one kind."""

    blocks: tuple[Block, ...]  # of tasks; each is done, and retried, as a whole
    models: Models
    states: Mapping[int, Vectors]
    """Of all clients that have one; only those of its own clients are sent."""
    sizes: Sequence[int]  # training samples of all clients
    ranges: tuple[slice, ...] = ()
    """What the deltas are cut into, to be left on the nodes; none if they are fetched."""
    home: int | None = None  # the slot that waits for this call, None for any
    attempt: int = 1

    @property
    def kind(self) -> str:
        """Of its work, for how long that may take."""
        return self.blocks[0][0].work

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients of all blocks, in order."""
        return tuple(chain.from_iterable(map(clients_of, self.blocks)))

    def begin(self, actor: Any, send: Send) -> list[Any]:
        """Hands the work to an actor; the objects of its answer, the first of which says that all
        are there."""
        tasks = list(chain.from_iterable(self.blocks))
        kept = {t.client: self.states[t.client] for t in tasks if t.client in self.states}
        versions = sorted({task.version for task in tasks})
        work = self.blocks, kept, versions, self.ranges  # together: Ray takes time for each
        # Ray resolves objects that are arguments themselves, and no others
        sent = [send(part) for version in versions for part in self.models[version]]
        method = actor.run.options(num_returns=1 + max(1, len(self.ranges)))
        return list(method.remote(work, *sent))

    def fetch(self, refs: Sequence[Any]) -> list[ClientUpdate]:
        """The updates from the objects of :meth:`begin`; deltas in ranges stay where they are."""
        if not self.ranges:
            return with_deltas(*ray.get(list(refs)))
        updates, parts = ray.get(refs[0]), tuple(refs[1:])
        blocks = [block for block in self.blocks for _ in block]
        held = [Held(parts, row, block) for row, block in enumerate(blocks)]
        return [replace(update, held=h) for update, h in zip(updates, held, strict=True)]

    def again(self, lost: bool) -> list[TaskCall]:
        """One call per block, so that a block that cannot be trained holds up no other."""
        attempt = self.attempt + lost
        return [replace(self, blocks=(b,), home=None, attempt=attempt) for b in self.blocks]

    def size(self, block: Block = (), /) -> float:
        """Training samples of a block, or of all together."""
        return float(sum(self.sizes[c] for c in (clients_of(block) if block else self.clients)))

    def __str__(self) -> str:
        return named(self.clients)


Evaluation = tuple[Model, Part, Measure[Any], tuple[int, int]]
"""A model's evaluation on some batches of a part; see :meth:`Worker.evaluate`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationCall:
    """Some evaluations; the answer has an entry for each, and belongs to ``position``."""

    position: int
    tasks: tuple[Evaluation, ...]
    attempt: int = 1
    home: int | None = None
    blocks: tuple[Block, ...] = ()
    clients: tuple[int, ...] = ()
    kind: str = "evaluate"

    def begin(self, actor: Any, send: Send) -> list[Any]:
        """Hands the work to an actor; the object of its answer."""
        different = {id(params): params for (params, _), *_ in self.tasks}
        number = {key: i for i, key in enumerate(different)}
        tasks = [(number[id(params)], state, *rest) for (params, state), *rest in self.tasks]
        return [actor.evaluate.remote(tasks, *map(send, different.values()))]

    def fetch(self, refs: Sequence[Any]) -> list[Any]:
        """The answers."""
        return cast(list[Any], ray.get(refs[0]))

    def again(self, lost: bool) -> list[EvaluationCall]:
        """The same call once more."""
        return [replace(self, attempt=self.attempt + lost)]

    def size(self, _: Block = (), /) -> float:
        """Batches."""
        return float(sum(stop - start for *_, (start, stop) in self.tasks))

    def __str__(self) -> str:
        return (
            f"evaluation on the {' and the '.join({name(task[1]): '' for task in self.tasks})} part"
        )


Call = TaskCall | EvaluationCall


def balanced(sizes: Mapping[Block, float], most: int) -> list[tuple[Block, ...]]:
    """The blocks in at most ``most`` groups of about equal size: the longest first, each to the
    group that has least so far."""
    # pairs, since looking a block up costs as much as making its tasks
    longest_first = sorted(sizes.items(), key=lambda pair: (-pair[1], clients_of(pair[0])))
    filled: list[tuple[float, int, list[Block]]] = [
        (0, i, []) for i in range(min(most, len(sizes)))
    ]
    for block, size in longest_first:
        total, i, members = filled[0]
        members.append(block)
        heapq.heapreplace(filled, (total + size, i, members))
    return [tuple(members) for _, _, members in sorted(filled, key=lambda group: group[1])]


def deal(sizes: Sequence[int], actors: int) -> list[list[tuple[int, tuple[int, int]]]]:
    """Jobs of so many batches each, dealt out in order, about equally: per actor that gets any, the
    jobs and the range of batches of each."""
    stops = np.cumsum(sizes).tolist()
    edges = [stops[-1] * i // actors for i in range(actors + 1)]
    dealt = []
    for low, high in pairwise(edges):
        slices = [
            (job, (max(low, stop - size) - (stop - size), min(high, stop) - (stop - size)))
            for job, (size, stop) in enumerate(zip(sizes, stops, strict=True))
            if low < stop and stop - size < high
        ]
        if slices:
            dealt.append(slices)
    return dealt
