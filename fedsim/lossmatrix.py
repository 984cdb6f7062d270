"""The losses of a round's models on the clients' data, and the rows that they become.

Every local model of the cohort and the model after aggregation (in personalised methods: each
client's own) are evaluated on the data of every owner, on the actors that hold them. Clients
without samples of the part in question have no loss of their own on it, so they count in nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from fedsim.contracts import F64, I64, Owned, Part
from fedsim.decomposition import terms
from fedsim.engine import Executor, Result
from fedsim.engine.parts import by_owner, having, labels_in
from fedsim.evaluation import Candidate, batches, own_model, trained
from fedsim.gram import shares
from fedsim.metrics import SampleScores, mean_loss
from fedsim.roundlog import RoundLog
from fedsim.setup import Setup
from fedsim.state import ServerState

AFTER = "after"
"""How the model after aggregation is called in loss_matrix.csv; ``after:3`` is client 3's own."""


@dataclass(frozen=True)
class Losses:
    """What a decomposition is made of.

    Args:
        clients: the m clients whose local models are looked at.
        owners: names of the K columns: client ids, ``test`` for the common test part.
        own: (m,) the column of each client.
        weights: (K,) labels behind each column (one a sample, or those of tokens), 0 for one that
            is no part of the global loss.
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
    results: Sequence[Result],
    log: RoundLog,
) -> int:
    """Adds the round's row of decomposition.csv, and those of loss_matrix.csv where wanted.

    Args:
        setup: the run.
        executor: evaluates the models.
        before: the state that the clients started from.
        after: the state after aggregation.
        results: of the clients that count, sorted by id, at least one.
        log: gets the rows; none where no client of these owns a sample of the part.

    Returns:
        Bytes of the models that were evaluated.

    Raises:
        DivergedError: a model's outputs are not finite.
    """
    e = setup.config.evaluation
    owners = set(having(setup.partition, e.own_split))
    results = [r for r in results if r.update.client_id in owners]
    if not results:
        return 0
    found = measure(setup, executor, before, after, results)
    samples = np.array([r.update.num_samples for r in results], dtype=np.float64)
    p, q = shares(samples, "samples"), found.weights / math.fsum(found.weights)
    row = terms(found.local, found.after, p, q, found.own)
    log.add("decomposition", split=e.decompose_split, scope=e.decompose_scope, **asdict(row))
    if e.loss_matrix:
        _write(found, setup.personalised, log)
    return (len(found.local) + (len(found.local) if setup.personalised else 1)) * setup.vector_bytes


def measure(
    setup: Setup,
    executor: Executor,
    before: ServerState,
    after: ServerState,
    results: Sequence[Result],
) -> Losses:
    """The mean cross-entropy of each model on each owner's data, the sums correctly rounded.

    Every client of the results must own samples of the part.
    """
    e = setup.config.evaluation
    cohort = tuple(r.update.client_id for r in results)
    local = {str(c): trained(before, r) for c, r in zip(cohort, results, strict=True)}
    last = {AFTER: Candidate(None, lambda: (after.params, {}))}
    if setup.personalised:
        last = {f"{AFTER}:{c}": own_model(after, c) for c in cohort}
    common = e.decompose_split == "common_test"
    everybody = e.decompose_scope == "population" and not common
    owners = having(setup.partition, e.own_split) if everybody else cohort
    own = Owned(e.own_split, owners, e.decompose_max_samples)
    parts: tuple[Part, ...] = (own, "test") if common else (own,)
    rows = {}
    for some in batches(local | last):
        samples = iter(executor.samples([(m, part) for m in some.values() for part in parts]))
        for name in some:
            rows[name] = [loss for part in parts for loss in means(next(samples), setup, part)]
    names = [str(c) for c in owners]
    data, everything = setup.dataset, getattr(setup.partition, own.split)
    held = [labels_in(data, everything[c]) for c in owners]
    if common:  # the columns of the clients' own data carry no weight
        names, held = [*names, "test"], [*(0 for _ in owners), labels_in(data, data.test)]
    matrix = np.array([rows[name] for name in local])
    return Losses(
        cohort,
        tuple(names),
        np.array([owners.index(c) for c in cohort]),
        np.array(held, dtype=np.float64),
        matrix,
        np.broadcast_to([rows[name] for name in last], matrix.shape),
    )


def means(samples: SampleScores, setup: Setup, part: Part) -> list[float]:
    """The mean loss on each owner's samples, or on the common part."""
    if isinstance(part, str):
        return [mean_loss(samples)]
    return [mean_loss(own) for own in by_owner(samples, setup.partition, part)]


def _write(found: Losses, personal: bool, log: RoundLog) -> None:
    """The rows of loss_matrix.csv: of each local model, and of the model after aggregation."""
    last = [f"{AFTER}:{c}" for c in found.clients] if personal else [AFTER]
    models = [*map(str, found.clients), *last]
    rows = [*found.local, *found.after[: len(last)]]
    for model, losses in zip(models, rows, strict=True):
        for owner, loss in zip(found.owners, losses, strict=True):
            log.add("loss_matrix", model=model, owner=owner, loss=loss)
