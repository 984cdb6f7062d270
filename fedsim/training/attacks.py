"""The attack that section ``attack`` asks for: who is malicious, and what these clients do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedsim.algorithms.base import Algorithm
from fedsim.client import attacks as alone
from fedsim.config.attack import AttackConfig
from fedsim.config.sections import DataConfig
from fedsim.core.errors import ConfigError
from fedsim.core.malicious import Malicious, draw_malicious
from fedsim.core.text import counted
from fedsim.core.types import Dataset, Partition, Triggered
from fedsim.schedules.asynchronous import Buffered
from fedsim.schedules.selection import Fixed, Poisson
from fedsim.server.attacks import (
    Alie,
    Farthest,
    Ipm,
    Mimic,
    MinMax,
    MinSum,
    Omniscient,
    Perturbed,
    alie_z,
)

if TYPE_CHECKING:
    from fedsim.training.setup import Setup

Known = Callable[[Malicious, AttackConfig], Omniscient]
OMNISCIENT: dict[str, Known] = {
    "alie": lambda own, a: Alie(own, a.scale, knows=a.knowledge or "benign"),
    "ipm": lambda own, a: Ipm(
        own, Ipm.scale if a.scale is None else a.scale, knows=a.knowledge or "benign"
    ),
    "mimic": lambda own, a: Mimic(own, a.warmup or 0),
    "min_max": lambda own, a: _perturbed(MinMax(own, knows=a.knowledge or "benign"), a),
    "min_sum": lambda own, a: _perturbed(
        MinSum(own, a.bound or "min", knows=a.knowledge or "benign"), a
    ),
}
"""The attacks that know updates of the round."""


@dataclass(frozen=True)
class Attack:
    """A section ``attack`` made concrete.

    Args:
        clients: the malicious ones, ascending.
        algorithm: the method, with what its malicious clients do on their own.
        omniscient: what they do with the round's updates; None: nothing.
        triggered: the test samples by whose predictions its success is measured; None: it is not.
    """

    clients: tuple[int, ...]
    algorithm: Algorithm
    omniscient: Omniscient | None = None
    triggered: Triggered | None = None


def malicious_clients(attack: AttackConfig, data: DataConfig, partition: Partition) -> list[int]:
    """The malicious clients, ascending; without a list of them ``data.seed`` draws them.

    None without an attack.

    Raises:
        ConfigError: a client of the list does not take part, or the fraction is of no client.
    """
    if attack.name is None:
        return []
    participants = partition.participants
    if attack.clients is not None:
        if unknown := sorted(set(attack.client_ids) - set(participants)):
            raise ConfigError(
                f"attack.clients: {unknown[0]} given; it is no client that trains: there are "
                f"{len(participants)}, the last is {participants[-1]}"
            )
        return sorted(attack.client_ids)
    fraction = AttackConfig.default_fraction if attack.fraction is None else attack.fraction
    drawn = draw_malicious(participants, fraction, data.seed)
    if fraction and not drawn:
        raise ConfigError(
            f"attack.fraction: {fraction:g} given; of {len(participants)} clients that is none"
        )
    return list(drawn)


def attack_of(
    attack: AttackConfig,
    data: DataConfig,
    partition: Partition,
    dataset: Dataset,
    algorithm: Algorithm,
) -> Attack:
    """The attack, and the method with it; both as they are where there is none.

    Raises:
        ConfigError: as :func:`malicious_clients`, a class that does not exist, a trigger that the
            samples cannot have, or an attack on the benign updates without a benign client.
    """
    if attack.name is None:
        return Attack((), algorithm)
    clients = malicious_clients(attack, data, partition)
    own = Malicious(frozenset(clients), attack.start_round - 1)
    scale = 1.0 if attack.scale is None else attack.scale
    if attack.name in OMNISCIENT:
        if len(clients) == len(partition.participants):
            key = "fraction" if attack.clients is None else "clients"
            raise ConfigError(
                f"attack.{key}: all {len(clients)} clients are malicious; {attack.name} changes no "
                "update of a cohort without a benign client, so leave one"
            )
        return Attack(tuple(clients), algorithm, OMNISCIENT[attack.name](own, attack))
    for key in ("source", "target"):
        given = getattr(attack, key)
        if given is not None and given >= dataset.num_classes:
            last = dataset.num_classes - 1
            raise ConfigError(f"attack.{key}: {given} given; the classes are 0 to {last}")
    if attack.name == "label_flip":
        flip = alone.LabelFlip(own, dataset.num_classes, attack.source, attack.target)
        measured = attack.target is not None and not dataset.per_token
        triggered = Triggered(attack.target or 0, attack.source) if measured else None
        return Attack(tuple(clients), replace(algorithm, poison=flip), triggered=triggered)
    if attack.name == "backdoor":
        backdoor = _backdoor(own, attack, dataset)
        algorithm = replace(algorithm, poison=backdoor)
        if attack.scale is not None:
            boosted = alone.Boosted(own, attack.scale)
            algorithm = replace(algorithm, transforms=(boosted, *algorithm.transforms))
        return Attack(tuple(clients), algorithm, triggered=backdoor.triggered)
    sent = (
        alone.SignFlip(own, scale)
        if attack.name == "sign_flip"
        else alone.Gaussian(own, algorithm.personal, scale)
    )
    # first: what a client compresses is its malicious update
    return Attack(tuple(clients), replace(algorithm, transforms=(sent, *algorithm.transforms)))


def _backdoor(own: Malicious, attack: AttackConfig, dataset: Dataset) -> alone.Backdoor:
    """The backdoor, whose trigger fits on the images.

    Raises:
        ConfigError: it does not.
    """
    if dataset.inputs != "images":
        raise ConfigError(
            f"attack.name backdoor: its trigger is a pattern of pixels; {dataset.name} has "
            f"{dataset.inputs}; label_flip with attack.source and attack.target needs no images"
        )
    pixels, side = 3 if attack.pixels is None else attack.pixels, dataset.x.shape[-1]
    if pixels > side:
        raise ConfigError(f"attack.pixels: {pixels} given; the images have {side} x {side} pixels")
    triggered = Triggered(attack.target or 0, attack.source, pixels)
    return alone.Backdoor(own, triggered, 0.5 if attack.poisoned is None else attack.poisoned)


def _perturbed(attack: Farthest, given: AttackConfig) -> Omniscient:
    """The attack along the direction that is asked for."""
    if given.perturbation is None or given.perturbation == "unit_vec":
        return attack
    return Perturbed(attack.malicious, attack, given.perturbation, knows=attack.knows)


def check_attack(setup: Setup) -> None:
    """Refuses an attack that changes nothing in any round.

    Raises:
        ConfigError: so it is; says what to set.
    """
    attack, bad = setup.config.attack, setup.malicious
    if not bad:
        return
    given, several = f"attack.name: {attack.name} given", counted(len(bad), "malicious client")
    if isinstance(setup.schedule, Fixed):
        rounds = setup.schedule.rounds
        later = rounds[attack.start_round - 1 :] if len(rounds) > 1 else rounds
        if set(bad).isdisjoint(client for clients in later for client in clients):
            raise ConfigError(f"{given}; train.clients selects no malicious client")
    if attack.name in ("label_flip", "backdoor") and not _poisons(setup):
        raise ConfigError(
            f"{given}; it changes no training sample of {several}: they have too few of the "
            "classes that it is about (attack.source, attack.target, attack.poisoned)"
        )
    if attack.name not in OMNISCIENT:
        return
    sizes, benign = possible_sizes(setup), len(setup.partition.participants) - len(bad)
    mixed = [(n, f) for n in sizes for f in range(max(1, n - benign), min(len(bad), n - 1) + 1)]
    cohort = f"cohorts of {max(sizes)} of {counted(benign + len(bad), 'client')}"
    if not mixed:
        raise ConfigError(f"{given}; it needs a benign client beside it in a round: {cohort}")
    alone = attack.knowledge == "own" and max(f for _, f in mixed) == 1
    if alone and attack.name not in ("ipm", "mimic"):
        raise ConfigError(
            f"attack.knowledge: own given; {several}, in {cohort}, know one update, their own, "
            f"which {attack.name} does not change; use benign, or more malicious clients"
        )
    if attack.name == "alie" and attack.scale is None and not any(alie_z(*m) for m in mixed):
        raise ConfigError(
            f"{given}; its z is 0 for {several} in {cohort}, so that they send the plain mean; set "
            "attack.scale, such as 1.5, or more malicious clients"
        )


def _poisons(setup: Setup) -> bool:
    """Whether any malicious client has a sample that the attack changes."""
    attack, classes = setup.config.attack, setup.dataset.num_classes
    for client in setup.malicious:
        y = np.asarray(setup.dataset.y)[setup.partition.train[client]]
        if attack.name == "backdoor":
            about = Triggered(attack.target or 0, attack.source)
            share = 0.5 if attack.poisoned is None else attack.poisoned
            changed = math.floor(share * int(about.concerns(y).sum()) + 1e-9) > 0
        elif attack.source is None:
            changed = bool(((y >= 0) & (y != classes - 1 - y)).any())
        else:
            changed = bool((y == attack.source).any())
        if changed:
            return True
    return False


def possible_sizes(setup: Setup) -> Sequence[int]:
    """The numbers of updates that the server may get in a round."""
    schedule, clock = setup.schedule, setup.config.clock
    most = setup.cohort_size
    if isinstance(schedule, Buffered):
        most = schedule.sizes(setup.roster)[0]
    own = setup.config.train.schedule != "synchronous"
    if own or isinstance(schedule, Poisson):
        most = len(setup.partition.participants)
    lost = (clock.availability, clock.trace, clock.deadline)
    if own or isinstance(schedule, Poisson) or any(value is not None for value in lost):
        return range(1, most + 1)
    return sorted(set(schedule.sizes)) if isinstance(schedule, Fixed) else [most]
