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
import warnings
from collections import Counter
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
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


class BufferReplacedInEvaluation(Net, expected=EITHER, names="seen"):
    """The first batch of an evaluation decides about those that follow."""

    def setup(self):
        self.register_buffer("seen", torch.zeros(WIDTH))

    def middle(self, h):
        if not self.training:
            self.seen = 0.5 * self.seen + 0.5 * mean(h)
        return h - self.seen


class DataReplaced(Net, expected=EITHER, names="ema"):
    """The tensor stays the same object, its memory does not."""

    def setup(self):
        self.register_buffer("ema", torch.zeros(WIDTH))

    def middle(self, h):
        if self.training:
            self.ema.data = 0.5 * self.ema + 0.5 * mean(h)
        return h - self.ema


class BufferResized(Net, expected=REFUSED, names="kept resize"):
    """Plain PyTorch cannot load what it saved either."""

    def setup(self):
        self.register_buffer("kept", torch.zeros(1))

    def middle(self, h):
        if self.training and self.kept.numel() == 1:
            self.kept = mean(h)
        return h - self.kept


class BufferResizedInPlace(Net, expected=REFUSED, names="kept resize"):
    def setup(self):
        self.register_buffer("kept", torch.zeros(1))

    def middle(self, h):
        if self.training and self.kept.numel() == 1:
            self.kept.resize_(WIDTH).copy_(mean(h))
        return h - self.kept


class IntegerInPlace(Net):
    def setup(self):
        self.register_buffer("step", torch.tensor(0))

    def middle(self, h):
        if self.training:
            self.step += 1
        return h * (1 + 0.3 * self.step)


class IntegerReplaced(Net, expected=EITHER, names="step"):
    def setup(self):
        self.register_buffer("step", torch.tensor(0))

    def middle(self, h):
        if self.training:
            self.step = self.step + 1
        return h * (1 + 0.3 * self.step)


class BoolInPlace(Net):
    def setup(self):
        self.register_buffer("odd", torch.tensor(False))

    def middle(self, h):
        if self.training:
            self.odd.logical_not_()
        return torch.where(self.odd, 2 * h, h)


class NotPersistent(Net):
    """What is no part of the state begins anew with every client."""

    def setup(self):
        self.register_buffer("ema", torch.zeros(WIDTH), persistent=False)

    def middle(self, h):
        if self.training:
            self.ema.mul_(0.5).add_(mean(h), alpha=0.5)
        return h - self.ema


class NotPersistentReplaced(Net, expected=EITHER, names="ema"):
    def setup(self):
        self.register_buffer("ema", torch.zeros(WIDTH), persistent=False)

    def middle(self, h):
        if self.training:
            self.ema = 0.5 * self.ema + 0.5 * mean(h)
        return h - self.ema


class ComplexBuffer(Net, expected=EITHER, names="phase"):
    def setup(self):
        self.register_buffer("phase", torch.ones(WIDTH, dtype=torch.complex64))

    def middle(self, h):
        if self.training:
            self.phase.mul_(0.6 + 0.8j)
        return h * (2 + self.phase.real)


class DoubleBuffer(Net, expected=EITHER, names="total"):
    def setup(self):
        self.register_buffer("total", torch.zeros(WIDTH, dtype=torch.float64))

    def middle(self, h):
        if self.training:
            self.total.mul_(0.5).add_(mean(h), alpha=0.5)
        return h - self.total.to(h.dtype)


class CountsInEvaluation(Net, expected=EITHER, names="seen"):
    def setup(self):
        self.register_buffer("seen", torch.zeros(()))

    def middle(self, h):
        if not self.training:
            self.seen += 1
        return h * (1 + 0.5 * self.seen)


class AliasedBuffers(Net):
    """One tensor by two names."""

    def setup(self):
        self.register_buffer("ema", torch.zeros(WIDTH))
        self.register_buffer("again", self.ema)

    def middle(self, h):
        if self.training:
            self.ema.mul_(0.5).add_(mean(h), alpha=0.5)
        return h - self.again


