"""The bytes and simulated seconds of a round."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsim.core.types import Vectors
from fedsim.systems.clock import Clock, Participation, wire_bytes


@dataclass(frozen=True)
class Costs:
    """Columns of rounds.csv, and the seconds of each client that took part, if any are timed."""

    row: Mapping[str, Any]
    seconds: Mapping[int, float]


def round_costs(
    clock: Clock,
    participation: Mapping[int, Participation],
    downlinks: Mapping[int, int],
    private: Mapping[int, Vectors],
    uploads: Mapping[int, int],
    plan_bytes: tuple[int, int] = (0, 0),
    seconds: float | None = None,
    pass_seconds: float = 0.0,
) -> Costs:
    """The bytes and seconds of a round.

    Each client that answers, late ones included, downloads the model (without the parts that stay
    on the clients) and ``downlinks`` bytes beside it; each that takes part uploads its update and
    what its rule adds. A round lasts until its slowest client, or until the deadline if a client
    missed it, unless the schedule says its ``seconds``; ``plan_bytes`` (down, up) and
    ``pass_seconds`` are of passes that the schedule asked for before.
    """
    model = clock.vector_bytes
    reached = [client for client, p in participation.items() if p.absent is None or p.late]
    private_bytes = {c: wire_bytes(private[c].values()) for c in reached if c in private}
    down = {c: model + downlinks[c] + private_bytes.get(c, 0) for c in reached}
    up = {c: sent + participation[c].probed for c, sent in uploads.items()}
    taken = {c: participation[c].seconds(down[c], up[c]) for c in uploads}
    waited = [clock.deadline for p in participation.values() if p.late]
    if seconds is None:
        seconds = max([*taken.values(), *waited], default=0.0)
    probed = sum(p.probed for p in participation.values())
    row = {
        "simulated_seconds": pass_seconds + seconds if clock.timed else None,
        "downlink_bytes": sum(down.values()) + plan_bytes[0],
        "uplink_bytes": sum(uploads.values()) + probed + plan_bytes[1],
    }
    return Costs(row, taken if clock.timed else {})
