"""Probes before training, and transforms of updates."""

from __future__ import annotations

import copy
import functools
import itertools
import random
import re
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import nn

import fedsim
from fedsim.algorithms.base import Algorithm, Work
from fedsim.client import Coded, LocalRule, Uplink
from fedsim.client.criterion import MarginControl
from fedsim.client.probe import fault
from fedsim.client.transform import own_entries, without_entries
from fedsim.core.layout import FlatModel
from fedsim.core.rng import generator, torch_scope
from fedsim.core.types import NO_DELTA, ClientUpdate, Training
from fedsim.engine.blocks import Stacking
from fedsim.engine.worker import Worker, with_deltas
from fedsim.testing.rounds import config
from fedsim.training.assemble import prepare
from tests.algorithms.training import context, train, worker
from tests.tasks import alone, models, run, tasks, train_local
from tests.unit.client.test_trainer import make_env

CPU = torch.device("cpu")
WIDTH = 12


class Net(nn.Module):
    """One hidden layer; a subclass does something to its outputs (B, 12)."""

    def __init__(self, classes=3, channels=1, size=2):
        super().__init__()
        self.a = nn.Linear(channels * size * size, WIDTH)
        self.b = nn.Linear(WIDTH, classes)
        self.more()

    def more(self):
        pass

    def hidden(self, h):
        return h

    def forward(self, x):
        return self.b(self.hidden(torch.relu(self.a(x.flatten(1)))))


class Replaced(Net):
    """A moving average, as users write it."""

    def more(self):
        self.register_buffer("ema", torch.zeros(WIDTH))

    def hidden(self, h):
        if self.training:
            self.ema = 0.9 * self.ema + 0.1 * h.mean(0).detach()
        return h - self.ema


class Attribute(Replaced):
    def more(self):
        self.ema = torch.zeros(WIDTH)


class AttributeInPlace(Attribute):
    def hidden(self, h):
        if self.training:
            self.ema.mul_(0.9).add_(0.1 * h.mean(0).detach())
        return h - self.ema


class Counted(Net):
    def more(self):
        self.register_buffer("step", torch.tensor(0))

    def hidden(self, h):
        if self.training:
            self.step = self.step + 1
        return h * (1 + 0.05 * self.step)


class Normalised(Net):
    """A parameter whose memory ``forward`` replaces."""

    def more(self):
        self.w = nn.Parameter(torch.ones(WIDTH))

    def hidden(self, h):
        self.w.data = functional.normalize(self.w.data, dim=0)
        return h * self.w


class Temperature(Net):
    def more(self):
        self.t = nn.Parameter(torch.tensor(1.0))

    def hidden(self, h):
        return h * self.t


class Draws(Net):
    def hidden(self, h):
        return functional.dropout(h) * (1.1 if random.random() < 0.5 else 1) * np.random.rand()  # noqa: NPY002


class EvaluationCounts(Net):
    def more(self):
        self.register_buffer("seen", torch.zeros(()))

    def hidden(self, h):
        if not self.training:
            self.seen = self.seen + 1
        return h * (1 + self.seen)


FINE = (Replaced, AttributeInPlace, Counted, Temperature)


def test_rows_of_a_sparse_embedding_train_as_of_a_dense_one():
    class Embedded(Net):
        sparse = True

        def more(self):
            self.e = nn.Embedding(5, WIDTH, sparse=self.sparse)

        def forward(self, x):
            return self.b(self.e(x.flatten(1).sum(1).long() % 5))

    class Dense(Embedded):
        sparse = False

    trained = []
    for model in (Embedded, Dense):
        with torch_scope(0):
            env = make_env(model=model(), training=Training(local_epochs=2, clip_norm=1.0))
        train_local(LocalRule(), env)
        trained.append(env.flat.vector())
    np.testing.assert_array_equal(*trained)


class NewParameter(Normalised):
    def hidden(self, h):
        self.w = nn.Parameter(self.w.detach() * 0.9)
        return h * self.w


class Grows(Replaced):
    def hidden(self, h):
        self.ema = torch.cat([self.ema, h[0].detach()])
        return h


class AddsBuffer(Net):
    def hidden(self, h):
        if "late" not in self._buffers:
            self.register_buffer("late", torch.zeros(WIDTH))
        return h


class ComplexState(Net):
    def more(self):
        self.register_buffer("phase", torch.ones(WIDTH, dtype=torch.cfloat))

    def hidden(self, h):
        self.phase = self.phase * 1j
        return h * self.phase.real