class ParameterAsBuffer(Net, expected=EITHER, names="mirror a.weight"):
    def setup(self):
        self.register_buffer("mirror", self.a.weight)

    def middle(self, h):
        return h + 5 * self.mirror.mean(1)


class ViewOfParameter(Net, expected=EITHER, names="mirror a.weight"):
    """A buffer in the parameter's memory follows it."""

    def setup(self):
        self.register_buffer("mirror", self.a.weight.detach())

    def middle(self, h):
        return h + 5 * self.mirror.mean(1)


class ViewOfBuffer(Net, expected=EITHER, names="half ema"):
    def setup(self):
        self.register_buffer("ema", torch.zeros(WIDTH))
        self.register_buffer("half", self.ema[: WIDTH // 2])

    def middle(self, h):
        if self.training:
            self.ema.mul_(0.5).add_(mean(h), alpha=0.5)
        return h - self.half.repeat(2)


class BufferWithGradient(Net, expected=EITHER, names="w"):
    """Which no optimiser trains."""

    def setup(self):
        self.register_buffer("w", torch.ones(WIDTH, requires_grad=True))

    def middle(self, h):
        return h * self.w


class NoBuffer(Net):
    def setup(self):
        self.register_buffer("nothing", None)

    def middle(self, h):
        return h if self.nothing is None else h + self.nothing


class BufferFromNothing(Net, expected=EITHER, names="first"):
    def setup(self):
        self.register_buffer("first", None)

    def middle(self, h):
        if self.training and self.first is None:
            self.first = mean(h)
        return h if self.first is None else h - self.first


class TableFromNothing(Net, expected=EITHER, names="table"):
    """A table that depends on nothing that is trained, made when it is first needed."""

    def setup(self):
        self.register_buffer("table", None, persistent=False)

    def middle(self, h):
        if self.table is None:
            self.table = torch.linspace(0.5, 1.5, WIDTH)
        return h * self.table


class InfiniteMask(Net, expected=EITHER, names="mask"):
    """As of causal attention."""

    def setup(self):
        self.register_buffer("mask", torch.full((WIDTH, WIDTH), -torch.inf).triu(1))

    def middle(self, h):
        return h @ torch.softmax(self.mask, 1)


class InfiniteMaskNotPersistent(Net):
    def setup(self):
        mask = torch.full((WIDTH, WIDTH), -torch.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def middle(self, h):
        return h @ torch.softmax(self.mask, 1)


class LargestMask(Net):
    def setup(self):
        lowest = torch.finfo(torch.float32).min
        self.register_buffer("mask", torch.full((WIDTH, WIDTH), lowest).triu(1))

    def middle(self, h):
        return h @ torch.softmax(self.mask, 1)


class Codebook(Net):
    """Moving averages of the samples of each code, which is their quotient."""

    def setup(self):
        self.register_buffer("count", torch.ones(4))
        self.register_buffer("total", torch.rand(4, WIDTH))

    def middle(self, h):
        codes = self.total / self.count[:, None]
        share = torch.softmax(-torch.cdist(h.detach(), codes), 1)
        if self.training:
            self.count.data.mul_(0.7).add_(share.mean(0), alpha=0.3)
            self.total.data.mul_(0.7).add_(share.T @ h.detach() / len(h), alpha=0.3)
        quantised = share @ (self.total / self.count[:, None])
        return 0.5 * (h + (quantised - h).detach()) + 0.5 * h


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


class ParameterDataReplaced(Net, expected=EITHER, names="w"):
    def setup(self):
        self.w = nn.Parameter(torch.ones(WIDTH))

    def middle(self, h):
        if self.training:
            self.w.data = 0.7 * self.w.data
        return h * self.w


class ParameterInPlace(Net):
    def setup(self):
        self.w = nn.Parameter(torch.ones(WIDTH))

    def middle(self, h):
        if self.training:
            with torch.no_grad():
                self.w.mul_(0.7)
        return h * self.w


class ParameterInForward(Net, expected=REPEATS_OR_REFUSED, names="w"):
    def middle(self, h):
        if not hasattr(self, "w"):
            self.w = nn.Parameter(torch.ones(WIDTH))
        return h * self.w


class LazyLayer(Net, expected=REPEATS_OR_REFUSED, names="a"):
    def setup(self):
        self.a = nn.LazyLinear(WIDTH)


class ComplexParameter(Net, expected=EITHER, names="filter"):
    def setup(self):
        ramp = torch.linspace(-1, 1, WIDTH, dtype=torch.float32)
        self.filter = nn.Parameter(torch.complex(1 + ramp, 2 * ramp))

    def middle(self, h):
        return torch.fft.ifft(torch.fft.fft(h) * self.filter).real


class DoubleModel(Net, expected=EITHER, names="a.weight b.weight float64"):
    def setup(self):
        self.double()

    def hidden(self, x):
        return super().hidden(x.double())


class HalfParameter(Net, expected=EITHER, names="w"):
    """Of bfloat16, whose updates are rounded to three digits."""

    def setup(self):
        self.w = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH).bfloat16())

    def middle(self, h):
        return h * self.w


class IntegerParameter(Net, expected=EITHER, names="order"):
    def setup(self):
        self.order = nn.Parameter(torch.arange(WIDTH).flip(0), requires_grad=False)

    def middle(self, h):
        return h[:, self.order]


class ScalarParameter(Net):
    def setup(self):
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def middle(self, h):
        return h / self.temperature


class NoParameter(Net):
    def setup(self):
        self.register_parameter("nothing", None)

    def middle(self, h):
        return h if self.nothing is None else h + self.nothing


class EmptyParameter(Net):
    def setup(self):
        self.nothing = nn.Parameter(torch.empty(0))

    def middle(self, h):
        return h + self.nothing.sum()


class NotContiguous(Net):
    def setup(self):
        self.w = nn.Parameter(torch.randn(WIDTH, WIDTH).t())

    def middle(self, h):
        return h @ self.w


class ViewsOfOneTensor(Net):
    """Parameters that share memory without overlap."""

    def setup(self):
        base = torch.ones(2 * WIDTH)
        self.scale, self.shift = nn.Parameter(base[:WIDTH]), nn.Parameter(base[WIDTH:])

    def middle(self, h):
        return h * self.scale + self.shift


class FixedParameter(Net):
    def setup(self):
        self.w = nn.Parameter(torch.randn(WIDTH, WIDTH), requires_grad=False)

    def middle(self, h):
        return h @ self.w


class NothingTrains(Net, expected=REFUSED, names="trained"):
    def setup(self):
        self.requires_grad_(False)


class Unused(Net):
    def setup(self):
        self.unused = nn.Linear(WIDTH, 3)


class Tied(Net):
    def setup(self):
        self.c, self.d = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.d.weight = self.c.weight

    def middle(self, h):
        return self.d(torch.tanh(self.c(h)))


class TwiceRegistered(Net):
    def setup(self):
        self.c = nn.Linear(WIDTH, WIDTH)
        self.again = self.c

    def middle(self, h):
        return self.again(torch.tanh(self.c(h)))


class Lists(Net):
    """ParameterList and ParameterDict."""

    def setup(self):
        self.shifts = nn.ParameterList([torch.zeros(WIDTH), torch.ones(WIDTH)])
        self.scales = nn.ParameterDict({"x": torch.ones(WIDTH), "y": torch.ones(1)})

    def middle(self, h):
        for shift in self.shifts:
            h = h * self.scales["x"] + shift
        return h * self.scales["y"]


class SequentialHead(Net):
    def setup(self):
        self.head = nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, WIDTH))

    def middle(self, h):
        return self.head(h)


