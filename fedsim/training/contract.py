"""The contract of executors, for the tests of whoever writes one: the bits of the serial executor.

``check_executor(make_executor)`` trains small clients for two rounds in each of several ways.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import zip_longest
from typing import Any

import torch

from fedsim.algorithms import Algorithm
from fedsim.client import LocalEnv, LocalRule
from fedsim.config.run import RunConfig
from fedsim.core.errors import ContractError, WorkerError
from fedsim.core.types import ClientUpdate, RoundContext, Vectors
from fedsim.engine import serial
from fedsim.engine.base import Executor
from fedsim.engine.registry import MakeExecutor
from fedsim.storage.checkpoint import ServerState
from fedsim.training.features import with_features
from fedsim.training.log import RoundLog
from fedsim.training.round import lr_at, run_round
from fedsim.training.setup import Setup, needs_whole_updates, prepare

DRAWS = ("augmentation", "dropout", "blocks of clients")
"""The cases in which clients draw random numbers while they train."""
CASES: Mapping[str, Mapping[str, Any]] = {
    "plain training": {},
    "augmentation": {"data": {"augment": "crop_flip"}},
    "dropout": {"model": {"name": "cnn_reddi"}},
    "client states": {"algorithm": "scaffold", "train": {"momentum": 0.0}},
    "personal tensors": {"algorithm": "fedbn", "model": {"name": "cnn"}},
    "a pass before training": {"algorithm": "fediir"},
    "blocks of clients": {"model": {"name": "cnn_reddi"}, "engine": {"client_batch": 3}},
    "pooled data": {"algorithm": "centralized"},
    "scores by client": {"evaluation": {"clients_every": 1, "decompose_every": 1}},
    "a failing client": {"algorithm": f"{__name__}:failing"},
    "a dropped client": {
        "algorithm": f"{__name__}:failing",
        "engine": {"on_client_failure": "drop"},
    },
}
"""By name how a run differs from plain training: sections of its configuration."""


def check_executor(
    make: MakeExecutor, *, cases: Sequence[str] = tuple(CASES), **engine: Any
) -> None:
    """Checks that an executor gives the bits of the serial one; takes seconds.

    Args:
        make: its ``make_executor``.
        cases: names in :data:`CASES`.
        engine: keys of section ``engine`` that it needs, such as ``actors=2``.

    Raises:
        ContractError: it does not; names the case, the round and the first difference.
    """
    for case in cases:
        setup = prepare(_config(CASES[case], engine))
        wanted = _followed(setup, serial.make_executor)
        generator = torch.get_rng_state()
        try:
            problem = _difference(wanted, _followed(setup, make))
        except ContractError as error:
            problem = str(error)
        if problem is None and not torch.equal(generator, torch.get_rng_state()):
            problem = "torch's global generator is not what it was before"
        if problem is not None:
            hint = _HINT if case in DRAWS else ""
            raise ContractError(f"the executor breaks its contract, case {case!r}: {problem}{hint}")


_HINT = (
    "; clients draw from torch's generator here, of which a process has one: training outside of "
    "Worker.train, or draws of another thread, mix with them"
)


class Fails(LocalRule):
    """Plain training, but the work of client 3 fails."""

    def begin(self, env: LocalEnv) -> None:
        """Raises for client 3."""
        if env.client_id == 3:
            raise ValueError("on purpose")


def failing() -> Algorithm:
    """FedAvg, but the work of client 3 fails."""
    return Algorithm(local=Fails())


def _config(sections: Mapping[str, Any], engine: Mapping[str, Any]) -> RunConfig:
    """Two rounds of six of eight clients with about 22 images each."""
    given: dict[str, Any] = {
        "data": {"num_clients": 8, "test_fraction": 0.9},
        "model": {"name": "mlp"},
        "train": {"rounds": 2, "sample_rate": 0.75, "batch_size": 5},
        "engine": {"kind": "serial", **engine},
    }
    for key, value in sections.items():
        given[key] = {**given.get(key, {}), **value} if isinstance(value, Mapping) else value
    return RunConfig(**given)


class _Sorted:
    """An executor whose updates are looked at before they are used."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def train(
        self, clients: Sequence[int], sent: Any, states: Mapping[int, Vectors], ctx: RoundContext
    ) -> list[ClientUpdate]:
        """See :class:`~fedsim.engine.base.Executor`."""
        updates = self._executor.train(clients, sent, states, ctx)
        ids = [update.client_id for update in updates]
        if ids != sorted(set(ids) & set(clients)):
            raise ContractError(
                f"train({list(clients)}) returned the clients {ids}; it must be one update a "
                "client, sorted by client id"
            )
        return updates


Content = dict[str, Any]
"""What is compared of a round: cells of tables, and bytes of arrays, by a name."""


def _followed(setup: Setup, make: MakeExecutor) -> list[Content]:
    """The rounds of a run."""
    made = make(
        with_features(setup.spec),
        setup.config.engine,
        update_bytes=setup.vector_bytes,
        whole=needs_whole_updates(setup),
        session=None,
    )
    state, found = ServerState(params=setup.initial), list[Content]()
    with closing(made) as executor:
        for t in range(setup.config.train.rounds):
            ctx = RoundContext(
                round=t,
                num_rounds=setup.config.train.rounds,
                num_clients=setup.partition.num_clients,
                lr=lr_at(setup.config, t),
                seed=setup.config.seed,
            )
            log = RoundLog(t + 1)
            try:
                state = run_round(setup, _Sorted(executor), state, ctx, log)
            except WorkerError as error:
                found.append({"the error": str(error).partition(":")[0]})
                break
            found.append(_content(state, log))
    return found


def _content(state: ServerState, log: RoundLog) -> Content:
    """Tables without times and places, those of the clients first, and the bytes of all arrays."""
    found: Content = {}
    for table in sorted(
        log.tables.keys() - {"timings", "errors"}, key=lambda t: (t != "clients", t)
    ):
        for i, row in enumerate(log.tables[table], start=1):
            client = row.get("client_id")
            place = f"row {i}" if client is None else f"row {i}, client {client}"
            found |= {f"{table}.csv, {place}, {column}": value for column, value in row.items()}
    arrays = {
        f"the state of client {c}, {k}": a
        for c in state.clients
        for k, a in state.clients[c].items()
    }
    arrays |= {f"the server's {k}": a for k, a in state.server.flatten().items()}
    arrays["the global model"] = state.params
    return found | {name: array.tobytes() for name, array in arrays.items()}


def _difference(wanted: Sequence[Content], found: Sequence[Content]) -> str | None:
    """What differs first, None where nothing does."""
    nothing: Content = {}
    for t, contents in enumerate(zip_longest(wanted, found, fillvalue=nothing), start=1):
        for name in {**contents[0], **contents[1]}:
            one, two = (content.get(name) for content in contents)
            if repr(one) != repr(two):
                cell = not isinstance(one, bytes) and not isinstance(two, bytes)
                shown = f": {two!r}, and there {one!r}" if cell else ""
                return f"round {t}, {name} is not that of the serial executor{shown}"
    return None
