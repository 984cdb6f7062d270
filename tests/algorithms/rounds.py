"""Rounds of any method in memory, in milliseconds: digits, 22 training images a client.

No run directory, 60 test images, half of the 8 clients a round. Everything else is what a run does:
configuration, model, serial executor, server, evaluation after the last round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedsim.core.types import RoundContext
from fedsim.storage.checkpoint import ServerState
from fedsim.training.log import RoundLog
from fedsim.training.round import draw_cohort, lr_at, run_round
from fedsim.training.setup import make_executor, prepare
from tests.methods import config

ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Round:
    """What a round began with, who took part, what it ended with and the rows that it wrote."""

    clients: list[int]
    before: ServerState
    after: ServerState
    tables: Mapping[str, list[dict[str, Any]]]

    @property
    def row(self):
        """Its row of rounds.csv."""
        (row,) = self.tables["rounds"]
        return row

    def content(self):
        """What two rounds are compared by: rows without times, and the bytes of all arrays."""
        tables = {name: rows for name, rows in self.tables.items() if name != "timings"}
        return repr(tables), contents(self.after)


def contents(state):
    """The bytes of the arrays of a state by their names."""
    found = {"params": state.params.tobytes()}
    found |= {f"server {key}": array.tobytes() for key, array in state.server.flatten().items()}
    found |= {f"downlink {key}": array.tobytes() for key, array in state.downlink.items()}
    for client in state.clients:
        own = state.clients[client]
        found |= {f"client {client} {key}": array.tobytes() for key, array in own.items()}
    return found


def small(name, model="cnn", **sections):
    """The configuration, with changes of its sections or of other keys."""
    sections["train"] = {"rounds": ROUNDS, "sample_rate": 0.5} | sections.get("train", {})
    sections["evaluation"] = {"every": sections["train"]["rounds"]}
    return config(name, model, **sections)


def rounds(
    configuration,
    *,
    start: ServerState | None = None,
    first: int = 0,
    arrival: Callable[[list[Any]], list[Any]] | None = None,
) -> list[Round]:
    """The rounds of a configuration.

    Args:
        configuration: of the run.
        start: the state before round ``first``, by default that of a new run.
        first: the first round, from 0.
        arrival: the order in which the results come in, by default that of the client ids.
    """
    setup = prepare(configuration)
    setup = replace(setup, dataset=replace(setup.dataset, test=setup.dataset.test[:60]))
    executor = make_executor(setup)
    train = executor.train
    if arrival is not None:
        executor.train = lambda *given: arrival(train(*given))
    state = ServerState(params=setup.initial) if start is None else start
    found = []
    try:
        for t in range(first, setup.config.train.rounds):
            n, seed = setup.partition.num_clients, setup.config.seed
            ctx = RoundContext(
                round=t,
                num_rounds=setup.config.train.rounds,
                num_clients=n,
                lr=lr_at(setup.config, t),
                seed=seed,
            )
            before, log = state, RoundLog(t + 1)
            state = run_round(setup, executor, before, ctx, log)
            clients = draw_cohort(ctx, setup.cohort_size)
            found.append(Round(clients=clients, before=before, after=state, tables=log.tables))
    finally:
        executor.close()
    return found
