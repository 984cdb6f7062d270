"""Placement groups: the part of a cluster in which one of several runs at once has its actors.

A group has a bundle for each client actor of its run, and the run plans for the bundles as it would
for machines. Groups are made and removed by the process that controls the runs, since a group
belongs to the job and not to the actor that uses it. How many fit is computed before any is made:
Ray keeps what does not fit pending, without a word.
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
from fedsim.core.types import GIB
from fedsim.engine.ray.cluster import check_types, memory_of, node_of, share_of
from fedsim.engine.ray.placement import MAX_LISTED, Node, Share, pack, plan_placement

DRIVERS_PER_CORE = 4
"""Runs at once for each core of the machine that drives them, where their number is left open."""
ANSWER_TIMEOUT = 2.0
"""Seconds that a machine has to accept a connection."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a run takes of the cluster.

    Args:
        share: of each client actor.
        actors: k, their number.
    """

    share: Share
    actors: int

    @property
    def bundles(self) -> list[dict[str, float]]:
        """A bundle for each actor, as Ray wants them."""
        amounts = {"CPU": self.share.cpus, "GPU": self.share.gpus}
        return [{name: amount for name, amount in amounts.items() if amount}] * self.actors

    def __str__(self) -> str:
        return f"{self.actors} actor{'s' * (self.actors != 1)} of {self.share}"


@dataclass(frozen=True, kw_only=True)
class Need:
    """What is known of a run before it starts.

    Args:
        engine: its settings.
        num_clients: K.
        cohort_size: m; more actors than clients of a round are of no use.
        model_bytes: of the model's vector.
    """

    engine: EngineConfig
    num_clients: int
    cohort_size: int
    model_bytes: int = 0

    @property
    def actors(self) -> int | None:
        """The number of actors that the settings ask for, None where it is left open."""
        named = {"auto": None, "per-client": self.num_clients}
        asked = self.engine.actors
        return named[asked] if isinstance(asked, str) else min(asked, self.num_clients)

    @property
    def driver(self) -> int:
        """Bytes that the driver needs: torch, and vectors of the model and of a round's updates."""
        return PROCESS + (MODEL_COPIES + self.cohort_size) * self.model_bytes

    def shape(self, nodes: Sequence[Node], actors: int) -> Shape:
        """What the run takes, with ``actors`` where the settings leave their number open."""
        return Shape(share=share_of(self.engine, nodes), actors=self.actors or actors)


@dataclass(frozen=True, kw_only=True)
class RunsPlan:
    """Several runs at once.

    Args:
        count: N, how many.
        actors: k, of each run; of one whose settings ask for another number, that one.
        share: of an actor, the most that one of any run holds.
        memory: bytes that it needs at most.
        driver: bytes that the driver of a run needs at most.
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
    """How many runs take place at once, with as many actors each as that leaves room for.

    Where both numbers are left open, runs come first, since a round waits for its slowest client;
    actors that remain are dealt out evenly, to a run at most one for each client of a round.

    Args:
        needs: of the runs.
        nodes: the machines.
        parallel: the number of runs that is asked for.
        cores: of this machine, which drives the runs.
        here: which of the machines it is; its memory holds the drivers too.

    Raises:
        ConfigError: not one fits, or not so many; names the number that does.
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
        memory=max(memory_of(need.engine, need.model_bytes) for need in needs),
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
    listed = ", ".join(map(str, nodes[:MAX_LISTED]))
    more = f", and {len(nodes) - MAX_LISTED} more" if len(nodes) > MAX_LISTED else ""
    each = Shape(share=plan.share, actors=plan.actors)
    raise ConfigError(
        f"--parallel {plan.count}: so many runs with {each} each do not fit, {fits} "
        f"do{'es' * (fits == 1)} ({listed}{more}); memory: {plan.memory / GIB:.2f} GiB for an "
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
    shape: Shape
    nodes: tuple[str, ...]

    def machines(self) -> list[Node]:
        """The bundles."""
        share = self.shape.share
        return [Node(share.cpus, share.gpus, f"bundle {i}") for i in range(self.shape.actors)]

    @property
    def options(self) -> dict[str, Any]:
        """Where Ray is to place an actor."""
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self.handle)}

    def lost(self) -> str:
        """What happened to one of its machines, empty while all are there.

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
    """A group that was asked for; ``ready`` is the object that comes with it."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._handle = placement_group(shape.bundles, "PACK")
        self.ready = self._handle.ready()

    def group(self, timeout: float = 0) -> Group | None:
        """The group, once it is ready; waits at most so many seconds."""
        if not ray.wait([self.ready], timeout=timeout)[0]:
            return None
        nodes = placement_group_table(self._handle)["bundles_to_node_id"]
        return Group(self._handle, self.shape, tuple(nodes[i] for i in sorted(nodes)))

    def remove(self) -> None:
        """Asks no more."""
        remove_placement_group(self._handle)


def reachable() -> tuple[list[Node], int]:
    """The machines on which groups can be made now, and which of them this process is on."""
    nodes = [node for node in ray.nodes() if answers(node)]
    own = ray.get_runtime_context().get_node_id()
    here = next((i for i, node in enumerate(nodes) if node["NodeID"] == own), 0)
    return [node_of(node["Resources"], node["NodeManagerAddress"]) for node in nodes], here
