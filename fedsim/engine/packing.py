"""Which actors fit on which machines: a greedy packing, the way Ray packs.

Ray gives a fraction to the fullest GPU that still has room for it, and never spans GPUs. The same
is done here, so actors that are made in the order of the places fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple

from fedsim.engine.resources import ONE, Node, Share, units


class Demand(NamedTuple):
    """So many clients that ask for the same share."""

    share: Share
    clients: int


class Place(NamedTuple):
    """An actor that fits: index of its demand, index of its node."""

    demand: int
    node: int


def pack(nodes: Sequence[Node], demands: Sequence[Demand], memory: int, most: int) -> list[Place]:
    """Room for an actor per client where all fit, else for as many actors as fit.

    In the second case each demand gets one actor, in the order given, and then always the one that
    has the most clients to an actor.

    Args:
        nodes: the machines.
        demands: the classes of clients, the larger shares first.
        memory: bytes that an actor needs.
        most: actors to find room for.

    Returns:
        A place per actor, in the order in which the actors are to be made. Where the first actors
        of all demands do not fit together, there are fewer places than demands.
    """
    everyone = sum(demand.clients for demand in demands)
    if most >= everyone:
        machines = _Machines(nodes, demands, memory)
        each = chain.from_iterable(repeat(i, d.clients) for i, d in enumerate(demands))
        places = list(machines.fill(each))
        if len(places) == everyone:
            return places
    machines = _Machines(nodes, demands, memory)
    places = list(machines.fill(range(min(len(demands), most))))
    if len(places) < len(demands):
        return places
    actors = [1] * len(demands)
    growing = {i for i, demand in enumerate(demands) if demand.clients > 1}
    while growing and len(places) < most:
        i = max(growing, key=lambda i: (demands[i].clients / actors[i], -i))
        found = list(machines.fill([i]))
        places += found
        actors[i] += len(found)
        if not found or actors[i] == demands[i].clients:
            growing.discard(i)
    return places


class _Room:
    """What is left of a node, in units of the finest fraction and in bytes."""

    def __init__(self, node: Node) -> None:
        self.cpus = units(node.cpus)
        self.gpus = [ONE] * int(node.gpus)
        self.memory = node.memory

    def take(self, cpus: int, gpus: int, memory: int) -> bool:
        """Whether an actor fits; if so, it is there from now on."""
        on_each = min(gpus, ONE)
        fullest = sorted((left, i) for i, left in enumerate(self.gpus) if left >= on_each)
        chosen = fullest[: -(-gpus // ONE)]
        if cpus > self.cpus or memory > self.memory or len(chosen) * on_each < gpus:
            return False
        self.cpus -= cpus
        self.memory -= memory
        for _, i in chosen:
            self.gpus[i] -= on_each
        return True


class _Machines:
    """The nodes while they fill up. A node that once had no room for a demand never will again."""

    def __init__(self, nodes: Sequence[Node], demands: Sequence[Demand], memory: int) -> None:
        self._rooms = [_Room(node) for node in nodes]
        self._memory = memory
        self._asked = [(units(d.share.cpus), units(d.share.gpus)) for d in demands]
        # who needs no GPU goes to the nodes without first, as with Ray
        few_gpus = sorted(range(len(nodes)), key=lambda i: nodes[i].gpus)
        self._left = [few_gpus if gpus == 0 else list(range(len(nodes))) for _, gpus in self._asked]

    def fill(self, order: Iterable[int]) -> Iterator[Place]:
        """Places actors of the given demands, until the first that does not fit."""
        for i in order:
            left = self._left[i]
            while left and not self._rooms[left[0]].take(*self._asked[i], self._memory):
                left = left[1:]
            self._left[i] = left
            if not left:
                return
            yield Place(i, left[0])
