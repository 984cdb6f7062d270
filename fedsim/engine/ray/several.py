"""Several runs at once on one Ray: how many fit, and how many client actors each of them has.

All actors are alike, so that any of them fits where another one was: runs need no machines of their
own. Ray keeps an actor that does not fit pending, without a message: what fits is computed before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import ray

from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError
from fedsim.core.machine import MODEL_COPIES, PROCESS, cores
from fedsim.core.text import counted
from fedsim.core.types import GIB
from fedsim.engine.ray.cluster import LOCAL, connect, joining, machines, memory_of, share_of
from fedsim.engine.ray.placement import Node, Share, listed, pack, plan_placement

DRIVERS_PER_CORE = 4
"""The most runs at once with ``auto``, for each core of the machine that has their processes."""


@dataclass(frozen=True)
class Reservation:
    """The resources of a run: the share of each client actor, and their number k."""

    share: Share
    actors: int

    def machines(self) -> list[Node]:
        """One for each actor, for a run's plan."""
        return [Node(self.share.cpus, self.share.gpus, f"place {i}") for i in range(self.actors)]

    def __str__(self) -> str:
        return f"{counted(self.actors, 'actor')} of {self.share}"


@dataclass(frozen=True)
class Need:
    """The needs of a run of K clients and m in a round, as known before it starts.

    ``model_bytes`` are those of the model's vector, ``frozen_bytes`` of its frozen tensors.
    """

    engine: EngineConfig
    num_clients: int
    cohort_size: int
    model_bytes: int = 0
    frozen_bytes: int = 0

    @property
    def actors(self) -> int | None:
        """The number of actors in the settings, None for ``auto``."""
        named = {"auto": None, "per-client": self.num_clients}
        actors = self.engine.actors
        return named[actors] if isinstance(actors, str) else min(actors, self.num_clients)

    @property
    def driver(self) -> int:
        """Bytes that the driver needs: torch, copies of the model and the updates of a round."""
        vectors = MODEL_COPIES + self.cohort_size
        return PROCESS + vectors * self.model_bytes + self.frozen_bytes


def plan_runs(
    needs: Sequence[Need],
    nodes: Sequence[Node],
    runs: int,
    parallel: Literal["auto"] | int,
    here: int = 0,
) -> tuple[int, Reservation]:
    """How many of the ``runs`` are executed at once, and what each of them gets.

    Every run gets what the largest one needs. With ``auto`` the number of runs is made as large as
    possible first, since a round waits for its slowest client; the actors left are divided evenly
    among the runs, at most one for each client of a round. ``here`` is the index in ``nodes`` of
    this machine; its memory holds the drivers too. A ConfigError where no run fits, or fewer than
    ``parallel``; the message says how many do.
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
    """The Ray of ``count`` runs at once, each with a ``reservation``.

    ``joining`` is what their processes need to join it.
    """

    count: int
    reservation: Reservation
    joining: Mapping[str, Any]


@contextmanager
def shared_ray(
    engine: EngineConfig, needs: Sequence[Need], runs: int, parallel: Literal["auto"] | int
) -> Iterator[SharedRay]:
    """Starts Ray, or joins it, for several runs at once; a ConfigError where so many do not fit."""
    if (engine.address or "").startswith("ray://"):
        raise ConfigError(
            f"--address {engine.address}: the runs of a sweep are driven from a machine of the "
            "cluster; start the sweep on one of them, with --address auto"
        )
    if engine.address in (None, LOCAL):  # refused before Ray starts
        plan_runs(needs, machines(), runs, parallel)
    disconnect = connect(engine)
    try:
        address = ray.util.get_node_ip_address()
        nodes = machines()
        here = next((i for i, node in enumerate(nodes) if node.name == address), 0)
        count, reservation = plan_runs(needs, nodes, runs, parallel, here)
        yield SharedRay(count, reservation, joining())
    finally:
        disconnect()
