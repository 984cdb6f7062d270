"""Evaluation: the scores of a round's models, on common parts and on the clients' own data.

In personalised methods every client has its own model, and a round's test columns are the
unweighted mean over them (``evaluation.personal``). Where the test samples belong to clients, the
models meet their owners' samples alone, and all are pooled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeVar

import numpy as np

from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.rows import ClassRow, ConfusionRow, EvaluationRow
from fedsim.core.types import ClientUpdate, Dataset, Owned, Part, Partition, RoundContext
from fedsim.engine.base import OUTPUTS, SAMPLES, SCORES, EvaluationTask, Executor, Measure, Model
from fedsim.metrics.outputs import Outputs, concatenated, samples_of, scores_of, split
from fedsim.metrics.samples import split as by_client
from fedsim.metrics.scores import ClassScore, GroupScore, Scores, group_score, mean_scores
from fedsim.metrics.splits import clients_with, count, counts, group_positions
from fedsim.storage.checkpoint import ServerState
from fedsim.training.rows import RoundLog
from fedsim.training.setup import Setup

Key = TypeVar("Key")
Result = TypeVar("Result")
MEMORY = 256 << 20
"""Bytes of models that are evaluated in one go; clients' own models may be on disk until then."""


@dataclass(frozen=True)
class Evaluated:
    """The scores of a round on one part."""

    whole: Scores  # of the only model, or of all clients' own: their mean, or pooled
    clients: Mapping[int, GroupScore]  # of each client's own model, in personalised methods
    owners: Mapping[int, GroupScore] = field(default_factory=dict)  # on own samples of the part


def check_parts(config: RunConfig, dataset: Dataset, partition: Partition) -> None:
    """Refuses what needs a part of the data that there is not."""
    e, patience, split = config.evaluation, config.train.patience, config.evaluation.own_split
    if e.decompose_every and not getattr(partition, split):
        raise ConfigError(
            f"evaluation.decompose_split {split!r}: the clients own no {split} part (or, by site, "
            f"not all of them do); set data.client_{split}_fraction, or take train or common_test"
        )
    if patience is not None and not len(dataset.val):
        raise ConfigError(
            f"train.patience {patience} given; data set {dataset.name} has no validation part to "
            "measure accuracy on: set data.val_fraction too, as in 0.1"
        )
    if e.finetune_epochs and not clients_with(partition, "test"):
        raise ConfigError(
            f"evaluation.finetune_epochs {e.finetune_epochs} given; the clients own no test part "
            "to be scored on: set data.client_test_fraction too"
        )


def is_due(every: int, ctx: RoundContext) -> bool:
    """Whether what is due every so many rounds (0 for never), and after the last one, is due."""
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
    results: list[ClientUpdate],
) -> dict[str, Evaluated]:
    """By part the scores of the global model, of every client's own, or of the cohort's own right
    after local training (of a client that was left out, before it)."""
    if not setup.personalised:
        return _scores(setup, executor, {None: Candidate(None, lambda: (after.params, {}))})
    if setup.config.evaluation.personal == "cohort_after":
        local: dict[int | None, Candidate] = {c: own_model(before, c) for c in clients}
        local |= {r.client_id: trained(before, r) for r in results}
        return _scores(setup, executor, local)
    everybody = setup.partition.participants
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


def trained(before: ServerState, update: ClientUpdate) -> Candidate:
    """The model that a client's training ended with."""
    return Candidate(update.client_id, lambda: (before.params + update.delta, update.state))


def _scores(
    setup: Setup, executor: Executor, models: Mapping[int | None, Candidate]
) -> dict[str, Evaluated]:
    """Scores on the common parts, each different model once and some of them at a time."""
    parts = ["val", "test"] if len(setup.dataset.val) else ["test"]
    if not setup.tests_are_owned:
        return _common(executor, models, parts)
    return _common(executor, models, parts[:-1]) | _pooled(setup, executor, models)


