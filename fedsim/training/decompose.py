"""The decomposition of a round's loss: what local training, client shift and aggregation add.

Every local model of the cohort and the model after aggregation are evaluated on the data of every
owner, on the actors that hold them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.core.rows import DecompositionRow, LossMatrixRow
from fedsim.core.types import F64, I64, ClientUpdate, Owned
from fedsim.engine.base import SAMPLES, Executor
from fedsim.metrics.decomposition import terms
from fedsim.metrics.scores import SampleScores, group_score
from fedsim.metrics.splits import clients_with, counts, num_labels
from fedsim.server.gram import shares
from fedsim.storage.checkpoint import ServerState
from fedsim.training.evaluate import Candidate, measured, own_model, trained
from fedsim.training.rows import RoundLog
from fedsim.training.setup import Setup

AFTER = "after"
"""How the model after aggregation is called in loss_matrix.csv; ``after:3`` is client 3's own."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What a decomposition is made of, for the local models of m clients on K columns.

    Args:
        owners: names of the columns: client ids, ``test`` for the common test part.
        own: (m,) the column of each client.
        weights: (K,) labels behind each column, 0 for one that is no part of the global loss.
        local: (m, K) losses of the local models.
        after: (m, K) losses of the model after aggregation, or of each client's own one.
    """

    clients: tuple[int, ...]
    owners: tuple[str, ...]
    own: I64
    weights: F64
    local: F64
    after: F64


def decompose(
    setup: Setup,
    executor: Executor,
    before: ServerState,
    after: ServerState,
    results: Sequence[ClientUpdate],
    log: RoundLog,
) -> int:
    """Adds the round's row of decomposition.csv, and those of loss_matrix.csv where wanted.

    No row where no client of the results, sorted by id, owns a sample of the part.
    """
    e = setup.config.evaluation
    owners = set(clients_with(setup.partition, e.own_split))
    results = [r for r in results if r.client_id in owners]
    if not results:
        return 0
    losses = measure(setup, executor, before, after, results)
    samples = np.array([r.num_samples for r in results], dtype=np.float64)
    p, q = shares(samples, "samples"), losses.weights / math.fsum(losses.weights)
    row = terms(losses.local, losses.after, p, q, losses.own)
    split, scope = e.decompose_split, e.decompose_scope
    log.add(DecompositionRow(round=log.round, split=split, scope=scope, **row))
    if e.loss_matrix:
        _write(losses, setup.personalised, log)
    last = len(losses.local) if setup.personalised else 1
    return (len(losses.local) + last) * setup.vector_bytes


def measure(
    setup: Setup,
    executor: Executor,
    before: ServerState,
    after: ServerState,
    results: Sequence[ClientUpdate],
) -> Losses:
    """The mean cross-entropy of each model on each owner's data, the sums correctly rounded.

    Every client of the results must own samples of the part.
    """
    e = setup.config.evaluation
    cohort = tuple(r.client_id for r in results)
    local = {str(c): trained(before, r) for c, r in zip(cohort, results, strict=True)}
    last = {AFTER: Candidate(None, lambda: (after.params, {}))}
    if setup.personalised:
        last = {f"{AFTER}:{c}": own_model(after, c) for c in cohort}
    common = e.decompose_split == "common_test"
    everybody = e.decompose_scope == "population" and not common
    owners = clients_with(setup.partition, e.own_split) if everybody else cohort
    part_of_owners = Owned(e.own_split, owners, e.decompose_max_samples)
    parts: tuple[str | Owned, ...] = (part_of_owners, "test") if common else (part_of_owners,)
    rows = {
        name: [
            loss for part, one in zip(parts, each, strict=True) for loss in means(one, setup, part)
        ]
        for name, each in measured(executor, local | last, parts, SAMPLES)
    }
    names = [str(c) for c in owners]
    data, everything = setup.dataset, getattr(setup.partition, part_of_owners.split)
    held = [num_labels(data, everything[c]) for c in owners]
    if common:  # the columns of the clients' own data carry no weight
        names, held = [*names, "test"], [*(0 for _ in owners), num_labels(data, data.test)]
    matrix = np.array([rows[name] for name in local])
    return Losses(
        clients=cohort,
        owners=tuple(names),
        own=np.array([owners.index(c) for c in cohort]),
        weights=np.array(held, dtype=np.float64),
        local=matrix,
        after=np.broadcast_to([rows[name] for name in last], matrix.shape),
    )


def means(samples: SampleScores, setup: Setup, part: str | Owned) -> list[float]:
    """The mean loss on each owner's samples, or on the common part."""
    if isinstance(part, str):
        return [group_score("", samples).loss]
    each = samples.split(counts(setup.partition, part))
    return [group_score("", one).loss for one in each]


def _write(table: Losses, personal: bool, log: RoundLog) -> None:
    """The rows of loss_matrix.csv: of each local model, and of the model after aggregation."""
    last = [f"{AFTER}:{c}" for c in table.clients] if personal else [AFTER]
    models = [*map(str, table.clients), *last]
    rows = [*table.local, *table.after[: len(last)]]
    for model, losses in zip(models, rows, strict=True):
        for owner, loss in zip(table.owners, losses, strict=True):
            log.add(LossMatrixRow(round=log.round, model=model, owner=owner, loss=loss))
