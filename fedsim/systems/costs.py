"""What a round costs in the simulated world: bytes sent, and seconds on the virtual clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsim.core.types import Vectors
from fedsim.systems.clock import Clock, Visit, wire_bytes


@dataclass(frozen=True)
class Costs:
    """Columns of rounds.csv, and the seconds of each client that took part (none without time)."""

    row: Mapping[str, Any]
    seconds: Mapping[int, float]


def round_costs(
    clock: Clock,
    visits: Mapping[int, Visit],
    downlink: Vectors,
    private: Mapping[int, Vectors],
    uploads: Mapping[int, Vectors],
) -> Costs:
    """The bytes and seconds of a round.

    To each client that answers goes the model without what stays on the clients, and what the
    server sends beside it; a client that is late was sent them too. From each that counts comes its
    update and what its rule uploads.

    Args:
        clock: of the run.
        visits: of the cohort.
        downlink: what the server sends to everybody beside the model, the answer to a probe
            included.
        private: what the server has for single clients at the end; those of the cohort get it.
        uploads: by client that counts, what its rule uploads beside the update.
    """
    model, common = clock.vector_bytes, wire_bytes(downlink.values())
    reached = [client for client, v in visits.items() if v.absent is None or v.late]
    own = {c: wire_bytes(private[c].values()) for c in reached if c in private}
    up = {c: model + wire_bytes(extras.values()) for c, extras in uploads.items()}
    seconds = {
        c: visits[c].seconds(model + common + own.get(c, 0), up[c] + visits[c].probed) for c in up
    }
    waited = [clock.deadline for v in visits.values() if v.late]
    return Costs(
        {
            "simulated_seconds": max([*seconds.values(), *waited], default=0.0),
            "downlink_bytes": len(reached) * (model + common) + sum(own.values()),
            "uplink_bytes": sum(up.values()) + sum(v.probed for v in visits.values()),
        }
        | ({} if clock.timed else {"simulated_seconds": None}),
        seconds if clock.timed else {},
    )