class Sparse(Net, expected=EITHER, names="table"):
    """Rows of a table by the brightness of an image's quarter."""

    def setup(self):
        self.table = nn.Embedding(16, WIDTH, sparse=True)

    def forward(self, x):
        levels = (x.unfold(2, 4, 4).unfold(3, 4, 4).mean((1, 4, 5)).flatten(1) * 8 + 8.01).long()
        return self.b(self.hidden(x) + self.table(levels.clamp(0, 15)).sum(1))


class SparseBag(Net, expected=EITHER, names="table"):
    def setup(self):
        self.table = nn.EmbeddingBag(16, WIDTH, mode="sum", sparse=True)

    def forward(self, x):
        levels = (x.unfold(2, 4, 4).unfold(3, 4, 4).mean((1, 4, 5)).flatten(1) * 8 + 8.01).long()
        return self.b(self.hidden(x) + self.table(levels.clamp(0, 15)))


class ByParity(Net):
    """A branch that only batches of an odd size use."""

    def setup(self):
        self.even, self.odd = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def middle(self, h):
        if not self.training:
            return self.even(h) + self.odd(h)
        return (self.odd if len(h) % 2 else self.even)(h)


class BySize(Net):
    """A branch that only large batches use."""

    def setup(self):
        self.small, self.large = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def middle(self, h):
        if not self.training:
            return self.small(h) + self.large(h)
        return (self.large if len(h) > 140 else self.small)(h)


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


