"""Which models count in a round, and the rows that their scores become.

Most methods have one global model. In personalised methods every client has its own, and a round's
test columns are the unweighted mean over them (section ``evaluation``, key ``personal``). Where the
test samples belong to clients, the models meet their owners' samples alone, and all are pooled;
clients without any count in nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np

from fedsim.contracts import GroupScore, Owned, RoundContext, Scores
from fedsim.engine import Executor, Model, Result
from fedsim.engine.outputs import Outputs, concatenated, samples_of, scores_of, split
from fedsim.engine.parts import counts, groups_among, having
from fedsim.metrics import group_score, mean_scores
from fedsim.roundlog import RoundLog
from fedsim.setup import Setup
from fedsim.state import ServerState

Key = TypeVar("Key")
MEMORY = 256 << 20
"""Bytes of models that are evaluated in one go; clients' own models may be on disk until then."""


@dataclass(frozen=True)
class Evaluated:
    """The scores of a round on one part.

    Args:
        whole: of the only model, or of all clients' own: their mean, or pooled.
        clients: of each client's own model, in personalised methods.
        client_accuracy: the unweighted mean over the clients' own test samples, where these are
            the test part.
    """

    whole: Scores
    clients: Mapping[int, GroupScore]
    client_accuracy: float | None = None


def is_due(every: int, ctx: RoundContext) -> bool:
    """Whether what is asked for every so many rounds, and after the last one, falls due.

    Args:
        every: 0 for never.
        ctx: the round.
    """
    done = ctx.round + 1
    return every > 0 and (done % every == 0 or done == ctx.num_rounds)


def before_training(
    setup: Setup, executor: Executor, state: ServerState, clients: list[int], ctx: RoundContext
) -> dict[str, Evaluated] | None:
    """The cohort's own models before local training, where those count; else None."""
    wanted = setup.config.evaluation.personal == "cohort_before" and setup.personalised
    if not (wanted and is_due(setup.config.evaluation.every, ctx)):
        return None
    return _scores(setup, executor, {c: own_model(state, c) for c in clients})


def after_round(
    setup: Setup,
    executor: Executor,
    before: ServerState,
    after: ServerState,
    clients: list[int],
    results: list[Result],
) -> dict[str, Evaluated]:
    """By part the scores of the global model, of every client's own, or of the cohort's own right
    after local training.

    A client of the cohort that was left out counts with the model it had before.
    """
    if not setup.personalised:
        return _scores(setup, executor, {None: Candidate(None, lambda: (after.params, {}))})
    if setup.config.evaluation.personal == "cohort_after":
        local: dict[int | None, Candidate] = {c: own_model(before, c) for c in clients}
        local |= {r.update.client_id: trained(before, r) for r in results}
        return _scores(setup, executor, local)
    everybody = range(setup.partition.num_clients)
    return _scores(setup, executor, {c: own_model(after, c) for c in everybody})


@dataclass(frozen=True)
class Candidate:
    """A model to evaluate, made when its turn comes; those of one owner are the same model."""

    owner: int | None
    load: Callable[[], Model]


def own_model(state: ServerState, client: int) -> Candidate:
    """The model of a client; the global one where it never took part."""
    if client not in state.clients:
        return Candidate(None, lambda: (state.params, {}))
    return Candidate(client, lambda: (state.params, state.clients[client]))


def trained(before: ServerState, result: Result) -> Candidate:
    """The model that a client's training ended with."""
    update = result.update
    return Candidate(update.client_id, lambda: (before.params + update.delta, result.state))


def _scores(
    setup: Setup, executor: Executor, models: Mapping[int | None, Candidate]
) -> dict[str, Evaluated]:
    """Scores on the common parts, each different model once and some of them at a time."""
    parts = ["val", "test"] if len(setup.dataset.val) else ["test"]
    if not setup.tests_are_owned:
        return _common(executor, models, parts)
    return _common(executor, models, parts[:-1]) | _pooled(setup, executor, models)