class OwnGenerator(Net):
    def more(self):
        self.rng = np.random.default_rng(0)

    def hidden(self, h):
        return h if self.rng.random() < 2 else -h


class Helper:
    calls = 0


class InAnObject(Net):
    """What it counts has no effect before the hundredth pass."""

    def more(self):
        self.helper = Helper()

    def hidden(self, h):
        self.helper.calls += 1
        return h if self.helper.calls < 100 else -h


class OfTheClass(Net):
    passes = 0

    def hidden(self, h):
        OfTheClass.passes += 1
        return h


GLOBAL = {"passes": 0}


class OfTheFile(Net):
    def hidden(self, h):
        GLOBAL["passes"] += 1
        return h


def unseen(clock=itertools.count()):  # noqa: B008 - what a closure remembers is nowhere to be read
    return next(clock)


class Unseen(Net):
    def hidden(self, h):
        return h + unseen()


class NoGradient(Net):
    def forward(self, x):
        return super().forward(x).detach()


@functools.lru_cache
def doubled(model):
    """What only the first client's values decide."""
    return 2 * model.t.detach()


class CachedByFunction(Temperature):
    def hidden(self, h):
        return h * doubled(self)


class DrawnAtFirst(Net):
    def more(self):
        self.mix = torch.randn(WIDTH, generator=torch.Generator().manual_seed(id(self) % 2**31))

    def hidden(self, h):
        return h * self.mix


class NewTarget(Net):
    def more(self):
        self.target = copy.deepcopy(self.a).requires_grad_(False)

    def forward(self, x):
        self.target = copy.deepcopy(self.a).requires_grad_(False)
        return super().forward(x)


def found(model, flat=None):
    flats = []
    for _ in range(2):
        with torch_scope(0):
            flats.append(FlatModel(model(), CPU))
    samples = torch.rand(4, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    return fault(flat or flats[0], flats[1], MarginControl(), Training(), samples)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (NewParameter, "replaces the parameter w"),
        (Grows, r"replaces the tensor ema, \(12,\) float32, by \(24,\)"),
        (AddsBuffer, "adds, removes or replaces the parameter or buffer late"),
        (NewTarget, "adds, removes or replaces the parameter or buffer target"),
        (ComplexState, "training changes the tensor phase, which is complex64"),
        (OwnGenerator, "keeps something in rng"),
        (InAnObject, r"keeps something in helper\.calls"),
        (OfTheClass, r"keeps something in OfTheClass\.passes"),
        (OfTheFile, r"test_probe\.GLOBAL\['passes'\]"),
        (Unseen, "two passes in training mode"),
        (CachedByFunction, "two passes in training mode"),
        (DrawnAtFirst, "two passes in training mode"),
        (NoGradient, "training step or an evaluation pass fails: RuntimeError"),
    ],
)
def test_what_cannot_be_put_back_is_named(model, said):
    why = found(model)
    assert why is not None
    assert "\n" not in why
    assert re.search(said, why), why


@pytest.mark.parametrize("model", [*FINE, Draws, EvaluationCounts])
def test_other_models_are_left_as_they_were(model):
    with torch_scope(0):
        flat = FlatModel(model(), CPU)
    before, state = flat.vector(), copy.deepcopy(flat.model.state_dict())
    torch.manual_seed(1)
    drawn = torch.get_rng_state(), random.getstate()
    assert found(model, flat) is None
    np.testing.assert_array_equal(flat.vector(), before)
    for name, value in flat.model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert flat.model.training
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert random.getstate() == drawn[1]


STATE_SEEN = []


@dataclass(frozen=True)
class Counts(LocalRule):
    """Counts its rounds, and writes down what it knows of a client."""

    def begin(self, env):
        STATE_SEEN.append({key: array.tolist() for key, array in env.state.items()})

    def finish(self, env, s):
        return Uplink(state={"rounds": env.state.get("rounds", np.zeros(1)) + 1})


@dataclass(frozen=True)
class Halved:
    """Sends half of the update, and keeps the other half for the next time."""

    name: ClassVar[str] = "half"

    def __call__(self, delta, state, task, layout):
        whole = delta + state.get("rest", np.zeros_like(delta))
        return Coded(whole / 2, {"rest": whole / 2}, wire_bytes=7 + task.client)