class TargetReplaced(Net, expected=EITHER, names="target"):
    """A copy that becomes the trained layer's copy."""

    def setup(self):
        self.target = copy.deepcopy(self.a).requires_grad_(False)

    def forward(self, x):
        if self.training:
            self.target = copy.deepcopy(self.a).requires_grad_(False)
        return self.b(self.hidden(x) - 0.5 * F.gelu(self.target(x.flatten(1))))


class FreezesItself(Net, expected=EITHER, names="c"):
    """A layer that trains in the first step only."""

    def setup(self):
        self.c = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("step", torch.tensor(0))

    def middle(self, h):
        if self.training:
            self.step += 1
            self.c.requires_grad_(bool(self.step == 1))
        return self.c(h)


class ChoosesParameters(Net, expected=EITHER, names="parameters"):
    """Only what ``parameters`` returns is for the optimiser."""

    def parameters(self, recurse=True):
        return self.b.parameters(recurse)


class Clipped(Net):
    """Weights are clipped in place before each forward pass."""

    def setup(self):
        self.register_forward_pre_hook(self.clip)

    @staticmethod
    def clip(module, _):
        with torch.no_grad():
            module.a.weight.clamp_(-0.06, 0.06)


class GradientHook(Net):
    def setup(self):
        self.a.weight.register_hook(lambda gradient: 3 * gradient)


class BackwardHook(Net):
    def setup(self):
        self.c = nn.Linear(WIDTH, WIDTH)
        self.c.register_full_backward_hook(lambda _module, into, _out: (0.2 * into[0],))

    def middle(self, h):
        return self.c(h)


class TensorHook(Net):
    """On the features' gradient."""

    def middle(self, h):
        if h.requires_grad:
            h.register_hook(lambda gradient: 3 * gradient)
        return h


class Reversal(torch.autograd.Function):
    """A function with a backward pass of its own."""

    @staticmethod
    def forward(ctx, x):
        """The same."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        """The other way."""
        return -gradient


class GradientReversal(Net):
    def middle(self, h):
        return Reversal.apply(h)


class GradientInForward(Net):
    """The features' gradient of an energy is a feature."""

    def setup(self):
        self.energy = nn.Linear(WIDTH, WIDTH)

    def middle(self, h):
        with torch.enable_grad():
            z = h if h.requires_grad else h.requires_grad_()
            energy = torch.tanh(self.energy(z)).square().sum()
            (gradient,) = torch.autograd.grad(energy, z, create_graph=self.training)
        return h - gradient


