"""How many client actors fit: a pure function of the nodes and the fractions asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedsim.errors import ConfigError

FINEST = 1e-4
"""The smallest fraction of a resource that Ray hands out."""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster: CPUs and GPUs that Ray may hand out, and the type of the GPUs."""

    cpus: float
    gpus: float = 0.0
    name: str = "this machine"
    accelerator: str = ""


@dataclass(frozen=True)
class Plan:
    """A placement of client actors.

    Args:
        slots: actors that can run at once, over all nodes; never across GPUs.
        actors: actors that the run uses, at most one per client.
        shared: whether clients take turns on the actors.
    """

    slots: int
    actors: int
    num_clients: int
    cpus_per_client: float
    gpus_per_client: float

    @property
    def shared(self) -> bool:
        """Whether clients take turns on the actors."""
        return self.actors < self.num_clients

    def describe(self) -> str:
        """One line for the user."""
        count = f"{self.actors} actor" + "s" * (self.actors != 1)
        share = "shared by" if self.shared else "one for each of"
        gpu = f" and {self.gpus_per_client:g} GPU" if self.gpus_per_client else ""
        return f"{count} {share} {self.num_clients} clients, {self.cpus_per_client:g} CPU{gpu} each"


def plan(
    nodes: Sequence[Node],
    num_clients: int,
    cpus_per_client: float = 1.0,
    gpus_per_client: float = 0.0,
    actors: str | int = "auto",
) -> Plan:
    """One actor per client while they fit, otherwise as many as fit.

    A fraction of a GPU never spans GPUs: slots = sum over GPUs of floor(1/f).

    Args:
        nodes: the machines.
        num_clients: K.
        cpus_per_client: what an actor holds.
        gpus_per_client: what an actor holds, at most 1 or a whole number.
        actors: ``auto``, ``per-client`` or a number.

    Raises:
        ConfigError: a fraction that no node has room for, or more actors than fit; the message
            names the nearest fraction that fits.
    """
    _check(cpus_per_client, gpus_per_client, actors)
    slots = _slots(nodes, num_clients, cpus_per_client, gpus_per_client)
    if slots == 0:
        raise ConfigError(_refusal(nodes, 1, cpus_per_client, gpus_per_client))
    wanted = {"auto": min(num_clients, slots), "per-client": num_clients}.get(str(actors))
    wanted = min(int(actors), num_clients) if wanted is None else wanted
    if wanted > slots:
        raise ConfigError(
            f"--actors {actors}: {_refusal(nodes, wanted, cpus_per_client, gpus_per_client)}"
        )
    return Plan(slots, min(wanted, num_clients), num_clients, cpus_per_client, gpus_per_client)


def _check(cpus: float, gpus: float, actors: str | int) -> None:
    if str(actors) not in ("auto", "per-client") and not str(actors).strip("0").isdecimal():
        raise ConfigError(f"--actors {actors}: must be auto, per-client or a number above 0")
    if not (math.isfinite(cpus) and cpus >= FINEST):
        raise ConfigError(f"--cpus-per-client {cpus:g}: must be {FINEST:g} or more")
    if not (math.isfinite(gpus) and (gpus == 0 or gpus >= FINEST)):
        raise ConfigError(f"--gpus-per-client {gpus:g}: must be {FINEST:g} or more, or 0")
    if gpus > 1 and gpus != int(gpus):
        raise ConfigError(
            f"--gpus-per-client {gpus:g}: above 1 it must be whole, such as {math.floor(gpus)}"
        )


def _slots(nodes: Iterable[Node], most: int, cpus: float, gpus: float) -> int:
    return sum(min(most, _node_slots(node, cpus, gpus)) for node in nodes)


def _node_slots(node: Node, cpus: float, gpus: float) -> int:
    by_cpu = math.floor(node.cpus / cpus + 1e-9)
    if gpus == 0:
        return by_cpu
    whole = math.floor(node.gpus)
    by_gpu = whole * math.floor(1 / gpus + 1e-9) if gpus <= 1 else whole // int(gpus)
    return min(by_cpu, by_gpu)


def _refusal(nodes: Sequence[Node], wanted: int, cpus: float, gpus: float) -> str:
    """Why ``wanted`` actors do not fit, and the largest fractions with which they would."""
    have = ", ".join(f"{n.name}: {n.cpus:g} CPUs, {n.gpus:g} GPUs" for n in nodes)
    gpu = f" and {gpus:g} GPU" if gpus else ""
    fits = _slots(nodes, wanted, cpus, gpus)
    text = f"{wanted} actors of {cpus:g} CPU{gpu} do not fit, {fits} do ({have})"
    cpu_fit = cpus
    if _slots(nodes, wanted, cpus, 0) < wanted:
        shares = {_down(n.cpus / k) for n in nodes for k in range(1, wanted + 1)} - {0.0}
        fitting = [c for c in shares if _slots(nodes, wanted, c, 0) >= wanted]
        if not fitting:
            return text
        cpu_fit = max(fitting)
        text += f"; --cpus-per-client {cpu_fit:g} would"
    if gpus and _slots(nodes, wanted, cpu_fit, gpus) < wanted:
        most = math.floor(max(node.gpus for node in nodes)) + 1
        fractions = [
            *range(1, min(math.ceil(gpus), most)),
            *(_down(1 / k) for k in range(1, wanted + 1)),
        ]
        fit = max((g for g in fractions if _slots(nodes, wanted, cpu_fit, g) >= wanted), default=0)
        text += f"; --gpus-per-client {fit:g} would"
    return text


def _down(fraction: float) -> float:
    """The fraction in whole steps of the finest."""
    return math.floor(fraction / FINEST + 1e-9) * FINEST
