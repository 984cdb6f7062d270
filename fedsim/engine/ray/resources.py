"""What machines have and clients ask for, counted as Ray does, and which actors fit where.

Ray gives a fraction to the fullest GPU that still has room for it, and never spans GPUs. The same
greedy packing is done here, so actors that are made in the order of the places fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

from fedsim.core.errors import ConfigError, DataError
from fedsim.core.files import read_table, whole_number
from fedsim.core.types import GIB

FINEST = 1e-4
"""The smallest fraction of a resource that Ray hands out."""
ONE = 10_000
"""A whole CPU or GPU in units of :data:`FINEST`."""
Refusal = type[ConfigError] | type[DataError]


@dataclass(frozen=True)
class Node:
    """A machine of the cluster: what Ray may hand out of it.

    Args:
        cpus: number of CPUs; 0 on a head node that does no work.
        gpus: number of GPUs.
        name: address or name, for the user.
        accelerator: type of the GPUs, "" where it is not known.
        memory: bytes for processes, infinite where it is not known.
    """

    cpus: float
    gpus: float = 0.0
    name: str = "this machine"
    accelerator: str = ""
    memory: float = math.inf

    def __str__(self) -> str:
        memory = f", {self.memory / GIB:.1f} GiB" if math.isfinite(self.memory) else ""
        return f"{self.name}: {self.cpus:g} CPUs, {self.gpus:g} GPUs{memory}"


@dataclass(frozen=True)
class Share:
    """What one client's actor holds: CPUs, and GPUs up to 1 or a whole number."""

    cpus: float = 1.0
    gpus: float = 0.0

    def __str__(self) -> str:
        return f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")


def units(amount: float) -> int:
    """An amount of a resource in units of :data:`FINEST`; Ray cuts off what is finer."""
    return math.floor(amount * ONE + 1e-6)


def check_share(cpus: float, gpus: float, where: Mapping[str, str], error: Refusal) -> None:
    """Refuses what Ray cannot hand out: both are whole above 1, and ``gpus`` alone may be 0.

    Args:
        cpus: of an actor.
        gpus: of an actor.
        where: the flags, or file and columns, that gave ``cpus`` and ``gpus``.
        error: the class to raise.

    Raises:
        FedsimError: an amount that is not finite, negative, finer than :data:`FINEST`, or above 1
            and not whole.
    """
    for name, amount, or_none in (("cpus", cpus, ""), ("gpus", gpus, ", or 0")):
        given = f"{where[name]} {amount:g}"
        if not (math.isfinite(amount) and (amount >= FINEST or (or_none and amount == 0))):
            raise error(f"{given}: must be {FINEST:g} or more{or_none}")
        if amount > 1 and amount != int(amount):
            raise error(
                f"{given}: above 1 it must be whole, such as {math.floor(amount)} or "
                f"{math.ceil(amount)}"
            )


def read_shares(path: Path, num_clients: int) -> dict[int, Share]:
    """The shares of ``engine.client_resources``, by client.

    Args:
        path: CSV file with the columns ``client_id,cpus,gpus``; a row for each client that asks
            for something of its own.
        num_clients: K; ids go from 0 to K - 1.

    Raises:
        DataError: a missing file or column, an id that is unknown or given twice, a number that no
            actor can hold; the message names file and row.
    """
    shares: dict[int, Share] = {}
    for row in read_table(path, ("client_id", "cpus", "gpus")):
        client = whole_number(row.values["client_id"], f"{row.where}: client_id")
        if not 0 <= client < num_clients:
            raise DataError(
                f"{row.where}: client_id {client}, the {num_clients} clients are 0 to "
                f"{num_clients - 1}"
            )
        if client in shares:
            raise DataError(f"{row.where}: client_id {client} is given twice")
        where = {name: f"{row.where}: {name}" for name in ("cpus", "gpus")}
        cpus, gpus = (_number(row.values[name], where[name]) for name in where)
        check_share(cpus, gpus, where, DataError)
        shares[client] = Share(cpus, gpus)
    return shares


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise DataError(f"{where} {text!r} is not a number") from error


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
