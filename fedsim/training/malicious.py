"""The attack that section ``attack`` asks for: who is malicious, and what that does to a method."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedsim.algorithms.base import Algorithm
from fedsim.attacks.base import (
    Attack,
    AttackedCohort,
    AttackedSamples,
    AttackedUpdates,
    Federation,
    Malicious,
    draw_malicious,
)
from fedsim.config.attack import AttackConfig
from fedsim.config.run import RunConfig
from fedsim.config.sections import DataConfig
from fedsim.core.errors import ConfigError
from fedsim.core.text import counted
from fedsim.core.types import Dataset, Partition
from fedsim.schedules.base import Synchronous
from fedsim.schedules.selection import Fixed

if TYPE_CHECKING:
    from fedsim.training.setup import Setup

logger = logging.getLogger("fedsim")


def malicious_clients(attack: AttackConfig, data: DataConfig, partition: Partition) -> list[int]:
    """The malicious clients, ascending; without a list of them ``data.seed`` draws them. None
    without an attack."""
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


def attack_of(config: RunConfig, dataset: Dataset, algorithm: Algorithm) -> Attack:
    """The attack; one that does nothing without ``attack.name``."""
    if config.attack.name is None:
        return Attack()
    federation = Federation(dataset, algorithm.personal)
    return config.attack.make(Attack, [federation], config.hyperparameters)


def attacked(
    algorithm: Algorithm, attack: Attack, clients: Sequence[int], start_round: int
) -> Algorithm:
    """The method, some of whose clients are malicious from a round (from 1) on."""
    malicious = Malicious(frozenset(clients), start_round - 1)
    if attack.samples is not None:
        poison = AttackedSamples(malicious, attack.samples, attack.changes_x)
        algorithm = replace(algorithm, poison=poison)
    if attack.update is not None:
        # first: what a client compresses is its malicious update
        sent = AttackedUpdates(malicious, attack.update)
        algorithm = replace(algorithm, transforms=(sent, *algorithm.transforms))
    if attack.cohort is not None:
        together = AttackedCohort(malicious, attack.cohort)
        algorithm = replace(algorithm, server=replace(algorithm.server, attack=together))
    return algorithm


def check_effects(setup: Setup) -> None:
    """Refuses an attack that changes nothing in any round."""
    section, attack, malicious = setup.config.attack, setup.attack, setup.malicious
    if not malicious:
        return
    title = f"attack.name: {section.name} given"
    if isinstance(setup.schedule, Fixed):
        rounds = setup.schedule.rounds
        later = rounds[section.start_round - 1 :] if len(rounds) > 1 else rounds
        if set(malicious).isdisjoint(client for clients in later for client in clients):
            raise ConfigError(f"{title}; train.clients selects no malicious client")
    if attack.affected is not None:
        labels = np.asarray(setup.dataset.y)
        if not any(attack.affected(labels[setup.partition.train[c]]) for c in malicious):
            raise ConfigError(
                f"{title}; it changes no training sample of "
                f"{counted(len(malicious), 'malicious client')}: they have too few of the classes "
                "that it is about (attack.source, attack.target, attack.poisoned)"
            )
    if attack.cohort is not None and len(malicious) == len(setup.partition.participants):
        raise ConfigError(f"{title}; it needs a benign client beside it in a round")
    factors = _factors(setup)
    if factors and not any(factors.values()):
        raise ConfigError(
            f"{title}; {counted(len(malicious), 'malicious client')}, in cohorts of "
            f"{setup.cohort_size}, would send what the attack starts from: set attack.scale, "
            "attack.knowledge=benign, or more malicious clients"
        )


def warn_of_weak_rounds(setup: Setup) -> None:
    """Warns where the attack is none in some of the rounds in which malicious clients take part."""
    n, k, m = len(setup.partition.participants), len(setup.malicious), setup.cohort_size
    factors = _factors(setup)
    ways = {f: math.comb(k, f) * math.comb(n - k, m - f) for f in factors}  # hypergeometric
    none = sum(ways[f] for f, factor in factors.items() if factor <= 0)
    if none:
        share = none / sum(ways.values())
        logger.warning(
            "attack.name=%s is no attack in %s rounds with malicious clients: their factor for the "
            "cohort is 0 or less, so that they send the benign mean or the other side of it; set "
            "attack.scale to a number, or to auto",
            setup.config.attack.name,
            "all" if share == 1 else f"{100 * share:.2g} % of the",
        )


def _factors(setup: Setup) -> dict[int, float]:
    """The attack's factor by the number of malicious clients in a cohort; empty where it has none,
    or cohorts differ in size."""
    factor, m = getattr(setup.attack.cohort, "factor", None), setup.cohort_size
    benign = len(setup.partition.participants) - len(setup.malicious)
    numbers = range(max(1, m - benign), min(len(setup.malicious), m - 1) + 1)
    clock = setup.config.clock
    lost = (clock.availability, clock.trace, clock.deadline) != (None, None, None)
    all_answer = type(setup.schedule) is Synchronous and not lost
    return {f: factor(m, f) for f in numbers} if factor and all_answer else {}
