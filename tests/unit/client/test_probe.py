"""Users' models that remember more than their tensors: as plain PyTorch has it, or refused."""

from __future__ import annotations

import copy
import functools
import itertools
import random
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from fedsim.client import LocalRule
from fedsim.client.criterion import MarginControl
from fedsim.client.probe import fault
from fedsim.client.trainer import train_local
from fedsim.core.errors import ConfigError
from fedsim.core.layout import FlatModel
from fedsim.core.rng import torch_scope
from fedsim.core.types import ModelSpec, Training
from fedsim.models.registry import checked
from tests.unit.client.test_trainer import make_env

CPU = torch.device("cpu")
WIDTH = 12
SPEC = ModelSpec(name="my:net", num_classes=3, in_channels=1, image_size=2)


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


class Complex(Normalised):
    def more(self):
        self.w = nn.Parameter(torch.ones(WIDTH, dtype=torch.cfloat))

    def hidden(self, h):
        return (h * self.w).abs()


class Integer(Net):
    def more(self):
        self.order = nn.Parameter(torch.arange(WIDTH), requires_grad=False)

    def hidden(self, h):
        return h[:, self.order]


class Chooses(Net):
    def parameters(self, recurse=True):
        return self.b.parameters(recurse)


class Double(Net):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.double()

    def forward(self, x):
        return super().forward(x.double())


class Shared(Temperature):
    def more(self):
        self.t = nn.Parameter(torch.ones(WIDTH))
        self.v = nn.Parameter(self.t.data)


class Aliased(Temperature):
    def more(self):
        self.t = nn.Parameter(torch.ones(WIDTH))
        self.first = self.t.data[:6]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Complex, "the parameter w is complex64"),
        (Chooses, r"parameters\(\) gives others"),
        (Integer, "the parameter order is int64"),
        (Double, r"the parameter a\.weight is float64"),
        (Shared, "t and v share memory without being one tensor"),
        (Aliased, "(first and t|t and first) share memory"),
    ],
)
def test_tensors_that_cannot_be_trained_are_refused(model, said):
    with pytest.raises(ConfigError, match=f"model.name=my:net: .*{said}"):
        checked(model(), SPEC)


def test_the_first_pass_changes_nothing_of_a_model():
    model = checked(EvaluationCounts(), SPEC)
    assert model.seen == 0
