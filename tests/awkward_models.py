"""Models that do in ``forward`` what a simulator of many clients in one process may get wrong.

Each class is a model of its own, ``--model tests/awkward_models.py:NAME``: a linear layer and GELU,
what is awkward in :meth:`Net.middle`, another linear layer. ``MODELS`` has all of them by name.
"""

from __future__ import annotations

import copy
import functools
import itertools
import random
import threading
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

WIDTH = 12
EQUAL = "equal"
"""To plain PyTorch, whatever the engine."""
EITHER = "equal or refused"
REPEATS = "repeats"
"""Plain PyTorch draws other numbers, but all engines draw the same ones."""
REPEATS_OR_REFUSED = "repeats or refused"
REFUSED = "refused"
MODELS: dict[str, type[Net]] = {}


class Net(nn.Module):
    """Start weights are the same whatever was drawn before.

    Class keywords:
        expected: one of the above.
        names: what the message names where the model is refused, one of them.
    """

    expected: ClassVar[str]
    names: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, expected: str = EQUAL, names: str = "") -> None:
        cls.expected, cls.names = expected, tuple(names.split())
        MODELS[cls.__name__] = cls

    def __init__(self, num_classes: int, in_channels: int, image_size: int) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.a = nn.Linear(in_channels * image_size**2, WIDTH)
        self.b = nn.Linear(WIDTH, num_classes)
        self.setup()

    def setup(self) -> None:
        """What the model has beside its two layers."""

    def hidden(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, WIDTH)."""
        return F.gelu(self.a(x.flatten(1)))

    def middle(self, h: Tensor) -> Tensor:
        """(B, WIDTH) -> (B, WIDTH)."""
        return h

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, C) logits."""
        return self.b(self.middle(self.hidden(x)))


def mean(h: Tensor) -> Tensor:
    """(B, WIDTH) -> (WIDTH,) that no gradient flows through."""
    return h.detach().mean(0)


# Buffers.


class Ema(Net):
    """The usual way: in place."""

    def setup(self):
        self.register_buffer("ema", torch.zeros(WIDTH))

    def middle(self, h):
        if self.training:
            self.ema.mul_(0.5).add_(mean(h), alpha=0.5)
        return h - self.ema


class BufferReplaced(Net, expected=EITHER, names="ema"):
    def setup(self):
        self.register_buffer("ema", torch.zeros(WIDTH))

    def middle(self, h):
        if self.training:
            self.ema = 0.5 * self.ema + 0.5 * mean(h)
        return h - self.ema


class BufferResized(Net, expected=REFUSED, names="kept resize"):
    """Plain PyTorch cannot load what it saved either."""

    def setup(self):
        self.register_buffer("kept", torch.zeros(1))

    def middle(self, h):
        if self.training and self.kept.numel() == 1:
            self.kept = mean(h)
        return h - self.kept


class IntegerInPlace(Net):
    def setup(self):
        self.register_buffer("step", torch.tensor(0))

    def middle(self, h):
        if self.training:
            self.step += 1
        return h * (1 + 0.3 * self.step)


class NotPersistent(Net):
    """What is no part of the state begins anew with every client."""

    def setup(self):
        self.register_buffer("ema", torch.zeros(WIDTH), persistent=False)

    def middle(self, h):
        if self.training:
            self.ema.mul_(0.5).add_(mean(h), alpha=0.5)
        return h - self.ema


class CountsInEvaluation(Net, expected=EITHER, names="seen"):
    def setup(self):
        self.register_buffer("seen", torch.zeros(()))

    def middle(self, h):
        if not self.training:
            self.seen += 1
        return h * (1 + 0.5 * self.seen)


class ViewOfParameter(Net, expected=EITHER, names="mirror a.weight"):
    """A buffer in the parameter's memory follows it."""

    def setup(self):
        self.register_buffer("mirror", self.a.weight.detach())

    def middle(self, h):
        return h + 5 * self.mirror.mean(1)


class MemoryBank(Net):
    """A queue with a pointer."""

    def setup(self):
        self.register_buffer("bank", torch.zeros(4, WIDTH))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def middle(self, h):
        if self.training:
            self.bank[self.pointer] = mean(h)
            self.pointer[0] = (self.pointer + 1) % 4
        return h - self.bank.mean(0)


