"""Several runs at once on one Ray: how many fit, and the placement group of each.

A group has a bundle for each client actor of a run, which plans with bundles as it would with
machines. The process that does the run makes the group, so that Ray removes it with the process.
How many fit is computed before any is made: Ray keeps a group that does not fit pending, without a
message.
"""

from __future__ import annotations

import contextlib
import socket
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, EngineLostError, WorkerError
from fedsim.core.machine import MODEL_COPIES, PROCESS, cores
from fedsim.core.text import counted
from fedsim.core.types import GIB
from fedsim.engine.ray import shared
from fedsim.engine.ray.cluster import (
    LOCAL,
    connect,
    joining,
    local_node,
    memory_of,
    node_of,
    share_of,
)
from fedsim.engine.ray.placement import Node, Share, listed, pack, plan_placement

DRIVERS_PER_CORE = 4
"""The most runs at once with ``auto``, for each core of the machine that has their processes."""
ANSWER_TIMEOUT = 2.0
"""Seconds that a machine has to accept a connection."""
ROOM_TIMEOUT, ROOM_POLL = 180.0, 1.0
"""Seconds after which a run fails that no machines have room for, and between two looks. Ray may
need a minute to notice that a machine is gone."""


@dataclass(frozen=True)
class Reservation:
    """The resources of a run: the share of each client actor, and their number k."""

    share: Share
    actors: int

    @property
    def bundles(self) -> list[dict[str, float]]:
        """A bundle for each actor, in Ray's form."""
        amounts = {"CPU": self.share.cpus, "GPU": self.share.gpus}
        return [{name: amount for name, amount in amounts.items() if amount}] * self.actors

    def fits(self, nodes: Sequence[Node]) -> bool:
        """Whether the machines have room for it while nothing else uses them."""
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
        actors = self.engine.actors
        return named[actors] if isinstance(actors, str) else min(actors, self.num_clients)

    @property
    def driver(self) -> int:
        """Bytes that the driver needs: torch, copies of the model and the updates of a round."""
        updates = 1 if self.pooled else self.cohort_size
        return PROCESS + (MODEL_COPIES + updates) * self.model_bytes + self.frozen_bytes


def plan_runs(
    needs: Sequence[Need],
    nodes: Sequence[Node],
    runs: int,
    parallel: Literal["auto"] | int,
    here: int = 0,
) -> tuple[int, Reservation]:
    """How many runs are executed at once, and what each of them reserves.

    Every run gets what the largest one needs. With ``auto`` the number of runs is made as large as
    possible first, since a round waits for its slowest client; the actors left are divided evenly
    among the runs, at most one for each client of a round.

    Args:
        needs: of runs of each kind.
        nodes: the machines.
        runs: their number in all.
        parallel: the number of runs at once; auto: as many as fit.
        here: the index in ``nodes`` of this machine; its memory holds the drivers too.

    Raises:
        ConfigError: no run fits, or fewer than ``parallel``; the message says how many do.
    """
    shares = [share_of(need.engine, nodes) for need in needs]
    share = Share(max(each.cpus for each in shares), max(each.gpus for each in shares))
    memory = max(memory_of(n.engine, n.model_bytes, n.frozen_bytes) for n in needs)
    driver = max(need.driver for need in needs)

    def fit(count: int, actors: int) -> bool:
        left = nodes[here].memory - count * driver
        free = [*nodes]
        free[here] = replace(nodes[here], memory=max(0.0, left))
        return left >= 0 and sum(pack(free, share, memory, count * actors)) == count * actors

    fixed = max(need.actors or 0 for need in needs)
    least = fixed or 1
    most = runs if parallel == "auto" else min(parallel, runs)
    numbers = range(1, most + 1) if nodes else ()
    count = bisect_left(numbers, True, key=lambda n: not fit(n, least))
    if not count:  # the actors of one run may be too many: says what would fit
        plan_placement(nodes, share, memory, least, least)
    if not count or (parallel != "auto" and count < most):
        raise ConfigError(
            f"--parallel {most}: so many runs with {Reservation(share, least)} each do not fit, "
            f"{count} do{'es' * (count == 1)} ({listed(nodes)}); memory: {memory / GIB:.2f} GiB "
            f"for an actor, {driver / GIB:.2f} GiB on {nodes[here].name} for a run"
        )
    if parallel == "auto":
        count = min(count, max(1, int(DRIVERS_PER_CORE * cores())))
    cohort = max(need.cohort_size for need in needs)
    actors = fixed or next((k for k in range(cohort, 1, -1) if fit(count, k)), 1)
    return count, Reservation(share, actors)


