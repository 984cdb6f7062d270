"""Simulated time and communication costs of a round."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsim.core.types import Vectors
from fedsim.systems.clock import Clock, Participation, wire_bytes


@dataclass(frozen=True)
class Costs:
    """Columns of rounds.csv, and the seconds of each client that took part.

    Without a timed clock there are no seconds.
    """

    row: Mapping[str, Any]
    seconds: Mapping[int, float]


def round_costs(
    clock: Clock,
    participation: Mapping[int, Participation],
    downlink: Vectors,
    private: Mapping[int, Vectors],
    uploads: Mapping[int, Vectors],
) -> Costs:
    """The bytes and seconds of a round.

    Each client that answers, late ones included, downloads the model (without the parts that stay
    on the clients) and what the server sends beside it. Each client that takes part uploads its
    update and what its rule adds. A round lasts until its slowest client, or until the deadline if
    a client missed it.

    Args:
        clock: of the run.
        participation: of each client of the cohort.
        downlink: what the server sends to all clients beside the model, the answer to a probe
            included.
        private: what the server sends to single clients at the end of the round.
        uploads: by client that takes part, what its rule uploads beside the update.
    """
    model, common = clock.vector_bytes, wire_bytes(downlink.values())
    reached = [client for client, p in participation.items() if p.absent is None or p.late]
    own = {c: wire_bytes(private[c].values()) for c in reached if c in private}
    up = {c: model + wire_bytes(extras.values()) for c, extras in uploads.items()}
    seconds = {
        c: participation[c].seconds(model + common + own.get(c, 0), up[c] + participation[c].probed)
        for c in up
    }
    waited = [clock.deadline for p in participation.values() if p.late]
    return Costs(
        {
            "simulated_seconds": max([*seconds.values(), *waited], default=0.0),
            "downlink_bytes": len(reached) * (model + common) + sum(own.values()),
            "uplink_bytes": sum(up.values()) + sum(p.probed for p in participation.values()),
        }
        | ({} if clock.timed else {"simulated_seconds": None}),
        seconds if clock.timed else {},
    )
