"""Everything that the next round depends on, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedsim.clientstates import ClientStates
from fedsim.contracts import Vector, Vectors


@dataclass(frozen=True)
class ServerState:
    """Everything that the next round depends on.

    Args:
        params: (D,) the global vector.
        server: the server rule's own state.
        downlink: what the server sends to everybody beside the model.
        clients: the state of each client that has one, by client id.
    """

    params: Vector
    server: Vectors = field(default_factory=dict)
    downlink: Vectors = field(default_factory=dict)
    clients: ClientStates = field(default_factory=ClientStates)
