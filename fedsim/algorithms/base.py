"""What a file in ``fedsim/algorithms`` builds: the client part and the server part of a method."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from fedsim.client import ClientTransform, LocalRule, MarginControl, MeanLoss, SampleTransform
from fedsim.core.types import Kind, Slot, Training
from fedsim.server import Average, Exchange, Server


def no_slot(slot: Slot) -> bool:
    """No slot is personal."""
    return False


def identity(model: nn.Module) -> nn.Module:
    """The model, unchanged."""
    return model


def one_each(clients: Sequence[int]) -> list[tuple[int, ...]]:
    """Each client trains on its own samples."""
    return [(client,) for client in clients]


@dataclass(frozen=True, kw_only=True)
class Work:
    """A kind of client work.

    Args:
        rule: what the clients do.
        training: hyperparameters of its steps.
        criterion: the classification loss.
        trains: it changes the model; else there is no delta, and no client state is kept.
        aggregated: its updates become the server's step, so that clients may train in blocks, and
            updates may stay on their nodes.
        transforms: of its updates before they are sent, in order.
        poison: changes the samples that it sees; None: they are those of the data.
    """

    rule: LocalRule
    training: Training
    criterion: MarginControl = field(default_factory=MarginControl)
    trains: bool = False
    aggregated: bool = False
    transforms: tuple[ClientTransform, ...] = ()
    poison: SampleTransform | None = None


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
        assign: the clients of a round -> whose samples each task sees, by default its client's own.
            The samples of several clients are pooled, and the update is that of each of them.
        transforms: of a client's update before it is sent, in order.
        poison: changes the samples that clients train on, and those of the passes before training;
            None: they are those of the data.
        needs_exact_updates: clients and server keep sums of the updates, so that what arrives must
            be what was sent (FedDyn).
        measures_progress: it takes an update for what its client did since its start, which the
            difference from a newer model is not (FedCM, FedNova).
        adapt: changes the model before anything is trained, or refuses one that does not fit by a
            ConfigError; draws from torch's global generator, which is seeded.
    """

    local: LocalRule = field(default_factory=LocalRule)
    server: Server = field(default_factory=lambda: Server(Average()))
    criterion: MarginControl = field(default_factory=MarginControl)
    personal: Callable[[Slot], bool] = no_slot
    one_model: bool = False
    probe: Probe | None = None
    assign: Callable[[Sequence[int]], Sequence[tuple[int, ...]]] = one_each
    transforms: tuple[ClientTransform, ...] = ()
    poison: SampleTransform | None = None
    needs_exact_updates: bool = False
    measures_progress: bool = False
    adapt: Callable[[nn.Module], nn.Module] = identity

    @property
    def pools(self) -> bool:
        """Whether clients train on pooled samples."""
        return self.assign is not one_each

    def works(self, training: Training, finetune_epochs: int = 0) -> Mapping[Kind, Work]:
        """The kinds of work that its clients do."""
        works: dict[Kind, Work] = {
            "train": Work(
                rule=self.local,
                training=training,
                criterion=self.criterion,
                trains=True,
                aggregated=True,
                transforms=self.transforms,
                poison=self.poison,
            ),
            "loss": Work(rule=MeanLoss(), training=training, poison=self.poison),
        }
        if self.probe is not None:
            works["probe"] = Work(
                rule=self.probe.local,
                training=training,
                criterion=self.criterion,
                poison=self.poison,
            )
        if self.server.root_samples:
            # its samples are no client's
            steps = replace(training, private=None, shuffle="fedsim")
            works["root"] = Work(rule=LocalRule(), training=steps, trains=True)
        if finetune_epochs:
            longer = replace(training, local_epochs=finetune_epochs, local_steps=None)
            works["finetune"] = Work(rule=LocalRule(), training=longer, trains=True)
        return works
