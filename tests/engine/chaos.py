"""What disturbs a run from inside a client's process: a model that does it when it is told to.

A file in the folder that ``FEDSIM_CHAOS`` names tells it: the file's name is the moment (``train``,
``evaluate``, ``return``), its content a signal's name, ``raylet`` (ends the whole node) or
``hang``. Whoever removes the file acts, so that it happens once.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import fedsim
from fedsim import models
from fedsim.config.run import RunConfig
from fedsim.core.types import ClientUpdate, ModelSpec

FOLDER = "FEDSIM_CHAOS"
STATEFUL = ("fedld", "fedbn", "fedpac")
STATEFUL_ONCE = ("fedpac", *(pytest.param(m, marks=pytest.mark.nightly) for m in STATEFUL[:2]))
"""One of them, and at night the others."""
SHARE = {"cpus_per_client": 0.25}
"""What actors hold in most tests: the same, so that they stay warm from one to the next."""
TABLES = (
    *("rounds.csv", "clients.csv", "classes.csv", "confusion.csv", "partition.csv"),
    "model.safetensors",
)


def act(moment: str) -> None:
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    order = Path(folder) / moment
    try:
        what = order.read_text()
        order.unlink()
    except FileNotFoundError:
        return
    if what == "raylet":
        os.kill(os.getppid(), signal.SIGKILL)
    elif what == "hang":
        time.sleep(3600)
    else:
        os.kill(os.getpid(), getattr(signal, what))


def order(folder: Path, moment: str, what: str) -> None:
    """Tells the next process that comes to ``moment`` what to do."""
    partial = folder / f".{moment}"
    partial.write_text(what)
    partial.rename(folder / moment)


def model(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """The small network, with a hook before its last layer and one on the way back."""
    spec = ModelSpec(
        name="cnn", num_classes=num_classes, in_channels=in_channels, image_size=image_size
    )
    built = models.build(spec, 0)
    built.head.register_forward_pre_hook(_before_head)
    ClientUpdate.__reduce__ = _reduce  # type: ignore[method-assign]
    return built


def _before_head(_: nn.Module, args: tuple) -> None:
    if len(args[0]) > 2:  # fedsim tries a new model on two images
        act("train" if torch.is_grad_enabled() else "evaluate")


def _reduce(update: ClientUpdate) -> tuple:
    act("return")
    names = ClientUpdate.__dataclass_fields__
    return partial(ClientUpdate, **{name: getattr(update, name) for name in names}), ()


def never_built_in_an_actor(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """A model that only the driver can build."""
    import ray

    if ray.is_initialized() and ray.get_runtime_context().get_actor_id():
        raise ValueError("not in an actor")
    return model(num_classes, in_channels, image_size)


def kills_its_actor(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """A model whose construction ends the process of any actor."""
    import ray

    if ray.is_initialized() and ray.get_runtime_context().get_actor_id():
        os.kill(os.getpid(), signal.SIGKILL)
    return model(num_classes, in_channels, image_size)


def config(method: str, model: str = "model", rate: float = 0.5, **engine: object) -> RunConfig:
    return RunConfig(
        algorithm=method,
        data={"num_clients": 8},
        model={"name": f"tests.engine.chaos:{model}"},
        train={"rounds": 6, "sample_rate": rate},
        evaluation={"batch_size": 64},
        engine=SHARE | engine,
    )


def bytes_of(store: fedsim.RunStore) -> dict[str, bytes]:
    return {name: (store.path / name).read_bytes() for name in TABLES}


class Orders(fedsim.Callback):
    """Gives orders after rounds: ``{round: (moment, what)}``, or calls what it finds there."""

    def __init__(self, folder: Path, plan: dict) -> None:
        self.folder, self.plan = folder, plan

    def on_round_end(self, round, rows) -> None:
        todo = self.plan.get(round)
        if callable(todo):
            todo()
        elif todo is not None:
            order(self.folder, *todo)

    def on_run_end(self, summary) -> None:
        if list(self.folder.iterdir()):
            pytest.fail("an order was not carried out")  # no Exception, which would only be logged
