"""What a refused placement says: what was asked for, what fits, and the nearest that would."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from fedsim.core.types import GIB
from fedsim.engine.ray.resources import ONE, Demand, Node, Share, pack, units

SHOWN = 4
"""Machines, or classes of clients, that a message lists."""


def refusal(nodes: Sequence[Node], demands: Sequence[Demand], memory: int, wanted: int) -> str:
    """Why ``wanted`` actors do not fit, and the largest amounts with which they would.

    Args:
        nodes: the machines.
        demands: the classes of clients, the larger shares first.
        memory: bytes that an actor needs.
        wanted: so many actors, at least one for each demand.
    """

    def room(demands: Sequence[Demand], memory: int) -> int:
        return len(pack(nodes, demands, memory, wanted))

    text = (
        f"{wanted} actor{'s' * (wanted != 1)} {_asked(demands)} do{'es' * (wanted == 1)} not fit, "
        f"{room(demands, memory)} do ({some(map(str, nodes))})"
    )
    if room(demands, 0) < wanted:
        advised = [_advised(nodes, demands, i, wanted, room) for i in range(len(demands))]
        found = [(i, share) for i, share in enumerate(advised) if share is not None]
        if not found:
            return text
        i, share = found[0]
        before = demands[i]
        demands = [*demands[:i], Demand(share, before.clients), *demands[i + 1 :]]
        text += f"; {_flags(before, share, len(demands) > 1)}"
    if room(demands, memory) < wanted:
        fitting = room(demands, memory)
        shares = {n.memory / k for n in nodes for k in range(1, wanted + 1)}
        needs = {math.floor(m / GIB * 100) / 100 for m in shares if math.isfinite(m)} - {0.0}
        need = _largest(needs, lambda gib: room(demands, math.ceil(gib * GIB)) >= wanted)
        text += f"; there is memory for {fitting} of {memory / GIB:.2f} GiB"
        if need is not None:
            text += f", and for {wanted} with --set engine.memory_per_client={need:g}"
    return text


def some(texts: Iterable[str]) -> str:
    """The first of a list, and how many more there are."""
    known = list(texts)
    more = [f"and {len(known) - SHOWN} more"] if len(known) > SHOWN else []
    return ", ".join([*known[:SHOWN], *more])


def _asked(demands: Sequence[Demand]) -> str:
    if len(demands) == 1:
        return f"of {demands[0].share}"
    classes = (f"{d.clients} client{'s' * (d.clients != 1)} of {d.share}" for d in demands)
    return f"for {some(classes)}"


def _flags(before: Demand, share: Share, of_several: bool) -> str:
    """The changed amounts, in words that can be acted on."""
    changed = [
        (name, getattr(share, name))
        for name in ("cpus", "gpus")
        if getattr(share, name) != getattr(before.share, name)
    ]
    if not of_several:
        return "; ".join(f"--{name}-per-client {amount:g} would" for name, amount in changed)
    amounts = " and ".join(f"{name} {amount:g}" for name, amount in changed)
    plural = "s" * (before.clients != 1)
    return f"with {amounts} for the {before.clients} client{plural} of {before.share} they would"


def _advised(
    nodes: Sequence[Node],
    demands: Sequence[Demand],
    i: int,
    wanted: int,
    room: Callable[[Sequence[Demand], int], int],
) -> Share | None:
    """The share nearest to that of demand ``i`` with which ``wanted`` actors fit; None: there is
    none."""
    asked, count = demands[i]

    def fits(cpus: float, gpus: float) -> bool:
        changed = Demand(Share(cpus, gpus), count)
        return room([*demands[:i], changed, *demands[i + 1 :]], 0) >= wanted

    parts = range(1, wanted + 1)
    cpus = asked.cpus
    if not fits(cpus, 0):
        found = _largest(
            {_down(n.cpus / k) for n in nodes for k in parts} - {0.0},
            lambda cpus: cpus < asked.cpus and fits(cpus, 0),
        )
        if found is None:
            return None
        cpus = found
    if fits(cpus, asked.gpus):
        return Share(cpus, asked.gpus)
    most = math.floor(max(node.gpus for node in nodes))
    wholes = range(1, min(math.ceil(asked.gpus), most + 1))
    gpus = _largest(
        {*map(float, wholes), *(_down(1 / k) for k in parts)} - {0.0},
        lambda gpus: gpus < asked.gpus and fits(cpus, gpus),
    )
    if gpus is None and any(demand.share.gpus for j, demand in enumerate(demands) if j != i):
        return None
    return Share(cpus, gpus or 0.0)


def _largest(amounts: Iterable[float], fits: Callable[[float], bool]) -> float | None:
    """The largest amount that fits, where all below one that fits do too."""
    descending = sorted(amounts, reverse=True)
    i = bisect_left(descending, True, key=fits)
    return descending[i] if i < len(descending) else None


def _down(amount: float) -> float:
    """The amount in whole steps of the finest; above 1 only whole numbers can be asked for."""
    return float(math.floor(amount)) if amount > 1 else units(amount) / ONE