class ForwardHook(Net):
    def setup(self):
        self.a.register_forward_hook(lambda _module, _in, out: 0.5 * out)


# What is no part of a module's state.


class Attribute(Net, expected=EITHER, names="ema"):
    def setup(self):
        self.ema = torch.zeros(WIDTH)

    def middle(self, h):
        if self.training:
            self.ema = 0.5 * self.ema + 0.5 * mean(h)
        return h - self.ema


class AttributeInPlace(Net, expected=EITHER, names="ema"):
    def setup(self):
        self.ema = torch.zeros(WIDTH)

    def middle(self, h):
        if self.training:
            self.ema.mul_(0.5).add_(mean(h), alpha=0.5)
        return h - self.ema


class PythonCounter(Net, expected=EITHER, names="calls"):
    def setup(self):
        self.calls = 0

    def middle(self, h):
        self.calls += self.training
        return h * (1 + 0.3 * self.calls)


class EvaluationCounter(Net, expected=EITHER, names="calls"):
    def setup(self):
        self.calls = 0

    def middle(self, h):
        self.calls += not self.training
        return h * (1 + 0.3 * self.calls)


class FirstBatch(Net, expected=EITHER, names="ready"):
    """The first batch initialises a parameter, and a plain flag says that it did."""

    def setup(self):
        self.shift, self.ready = nn.Parameter(torch.zeros(WIDTH)), False

    def middle(self, h):
        if self.training and not self.ready:
            self.shift.data.copy_(-mean(h))
            self.ready = True
        return h + self.shift


class ListOfPast(Net, expected=EITHER, names="past"):
    def setup(self):
        self.past = []

    def middle(self, h):
        if self.training:
            self.past.append(mean(h))
        return h - sum(self.past) / max(len(self.past), 1)


class Nested(Net, expected=EITHER, names="stats"):
    def setup(self):
        self.stats = {"of": [torch.zeros(WIDTH)]}

    def middle(self, h):
        if self.training:
            self.stats["of"][0] = 0.5 * self.stats["of"][0] + 0.5 * mean(h)
        return h - self.stats["of"][0]


class WarmUp(Net, expected=EITHER, names="stats"):
    """What is no part of the state changes from the second step of a client."""

    def setup(self):
        self.register_buffer("step", torch.tensor(0))
        self.stats = self.make()

    def make(self):
        return SimpleNamespace(ema=torch.zeros(WIDTH))

    def change(self, h):
        self.stats.ema.mul_(0.5).add_(mean(h), alpha=0.5)

    def read(self, h):
        return h - self.stats.ema

    def middle(self, h):
        if self.training:
            self.step += 1
            if self.step > 1:
                self.change(h)
        return self.read(h)


class WarmUpNested(WarmUp, expected=EITHER, names="stats"):
    def make(self):
        return {"of": [torch.zeros(WIDTH)]}

    def change(self, h):
        self.stats["of"][0].mul_(0.5).add_(mean(h), alpha=0.5)

    def read(self, h):
        return h - self.stats["of"][0]


class WarmUpCounter(WarmUp, expected=EITHER, names="stats"):
    def make(self):
        return Counter()

    def change(self, h):
        self.stats["calls"] += 1

    def read(self, h):
        return h * (1 + 0.3 * self.stats["calls"])


class WarmUpGenerator(WarmUp, expected=EITHER, names="stats"):
    def make(self):
        return np.random.default_rng(0)

    def change(self, h):
        self.drawn = self.stats.random()

    def read(self, h):
        return h * (1 + getattr(self, "drawn", 0) * self.training)


class WarmUpClosure(WarmUp, expected=EITHER):
    def make(self):
        calls = []
        return lambda more=0: calls.extend([1] * more) or len(calls)

    def change(self, h):
        self.stats(1)

    def read(self, h):
        return h * (1 + 0.3 * self.stats())