def _common(
    executor: Executor, models: Mapping[int | None, Candidate], parts: Sequence[str]
) -> dict[str, Evaluated]:
    """Every model on whole parts."""
    different = {m.owner: m for m in models.values()} if parts else {}
    found: dict[str, dict[int | None, Scores]] = {part: {} for part in parts}
    for some in batches(different):
        for part in parts:
            scores = executor.evaluate(list(some.values()), part)
            found[part] |= dict(zip(some, scores, strict=True))
    evaluated = {}
    for part in parts:
        each = {c: found[part][m.owner] for c, m in models.items()}
        own = {
            c: GroupScore("", s.num_samples, s.loss, s.accuracy)
            for c, s in each.items()
            if c is not None
        }
        evaluated[part] = Evaluated(mean_scores(list(each.values())), own)
    return evaluated


def _pooled(
    setup: Setup, executor: Executor, models: Mapping[int | None, Candidate]
) -> dict[str, Evaluated]:
    """The test samples of every client that has any, by its own model or the only one.

    Nothing where the models are those of clients without any.
    """
    data, owned = setup.dataset, setup.partition.test
    outputs: dict[int, Outputs] = {}
    owners = having(setup.partition, "test")
    if None in models:
        part = Owned("test", owners)
        (together,) = executor.outputs([(models[None].load(), part)])
        outputs |= zip(owners, split(together, counts(setup.partition, part)), strict=True)
    for some in batches({c: models[c] for c in owners if c in models}):
        jobs = [(model, Owned("test", (c,))) for c, model in some.items()]
        outputs |= zip(some, executor.outputs(jobs), strict=True)
    if not outputs:
        return {}
    index = np.concatenate([owned[c] for c in outputs])
    pooled = concatenated(list(outputs.values()))
    whole = scores_of(pooled, data, index, groups_among(data, index))
    samples = samples_of(pooled, data, index).split([len(owned[c]) for c in outputs])
    each = {c: group_score("", own) for c, own in zip(outputs, samples, strict=True)}
    accuracy = math.fsum(s.accuracy for s in each.values()) / len(each)
    return {"test": Evaluated(whole, {} if None in models else each, accuracy)}


def batches(candidates: Mapping[Key, Candidate]) -> Iterator[dict[Key, Model]]:
    """The models by key, as many at a time as fit into :data:`MEMORY`, but at least one."""
    some: dict[Key, Model] = {}
    seen: dict[int, int] = {}
    size = 0
    for owner, candidate in candidates.items():
        params, state = candidate.load()
        new = {id(a): a.nbytes for a in (params, *state.values()) if id(a) not in seen}
        size += sum(new.values())
        if some and size > MEMORY:
            yield some
            some, seen, size = {}, {}, sum(new.values())
        some[owner] = params, state
        seen |= new
    if some:
        yield some


def write(evaluated: Mapping[str, Evaluated], log: RoundLog) -> None:
    """Fills the val and test columns of the round's row; adds classes and evaluations.

    Where every token has a label, loss and accuracy are those of tokens, and the other test columns
    are empty. ``num_samples`` of evaluations.csv counts samples all the same.
    """
    row = dict(log.tables["rounds"][0])
    for part, found in evaluated.items():
        row |= {f"{part}_loss": found.whole.loss, f"{part}_accuracy": found.whole.accuracy}
        for client, s in found.clients.items():
            values = {"num_samples": s.num_samples, "loss": s.loss, "accuracy": s.accuracy}
            log.add("evaluations", client_id=client, split=part, **values)
    if "test" in evaluated:
        test = evaluated["test"]
        row["test_balanced_accuracy"] = test.whole.balanced_accuracy
        row["test_macro_f1"] = test.whole.macro_f1
        row["test_auc"] = test.whole.auc
        row["client_test_accuracy"] = test.client_accuracy
        log.tables.setdefault("classes", [])  # the file is there even if it stays without rows
        for c in test.whole.classes:
            log.add("classes", **asdict(c))
        for g in test.whole.groups:
            log.add("evaluations", split="test", **asdict(g))
    log.tables["rounds"] = [row]
