"""What a file in ``fedsim/algorithms`` builds: the client part and the server part of a method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fedsim.contracts import Slot
from fedsim.local import LocalRule
from fedsim.losses import MarginControl
from fedsim.server import Average, Server


def nothing(slot: Slot) -> bool:
    """No slot is personal."""
    return False


@dataclass(frozen=True)
class Algorithm:
    """A method of federated learning; the defaults are FedAvg.

    Args:
        local: what clients do beside plain SGD.
        server: how updates become a step.
        criterion: the classification loss, cross-entropy with or without margin control.
        personal: the slots that stay on the client: each client keeps its own values, the global
            vector keeps the initial ones, and the update is zero there.
    """

    local: LocalRule = field(default_factory=LocalRule)
    server: Server = field(default_factory=lambda: Server(Average()))
    criterion: MarginControl = field(default_factory=MarginControl)
    personal: Callable[[Slot], bool] = nothing