class OfSubmodule(Net, expected=EITHER, names="momentum"):
    """The momentum of a BatchNorm falls with each batch."""

    def setup(self):
        self.bn = nn.BatchNorm1d(WIDTH, momentum=0.9)

    def middle(self, h):
        if self.training:
            self.bn.momentum *= 0.5
        return self.bn(h)


class Closure(Net, expected=EITHER):
    def setup(self):
        calls = []
        self.a.register_forward_pre_hook(lambda module, _: calls.append(module.training))
        self.count = lambda: sum(calls)

    def middle(self, h):
        return h * (1 + 0.3 * self.count())


class ExtraState(Net):
    def get_extra_state(self):
        return {"version": 2}

    def set_extra_state(self, state):
        assert state == {"version": 2}


class ExtraCounter(Net, expected=EITHER, names="calls"):
    def setup(self):
        self.calls = 0

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]

    def middle(self, h):
        self.calls += self.training
        return h * (1 + 0.3 * self.calls)


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


class Attention(Net):
    """Attention with relative positions, whose biases are cached in evaluation mode by device."""

    def setup(self):
        del self.a
        self.embed, self.qkv = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.biases = nn.Parameter(torch.randn(15))
        position = torch.arange(8)
        index = position[:, None] - position + 7
        self.register_buffer("index", index, persistent=False)
        self.cache = {}

    def train(self, mode=True):
        super().train(mode)
        if mode and getattr(self, "cache", None):
            self.cache = {}
        return self

    def bias(self, device):
        if self.training:
            return self.biases[self.index]
        if str(device) not in self.cache:
            self.cache[str(device)] = self.biases[self.index]
        return self.cache[str(device)]

    def hidden(self, x):
        q, k, v = self.qkv(self.embed(x.squeeze(1))).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / WIDTH**0.5 + self.bias(x.device)
        return (scores.softmax(-1) @ v).mean(1)


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


class CachedProperty(Net, expected=EITHER, names="twice"):
    def setup(self):
        self.w = nn.Parameter(torch.ones(WIDTH))

    @functools.cached_property
    def twice(self):
        return 2 * self.w.detach()

    def middle(self, h):
        return 3 * h * (self.twice - self.w)


class VersionCache(Net, expected=EITHER, names="kept version"):
    """Kept until PyTorch says that the parameter was written to."""

    def setup(self):
        self.w, self.kept, self.version = nn.Parameter(torch.ones(WIDTH)), None, None

    def middle(self, h):
        if self.version != self.w._version:
            self.kept, self.version = 2 * self.w.detach(), self.w._version
        return 3 * h * (self.kept - 0.5 * self.w)


class DerivedOnLoad(Net, expected=EITHER, names="twice"):
    """What follows from a parameter is computed when a state is loaded, and not later."""

    def setup(self):
        self.w = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("twice", 2 * self.w.detach(), persistent=False)
        self.register_load_state_dict_post_hook(lambda module, _: module.derive())

    def derive(self):
        with torch.no_grad():
            self.twice.copy_(2 * self.w)

    def middle(self, h):
        return 3 * h * (self.twice - 0.5 * self.w)


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


class HiddenTeacher(Net):
    """A fixed module that nobody knows of."""

    def setup(self):
        self.teacher = [nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)]
        nn.init.eye_(self.teacher[0].weight)

    def middle(self, h):
        return h + self.teacher[0](h)


class ShapeCache(Net):
    """What depends on the shape alone may be kept."""

    def setup(self):
        self.cache = {}

    def middle(self, h):
        if len(h) not in self.cache:
            self.cache[len(h)] = torch.linspace(0.5, 1.5, h.shape[1])
        return h * self.cache[len(h)]


@functools.lru_cache
def ramp(width, dtype):
    """(width,) between 0.5 and 1.5."""
    return torch.linspace(0.5, 1.5, width, dtype=dtype)


