"""The decomposition of a round's loss: what local training, client shift and aggregation add.

Every local model of the cohort and the model after aggregation are evaluated on the data of every
owner, on the actors that hold them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedsim.core.rows import DecompositionRow, LossMatrixRow
from fedsim.core.types import ClientUpdate, Owned
from fedsim.engine.base import SAMPLES, Executor
from fedsim.metrics.decomposition import terms
from fedsim.metrics.samples import Samples, split
from fedsim.metrics.scores import group_score
from fedsim.metrics.splits import clients_with, counts, num_labels
from fedsim.server.gram import shares
from fedsim.storage.checkpoint import ServerState
from fedsim.training.evaluate import Candidate, measured, own_model, trained
from fedsim.training.rows import RoundLog
from fedsim.training.setup import Setup

AFTER = "after"
"""How the model after aggregation is called in loss_matrix.csv; ``after:3`` is client 3's own."""


def decompose(
    setup: Setup,
    executor: Executor,
    before: ServerState,
    after: ServerState,
    results: Sequence[ClientUpdate],
    log: RoundLog,
) -> int:
    """Adds the round's row of decomposition.csv, and those of loss_matrix.csv where wanted; the
    bytes of the models that were evaluated.

    No row where no client of the results, sorted by id, owns a sample of the part. Losses are the
    mean cross-entropy of each model on each owner's data, the sums correctly rounded.
    """
    e = setup.config.evaluation
    everybody = clients_with(setup.partition, e.own_split)
    some = set(everybody)
    results = [r for r in results if r.client_id in some]
    if not results:
        return 0
    cohort = tuple(r.client_id for r in results)
    local = {str(c): trained(before, r) for c, r in zip(cohort, results, strict=True)}
    last = {AFTER: Candidate(None, lambda: (after.params, {}))}
    if setup.personalised:
        last = {f"{AFTER}:{c}": own_model(after, c) for c in cohort}
    common = e.decompose_split == "common_test"
    owners = everybody if e.decompose_scope == "population" and not common else cohort
    part_of_owners = Owned(e.own_split, owners, e.decompose_max_samples)
    parts: tuple[str | Owned, ...] = (part_of_owners, "test") if common else (part_of_owners,)
    losses = {
        name: [
            loss for part, one in zip(parts, each, strict=True) for loss in means(one, setup, part)
        ]
        for name, each in measured(executor, local | last, parts, SAMPLES)
    }
    columns = [str(c) for c in owners]
    data, everything = setup.dataset, getattr(setup.partition, part_of_owners.split)
    held = [num_labels(data, everything[c]) for c in owners]
    if common:  # the columns of the clients' own data carry no weight
        columns, held = [*columns, "test"], [*(0 for _ in owners), num_labels(data, data.test)]
    matrix = np.array([losses[name] for name in local])
    ended = np.broadcast_to([losses[name] for name in last], matrix.shape)
    p = shares(np.array([r.num_samples for r in results], dtype=np.float64), "samples")
    q = np.array(held, dtype=np.float64) / math.fsum(held)
    row = terms(matrix, ended, p, q, np.array([owners.index(c) for c in cohort]))
    split, scope = e.decompose_split, e.decompose_scope
    log.add(DecompositionRow(round=log.round, split=split, scope=scope, **row))
    if e.loss_matrix:
        for model in (*local, *last):
            for owner, loss in zip(columns, losses[model], strict=True):
                log.add(LossMatrixRow(round=log.round, model=model, owner=owner, loss=loss))
    return (len(local) + len(last)) * setup.vector_bytes


def means(samples: Samples, setup: Setup, part: str | Owned) -> list[float]:
    """The mean loss on each owner's samples, or on the common part."""
    if isinstance(part, str):
        return [group_score("", samples).loss]
    each = split(samples, counts(setup.partition, part))
    return [group_score("", one).loss for one in each]