class ActNorm(Net):
    """The first batch initialises parameters."""

    def setup(self):
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.register_buffer("ready", torch.tensor(0, dtype=torch.uint8))

    def middle(self, h):
        if self.training and not self.ready:
            self.shift.data.copy_(-mean(h))
            self.ready.fill_(1)
        return h + self.shift


# Parameters.


class ParameterReplaced(Net, expected=EITHER, names="w"):
    def setup(self):
        self.w = nn.Parameter(torch.ones(WIDTH))

    def middle(self, h):
        if self.training:
            self.w = nn.Parameter(0.7 * self.w.detach())
        return h * self.w


class ParameterInPlace(Net):
    def setup(self):
        self.w = nn.Parameter(torch.ones(WIDTH))

    def middle(self, h):
        if self.training:
            with torch.no_grad():
                self.w.mul_(0.7)
        return h * self.w


class LazyLayer(Net, expected=REPEATS_OR_REFUSED, names="a"):
    def setup(self):
        self.a = nn.LazyLinear(WIDTH)


class FixedParameter(Net):
    def setup(self):
        self.w = nn.Parameter(torch.randn(WIDTH, WIDTH), requires_grad=False)

    def middle(self, h):
        return h @ self.w


class Unused(Net):
    def setup(self):
        self.unused = nn.Linear(WIDTH, 3)


class Tied(Net):
    def setup(self):
        self.c, self.d = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.d.weight = self.c.weight

    def middle(self, h):
        return self.d(torch.tanh(self.c(h)))


class InTurns(Net):
    """Branches that take turns: momentum of one stays while the other trains."""

    def setup(self):
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("step", torch.tensor(0))

    def middle(self, h):
        if not self.training:
            return self.one(h) + self.two(h)
        self.step += 1
        return (self.one if self.step % 2 else self.two)(h)


class Experts(Net):
    """Each sample goes to one of three, the last of which few clients need."""

    def setup(self):
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        h, ink = self.hidden(x), torch.round((x + 1).sum((1, 2, 3)) * 127.5)  # a whole number
        out = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            own = torch.bucketize(ink, torch.tensor([4800.5, 7000.5], dtype=x.dtype)) == number
            if own.any():
                out[own] = expert(h[own])
        return self.b(out)


class MomentumEncoder(Net):
    """A copy that follows the trained layer in place."""

    def setup(self):
        self.target = copy.deepcopy(self.a).requires_grad_(False)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                for old, new in zip(self.target.parameters(), self.a.parameters(), strict=True):
                    old.lerp_(new, 0.3)
        return self.b(self.hidden(x) - 0.5 * F.gelu(self.target(x.flatten(1))))


class GradientHook(Net):
    def setup(self):
        self.a.weight.register_hook(lambda gradient: 3 * gradient)


# What is no part of a module's state.


class Attribute(Net, expected=EITHER, names="ema"):
    def setup(self):
        self.ema = torch.zeros(WIDTH)

    def middle(self, h):
        if self.training:
            self.ema = 0.5 * self.ema + 0.5 * mean(h)
        return h - self.ema


class FirstBatch(Net, expected=EITHER, names="ready"):
    """The first batch initialises a parameter, and a plain flag says that it did."""

    def setup(self):
        self.shift, self.ready = nn.Parameter(torch.zeros(WIDTH)), False

    def middle(self, h):
        if self.training and not self.ready:
            self.shift.data.copy_(-mean(h))
            self.ready = True
        return h + self.shift


class DroppedCache(Net):
    """As networks of timm do: kept in evaluation mode, dropped by train() and eval()."""

    def setup(self):
        self.table, self.kept = nn.Parameter(3 * torch.randn(5, WIDTH)), None

    def train(self, mode=True):
        super().train(mode)
        self.kept = None
        return self

    def bias(self):
        i = torch.arange(WIDTH)
        if self.training:
            return self.table[i % 5, i]
        if self.kept is None:
            self.kept = self.table[i % 5, i]
        return self.kept

    def middle(self, h):
        return h + self.bias()


class KeptCache(Net, expected=EITHER, names="kept"):
    """Nothing drops it when weights are loaded."""

    def setup(self):
        self.w, self.kept = nn.Parameter(torch.ones(WIDTH)), None

    def middle(self, h):
        if self.training:
            return h * self.w
        if self.kept is None:
            self.kept = 2 * self.w.detach()
        return h * (self.kept - self.w)


