"""Steps on fixed tensors, recorded and replayed, have the bytes of the usual ones.

On a CPU a replay calls the Python code of the client with which a step was recorded, so that a
rule that reads something of a client shows, as does a tensor that keeps another client's values.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedsim import algorithms
from fedsim.client import LocalRule, Uplink
from fedsim.client.block import train_block
from fedsim.client.criterion import MarginControl
from fedsim.client.graphs import Steps
from fedsim.client.rule import UNCAPTURABLE
from fedsim.client.trainer import train_local
from fedsim.core.layout import FlatModel, freeze
from fedsim.core.rng import torch_scope
from fedsim.core.types import PrivateSteps, Training
from fedsim.engine import serial
from fedsim.engine.worker import Worker
from fedsim.testing.rounds import difference, rounds, small
from tests.sampling import marked_beside
from tests.unit.client.test_block import BATCH, Federation
from tests.unit.client.test_trainer import Net, make_env

pytestmark = pytest.mark.integration  # it trains

OPTIONS: dict[str, dict[str, Any]] = {
    "fedprox, l2": {"prox_form": "l2_per_tensor"},
    "scaffold, I": {"option": "I"},
    "feddecorr, paper": {"form": "paper"},
    "fedsam, asam": {"variant": "asam", "alpha": 0.5},
    "fedsr, l2r": {"deterministic": True, "a_l2r": 0.1},
}
SHAPES = {
    "fedld", "scaffold", "fedbn", "fedsam, asam", "fediir", "moon", "fedpac", "fedsr",
    "centralized", "feddyn", "fedcm",
}  # fmt: skip
"""A rule of each kind; the others are slow."""
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"train": {"momentum": 0.0, "weight_decay": 0.0}},
    "momentum": {"train": {"momentum": 0.9, "weight_decay": 0.01, "lr_schedule": "cosine"}},
    "head": {"train": {"lr_head": 0.1, "momentum": 0.9}},
    "adamw": {"train": {"optimizer": "adamw", "momentum": 0.0, "lr_schedule": "warmup_round"}},
    "adamw, head": {"train": {"optimizer": "adamw", "momentum": 0.0, "lr_head": 0.1}},
    "clip": {"train": {"clip_norm": 0.5}},
    "steps": {"train": {"local_steps": 5, "local_epochs": 1}},
    "single": {"train": {"batch_size": 1}},
    "augmented": {"data": {"augment": "crop_flip"}},
}


@pytest.fixture
def compared(monkeypatch):
    """Compares rounds of a configuration with those of static workers; returns the last one."""

    def compare(configuration):
        made: list[Worker] = []

        def static(*given: Any) -> Worker:
            made.append(Worker(*given, static=True))
            return made[-1]

        usual = [r.content() for r in rounds(configuration)]
        with monkeypatch.context() as patch:
            patch.setattr(serial, "Worker", static)
            recorded = [r.content() for r in rounds(configuration)]
        assert difference(usual, recorded, "the usual loop") is None
        return made[-1]

    return compare


def replays(worker):
    """How many steps were recorded."""
    return len(worker.steps._recorded)


def of(name, model="mlp", **sections):
    """A configuration with clients of unequal sizes: short batches, and some that stop early."""
    method = name.partition(",")[0]
    train = {"batch_size": 6, "local_epochs": 2, "momentum": 0.9} | sections.pop("train", {})
    if algorithms.load(method).local.plain_sgd:
        train["momentum"] = 0.0
    data = {"partition": "dirichlet", "alpha": 0.5, "min_samples": 1} | sections.pop("data", {})
    if name in OPTIONS:
        sections[method] = OPTIONS[name]
    clock = {} if method in ("centralized",) else {"clock": {"work": "uniform(0.4, 1)"}}
    return small(method, model, train=train, data=data, **clock, **sections)


METHODS = [*algorithms.names(), *OPTIONS]
STACKABLE = [n for n in METHODS if algorithms.load(n.partition(",")[0]).local.stackable is True]


@pytest.mark.parametrize("name", marked_beside(SHAPES, METHODS))
def test_every_method(name, compared):
    worker = compared(of(name, "cnn" if name == "fedbn" else "mlp"))
    assert worker.findings.uncaptured == {}
    assert replays(worker) >= 2


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_local_training(setting, compared):
    worker = compared(of("fedprox", **SETTINGS[setting]))
    assert worker.findings.uncaptured == {}
    assert replays(worker) >= 2


BLOCKS = [
    (n, model) for n in STACKABLE for model in ("mlp", "cnn") if (n, model) != ("fedbn", "mlp")
]
QUICK = {("fedavg", "mlp"), ("scaffold", "mlp"), ("fediir", "mlp"), ("fedavg", "cnn")}


@pytest.mark.parametrize("case", marked_beside(QUICK, BLOCKS), ids="-".join)
def test_blocks_of_clients_that_end_at_different_steps(case, compared):
    name, model = case
    clipped = {"clip_norm": 0.5, "lr_schedule": "cosine"}
    worker = compared(of(name, model, train=clipped, engine={"client_batch": 3}))
    assert worker.findings.uncaptured == {}
    assert replays(worker) >= 3


@pytest.mark.parametrize("model", ["dropout", "cnn"])
def test_blocks_of_models_that_draw(model):
    """With the clients' draws going on after a trial; a block of six, and twice one of three."""

    def rows(static):
        federation = Federation(model)
        steps = Steps(federation.flat) if static else None
        for clients in (range(6), (0, 2, 4), (1, 2, 5), (1, 3, 4)):
            with torch_scope(0):
                envs = federation.envs(clients)
                updates, vectors = train_block(LocalRule(), envs, federation.stack, BATCH, steps)
            yield vectors.clone().numpy().tobytes(), [u.train_loss for u in updates]
        assert steps is None or len(steps._recorded) >= 4

    assert list(rows(True)) == list(rows(False))


