"""The contract of executors: the bits of the serial one."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import torch

from fedsim.algorithms import Algorithm
from fedsim.client import LocalEnv, LocalRule
from fedsim.config.run import RunConfig
from fedsim.core.errors import ContractError, WorkerError
from fedsim.engine import serial
from fedsim.engine.registry import MakeExecutor
from fedsim.storage.checkpoint import ServerState
from fedsim.testing.rounds import Content, Round, difference
from fedsim.training.assemble import prepare
from fedsim.training.features import with_features
from fedsim.training.round import context, run_round
from fedsim.training.rows import RoundLog
from fedsim.training.setup import Setup, needs_whole_updates

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
"""By name how a run differs from plain training: sections of its configuration. Where clients draw,
from torch's one generator of a process, training outside of Worker.run mixes with them."""


def check_executor(
    make: MakeExecutor, *, cases: Sequence[str] = tuple(CASES), **engine: Any
) -> None:
    """Checks that an executor gives the bits of the serial one; ``engine``: keys that it needs."""
    for case in cases:
        setup = prepare(_config(CASES[case], engine))
        wanted = _followed(setup, serial.make_executor)
        generator = torch.get_rng_state()
        problem = difference(wanted, _followed(setup, make), "the serial executor")
        if problem is None and not torch.equal(generator, torch.get_rng_state()):
            problem = "torch's global generator is not what it was before"
        if problem is not None:
            raise ContractError(f"the executor breaks its contract, case {case!r}: {problem}")


class Fails(LocalRule):
    def begin(self, env: LocalEnv) -> None:
        if env.client_id == 3:
            raise ValueError("on purpose")


def failing() -> Algorithm:
    """FedAvg, but the work of client 3 fails."""
    return Algorithm(local=Fails())


def _config(sections: Mapping[str, Any], engine: Mapping[str, Any]) -> RunConfig:
    """Two rounds of six of eight clients with about 22 images each."""
    settings: dict[str, Any] = {
        "data": {"num_clients": 8, "test_fraction": 0.9},
        "model": {"name": "mlp"},
        "train": {"rounds": 2, "sample_rate": 0.75, "batch_size": 5},
        "engine": {"kind": "serial", **engine},
    }
    for key, value in sections.items():
        settings[key] = {**settings.get(key, {}), **value} if isinstance(value, Mapping) else value
    return RunConfig(**settings)


def _followed(setup: Setup, make: MakeExecutor) -> list[Content]:
    """The rounds of a run."""
    made = make(
        with_features(setup.spec),
        setup.config.engine,
        update_bytes=setup.vector_bytes,
        whole=needs_whole_updates(setup),
        session=None,
    )
    state, contents = ServerState(params=setup.initial), list[Content]()
    with closing(made) as executor:
        for t in range(setup.config.train.rounds):
            ctx = context(setup, t)
            log = RoundLog(t + 1)
            try:
                state = run_round(setup, executor, state, ctx, log)
            except WorkerError as error:
                contents.append({"the error": str(error).partition(":")[0]})
                break
            contents.append(Round(clients=[], before=state, after=state, log=log).content())
    return contents
