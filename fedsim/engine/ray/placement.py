"""How many client actors fit, and whose they are: a pure function of machines and fractions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedsim.core.errors import ConfigError
from fedsim.core.types import GIB
from fedsim.engine.ray.resources import Demand, Node, Share, check_share, pack
from fedsim.engine.ray.suggestions import refusal, some

__all__ = ["Group", "Node", "Plan", "Share", "plan_placement"]

FLAGS = {"cpus": "--cpus-per-client", "gpus": "--gpus-per-client"}


@dataclass(frozen=True)
class Group:
    """The clients that ask for the same share, and the slots whose actors hold it.

    Args:
        clients: ids, ascending.
        slots: numbers, ascending; at most one per client.
    """

    share: Share
    clients: Sequence[int]
    slots: Sequence[int]

    def __str__(self) -> str:
        clients = f"{len(self.clients)} client" + "s" * (len(self.clients) != 1)
        return f"{len(self.slots)} of {self.share} for {clients}"


@dataclass(frozen=True)
class Plan:
    """A placement of client actors.

    Actors of several groups are to be made in the order of their slots: then they fit.

    Args:
        groups: the larger shares first; one, unless clients ask for different shares.
        nodes: the machines.
        node_of: per slot the index of a node that has room for it; Ray may choose another.
        memory: bytes that each actor needs.
        slots: actors that can run at once, at most one per client.
    """

    groups: tuple[Group, ...]
    nodes: tuple[Node, ...]
    node_of: tuple[int, ...]
    memory: int
    slots: int

    @property
    def actors(self) -> int:
        """The number of actors that the run uses."""
        return len(self.node_of)

    @property
    def num_clients(self) -> int:
        """K."""
        return sum(len(group.clients) for group in self.groups)

    @property
    def shared(self) -> bool:
        """Whether clients take turns on the actors."""
        return self.actors < self.num_clients

    @property
    def cpus_per_client(self) -> float:
        """What an actor of the first group holds."""
        return self.groups[0].share.cpus

    @property
    def gpus_per_client(self) -> float:
        """What an actor of the first group holds."""
        return self.groups[0].share.gpus

    @property
    def per_node(self) -> tuple[int, ...]:
        """Actors on each node."""
        count = Counter(self.node_of)
        return tuple(count[i] for i in range(len(self.nodes)))

    def options(self, slot: int) -> Share:
        """What the actor of a slot holds."""
        return next(group.share for group in self.groups if slot in group.slots)

    def slots_for(self, client: int) -> Sequence[int]:
        """The slots that may run a client: those of its group."""
        return self._group(client).slots

    def home(self, client: int) -> int | None:
        """The slot that is a client's own, where its group has one for each."""
        group = self._group(client)
        if len(group.slots) < len(group.clients):
            return None
        return group.slots[group.clients.index(client)]

    def _group(self, client: int) -> Group:
        return next(group for group in self.groups if client in group.clients)

    def describe(self) -> str:
        """One line for the user."""
        count = f"{self.actors} actor" + "s" * (self.actors != 1)
        share = "shared by" if self.shared else "one for each of"
        text = f"{count} {share} {self.num_clients} clients"
        if len(self.groups) == 1:
            return f"{text}, {self.groups[0].share} each"
        return f"{text}: {some(map(str, self.groups))}"

    def record(self) -> dict[str, object]:
        """For env.json."""
        return {
            "slots": self.slots,
            "actors": self.actors,
            "memory_per_client": self.memory / GIB,
            "groups": [
                {
                    "clients": len(group.clients),
                    "actors": len(group.slots),
                    "cpus_per_client": group.share.cpus,
                    "gpus_per_client": group.share.gpus,
                }
                for group in self.groups
            ],
        }


def plan_placement(
    nodes: Sequence[Node],
    share: Share,
    memory: int,
    num_clients: int,
    actors: str | int = "auto",
    own: Mapping[int, Share] | None = None,
) -> Plan:
    """One actor per client while they fit, otherwise as many as fit.

    Clients that ask for the same share form a group; each group gets at least one actor, and only
    its actors run its clients. A fraction of a GPU never spans GPUs.

    Args:
        nodes: the machines.
        share: what an actor holds.
        memory: bytes of memory that an actor needs.
        num_clients: K.
        actors: ``auto``, ``per-client`` or a number.
        own: the shares of clients that ask for something else, by id.

    Raises:
        ConfigError: there is no machine; a share that no node has room for, or more actors than
            fit: the message names the nearest amount that fits.
    """
    if str(actors) not in ("auto", "per-client") and not str(actors).strip("0").isdecimal():
        raise ConfigError(f"--actors {actors}: must be auto, per-client or a number above 0")
    check_share(share.cpus, share.gpus, FLAGS, ConfigError)
    if not nodes:
        raise ConfigError("no machine of the cluster is alive, so there is no place for actors")
    clients = _grouped(share, num_clients, own or {})
    demands = [Demand(s, len(ids)) for s, ids in clients.items()]
    room = pack(nodes, demands, memory, num_clients)
    least = {"auto": len(demands), "per-client": num_clients}.get(str(actors))
    places = room
    if least is None:
        least = min(int(actors), num_clients)
        places = pack(nodes, demands, memory, least)
    given = "" if actors == "auto" else f"--actors {actors}: "
    if least < len(demands):
        raise ConfigError(
            f"{given}clients ask for {len(demands)} different shares "
            f"({some(str(d.share) for d in demands)}), so {len(demands)} is the least"
        )
    if len(places) < least:
        raise ConfigError(given + refusal(nodes, demands, memory, least))
    groups = [
        Group(s, ids, _slots_of(i, [place.demand for place in places]))
        for i, (s, ids) in enumerate(clients.items())
    ]
    return Plan(
        tuple(groups), tuple(nodes), tuple(place.node for place in places), memory, len(room)
    )


def _grouped(
    share: Share, num_clients: int, own: Mapping[int, Share]
) -> dict[Share, Sequence[int]]:
    """The clients of each share, the larger shares first; a range where all ask for the same."""
    if set(own.values()) <= {share}:
        return {share: range(num_clients)}
    groups: dict[Share, list[int]] = {}
    for client in range(num_clients):
        groups.setdefault(own.get(client, share), []).append(client)
    return {s: tuple(groups[s]) for s in sorted(groups, key=lambda s: (-s.gpus, -s.cpus))}


def _slots_of(demand: int, placed: Sequence[int]) -> Sequence[int]:
    if set(placed) == {demand}:
        return range(len(placed))
    return tuple(slot for slot, of in enumerate(placed) if of == demand)