@dataclass(frozen=True)
class Noise:
    """Adds numbers that are drawn for the task, and says nothing of bytes."""

    name: ClassVar[str] = "noise"

    def __call__(self, delta, state, task, layout):
        drawn = generator(task.ctx.seed, self.name, task.key, task.client).normal(size=len(delta))
        return Coded(delta + drawn.astype(np.float32))


@dataclass(frozen=True)
class Zeros:
    """Hides whatever was there."""

    name: ClassVar[str] = "zeros"
    seen: list = field(default_factory=list)

    def __call__(self, delta, state, task, layout):
        self.seen.append(task.client)
        return Coded(np.zeros_like(delta))


@dataclass(frozen=True)
class Breaks:
    """Makes a NaN of what client 1 sends."""

    name: ClassVar[str] = "break"

    def __call__(self, delta, state, task, layout):
        return Coded(delta * np.float32(np.nan if task.client == 1 else 1))


@dataclass(frozen=True)
class NaN(LocalRule):
    """Client 1 diverges."""

    def finish(self, env, s):
        if env.client_id == 1:
            env.flat.flat[2] = float("nan")
        return Uplink()


def transformed(*transforms, rule=None, **changes):
    w = worker("fedavg", "mlp")
    algorithm = Algorithm(local=rule or LocalRule(), transforms=transforms)
    return Worker(replace(w.spec, algorithm=algorithm, **changes), w.device)


def test_entries_of_a_state_by_transform():
    a, b, c = np.zeros(1), np.ones(1), np.full(1, 2.0)
    state = {"half.rest": a, "halfway": b, "rounds": c}
    assert own_entries(state, "half") == {"rest": a}
    assert own_entries(state, "noise") == {}
    assert without_entries(state, [Halved(), Noise()]) == {"halfway": b, "rounds": c}
    assert without_entries(state, []) is state


def test_a_transform_changes_what_is_sent_and_its_state_is_hidden_from_the_rule():
    plain, w = transformed(rule=Counts()), transformed(Halved(), rule=Counts())
    start = w.flat.vector()
    _, (delta,) = train(plain, [1], params=start)
    STATE_SEEN.clear()
    (first,), (sent,) = train(w, [1], params=start)
    assert sent.tobytes() == (delta / 2).tobytes()
    assert set(first.state) == {"rounds", "half.rest"}
    assert first.state["half.rest"].tobytes() == sent.tobytes()
    assert first.wire_bytes == 8
    (second,), (again,) = train(w, [1], params=start, states={1: first.state})
    assert again.tobytes() == ((delta + delta / 2) / 2).tobytes()
    assert [*second.state["rounds"], *first.state["rounds"]] == [2, 1]
    assert STATE_SEEN == [{}, {"rounds": [1.0]}]


def test_transforms_run_in_order_on_what_the_one_before_made():
    start = transformed().flat.vector()
    _, (delta,) = train(transformed(), [2], params=start)
    noise = generator(0, "noise", 0, 2).normal(size=len(delta)).astype(np.float32)
    (update,), (sent,) = train(transformed(Halved(), Noise()), [2], params=start)
    assert sent.tobytes() == (delta / 2 + noise).tobytes()
    assert update.wire_bytes == 9, "of the last that says something"
    _, (sent,) = train(transformed(Noise(), Halved()), [2], params=start)
    assert sent.tobytes() == ((delta + noise) / 2).tobytes()


def test_random_numbers_are_those_of_the_task():
    w = transformed(Noise())
    start = w.flat.vector()
    _, (one,) = train(w, [1], params=start)
    _, (streamed,) = run(w, [1], context(), start, stream=9)
    assert streamed.tobytes() != one.tobytes()
    _, (ninth,) = train(w, [1], round=9, params=start)
    assert streamed.tobytes() == ninth.tobytes(), "the stream of round 9, by another name"


