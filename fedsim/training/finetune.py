"""After the last round: the final model by client, before and after fine-tuning.

Every client fine-tunes a copy of its own: the global model, or in personalised methods the client's
model. All methods fine-tune alike, by ``train.optimizer`` on plain cross-entropy with the other
settings of section ``train`` (the learning rates without their schedule), on the client's training
samples. Methods whose clients train without momentum fine-tune without it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fedsim.core.errors import DivergedError
from fedsim.core.rows import FinalClientRow
from fedsim.core.types import ClientTask, ClientUpdate, Owned
from fedsim.engine.base import SAMPLES, Executor, Models
from fedsim.metrics.samples import Values
from fedsim.metrics.scores import GroupScore, group_score
from fedsim.metrics.splits import clients_with
from fedsim.storage.checkpoint import ServerState
from fedsim.training.evaluate import MEMORY, Candidate, Split, measured, own_model, trained
from fedsim.training.personal import FEWEST, with_own_models
from fedsim.training.round import context, without_diverged
from fedsim.training.rows import RoundLog
from fedsim.training.setup import Setup


def final_scores(
    setup: Setup, executor: Executor, state: ServerState, log: RoundLog
) -> list[FinalClientRow]:
    """The rows of final_clients.csv, by client; none where the run asks for none.

    Held-out clients are scored on their own test parts; where none has one, on their training
    samples.
    """
    epochs, partition = setup.config.evaluation.finetune_epochs, setup.partition
    if not (epochs or partition.held_out):
        return []
    tested = clients_with(partition, "test", held_out=True)
    parts: dict[int, Split] = dict.fromkeys(tested, "test")
    if not parts.keys() & set(partition.held_out):
        parts |= dict.fromkeys(partition.held_out, "train")
    parts = dict(sorted(parts.items()))
    state = with_own_models(setup, executor, state, context(setup, log.round))
    before = _scores(executor, {c: own_model(state, c) for c in parts}, parts)
    after: dict[int, GroupScore] = {}
    if epochs:
        tuned = [client for client, part in parts.items() if part == "test"]
        for updates in _finetuned(setup, executor, state, tuned, log):
            models = {u.client_id: trained(state, u) for u in updates}
            after |= _scores(executor, models, parts)
    return [
        FinalClientRow(
            client_id=client,
            held_out=int(client in partition.held_out),
            split=f"own_{part}",
            num_samples=before[client].num_samples,
            loss=before[client].loss,
            accuracy=before[client].accuracy,
            finetuned_loss=after[client].loss if client in after else None,
            finetuned_accuracy=after[client].accuracy if client in after else None,
            extra=_measures(before[client], after.get(client) if epochs else None, epochs > 0),
        )
        for client, part in parts.items()
    ]


def _measures(before: GroupScore, after: GroupScore | None, tuned: bool) -> Values:
    """The columns of measures, before and, where any client is fine-tuned, after it."""
    row = dict(before.measures)
    if tuned:
        later = {} if after is None else after.measures
        row |= {f"finetuned_{name}": later.get(name) for name in before.measures}
    return row


def _scores(
    executor: Executor, models: dict[int, Candidate], parts: dict[int, Split]
) -> dict[int, GroupScore]:
    """The score of each client's model on its own part."""
    parts_of = {client: [Owned(part, (client,))] for client, part in parts.items()}
    try:
        samples = dict(measured(executor, models, parts_of.__getitem__, SAMPLES))
    except DivergedError as error:
        raise DivergedError(
            f"final scores of the clients: {error}; the model has diverged, lower train.lr"
        ) from error
    return {client: group_score("", one) for client, (one,) in samples.items()}


def _finetuned(
    setup: Setup, executor: Executor, state: ServerState, clients: Sequence[int], log: RoundLog
) -> Iterator[list[ClientUpdate]]:
    """The updates of fine-tuning, some clients at a time."""
    ctx = replace(context(setup, log.round), lr=setup.config.train.lr)
    models: Models = {ctx.round: (state.params, {})}
    executor.broadcast(models)
    size = max(FEWEST, MEMORY // setup.vector_bytes)
    for start in range(0, len(clients), size):
        some = clients[start : start + size]
        tasks = [ClientTask(client=client, ctx=ctx, work="finetune") for client in some]
        states = {client: state.clients[client] for client in some if client in state.clients}
        updates = executor.run(tasks, models, states)
        yield without_diverged(setup, updates, "fine-tuning", log)