def test_the_learning_rate_asks_for_no_new_recording(compared):
    def recorded(schedule):
        train = {"rounds": 5, "sample_rate": 1.0, "lr_schedule": schedule}
        return set(compared(small("fedavg", train=train)).steps._recorded)

    count = [len(recorded(schedule)) for schedule in ("constant", "cosine")]
    assert count[0] == count[1] > 0


def test_what_is_not_recorded_says_why(compared):
    worker = compared(of("feddyn", feddyn={"client_alpha": "by_samples"}))
    assert worker.findings.uncaptured == {
        "RegularisedObjective": "the weight of its regulariser differs by client"
    }
    assert replays(worker) == 0


class Draws(Net):
    def forward(self, x):
        return super().forward(x) * (1 + random.random())


class Counts(Net):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) / self.calls


class Replaces(Net):
    """Puts new tensors in the places of a buffer of the vector and of one beside it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.mean = 0.9 * self.mean + x.detach().mean()
        self.seen += 1
        return super().forward(x) * self.mean


@dataclass(frozen=True)
class Remembers(LocalRule):
    """Writes into what ``begin`` returned."""

    capturable: ClassVar[bool | str] = True

    def begin(self, env):
        return {"steps": torch.zeros(3), "name": "mean"}

    def adjust_grads(self, env, s):
        s["steps"][1] += 1
        for g in env.grads():
            g += 0.01 * s["steps"][1]

    def finish(self, env, s):
        return Uplink({"steps": s["steps"].numpy()})


@dataclass(frozen=True)
class Fails(LocalRule):
    """Cannot be recorded, as on a GPU a step that waits for it."""

    calls: list[int]
    capturable: ClassVar[bool | str] = True

    def adjust_grads(self, env, s):
        self.calls.append(len(env.params))
        if len(self.calls) == 5:
            raise RuntimeError("operation not permitted when stream is capturing")


@dataclass(frozen=True)
class ReadsTheClient(LocalRule):
    capturable: ClassVar[bool | str] = True

    def adjust_grads(self, env, s):
        for g in env.grads():
            g *= 1 + env.client_id


def trained(model, rule, steps=True, **changes):
    """What four clients of one model send, and the steps; two of them have as many samples."""
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        flat = FlatModel(model(), torch.device("cpu"))
    start, sent = flat.flat.detach().clone(), []
    fixed = Steps(flat) if steps else None
    training = Training(local_epochs=2, batch_size=5, momentum=0.9, weight_decay=0.01)
    given = {"training": training, "criterion": MarginControl()} | changes
    for client, n in enumerate((12, 7, 12, 1, 17)):
        with torch_scope(client):
            flat.load(start)
            env = make_env(n, client_id=client, **given)
            env.flat, env.start = flat, start
            update = train_local(rule, env, fixed)
            extras = {name: a.tobytes() for name, a in update.extras.items()}
            sent.append(
                (flat.vector().tobytes(), update.train_loss, extras, torch.rand(2).tolist())
            )
    return sent, fixed


@pytest.mark.parametrize("model", [Net, partial(Net, dropout=0.5, unused=True), Replaces])
@pytest.mark.parametrize("rule", [LocalRule(), Remembers()])
def test_nothing_of_a_trial_is_left(model, rule):
    """Statistics, counters, random numbers, momentum and the rule's state go on as before it."""
    sent, steps = trained(model, rule)
    assert sent == trained(model, rule, steps=False)[0]
    assert (len(steps._recorded), steps.uncaptured) == (3, {})  # 5 at first, 5 and 2 later on


