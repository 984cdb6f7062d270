"""Placement groups: the resources that each of several runs at once reserves for its actors.

A group has a bundle for each client actor of its run, and the run plans with bundles as it would
with machines. The process that controls the runs makes and removes the groups, since a group
belongs to the Ray job and not to the actor that uses it. How many fit is computed before any is
made: Ray keeps a group that does not fit pending, without a message.
"""

from __future__ import annotations

import contextlib
import socket
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, EngineLostError
from fedsim.core.machine import MODEL_COPIES, PROCESS
from fedsim.core.text import counted
from fedsim.core.types import GIB
from fedsim.engine.ray.cluster import check_types, local_node, memory_of, node_of, share_of
from fedsim.engine.ray.placement import Node, Share, listed, pack, plan_placement

DRIVERS_PER_CORE = 4
"""The most runs at once with ``auto``, for each core of the machine that has the drivers."""
ANSWER_TIMEOUT = 2.0
"""Seconds that a machine has to accept a connection."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """The resources that a run reserves.

    Args:
        share: of each client actor.
        actors: k, their number.
    """

    share: Share
    actors: int

    @property
    def bundles(self) -> list[dict[str, float]]:
        """A bundle for each actor, in Ray's form."""
        amounts = {"CPU": self.share.cpus, "GPU": self.share.gpus}
        return [{name: amount for name, amount in amounts.items() if amount}] * self.actors

    def fits(self, nodes: Sequence[Node]) -> bool:
        """Whether the machines have the CPUs and GPUs for it while nothing else uses them."""
        return sum(pack(nodes, self.share, 0, self.actors)) == self.actors

    def __str__(self) -> str:
        return f"{counted(self.actors, 'actor')} of {self.share}"


@dataclass(frozen=True, kw_only=True)
class Need:
    """The needs of a run, as known before it starts.

    Args:
        engine: its settings.
        num_clients: K.
        cohort_size: m; more actors than clients of a round are of no use.
        model_bytes: of the model's vector.
        frozen_bytes: of the model's frozen tensors.
        pooled: all clients of a round have one update in common.
    """

    engine: EngineConfig
    num_clients: int
    cohort_size: int
    model_bytes: int = 0
    frozen_bytes: int = 0
    pooled: bool = False

    @property
    def actors(self) -> int | None:
        """The number of actors in the settings, None for ``auto``."""
        named = {"auto": None, "per-client": self.num_clients}
        asked = self.engine.actors
        return named[asked] if isinstance(asked, str) else min(asked, self.num_clients)

    @property
    def driver(self) -> int:
        """Bytes that the driver needs: torch, copies of the model and the updates of a round."""
        updates = 1 if self.pooled else self.cohort_size
        return PROCESS + (MODEL_COPIES + updates) * self.model_bytes + self.frozen_bytes

    def reservation(self, nodes: Sequence[Node], actors: int) -> Reservation:
        """The resources of the run, with ``actors`` where the settings say ``auto``."""
        return Reservation(share=share_of(self.engine, nodes), actors=self.actors or actors)


@dataclass(frozen=True, kw_only=True)
class RunsPlan:
    """Several runs at once.

    Args:
        count: N, the number of runs at once.
        actors: k, of each run whose settings do not give another number.
        share: the largest share of an actor, over all runs.
        memory: the most bytes that an actor needs.
        driver: the most bytes that the driver of a run needs.
    """

    count: int
    actors: int
    share: Share
    memory: int
    driver: int

    def fitting(self, nodes: Sequence[Node], here: int, most: int) -> int:
        """How many of the runs fit at once on some machines, at most ``most``.

        The drivers are on the machine ``nodes[here]``.
        """

        def overfull(runs: int) -> bool:
            left = nodes[here].memory - runs * self.driver
            with_drivers = list(nodes)
            with_drivers[here] = replace(nodes[here], memory=max(0.0, left))
            wanted = runs * self.actors
            return left < 0 or sum(pack(with_drivers, self.share, self.memory, wanted)) < wanted

        return bisect_left(range(1, most + 1), True, key=overfull) if nodes else 0