@dataclass(frozen=True)
class SharedRay:
    """The Ray of several runs at once.

    Args:
        count: of runs at once.
        reservation: of each of them.
        joining: what their processes need to join it.
        register: knows the data of other runs, see :mod:`fedsim.engine.ray.shared`.
    """

    count: int
    reservation: Reservation
    joining: Mapping[str, Any]
    register: Any


@contextmanager
def shared_ray(
    engine: EngineConfig, needs: Sequence[Need], runs: int, parallel: Literal["auto"] | int
) -> Iterator[SharedRay]:
    """Starts Ray, or joins it, for several runs at once.

    Raises:
        ConfigError: so many do not fit, or Ray cannot be started or joined.
    """
    if (engine.address or "").startswith("ray://"):
        raise ConfigError(
            f"--address {engine.address}: the runs of a sweep are driven from a machine of the "
            "cluster; start the sweep on one of them, with --address auto"
        )
    if engine.address in (None, LOCAL):  # refused before Ray starts
        nodes, here = reachable()
        plan_runs(needs, nodes, runs, parallel, here)
    disconnect = connect(engine)
    register = None
    try:
        nodes, here = reachable()
        count, reservation = plan_runs(needs, nodes, runs, parallel, here)
        register = shared.start_register()
        yield SharedRay(count, reservation, joining(), register)
    finally:
        shared.end_register(register)
        disconnect()


@dataclass(frozen=True)
class Group:
    """A placement group that is ready: the machines of a run.

    Args:
        handle: Ray's.
        reservation: of the run.
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

    def check(self) -> None:
        """Raises an EngineLostError where a machine of the group is gone.

        Ray itself notices it after 15 seconds or more, and the group's state never shows it.
        """
        nodes = {node["NodeID"]: node for node in ray.nodes()}
        for name in dict.fromkeys(self.nodes):
            if not answers(nodes.get(name)):
                address = nodes[name]["NodeManagerAddress"] if name in nodes else name
                raise EngineLostError(f"node {address} of the run's placement group was lost")

    def remove(self) -> None:
        """Removes the group and ends the actors in it."""
        remove_placement_group(self.handle)


def reserve(reservation: Reservation, stopped: Callable[[], bool]) -> Group | None:
    """Makes a placement group and waits until it is ready; None where ``stopped`` first.

    Raises:
        WorkerError: the machines have had no room for it for :data:`ROOM_TIMEOUT` seconds.
    """
    handle = placement_group(reservation.bundles, "PACK")
    ready, had_room = handle.ready(), time.monotonic()
    while not ray.wait([ready], timeout=ROOM_POLL)[0]:
        nodes, _ = reachable()
        now = time.monotonic()
        had_room = now if reservation.fits(nodes) else had_room
        if stopped() or now - had_room > ROOM_TIMEOUT:
            remove_placement_group(handle)
            if stopped():
                return None
            raise WorkerError(
                f"no machine of the cluster has had room for {reservation} in "
                f"{ROOM_TIMEOUT:.0f} s ({listed(nodes)})"
            )
    nodes_of_bundles = placement_group_table(handle)["bundles_to_node_id"]
    return Group(handle, reservation, tuple(nodes_of_bundles[i] for i in sorted(nodes_of_bundles)))


def answers(node: Any) -> bool:
    """Whether a machine, an entry of ``ray.nodes()``, is alive: its raylet takes connections."""
    if node is None or not node["Alive"]:
        return False
    with contextlib.suppress(OSError):
        place = node["NodeManagerAddress"], node["NodeManagerPort"]
        socket.create_connection(place, ANSWER_TIMEOUT).close()
        return True
    return False


def reachable() -> tuple[list[Node], int]:
    """The machines on which groups can be made now, and which of them this process is on.

    Without a connection to Ray this machine is the only one.
    """
    if not ray.is_initialized():
        return [local_node()], 0
    nodes = [node for node in ray.nodes() if answers(node)]
    this_one = ray.get_runtime_context().get_node_id()
    here = next((i for i, node in enumerate(nodes) if node["NodeID"] == this_one), 0)
    return [node_of(node["Resources"], node["NodeManagerAddress"]) for node in nodes], here