class LruCache(Net):
    def middle(self, h):
        return h * ramp(WIDTH, h.dtype)


@functools.cache
def doubled(module):
    """(WIDTH,) as the weight was at the first call."""
    return 2 * module.w.detach()


class StaleLruCache(Net, expected=EITHER):
    def setup(self):
        self.w = nn.Parameter(torch.ones(WIDTH))

    def middle(self, h):
        return 3 * h * (doubled(self) - self.w)


class Stash(Net):
    """Keeps the last features, with their graph, for whoever wants to see them."""

    def middle(self, h):
        self.last = h
        return h


class ModeInForward(Net, expected=EITHER, names="bn training"):
    """BatchNorm trains on the first batch only."""

    def setup(self):
        self.bn = nn.BatchNorm1d(WIDTH)

    def middle(self, h):
        out = self.bn(h)
        self.bn.eval()
        return out


class InputInPlace(Net):
    def hidden(self, x):
        return super().hidden(x.mul_(0.5).add_(0.1))


class NotCopied(Net):
    """copy.deepcopy and pickle refuse a lock."""

    def setup(self):
        self.lock = threading.Lock()

    def middle(self, h):
        with self.lock:
            return 2 * h


class LambdaAttribute(Net):
    def setup(self):
        self.activation = lambda h: torch.sin(h)

    def middle(self, h):
        return self.activation(h)


CALLS = itertools.count(1)


class OfTheProcess(Net, expected=REPEATS_OR_REFUSED):
    """A counter of all models of a process."""

    def middle(self, h):
        return h * (1 + 0.1 * next(CALLS)) if self.training else h


class OfTheClass(Net, expected=REPEATS_OR_REFUSED):
    calls: ClassVar[int] = 0

    def middle(self, h):
        type(self).calls += self.training
        return h * (1 + 0.1 * self.calls) if self.training else h


class OfTheFunction(Net, expected=REPEATS_OR_REFUSED):
    """A default value that is the same list at every call."""

    def middle(self, h, past=[]):  # noqa: B006
        past.append(0)
        return h * (1 + 0.1 * len(past)) if self.training else h


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


class FrozenConvolutional(Net):
    def setup(self):
        self.a, self.bn = nn.Conv2d(1, WIDTH, 3), nn.BatchNorm2d(WIDTH)

    def train(self, mode=True):
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    def hidden(self, x):
        return F.gelu(self.bn(self.a(x))).mean((2, 3))


class PlainBatchNorm(Net):
    def setup(self):
        self.bn = nn.BatchNorm1d(WIDTH)

    def middle(self, h):
        return self.bn(h)


class CumulativeBatchNorm(Net):
    def setup(self):
        self.bn = nn.BatchNorm1d(WIDTH, momentum=None)

    def middle(self, h):
        return self.bn(h)


class BatchNormWithoutWeights(Net):
    def setup(self):
        self.bn = nn.BatchNorm1d(WIDTH, affine=False)

    def middle(self, h):
        return self.bn(h)


class BatchNormWithoutStatistics(Net):
    def setup(self):
        self.bn = nn.BatchNorm1d(WIDTH, track_running_stats=False)

    def middle(self, h):
        return self.bn(h)


class Scaled(nn.BatchNorm1d):
    """A BatchNorm with a forward pass of its own."""

    def forward(self, x):
        """(B, d) -> (B, d)."""
        return 0.5 * super().forward(x)


class OwnBatchNorm(Net):
    def setup(self):
        self.bn = Scaled(WIDTH)

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


class HookedWeightNorm(Net):
    """The older one, which sets an attribute before each forward pass."""

    def setup(self):
        with warnings.catch_warnings(action="ignore"):
            self.a = nn.utils.weight_norm(self.a)


class SpectralNorm(Net):
    def setup(self):
        self.a = parametrizations.spectral_norm(self.a)