def plan_runs(
    needs: Sequence[Need],
    nodes: Sequence[Node],
    parallel: Literal["auto"] | int,
    *,
    cores: float,
    here: int = 0,
) -> RunsPlan:
    """Computes how many runs are executed at once, and with how many actors each.

    Where neither number is given, the number of runs is made as large as possible first, since a
    round waits for its slowest client. The actors left are divided evenly among the runs, at most
    one for each client of a round.

    Args:
        needs: of the runs.
        nodes: the machines.
        parallel: the number of runs at once; auto: as many as fit.
        cores: of this machine, which has the drivers.
        here: its index in ``nodes``; its memory holds the drivers too.

    Raises:
        ConfigError: no run fits, or fewer than ``parallel``; the message says how many do.
    """
    shares = [share_of(need.engine, nodes) for need in needs]
    for need, share in zip(needs, shares, strict=True):
        check_types(need.engine, nodes, share)
    given = max(need.actors or 0 for need in needs)
    asked = len(needs) if parallel == "auto" else min(parallel, len(needs))
    plan = RunsPlan(
        count=asked,
        actors=given or 1,
        share=Share(max(s.cpus for s in shares), max(s.gpus for s in shares)),
        memory=max(memory_of(n.engine, n.model_bytes, n.frozen_bytes) for n in needs),
        driver=max(need.driver for need in needs),
    )
    fits = plan.fitting(nodes, here, asked)
    if not fits or (parallel != "auto" and fits < asked):
        _refuse(plan, nodes, here, fits)
    if parallel == "auto":
        fits = min(fits, max(1, int(DRIVERS_PER_CORE * cores)))
    plan = replace(plan, count=fits)
    if given:
        return plan
    larger = (
        replace(plan, actors=k) for k in range(max(need.cohort_size for need in needs), 1, -1)
    )
    return next((p for p in larger if p.fitting(nodes, here, fits) == fits), plan)


def _refuse(plan: RunsPlan, nodes: Sequence[Node], here: int, fits: int) -> NoReturn:
    if not fits:  # the actors of one run may be too many: says what would fit
        plan_placement(nodes, plan.share, plan.memory, plan.actors, plan.actors)
    each = Reservation(share=plan.share, actors=plan.actors)
    raise ConfigError(
        f"--parallel {plan.count}: so many runs with {each} each do not fit, {fits} "
        f"do{'es' * (fits == 1)} ({listed(nodes)}); memory: {plan.memory / GIB:.2f} GiB for an "
        f"actor, {plan.driver / GIB:.2f} GiB on {nodes[here].name} for a run"
    )


@dataclass(frozen=True)
class Group:
    """A placement group that is ready: the machines of a run.

    Args:
        handle: Ray's.
        nodes: Ray's id of each bundle's machine.
    """

    handle: PlacementGroup
    reservation: Reservation
    nodes: tuple[str, ...]

    def machines(self) -> list[Node]:
        """The bundles."""
        share = self.reservation.share
        return [Node(share.cpus, share.gpus, f"bundle {i}") for i in range(self.reservation.actors)]

    @property
    def options(self) -> dict[str, Any]:
        """Where Ray is to place an actor."""
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self.handle)}

    def lost(self) -> str:
        """How one of its machines was lost, empty while all are there.

        Ray itself notices it after 15 seconds or more, and the group's state never shows it.
        """
        known = {node["NodeID"]: node for node in ray.nodes()}
        for name in dict.fromkeys(self.nodes):
            if not answers(known.get(name)):
                address = known[name]["NodeManagerAddress"] if name in known else name
                return f"node {address} of the run's placement group was lost"
        return ""

    def remove(self) -> None:
        """Removes the group and ends the actors in it."""
        remove_placement_group(self.handle)

    def check(self) -> None:
        """Raises an EngineLostError where a machine of the group is gone."""
        reason = self.lost()
        if reason:
            raise EngineLostError(reason)


def answers(node: Any) -> bool:
    """Whether a machine, an entry of ``ray.nodes()``, is alive: its raylet takes connections."""
    if node is None or not node["Alive"]:
        return False
    with contextlib.suppress(OSError):
        place = node["NodeManagerAddress"], node["NodeManagerPort"]
        socket.create_connection(place, ANSWER_TIMEOUT).close()
        return True
    return False


class Pending:
    """A requested group."""

    def __init__(self, reservation: Reservation) -> None:
        self.reservation = reservation
        self._handle = placement_group(reservation.bundles, "PACK")
        self._ready = self._handle.ready()

    def group(self, timeout: float = 0) -> Group | None:
        """The group, once it is ready; waits at most so many seconds."""
        if not ray.wait([self._ready], timeout=timeout)[0]:
            return None
        nodes = placement_group_table(self._handle)["bundles_to_node_id"]
        return Group(self._handle, self.reservation, tuple(nodes[i] for i in sorted(nodes)))

    def remove(self) -> None:
        """Withdraws the request."""
        remove_placement_group(self._handle)


def reachable() -> tuple[list[Node], int]:
    """The machines on which groups can be made now, and which of them this process is on.

    Without a connection to Ray this machine is the only one.
    """
    if not ray.is_initialized():
        return [local_node()], 0
    nodes = [node for node in ray.nodes() if answers(node)]
    own = ray.get_runtime_context().get_node_id()
    here = next((i for i, node in enumerate(nodes) if node["NodeID"] == own), 0)
    return [node_of(node["Resources"], node["NodeManagerAddress"]) for node in nodes], here
