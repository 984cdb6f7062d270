"""What a round costs beside this machine's time: bytes sent, and seconds on the virtual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedsim.clock import Visit, wire_bytes
from fedsim.contracts import RoundContext, Vectors
from fedsim.engine import Result
from fedsim.roundlog import RoundLog
from fedsim.setup import Setup
from fedsim.state import ServerState


@dataclass(frozen=True)
class Costs:
    """Columns of rounds.csv, and the seconds of each client that took part (none without time)."""

    row: Mapping[str, float | None]
    seconds: Mapping[int, float]


def visits(
    setup: Setup, clients: Sequence[int], ctx: RoundContext, log: RoundLog
) -> dict[int, Visit]:
    """What each client of the cohort does; those that are left out become rows of errors.csv."""
    samples = setup.partition.train
    found = {c: setup.clock.visit(ctx.round, c, len(samples[c])) for c in clients}
    for client, visit in found.items():
        if visit.absent is not None:
            log.add("errors", client_id=client, attempt=0, node="", error=visit.absent)
    return found


def costs(
    setup: Setup,
    state: ServerState,
    visits: Mapping[int, Visit],
    results: Sequence[Result],
    private: Mapping[int, Vectors],
) -> Costs:
    """The bytes and seconds of a round.

    To each client that answers goes the model without what stays on the clients, and what the
    server sends beside it; a client that is late was sent them too. From each that counts comes its
    update and what its rule uploads.

    Args:
        setup: the run.
        state: before the server's step; ``downlink`` holds the answer to a probe.
        visits: of the cohort.
        results: those that count.
        private: what the server has for single clients at the end; those of the cohort get it.
    """
    clock = setup.clock
    model, common = clock.vector_bytes, wire_bytes(state.downlink.values())
    reached = [client for client, v in visits.items() if v.absent is None or v.late]
    own = {c: wire_bytes(private[c].values()) for c in reached if c in private}
    up = {r.update.client_id: model + wire_bytes(r.update.extras.values()) for r in results}
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