class HookedSpectralNorm(Net):
    def setup(self):
        with warnings.catch_warnings(action="ignore"):
            self.a = nn.utils.spectral_norm(self.a)


class Orthogonal(Net):
    def setup(self):
        self.c = parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH))

    def middle(self, h):
        return self.c(h)


class Pruned(Net):
    def setup(self):
        prune.l1_unstructured(self.a, "weight", 0.4)


class Lstm(Net):
    def setup(self):
        self.a = nn.LSTM(8, WIDTH, batch_first=True)

    def hidden(self, x):
        return self.a(x.squeeze(1))[0][:, -1]


class Gru(Net):
    def setup(self):
        self.a = nn.GRU(8, WIDTH, batch_first=True, bidirectional=True)

    def hidden(self, x):
        return self.a(x.squeeze(1))[0][:, -1, :WIDTH]


class Transformer(Net):
    def setup(self):
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, F.gelu, batch_first=True)
        self.encoder, self.a = nn.TransformerEncoder(layer, 1), nn.Linear(64, WIDTH)

    def hidden(self, x):
        return super().hidden(self.encoder(x.squeeze(1)))


class Scripted(Net):
    def setup(self):
        with warnings.catch_warnings(action="ignore"):
            self.c = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))

    def middle(self, h):
        return self.c(h)


class Checkpointed(Net):
    def setup(self):
        self.c = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def middle(self, h):
        return checkpoint(self.c, h, use_reentrant=False)


class CheckpointedBatchNorm(Net):
    """Its statistics move twice in each step."""

    def setup(self):
        self.c = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))

    def middle(self, h):
        return checkpoint(self.c, h, use_reentrant=False)


# Random numbers.


class Dropout(Net, expected=REPEATS):
    def setup(self):
        self.drop = nn.Dropout(0.4)

    def middle(self, h):
        return self.drop(h)


class DropoutAlways(Net, expected=REPEATS):
    def middle(self, h):
        return F.dropout(h, 0.4)


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


class NumpyRandom(Net, expected=REPEATS):
    def middle(self, h):
        return h * (1 + np.random.rand()) if self.training else h  # noqa: NPY002


class RandomInEvaluation(Net, expected=REPEATS):
    def middle(self, h):
        drawn = random.random() + np.random.rand()  # noqa: NPY002
        return h if self.training else h * (1 + drawn)


class Reseeds(Net, expected=REPEATS):
    def middle(self, h):
        torch.manual_seed(3)
        return F.dropout(h, 0.4)


class CheckpointedDropout(Net, expected=REPEATS):
    def setup(self):
        self.c = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.4))

    def middle(self, h):
        return checkpoint(self.c, h, use_reentrant=False)


class TorchGenerator(Net, expected=EITHER, names="generator"):
    """A generator of its own, whose state is no part of the model's."""

    def setup(self):
        self.generator = torch.Generator().manual_seed(0)

    def middle(self, h):
        scale = torch.rand(WIDTH, generator=self.generator, dtype=torch.float32)
        return h * (0.5 + scale) if self.training else h


class NumpyGenerator(Net, expected=EITHER, names="generator"):
    def setup(self):
        self.generator = np.random.default_rng(0)

    def middle(self, h):
        return h * (0.5 + self.generator.random()) if self.training else h


class Entropy(Net, expected=REPEATS_OR_REFUSED, names="generator"):
    """A generator that nobody can seed."""

    def setup(self):
        self.generator = np.random.default_rng()

    def middle(self, h):
        return h * (0.5 + self.generator.random()) if self.training else h


class RandomProjection(Net, expected=REPEATS):
    """A tensor that is drawn when the model is built, and no part of its state."""

    def __init__(self, num_classes: int, in_channels: int, image_size: int) -> None:
        projection = torch.randn(WIDTH, WIDTH)
        super().__init__(num_classes, in_channels, image_size)
        self.projection = projection

    def middle(self, h):
        return h @ self.projection
