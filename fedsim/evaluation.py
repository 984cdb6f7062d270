"""Which models count in a round, and the rows that their scores become.

Most methods have one global model. In personalised methods every client has its own, and a round's
test columns are the unweighted mean over them (section ``evaluation``, key ``personal``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar

from fedsim.config import RunConfig
from fedsim.contracts import RoundContext, Scores
from fedsim.engine import Executor, Model, Result
from fedsim.metrics import mean_scores
from fedsim.roundlog import RoundLog
from fedsim.setup import Setup
from fedsim.state import ServerState

Key = TypeVar("Key")
Evaluated = Mapping[str, Mapping[int | None, Scores]]
"""Per part (``val``, ``test``) the scores of each client's own model, or of the only one (None)."""
MEMORY = 256 << 20
"""Bytes of models that are evaluated in one go; clients' own models may be on disk until then."""


def is_due(config: RunConfig, ctx: RoundContext) -> bool:
    """Whether the round is evaluated: every ``evaluation.every`` rounds and after the last one."""
    done = ctx.round + 1
    return done % config.evaluation.every == 0 or done == ctx.num_rounds


def before_training(
    setup: Setup, executor: Executor, state: ServerState, clients: list[int], ctx: RoundContext
) -> Evaluated | None:
    """The cohort's own models before local training, where those count; else None."""
    wanted = setup.config.evaluation.personal == "cohort_before" and setup.personalised
    if not (wanted and is_due(setup.config, ctx)):
        return None
    return _scores(setup, executor, {c: own_model(state, c) for c in clients})


def after_round(
    setup: Setup,
    executor: Executor,
    before: ServerState,
    after: ServerState,
    clients: list[int],
    results: list[Result],
) -> Evaluated:
    """The global model, every client's own, or the cohort's own right after local training.

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
) -> dict[str, dict[int | None, Scores]]:
    """Scores on the common parts, each different model once and some of them at a time."""
    parts = ["val", "test"] if len(setup.dataset.val) else ["test"]
    different = {m.owner: m for m in models.values()}
    found: dict[str, dict[int | None, Scores]] = {part: {} for part in parts}
    for some in batches(different):
        for part in parts:
            scores = executor.evaluate(list(some.values()), part)
            found[part] |= dict(zip(some, scores, strict=True))
    return {part: {c: found[part][m.owner] for c, m in models.items()} for part in parts}


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
    yield some


def write(evaluated: Evaluated, log: RoundLog) -> None:
    """Fills the val and test columns of the round's row; adds classes and evaluations."""
    row = dict(log.tables["rounds"][0])
    for part, scores in evaluated.items():
        mean = mean_scores(list(scores.values()))
        row |= {f"{part}_loss": mean.loss, f"{part}_accuracy": mean.accuracy}
        for client, s in scores.items() if None not in scores else ():
            values = {"num_samples": s.num_samples, "loss": s.loss, "accuracy": s.accuracy}
            log.add("evaluations", client_id=client, split=part, **values)
    row["test_balanced_accuracy"] = mean.balanced_accuracy
    row["test_macro_f1"] = mean.macro_f1
    row["test_auc"] = mean.auc
    for c in mean.classes:
        log.add("classes", **asdict(c))
    for g in mean.groups:
        log.add("evaluations", split="test", **asdict(g))
    log.tables["rounds"] = [row]