def test_a_block_and_a_client_alone_are_transformed_alike():
    """Clients without a step: their training is the same to the last bit, alone and in a block."""
    stacking = Stacking(clients=3, width=8, batchnorm=False)
    given = {"training": Training(batch_size=8, local_epochs=1)}
    one = transformed(Halved(), Noise(), **given)
    block = transformed(Halved(), Noise(), stacking=stacking, **given)
    start, ctx = one.flat.vector(), context(lr=0.0)
    states = {1: {"half.rest": np.full(len(start), 3.0, np.float32)}}
    work = tasks([0, 1, 2], ctx)
    assert [len(b) for b in block.spec.blocks(work)] == [3]
    found = []
    for w in (one, block):
        done = with_deltas(*w.run(w.spec.blocks(work), models(ctx, start), states))
        found.append({update.client_id: update for update in done})
    for client, update in found[0].items():
        other = found[1][client]
        assert np.abs(update.delta).max() > 0
        assert update.delta.tobytes() == other.delta.tobytes()
        assert update.wire_bytes == other.wire_bytes == 7 + client
        assert set(update.state) == set(other.state) == {"half.rest"}
        assert update.state["half.rest"].tobytes() == other.state["half.rest"].tobytes()


@pytest.mark.parametrize("stacked", [False, True])
def test_who_diverged_is_found_before_a_transform_can_hide_it(stacked):
    zeros = Zeros()
    stacking = Stacking(clients=3, width=8, batchnorm=False) if stacked else None
    w = transformed(zeros, rule=NaN(), stacking=stacking)
    ctx = context()
    reports, _ = w.run(w.spec.blocks(tasks(range(3), ctx)), models(ctx, w.flat.vector()), {})
    assert {r.client_id: r.diverged is not None for r in reports} == {0: False, 1: True, 2: False}
    assert zeros.seen == [0, 2]


def test_a_transform_that_makes_a_nan_is_found_too():
    reports, _ = train(transformed(Breaks()))
    assert [r.diverged is not None for r in reports] == [False, True, False]


def test_work_that_does_not_train_is_not_transformed():
    zeros = Zeros()
    w = transformed(zeros, finetune_epochs=1)
    for work in ("loss", "finetune"):
        w.run(alone([0], context(), work=work), models(context(), w.flat.vector()), {})
    assert zeros.seen == []


def test_kinds_of_work():
    own = Algorithm(local=Counts(), transforms=(Halved(),))
    training = Training(local_epochs=2)
    works = own.works(training)
    assert set(works) == {"train", "loss"}
    assert works["train"] == Work(
        rule=Counts(), training=training, trains=True, aggregated=True, transforms=(Halved(),)
    )
    assert set(own.works(training, 5)) == {"train", "loss", "finetune"}
    tuned = own.works(training, 5)["finetune"]
    assert (tuned.training.local_epochs, tuned.trains, tuned.transforms) == (5, True, ())
    assert type(tuned.rule) is LocalRule


def sending_halves() -> Algorithm:
    return Algorithm(transforms=(Halved(),))


@pytest.mark.integration
def test_bytes_of_a_coded_update_are_those_of_the_table(tmp_path):
    settings = config(f"{__name__}:sending_halves", "mlp")
    store, plain = fedsim.run(settings, tmp_path / "a"), fedsim.run(config("fedavg", "mlp"),
                                                                    tmp_path / "b")  # fmt: skip
    rounds, clients = store.read("rounds"), store.read("clients")
    for t, sent in enumerate(rounds["uplink_bytes"], start=1):
        cohort = clients["client_id"][clients["round"] == t]
        assert sent == sum(7 + client for client in cohort)
    assert rounds["downlink_bytes"].tolist() == plain.read("rounds")["downlink_bytes"].tolist()
    size = 4 * prepare(settings).layout.size
    assert plain.read("rounds")["uplink_bytes"].tolist() == [2 * size] * 3


def test_an_update_is_sent_as_it_is_by_default():
    update = ClientUpdate(client_id=0, num_samples=1, num_steps=1, delta=NO_DELTA)
    assert (update.wire_bytes, update.version) == (None, 0)


@dataclass(frozen=True)
class Remembers:
    """Sends nothing, and keeps the update as it came."""

    name: ClassVar[str] = "remembers"

    def __call__(self, delta, state, task, layout):
        with pytest.raises(ValueError, match="read-only"):
            delta[0] = 1.0
        return Coded(np.zeros_like(delta), {"last": delta})


def test_a_kept_update_is_a_copy_of_what_came():
    w = worker("fedavg")
    start = w.flat.vector()
    _, (plain,) = run(w, [1], context(), start)
    spec = replace(w.spec, algorithm=Algorithm(transforms=(Remembers(),)))
    (update,), (sent,) = run(Worker(spec, w.device), [1], context(), start)
    assert np.array_equal(update.state["remembers.last"], plain)
    assert plain.any()
    assert not sent.any()
