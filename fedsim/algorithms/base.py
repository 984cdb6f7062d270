"""What a file in ``fedsim/algorithms`` builds: the client part and the server part of a method."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from fedsim.client import LocalRule, MarginControl
from fedsim.core.types import Slot
from fedsim.server import Average, Exchange, Server


def no_slot(slot: Slot) -> bool:
    """No slot is personal."""
    return False


def identity(model: nn.Module) -> nn.Module:
    """The model, unchanged."""
    return model


@dataclass(frozen=True)
class Probe:
    """A pass over the cohort before local training, with the received model.

    Args:
        local: the client part; it has no phases, so that nothing is trained.
        digest: the server's answer to their uploads; its downlink goes with the model, its state is
            kept, it has no private answers.
    """

    local: LocalRule
    digest: Exchange


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A method of federated learning; the defaults are FedAvg.

    Args:
        local: the client part, by default plain SGD.
        server: how updates become a step.
        criterion: the classification loss, cross-entropy with or without margin control.
        personal: the slots that stay on the client: each client keeps its own values, the global
            vector keeps the initial ones, and the update is zero there.
        one_model: personal slots do not change predictions, so that the global model is evaluated.
        probe: a pass over the clients before training.
        pooled: the training samples of a round's clients are put together, and one learner trains
            on them; its update is that of each of these clients.
        adapt: changes the model before anything is trained, or refuses one that does not fit by a
            ConfigError; draws from torch's global generator, which is seeded.
    """

    local: LocalRule = field(default_factory=LocalRule)
    server: Server = field(default_factory=lambda: Server(Average()))
    criterion: MarginControl = field(default_factory=MarginControl)
    personal: Callable[[Slot], bool] = no_slot
    one_model: bool = False
    probe: Probe | None = None
    pooled: bool = False
    adapt: Callable[[nn.Module], nn.Module] = identity
