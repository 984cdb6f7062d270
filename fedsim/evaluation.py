"""Which models count in a round, and the rows that their scores become.

Most methods have one global model. In personalised methods every client has its own, and a round's
test columns are the unweighted mean over them (section ``evaluation``, key ``personal``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from fedsim.config import RunConfig
from fedsim.contracts import RoundContext, Scores, Vectors
from fedsim.engine import Executor, Model, Result
from fedsim.metrics import mean_scores
from fedsim.roundlog import RoundLog
from fedsim.setup import Setup
from fedsim.state import ServerState

Evaluated = Mapping[str, Mapping[int | None, Scores]]
"""Per part (``val``, ``test``) the scores of each client's own model, or of the only one (None)."""


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
        return _scores(setup, executor, {None: (after.params, {})})
    if setup.config.evaluation.personal == "cohort_after":
        local: dict[int | None, Model] = {c: own_model(before, c) for c in clients}
        for r in results:
            local[r.update.client_id] = before.params + r.update.delta, r.state
        return _scores(setup, executor, local)
    everybody = range(setup.partition.num_clients)
    return _scores(setup, executor, {c: own_model(after, c) for c in everybody})


NOTHING: Vectors = {}
"""The state of a client that has none; one object, so that equal models are seen to be equal."""


def own_model(state: ServerState, client: int) -> Model:
    """The model of a client; that of the start where it never took part."""
    return state.params, state.clients.get(client, NOTHING)


def _scores(setup: Setup, executor: Executor, models: Mapping[int | None, Model]) -> Evaluated:
    """Scores on the common parts; clients with the same model share one evaluation."""
    first: dict[tuple[int, int], int | None] = {}
    same = {c: first.setdefault((id(w), id(own)), c) for c, (w, own) in models.items()}
    unique = {c: models[c] for c in dict.fromkeys(same.values())}
    parts = ["val", "test"] if len(setup.dataset.val) else ["test"]
    evaluated = {}
    for part in parts:
        found = dict(zip(unique, executor.evaluate(list(unique.values()), part), strict=True))
        evaluated[part] = {c: found[same[c]] for c in models}
    return evaluated


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
    log.tables["rounds"] = [row]
