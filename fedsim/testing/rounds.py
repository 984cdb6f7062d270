"""Rounds of a small run in memory, in milliseconds, and in what two of them differ first.

Digits, 22 training images a client, 60 test images, half of the 8 clients a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from fedsim import algorithms
from fedsim.config.run import RunConfig
from fedsim.core.types import Array, ClientTask, ClientUpdate
from fedsim.storage.checkpoint import ServerState
from fedsim.storage.run_dir import RunStore
from fedsim.training.assemble import make_executor, prepare
from fedsim.training.round import context, run_round
from fedsim.training.rows import RoundLog

ROUNDS = 3
NUM_CLIENTS = 8
FILES = (
    *("rounds.csv", "clients.csv", "classes.csv", "confusion.csv", "models.csv", "partition.csv"),
    "model.safetensors",
)
OPTIONAL = ("evaluations.csv", "server.csv", "clients.safetensors")
VALIDATION = {"test_fraction": 0.7, "val_fraction": 0.25}
"""Some samples for validation, a quarter of those that are not for testing."""
Content = dict[str, Any]
"""What is compared of a round: cells of tables, and bytes of arrays, by a name."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """What a round began with, who took part, what it ended with and the rows that it wrote."""

    clients: list[int]
    before: ServerState
    after: ServerState
    log: RoundLog

    @property
    def tables(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The rows by the name of their table."""
        return self.log.tables

    @property
    def row(self) -> Mapping[str, Any]:
        """Its row of rounds.csv."""
        (row,) = self.log.tables["rounds"]
        return row

    def content(self) -> Content:
        """What two rounds are compared by: rows without times and places, those of the clients
        first, and the bytes of all arrays."""
        cells: Content = {}
        names = self.tables.keys() - {"timings", "errors"}
        for table in sorted(names, key=lambda t: (t != "clients", t)):
            for i, row in enumerate(self.tables[table], start=1):
                client = row.get("client_id")
                place = f"row {i}" if client is None else f"row {i}, client {client}"
                cells |= {f"{table}.csv, {place}, {column}": value for column, value in row.items()}
        state, arrays = self.after, dict[str, Array]()
        for client, kept in state.clients.items():
            arrays |= {f"the state of client {client}, {k}": a for k, a in kept.items()}
        arrays |= {f"the server's {k}": a for k, a in state.server.flatten().items()}
        arrays |= {f"the downlink's {k}": a for k, a in state.downlink.items()}
        arrays["the global model"] = state.params
        return cells | {name: array.tobytes() for name, array in arrays.items()}


def config(name: str, model: str = "cnn", **sections: Any) -> RunConfig:
    """Three rounds of a method; 2 of 8 clients each, evaluated at the end.

    Where the server trains on validation samples, there are some.
    """
    settings: dict[str, Any] = {
        "data": {"num_clients": NUM_CLIENTS, "test_fraction": 0.9},
        "train": {"rounds": ROUNDS, "sample_rate": 0.25, "batch_size": 20, "lr": 0.02},
        "evaluation": {"every": ROUNDS},
        "engine": {"kind": "serial", "checkpoint_every": 0},
    }
    if algorithms.load(name, sections.get(name)).server.root_samples:
        settings["data"] |= VALIDATION
    for section, values in sections.items():
        settings[section] = {**settings.get(section, {}), **values}
    return RunConfig(algorithm=name, model={"name": model}, **settings)


def small(name: str, model: str = "cnn", **sections: Any) -> RunConfig:
    """The same for :func:`rounds`: 4 of 8 clients a round."""
    sections["train"] = {"rounds": ROUNDS, "sample_rate": 0.5} | sections.get("train", {})
    sections["evaluation"] = {"every": sections["train"]["rounds"]}
    return config(name, model, **sections)


def rounds(
    configuration: RunConfig,
    *,
    start: ServerState | None = None,
    first: int = 0,
    arrival: Callable[[list[ClientUpdate]], list[ClientUpdate]] | None = None,
) -> list[Round]:
    """The rounds of a configuration, from round ``first`` and the state ``start`` before it.

    ``arrival`` says what becomes of the updates on their way to the server.
    """
    setup = prepare(configuration)
    setup = replace(setup, dataset=replace(setup.dataset, test=setup.dataset.test[:60]))
    executor = make_executor(setup)
    run = executor.run
    if arrival is not None:

        def arrived(tasks: Sequence[ClientTask], *args: Any) -> list[ClientUpdate]:
            updates = run(tasks, *args)
            own = tasks and tasks[0].work in ("root", "personalise")
            return updates if own else arrival(updates)

        executor.run = arrived  # type: ignore[method-assign, assignment]
    state = ServerState(params=setup.initial) if start is None else start
    made = []
    try:
        for t in range(first, setup.config.train.rounds):
            before, log = state, RoundLog(t + 1)
            state = run_round(setup, executor, before, context(setup, t), log)
            clients = [row["client_id"] for row in log.tables.get("clients", ())]
            made.append(Round(clients=clients, before=before, after=state, log=log))
    finally:
        executor.close()
    return made


def results(store: RunStore) -> dict[str, bytes]:
    """The files of a finished run that do not depend on where the work was done."""
    files = [*FILES, *(name for name in OPTIONAL if (store.path / name).exists())]
    return {name: (store.path / name).read_bytes() for name in files}


def difference(wanted: Sequence[Content], actual: Sequence[Content], of: str) -> str | None:
    """What differs first, None where nothing does; ``of`` is whose the wanted ones are."""
    nothing: Content = {}
    for t, contents in enumerate(zip_longest(wanted, actual, fillvalue=nothing), start=1):
        for name in {**contents[0], **contents[1]}:
            one, two = (each.get(name) for each in contents)
            if repr(one) != repr(two):
                cell = not isinstance(one, bytes) and not isinstance(two, bytes)
                shown = f": {two!r}, and there {one!r}" if cell else ""
                return f"round {t}, {name} is not that of {of}{shown}"
    return None
