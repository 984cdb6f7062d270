"""Blocks of a round's clients; the tasks of a block train as one stacked model.

A block is sent to an actor, retried after a crash and, with ``on_client_failure=drop``, dropped as
a whole. Blocks depend on the cohort alone, so that the bytes of a run depend neither on the number
of actors nor on crashes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fedsim.core.types import ClientTask, ClientUpdate

MAX_CALL = 128 << 20
"""Bytes of updates that a worker makes in one call, about; a single one may be larger."""

Block = tuple[ClientTask, ...]
"""Tasks of one kind and version that are done together; a single one where clients train alone."""


@dataclass(frozen=True)
class Stacking:
    """How clients train together (``engine.client_batch`` above 1)."""

    clients: int  # the largest number of clients in a block
    width: int  # samples of a padded batch, the same in the whole run
    batchnorm: bool  # whether the model has trained BatchNorm, which cannot take a single sample

    def blocks(self, steps: Iterable[tuple[ClientTask, int]]) -> list[Block]:
        """The tasks with the most steps first, then by client, cut into blocks."""
        order = [task for task, _ in sorted(steps, key=lambda own: (-own[1], own[0].client))]
        return [
            tuple(order[start : start + self.clients])
            for start in range(0, len(order), self.clients)
        ]


def tasks_per_call(update_bytes: int) -> int:
    """The tasks of a call whose updates have so many bytes each."""
    return max(1, MAX_CALL // max(update_bytes, 1))


def num_calls(tasks: int, update_bytes: int, actors: int) -> int:
    """Into how many calls tasks are cut for ``actors`` actors: a multiple of their number."""
    return actors * -(-tasks // (actors * tasks_per_call(update_bytes)))


def in_calls(blocks: Iterable[Block], most: int) -> Iterator[list[Block]]:
    """The blocks in order, those together whose tasks are at most ``most``, or a single block."""
    call: list[Block] = []
    for block in blocks:
        if call and sum(map(len, call)) + len(block) > most:
            yield call
            call = []
        call.append(block)
    if call:
        yield call


def clients_of(block: Block) -> tuple[int, ...]:
    """The clients whose samples a block sees, in its order."""
    return tuple(client for task in block for client in task.clients)


def named(clients: Sequence[int]) -> str:
    """Clients in messages: ``client 3`` or ``clients 3, 1, 4``."""
    return f"client{'s' * (len(clients) > 1)} {', '.join(map(str, clients))}"


def shared_out(
    updates: Sequence[ClientUpdate], tasks: Sequence[ClientTask], sizes: Sequence[int]
) -> list[ClientUpdate]:
    """An update for each client, sorted by id: that of pooled samples is that of all their owners.
    ``sizes`` are the training samples of all clients."""
    pooled = {task.client: task.owners for task in tasks if task.owners}
    each = [
        replace(update, client_id=client, num_samples=sizes[client])
        if update.client_id in pooled
        else update
        for update in updates
        for client in pooled.get(update.client_id, (update.client_id,))
    ]
    return sorted(each, key=lambda update: update.client_id)