class Unregistered(Net, expected=EITHER, names="extra ema"):
    """A module that nobody knows of."""

    def setup(self):
        self.extra = [nn.Module()]
        self.extra[0].register_buffer("ema", torch.zeros(WIDTH))

    def middle(self, h):
        ema = self.extra[0].ema
        if self.training:
            ema.mul_(0.5).add_(mean(h), alpha=0.5)
        return h - ema


class ShapeCache(Net):
    """What depends on the shape alone may be kept."""

    def setup(self):
        self.cache = {}

    def middle(self, h):
        if len(h) not in self.cache:
            self.cache[len(h)] = torch.linspace(0.5, 1.5, h.shape[1])
        return h * self.cache[len(h)]


@functools.cache
def doubled(module):
    """(WIDTH,) as the weight was at the first call."""
    return 2 * module.w.detach()


class StaleLruCache(Net, expected=EITHER):
    def setup(self):
        self.w = nn.Parameter(torch.ones(WIDTH))

    def middle(self, h):
        return 3 * h * (doubled(self) - self.w)


class NotCopied(Net):
    """copy.deepcopy and pickle refuse a lock."""

    def setup(self):
        self.lock = threading.Lock()

    def middle(self, h):
        with self.lock:
            return 2 * h


CALLS = itertools.count(1)


class OfTheProcess(Net, expected=REPEATS_OR_REFUSED):
    """A counter of all models of a process."""

    def middle(self, h):
        return h * (1 + 0.1 * next(CALLS)) if self.training else h


# Layers that have state or hooks of their own.


class FrozenBatchNorm(Net):
    """In evaluation mode whatever the model's is."""

    def setup(self):
        self.bn = nn.BatchNorm1d(WIDTH)

    def train(self, mode=True):
        super().train(mode)
        if hasattr(self, "bn"):
            self.bn.eval()
        return self

    def middle(self, h):
        return self.bn(h)


class PlainBatchNorm(Net):
    def setup(self):
        self.bn = nn.BatchNorm1d(WIDTH)

    def middle(self, h):
        return self.bn(h)


class InstanceNorm(Net):
    def setup(self):
        self.a = nn.Conv2d(1, WIDTH, 3)
        self.norm = nn.InstanceNorm2d(WIDTH, affine=True, track_running_stats=True)

    def hidden(self, x):
        return F.gelu(self.norm(self.a(x))).mean((2, 3))


class WeightNorm(Net):
    def setup(self):
        self.a = parametrizations.weight_norm(self.a)


class Lstm(Net):
    def setup(self):
        self.a = nn.LSTM(8, WIDTH, batch_first=True)

    def hidden(self, x):
        return self.a(x.squeeze(1))[0][:, -1]


class Transformer(Net):
    def setup(self):
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, F.gelu, batch_first=True)
        self.encoder, self.a = nn.TransformerEncoder(layer, 1), nn.Linear(64, WIDTH)

    def hidden(self, x):
        return super().hidden(self.encoder(x.squeeze(1)))


class Checkpointed(Net):
    def setup(self):
        self.c = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def middle(self, h):
        return checkpoint(self.c, h, use_reentrant=False)


# Random numbers.


class Dropout(Net, expected=REPEATS):
    def setup(self):
        self.drop = nn.Dropout(0.4)

    def middle(self, h):
        return self.drop(h)


class MonteCarlo(Net, expected=REPEATS):
    """Dropout that train(False) does not end."""

    def setup(self):
        self.drop = nn.Dropout(0.4)

    def train(self, mode=True):
        super().train(mode)
        if hasattr(self, "drop"):
            self.drop.train()
        return self

    def middle(self, h):
        return self.drop(h)


class PythonRandom(Net, expected=REPEATS):
    def middle(self, h):
        return 2 * h if self.training and random.random() < 0.5 else h


class RandomInEvaluation(Net, expected=REPEATS):
    def middle(self, h):
        drawn = random.random() + np.random.rand()  # noqa: NPY002
        return h if self.training else h * (1 + drawn)


class Entropy(Net, expected=REPEATS_OR_REFUSED, names="generator"):
    """A generator that nobody can seed."""

    def setup(self):
        self.generator = np.random.default_rng()

    def middle(self, h):
        return h * (0.5 + self.generator.random()) if self.training else h
