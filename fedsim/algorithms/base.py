"""What a file in ``fedsim/algorithms`` builds: the client part and the server part of a method.

The typed keyword parameters of its ``build`` are the method's hyperparameters. A method elsewhere
is ``module:function`` or ``FILE.py:function``; it may be a plain rule (:mod:`fedsim.server.plain`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from fedsim.algorithms.catalogue import METHODS, chain, check
from fedsim.client import ClientTransform, LocalRule, MarginControl, MeanLoss, SampleTransform
from fedsim.core.errors import ConfigError
from fedsim.core.types import Kind, Slot, Training
from fedsim.server import Average, Exchange, Server
from fedsim.server.base import has_trait
from fedsim.server.plain import PlainRule, is_rule


def no_slot(slot: Slot) -> bool:
    """No slot is personal."""
    return False


def every_slot(slot: Slot) -> bool:
    """Every slot is personal."""
    return True


@dataclass(frozen=True)
class Layers:
    """The slots of some of a model's layers, or those of all others.

    ``names``, between commas: ``head``, or patterns of tensor names such as ``features.3.*``.
    """

    names: str = "head"
    others: bool = False

    def __call__(self, slot: Slot) -> bool:
        """Whether the slot is one of them."""
        chosen = any(
            slot.head if name == "head" else fnmatchcase(slot.name, name)
            for name in map(str.strip, self.names.split(","))
        )
        return chosen != self.others


def identity(model: nn.Module) -> nn.Module:
    """The model, unchanged."""
    return model


def one_each(clients: Sequence[int]) -> list[tuple[int, ...]]:
    """Each client trains on its own samples."""
    return [(client,) for client in clients]


@dataclass(frozen=True, kw_only=True)
class Work:
    """A kind of client work: what the clients do, by which settings.

    Args:
        trains: it changes the model; else there is no delta, and no client state is kept.
        aggregated: its updates become the server's step, so that clients may train in blocks, and
            updates may stay on their nodes.
        transforms: of its updates before they are sent, in order.
        poison: changes the samples that it sees.
        own: it starts from the client's own values, and changes them.
        beside: trains the client's own model after it.
    """

    rule: LocalRule
    training: Training
    criterion: MarginControl = field(default_factory=MarginControl)
    trains: bool = False
    aggregated: bool = False
    transforms: tuple[ClientTransform, ...] = ()
    poison: SampleTransform | None = None
    own: bool = True
    beside: LocalRule | None = None


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
        owns_model: clients train and send the global model, and each keeps a model of its own in
            its state, (D,) by the name ``personal``, which is evaluated; nothing else is personal.
        beside: trains that model after ``local``, from what the client kept of it (the received
            model in its first round), on the same batches.
        personalise: what a client makes of the received model before it is evaluated, neither sent
            nor kept: training of its phases, and what ``begin`` and ``finish`` leave in the model.
        predict: the logits of a client's model, from the network, the state that ``personalise``
            returned, and model input (B, ...); the network is then the global model. Without it
            they are those of the network.
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
    owns_model: bool = False
    beside: LocalRule | None = None
    personalise: LocalRule | None = None
    predict: Callable[[nn.Module, Mapping[str, Tensor], Tensor], Tensor] | None = None
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

    def owned(self, slot: Slot) -> bool:
        """Whether clients are evaluated with values of their own in a slot."""
        made = self.personalise is not None and self.predict is None
        return self.owns_model or made or self.personal(slot)

    def works(self, training: Training, finetune_epochs: int = 0) -> Mapping[Kind, Work]:
        """The kinds of work that its clients do."""
        own = not (self.owns_model or self.personalise is not None)
        works: dict[Kind, Work] = {
            "train": Work(
                rule=self.local,
                training=training,
                criterion=self.criterion,
                trains=True,
                aggregated=True,
                transforms=self.transforms,
                poison=self.poison,
                own=own,
                beside=self.beside,
            ),
            "loss": Work(rule=MeanLoss(), training=training, poison=self.poison, own=own),
        }
        if self.probe is not None:
            works["probe"] = Work(
                rule=self.probe.local,
                training=training,
                criterion=self.criterion,
                poison=self.poison,
                own=own,
            )
        if self.personalise is not None:
            works["personalise"] = Work(
                rule=self.personalise,
                training=training,
                criterion=self.criterion,
                trains=True,
                poison=self.poison,
            )
        if self.server.root_samples:
            # its samples are no client's
            steps = replace(training, private=None, shuffle="fedsim")
            works["root"] = Work(rule=LocalRule(), training=steps, trains=True, own=own)
        if finetune_epochs:
            longer = replace(training, local_epochs=finetune_epochs, local_steps=None)
            works["finetune"] = Work(rule=LocalRule(), training=longer, trains=True)
        return works


def load(name: str, hyperparameters: Mapping[str, Any] | None = None) -> Algorithm:
    """Builds a method."""
    build, values = METHODS.builder(name), check(name, hyperparameters or {})
    if ":" in name and is_rule(build, METHODS.title(name)):
        return Algorithm(server=Server(PlainRule(build, values)))
    algorithm = METHODS.made(name, Algorithm, build, **values)
    for part, kind in {"local": LocalRule, "server": Server, "criterion": MarginControl}.items():
        value = getattr(algorithm, part)
        if not isinstance(value, kind):
            raise ConfigError(
                f"algorithm {name!r}: its {part} is {type(value).__name__}, needed is "
                f"{kind.__name__}"
            )
    if algorithm.beside is not None and not algorithm.owns_model:
        raise ConfigError(f"algorithm {name!r}: beside trains clients' own models: set owns_model")
    return algorithm


def compose(
    name: str,
    hyperparameters: Mapping[str, Mapping[str, Any]],
    *,
    server: str | None = None,
    margin: str | None = None,
    margin_weight: float | None = None,
    margin_threshold: float | None = None,
) -> Algorithm:
    """A method, with other server rules or another margin control where they are given.

    ``server`` are comma-separated methods: pre-aggregations, then one that gives the reduction and
    its server optimisers, then the server optimisers of each other one.
    """
    algorithm = load(name, hyperparameters.get(name))
    servers = {other: load(other, hyperparameters.get(other)).server for other in chain(server)}
    loss = algorithm.criterion
    criterion = MarginControl(
        loss.form if margin is None else margin,
        loss.weight if margin_weight is None else margin_weight,
        loss.threshold if margin_threshold is None else margin_threshold,
    )
    composed = chained(name, algorithm.server, servers)
    return replace(algorithm, server=composed, criterion=criterion)


def chained(name: str, base: Server, servers: Mapping[str, Server]) -> Server:
    """The server of method ``name`` with the parts of others in the place of its own."""
    if not servers:
        return base
    first = next(iter(servers))
    before, (reducer, reducing), following = _parts(servers)
    fixed = base.incompatible_reason
    if fixed and (first != name or (following and (base.exchange or base.optimizers))):
        raise ConfigError(f"server {','.join(servers)!r} cannot serve {name}, which {fixed}")
    for other, server in servers.items():
        if other != name and server.needs_own_clients:
            reason = server.incompatible_reason or "works with what its own clients send"
            raise ConfigError(f"server {other!r} cannot serve {name}: it {reason}")
    for other, server in following:
        extra = server.receive and other != name
        if not server.optimizers or type(server.reduction) is not Average or extra:
            raise ConfigError(
                f"server {','.join(servers)!r}: only the first method gives the reduction, after "
                "pre-aggregations such as nnm; the others give a server optimiser after the mean, "
                f"as fedadam does; {other!r} does not"
            )
    others = [server for other, server in (*before, (reducer, reducing)) if other != name]
    received = [part for server in others for part in server.receive]
    mixing = next((i for i, p in enumerate(received) if has_trait(p, "mixes")), len(received))
    return replace(
        base,
        reduction=reducing.reduction,
        optimizers=tuple(o for server in servers.values() for o in server.optimizers),
        receive=(*received[:mixing], *base.receive, *received[mixing:]),
        needs_same_start=base.needs_same_start or reducing.needs_same_start,
        needs_whole_updates=reducing.needs_whole_updates,
        root_samples=reducing.root_samples,
    )


Named = tuple[str, Server]


def _parts(servers: Mapping[str, Server]) -> tuple[list[Named], Named, list[Named]]:
    """The pre-aggregations, what gives the reduction, and the server optimisers after it.

    Pre-aggregations are cohort transforms and the mean; before an optimiser the last one's mean is
    the reduction.
    """
    after, before = list(servers.items()), list[Named]()
    while after and (s := after[0][1]).receive and _is_mean(s) and not s.optimizers:
        if s.needs_own_clients:
            break
        before.append(after.pop(0))
    if not after or (before and _is_mean(after[0][1]) and after[0][1].optimizers):
        after.insert(0, before.pop())
    return before, after[0], after[1:]


def _is_mean(server: Server) -> bool:
    return type(server.reduction) is Average