def each_scores(
    setup: Setup, executor: Executor, models: Mapping[Key, Candidate], part: str
) -> dict[Key, Scores]:
    """The scores of each of several global models on ``"val"`` or ``"test"``."""
    if part == "test" and setup.tests_are_owned:
        return {
            key: _pooled(setup, executor, {None: model})[part].whole
            for key, model in models.items()
        }
    return {key: scores for key, (scores,) in measured(executor, models, [part], SCORES)}


def _common(
    executor: Executor, models: Mapping[int | None, Candidate], parts: Sequence[str]
) -> dict[str, Evaluated]:
    if not models:  # nobody of the cohort was there
        return {}
    different = {m.owner: m for m in models.values()} if parts else {}
    scores = dict(measured(executor, different, parts, SCORES))
    evaluated = {}
    for number, part in enumerate(parts):
        each = {c: scores[m.owner][number] for c, m in models.items()}
        by_client = {
            c: GroupScore(
                group="",
                num_samples=s.num_samples,
                loss=s.loss,
                accuracy=s.accuracy,
                measures=s.measures,
            )
            for c, s in each.items()
            if c is not None
        }
        evaluated[part] = Evaluated(mean_scores(list(each.values())), by_client)
    return evaluated


def _pooled(
    setup: Setup, executor: Executor, models: Mapping[int | None, Candidate]
) -> dict[str, Evaluated]:
    """The test samples of every client that has any, by its own model or the only one.

    Nothing where the models are those of clients without any.
    """
    data, owned = setup.dataset, setup.partition.test
    outputs: dict[int, Outputs] = {}
    owners = clients_with(setup.partition, "test")
    if None in models:
        part = Owned("test", owners)
        (together,) = executor.evaluate([(models[None].load(), part)], OUTPUTS)
        outputs |= zip(owners, split(together, counts(setup.partition, part)), strict=True)
    others = {c: models[c] for c in owners if c in models}
    for client, (alone,) in measured(executor, others, lambda c: [Owned("test", (c,))], OUTPUTS):
        outputs[client] = alone
    if not outputs:
        return {}
    index = np.concatenate([owned[c] for c in outputs])
    pooled = concatenated(list(outputs.values()))
    whole = scores_of(pooled, data, index, group_positions(data, index))
    samples = by_client(samples_of(pooled, data, index), [len(owned[c]) for c in outputs])
    each = {c: group_score("", one) for c, one in zip(outputs, samples, strict=True)}
    return {"test": Evaluated(whole, {} if None in models else each, each)}


def measured(
    executor: Executor,
    models: Mapping[Key, Candidate],
    parts: Sequence[Part] | Callable[[Key], Sequence[Part]],
    measure: Measure[Result],
) -> Iterator[tuple[Key, list[Result]]]:
    """What a measure gives for each model on each of the parts, which may depend on the model's
    key; as many models at a time as fit into :data:`MEMORY`."""
    for some in batches(models):
        wanted = {key: parts(key) if callable(parts) else parts for key in some}
        jobs: list[EvaluationTask] = [(some[key], part) for key in some for part in wanted[key]]
        results = iter(executor.evaluate(jobs, measure))
        yield from ((key, [next(results) for _ in wanted[key]]) for key in some)


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


Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
ClientScores = dict[Split, Mapping[int, GroupScore]]
"""By part of the clients' own data, the score of each client that owns any of it."""


def client_scores(setup: Setup, executor: Executor, state: ServerState) -> ClientScores:
    """The scores of the global model, or of the clients' own, on the clients' own data."""
    scores: ClientScores = {}
    for name in SPLITS:
        owners, samples = clients_with(setup.partition, name), []
        if owners and not setup.personalised:
            part = Owned(name, owners)
            (together,) = executor.evaluate([((state.params, {}), part)], SAMPLES)
            samples = by_client(together, counts(setup.partition, part))
        elif owners:
            models = {c: own_model(state, c) for c in owners}
            parts = {c: [Owned(name, (c,))] for c in owners}
            samples = [one for _, (one,) in measured(executor, models, parts.__getitem__, SAMPLES)]
        scores[name] = {c: group_score("", s) for c, s in zip(owners, samples, strict=True)}
    return scores