@pytest.mark.parametrize(
    ("model", "rule", "why"),
    [
        (Draws, LocalRule(), "a step draws from Python's or NumPy's generator"),
        (Counts, LocalRule(), "forward keeps something in calls that is no tensor"),
        (partial(Net, dropout=0.5), Fails([]), "operation not permitted when stream is capturing"),
    ],
)
def test_what_cannot_be_recorded_is_found_by_trying(model, rule, why):
    sent, steps = trained(model, rule)
    (said,) = steps.uncaptured.values()
    assert why in said
    assert steps._recorded == {}
    assert sent == trained(model, rule, steps=False)[0]


def test_a_rule_that_reads_a_clients_number_shows():
    """Canary: replays on a CPU have the number of the first client, as a graph would."""
    assert trained(Net, ReadsTheClient())[0] != trained(Net, ReadsTheClient(), steps=False)[0]


def test_frozen_parameters_stay():
    def frozen():
        model = Net()
        freeze(model, [model.features[1].weight, model.features[1].bias])
        return model

    sent, steps = trained(frozen, LocalRule())
    assert sent == trained(frozen, LocalRule(), steps=False)[0]
    assert len(steps._recorded) == 3


class Undeclared(LocalRule):
    pass


class OfArrays(LocalRule):
    capturable = True

    def begin(self, env):
        return np.zeros(2)


@pytest.mark.parametrize(
    ("rule", "private", "why"),
    [
        (Undeclared(), None, UNCAPTURABLE),
        (OfArrays(), None, "begin returns a ndarray, which is no tensor"),
        (LocalRule(), PrivateSteps(clip=1, noise_multiplier=1), "steps of DP-SGD draw on the CPU"),
    ],
    ids=["undeclared", "arrays", "private"],
)  # fmt: skip
def test_what_is_known_not_to_be_recorded(rule, private, why):
    training = Training(batch_size=5, private=private)
    env = make_env(model=Net(norm=False), training=training)
    steps = Steps(env.flat)
    assert steps.fixed(rule, env, rule.begin(env)) is None
    assert steps.uncaptured == {type(rule).__name__: why}


def test_a_state_of_numbers_that_differ_fills_no_memory(monkeypatch):
    monkeypatch.setattr("fedsim.client.graphs.MOST", 1)
    sent, steps = trained(Net, LocalRule())
    assert sent == trained(Net, LocalRule(), steps=False)[0]
    assert len(steps._recorded) == 1
    assert steps.uncaptured == {"Net": "there are more than 1 kinds of steps"}
