"""How many client actors fit on which machines, counted as Ray does: in steps of 0.0001, and a
fraction of a GPU never spans GPUs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedsim.core.errors import ConfigError
from fedsim.core.text import counted
from fedsim.core.types import GIB

ONE = 10_000
"""A whole CPU or GPU in units of the smallest amount that Ray assigns."""
MAX_LISTED = 4
"""Machines that a message lists."""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster: what Ray may hand out of it."""

    cpus: float  # 0 on a head node that does no work
    gpus: float = 0.0
    name: str = "this machine"
    accelerator: str = ""  # type of the GPUs, where it is known
    memory: float = math.inf  # bytes for processes, where they are known

    def __str__(self) -> str:
        memory = f", {self.memory / GIB:.1f} GiB" if math.isfinite(self.memory) else ""
        return f"{self.name}: {self.cpus:g} CPUs, {self.gpus:g} GPUs{memory}"


@dataclass(frozen=True)
class Share:
    """What a client actor holds: CPUs, and GPUs up to 1 or a whole number."""

    cpus: float = 1.0
    gpus: float = 0.0

    def __str__(self) -> str:
        return f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A placement of client actors."""

    nodes: tuple[Node, ...]
    share: Share
    memory: int  # bytes that each actor needs
    num_clients: int
    slots: int  # actors that can run at once, at most one per client
    per_node: tuple[int, ...]  # actors of the run on each node; Ray may choose other nodes

    @property
    def actors(self) -> int:
        """The number of actors that the run uses."""
        return sum(self.per_node)

    @property
    def per_client(self) -> bool:
        """Whether each client has an actor of its own; otherwise they take turns."""
        return self.actors == self.num_clients

    def home(self, client: int) -> int | None:
        """The slot that is a client's own, where each has one."""
        return client if self.per_client else None

    def __str__(self) -> str:
        relation = "one for each of" if self.per_client else "shared by"
        relation = "for" if self.num_clients == 1 else relation
        clients = counted(self.num_clients, "client")
        return f"{counted(self.actors, 'actor')} {relation} {clients}, {self.share} each"

    @property
    def gpu_types(self) -> str:
        """The types of the GPUs that the actors hold, as far as Ray names them."""
        used = (node for node, n in zip(self.nodes, self.per_node, strict=True) if n)
        types = {node.accelerator for node in used} - {""}
        return ", ".join(sorted(types)) if self.share.gpus else ""

    def record(self) -> dict[str, object]:
        """For env.json."""
        return {
            "slots": self.slots,
            "actors": self.actors,
            "clients": self.num_clients,
            "memory_per_client": self.memory / GIB,
            "cpus_per_client": self.share.cpus,
            "gpus_per_client": self.share.gpus,
        }


def plan_placement(
    nodes: Sequence[Node], share: Share, memory: int, num_clients: int, actors: str | int = "auto"
) -> Placement:
    """One actor per client while they fit, otherwise as many as fit.

    An actor needs ``memory`` bytes; ``actors`` is ``auto``, ``per-client`` or a number. A
    ConfigError where these do not fit.
    """
    if not nodes:
        raise ConfigError("no machine of the cluster is alive, so there is no place for actors")
    slots = sum(pack(nodes, share, memory, num_clients))
    named = {"auto": 1, "per-client": num_clients}
    least = named.get(str(actors)) or min(int(actors), num_clients)
    if slots < least:
        flag = "" if actors == "auto" else f"--actors {actors}: "
        raise ConfigError(flag + _refusal(nodes, share, memory, least))
    return Placement(
        nodes=tuple(nodes),
        share=share,
        memory=memory,
        num_clients=num_clients,
        slots=slots,
        per_node=pack(nodes, share, memory, slots if actors == "auto" else least),
    )


def pack(nodes: Sequence[Node], share: Share, memory: int, most: int) -> tuple[int, ...]:
    """Actors on each node, at most ``most`` in all.

    Nodes are filled in order; actors without a GPU go to those with the fewest first, as with Ray.
    """
    order = list(range(len(nodes)))
    if share.gpus == 0:
        order.sort(key=lambda i: nodes[i].gpus)
    placed = [0] * len(nodes)
    for i in order:
        placed[i] = min(capacity(nodes[i], share, memory), most - sum(placed))
    return tuple(placed)


def capacity(node: Node, share: Share, memory: int) -> int:
    """How many actors of a share fit on a node."""
    limits = [units(node.cpus) // units(share.cpus)]
    gpus = units(share.gpus)
    if 0 < node.gpus < 1 and gpus:  # a place of a run among several
        limits.append(units(node.gpus) // gpus)
    elif gpus:
        whole = int(node.gpus)
        limits.append(whole * (ONE // gpus) if gpus <= ONE else whole // (gpus // ONE))
    if memory and math.isfinite(node.memory):
        limits.append(int(node.memory // memory))
    return min(limits)


def units(amount: float) -> int:
    """An amount of a resource in units of 1 / :data:`ONE`; Ray cuts off what is finer."""
    return math.floor(amount * ONE + 1e-6)


def listed(nodes: Sequence[Node]) -> str:
    """The machines and what they have; of many, the first ones."""
    more = f", and {len(nodes) - MAX_LISTED} more" if len(nodes) > MAX_LISTED else ""
    return ", ".join(map(str, nodes[:MAX_LISTED])) + more


def _refusal(nodes: Sequence[Node], share: Share, memory: int, wanted: int) -> str:
    """Why ``wanted`` actors do not fit, and what could be asked for instead."""
    fitting, by_cores = (sum(pack(nodes, share, m, wanted)) for m in (memory, 0))
    text = (
        f"{counted(wanted, 'actor')} of {share} do{'es' * (wanted == 1)} not fit, {fitting} do "
        f"({listed(nodes)})"
    )
    if by_cores < wanted:
        gpus = " or --gpus-per-client" * bool(share.gpus)
        return f"{text}; a smaller --cpus-per-client{gpus} may"
    return f"{text}; an actor needs {memory / GIB:.2f} GiB, see engine.memory_per_client"