def columns(evaluated: Mapping[str, Evaluated], clients: ClientScores) -> dict[str, float | None]:
    """The columns of rounds.csv that an evaluation fills, those of measures among them;
    ``client_test_accuracy`` is the unweighted mean over the clients with a test part of their
    own."""
    row: dict[str, float | None] = {}
    for part, scores in evaluated.items():
        row |= scores.whole.columns(part)
    owners = _by_owner(evaluated, clients)
    if any(score.accuracy is not None for score in owners.values()):
        row["client_test_accuracy"] = mean_accuracy(owners.values())
    return row


def attack_success(setup: Setup, executor: Executor, state: ServerState) -> float:
    """The share of the triggered test samples that are given the target class, by the global model
    or as the mean over the benign clients' own; NaN without any."""
    part = setup.attack.triggered
    if part is None or not count(setup.spec, part):
        return math.nan
    models: dict[int | None, Candidate] = {None: Candidate(None, lambda: (state.params, {}))}
    if setup.personalised:
        benign = (c for c in setup.partition.participants if c not in setup.malicious)
        models = {c: own_model(state, c) for c in benign}
    different = {candidate.owner: candidate for candidate in models.values()}
    outputs = measured(executor, different, [part], OUTPUTS)
    rates = {
        owner: float((np.asarray(logits).argmax(axis=1) == part.target).mean())
        for owner, (logits,) in outputs
    }
    each = [rates[candidate.owner] for candidate in models.values()]
    return math.fsum(each) / len(each) if each else math.nan


def benign_accuracy(
    setup: Setup, evaluated: Mapping[str, Evaluated], clients: ClientScores
) -> float:
    """The unweighted mean accuracy of the benign clients on their own test samples, or where none
    is evaluated there on the common part, of their own models or the global one; NaN of none."""
    owned = setup.config.evaluation.clients_every > 0 and clients_with(setup.partition, "test")
    on_test = evaluated.get("test")
    scores = _by_owner(evaluated, clients)
    if on_test is not None and not owned and not scores:
        if not on_test.clients:
            return math.nan if on_test.whole.accuracy is None else on_test.whole.accuracy
        scores = on_test.clients
    return mean_accuracy([s for client, s in scores.items() if client not in setup.malicious])


def _by_owner(
    evaluated: Mapping[str, Evaluated], clients: ClientScores
) -> Mapping[int, GroupScore]:
    """The scores on the clients' own test samples, empty where there are none."""
    owners = evaluated["test"].owners if "test" in evaluated else {}
    return clients.get("test") or owners


def mean_accuracy(scores: Collection[GroupScore]) -> float:
    """The unweighted mean; NaN of none."""
    accuracies = [score.accuracy for score in scores if score.accuracy is not None]
    return math.fsum(accuracies) / len(accuracies) if accuracies else math.nan


def add_rows(evaluated: Mapping[str, Evaluated], clients: ClientScores, log: RoundLog) -> None:
    """The rows of classes.csv, confusion.csv and evaluations.csv, whose ``num_samples`` counts
    samples always."""

    def add(split: str, score: GroupScore, client: int | None = None) -> None:
        log.add(
            EvaluationRow(
                round=log.round,
                client_id=client,
                group=score.group if client is None else None,
                split=split,
                num_samples=score.num_samples,
                loss=score.loss,
                accuracy=score.accuracy,
                extra=score.measures,
            )
        )

    for part, part_scores in evaluated.items():
        for client, score in part_scores.clients.items():
            add(part, score, client)
    if "test" in evaluated:
        whole = evaluated["test"].whole
        log.tables.setdefault(ClassRow.table, [])  # written, if only its header
        log.add(*(_class_row(log.round, c) for c in whole.classes))
        for label, prediction, count in () if whole.confusion is None else whole.confusion.tolist():
            log.add(ConfusionRow(round=log.round, label=label, prediction=prediction, count=count))
        for score in whole.groups:
            add("test", score)
    for part, owners in clients.items():
        for client, score in owners.items():
            add(f"own_{part}", score, client)


def _class_row(number: int, score: ClassScore) -> ClassRow:
    values = asdict(score)
    return ClassRow(round=number, extra=values.pop("measures"), **values)
