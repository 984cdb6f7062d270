"""The models that clients make of the newest one before they are evaluated: method by method what
:class:`~fedsim.algorithms.base.Algorithm` calls ``personalise``.

They are made when they are asked for, held-out clients' too, and the next round does not see them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from fedsim.core.errors import DivergedError
from fedsim.core.types import ClientTask, RoundContext, Vectors
from fedsim.engine.base import Executor, Models
from fedsim.storage.checkpoint import ServerState
from fedsim.storage.client_states import ClientStates
from fedsim.training.setup import Setup

MEMORY = 256 << 20
"""Bytes of models that are kept; a quarter of them are made in one go."""
FEWEST = 16
"""Clients that work in one go at least, so that several actors have work."""


def with_own_models(
    setup: Setup, executor: Executor, state: ServerState, ctx: RoundContext
) -> ServerState:
    """The state as it is evaluated; ``ctx`` is that of the round that begins with it."""
    if setup.algorithm.personalise is None:
        return state
    clients = cast(ClientStates, OwnModels(setup, executor, state, ctx))
    return replace(state, clients=clients)


@dataclass(eq=False)
class OwnModels(Mapping[int, Vectors]):
    """By client its state with the model that it makes; without one where its work failed."""

    setup: Setup
    executor: Executor
    state: ServerState
    ctx: RoundContext
    made: dict[int, Vectors] = field(default_factory=dict)

    def __getitem__(self, client: int) -> Vectors:
        if client in self and client not in self.made:
            self._make(client)
        return self.made[client]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __contains__(self, client: object) -> bool:
        return client in range(len(self))

    def __len__(self) -> int:
        return self.setup.partition.num_clients

    def _make(self, first: int) -> None:
        size = self.setup.vector_bytes
        many = max(FEWEST, MEMORY // 4 // size)
        if (len(self.made) + many) * size > MEMORY:
            self.made.clear()
        some = [c for c in range(first, len(self)) if c not in self.made][:many]
        models: Models = {self.ctx.round: (self.state.params, self.state.downlink)}
        self.executor.broadcast(models)
        tasks = [ClientTask(client=client, ctx=self.ctx, work="personalise") for client in some]
        self.made |= {client: {} for client in some}
        for update in self.executor.run(tasks, models, self.state.clients):
            if update.diverged is not None:
                raise DivergedError(f"the own model of client {update.client_id} is not finite")
            self.made[update.client_id] = update.state
