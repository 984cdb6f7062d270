"""Inputs of the methods' tests: drawn updates, cohorts on a server, quadratics."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import nn

from fedsim import algorithms
from fedsim.client import LocalEnv
from fedsim.core.layout import FlatModel, as_tensor
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot, Training
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from tests.oracles import samplers
from tests.tasks import train_local

COHORTS = (1, 2, 5, 10, 50)
PRINTED = {"rtol": 1.5e-9, "atol": 1e-12}
"""1e-9 and the rounding to ten printed digits."""
EXAMPLES = {
    "A1": (np.array([[1.0, 0.0], [0.6, 0.8]]), np.array([1, 1])),
    "A2": (np.array([[1.0, 0.0], [-1.0, 1.0]]), np.array([30, 10])),
    "A3": (np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([1, 1])),
    "A4": (
        np.array([[1.0, 0.0, 0.0], [-0.5, 1.0, 0.0], [-0.2, -0.6, 1.0]]),
        np.array([10, 20, 30]),
    ),
}
every_input = pytest.mark.parametrize("sampler", samplers.WELL_POSED, ids=lambda s: s.__name__)
every_cohort = pytest.mark.parametrize("m", COHORTS)


def tensor_sizes(d):
    """Four tensors that make up d >= 60: one of a single element, one shorter than most cohorts."""
    return [40, 1, 3, d - 44]


def draw(sampler, m, seed=0):
    """Updates (m, d), sample counts (m,) and tensor sizes of a case; d > m."""
    rng = np.random.default_rng([seed, m])
    d = 60 + m
    return sampler(rng, m, d), samplers.sample_counts(rng, m), tensor_sizes(d)


def assert_step(got, expected, updates, tolerance=1e-9):
    """Compares two steps relative to the mean length of the updates."""
    scale = np.linalg.norm(np.asarray(updates, dtype=np.float64), axis=1).mean()
    assert got.shape == expected.shape
    assert np.all(np.isfinite(got))
    assert np.linalg.norm(got - expected) <= tolerance * scale


def revised(aggregate, updates):
    """What a rule that is linear in p turns every client's update into, (m, d).

    With n = 1 + m at client i and 1 elsewhere, p = (1 + m unit_i) / (2 m); m such steps are a
    linear system whose solution is the vector each client contributes.
    """
    m = len(updates)
    n = np.ones((m, m), dtype=np.int64) + m * np.eye(m, dtype=np.int64)
    steps = np.array([aggregate(updates, row) for row in n])
    return np.linalg.solve(n / n.sum(axis=1, keepdims=True), steps)


LAYOUT = Layout(
    (
        Slot(name="a", shape=(2,), start=0, stop=2),
        Slot(name="b", shape=(1, 2), start=2, stop=4),
        Slot(name="mean", shape=(2,), start=4, stop=6, role="stat"),
    )
)
"""Two tensors of two parameters each and a statistic of two numbers."""


def vector_layout(size):
    return Layout((Slot(name="w", shape=(size,), start=0, stop=size),))


def cohort(updates, samples=None, layout=None, params=None):
    """The updates (m, d) of clients 0..m-1; each has one sample by default."""
    rows = [np.asarray(row) for row in updates]
    counts = [1] * len(rows) if samples is None else samples
    sent = zip(counts, rows, strict=True)
    updates = [
        ClientUpdate(client_id=i, num_samples=n, num_steps=1, delta=row)
        for i, (n, row) in enumerate(sent)
    ]
    return Cohort.of(updates, layout or vector_layout(len(rows[0])), params=params)


def answers(name, rounds, *, rates=None, layout=None, samples=None, **hyperparameters):
    """What the server says to each of some rounds' updates (m, d)."""
    server, state, said = algorithms.load(name, hyperparameters).server, RuleState(), []
    rates = [0.1] * len(rounds) if rates is None else rates
    for t, (updates, lr) in enumerate(zip(rounds, rates, strict=True)):
        ctx = RoundContext(round=t, num_rounds=len(rounds), num_clients=10, lr=lr, seed=0)
        said.append(server.step(state, cohort(updates, samples, layout), ctx))
        state = said[-1].state
    return said


def path(name, deltas, **options):
    """Where one number is after each round in which a single client sends a delta, from 0."""
    said = answers(name, [np.array([[delta]]) for delta in deltas], **options)
    return np.cumsum([answer.step[0] for answer in said])


def single(name, updates, samples=None, **options):
    """The answer to one round."""
    return answers(name, [np.asarray(updates)], samples=samples, **options)[0]


CURVATURES, CENTRES = (1.0, 2.0), (0.0, 3.0)
"""The two clients of ALGORITHMS part E; the optimum of the mean objective is 2."""


RNG = np.random.default_rng(11)
A, B = RNG.uniform(0.5, 2.0, (4, 3)), RNG.normal(size=(4, 3))
COUNTS, SAMPLES = (1, 5, 3, 2), (30, 10, 20, 1)
PARTICIPANTS = ([0, 1, 2, 3], [1, 3], [0, 1], [2], [0, 1, 2, 3])
"""Four clients in three dimensions, their steps and samples, and who takes part in five rounds."""
EXACT = {"rtol": 1e-9, "atol": 1e-12}
"""For formulas in float64."""


class Point(nn.Module):
    """A model that is a point in space; the data do not matter."""

    def __init__(self, size):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x):
        return self.w.expand(len(x), -1)


@dataclass(frozen=True)
class Quadratic:
    """F_i in place of the classification loss."""

    a: torch.Tensor
    b: torch.Tensor

    def each(self, logits, labels):
        return (0.5 * self.a * (logits - self.b).square()).sum(dim=1)

    def __call__(self, logits, labels):
        return self.each(logits, labels).mean()

    def count(self, labels):
        return len(labels)

    def with_cross_entropy(self, logits, labels):
        loss = self(logits, labels)
        return loss, loss


@dataclass
class Federation:
    """A method and what its server and clients keep.

    ``steps`` and ``samples`` are per client; ``log`` has a dictionary per round.
    """

    name: str
    options: dict = field(default_factory=dict)
    a: tuple = CURVATURES
    b: tuple = CENTRES
    steps: tuple = (2, 2)
    samples: tuple = (1, 1)
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    server: str | None = None
    w: np.ndarray | None = None

    def __post_init__(self):
        self.a = torch.tensor(self.a, dtype=torch.float64).reshape(len(self.steps), -1)
        self.b = torch.tensor(self.b, dtype=torch.float64).reshape(len(self.steps), -1)
        given = {self.name: self.options}
        self.algorithm = algorithms.compose(self.name, given, server=self.server)
        cpu = torch.device("cpu")
        self.flat = FlatModel(Point(self.a.shape[1]), cpu, torch.float64)
        self.w = np.zeros(self.a.shape[1]) if self.w is None else np.asarray(self.w, np.float64)
        self.state, self.downlink, self.clients = RuleState(), {}, {}
        self.round = 0

    def env(self, i, ctx):
        start = as_tensor(self.w.copy())
        self.flat.load(start)
        nothing = torch.zeros(1, 1, 1, 1, dtype=torch.uint8)
        return LocalEnv(
            flat=self.flat, start=start, x=nothing, y=torch.zeros(1, dtype=torch.int64),
            train=lambda x: x, test=lambda x: x, criterion=Quadratic(self.a[i], self.b[i]),
            num_classes=1, ctx=ctx, client_id=i, downlink=self.downlink,
            training=Training(
                local_epochs=self.steps[i], batch_size=1, momentum=self.momentum,
                weight_decay=self.weight_decay,
            ),
            state=self.clients.get(i, {}),
            relative_size=self.samples[i] / np.mean(self.samples),
        )  # fmt: skip

    def updates(self, clients, ctx, rule):
        found = []
        for i in clients:
            env = self.env(i, ctx)
            trained = train_local(rule, env)
            delta = self.flat.vector() - self.w
            found.append(replace(trained, num_samples=self.samples[i], delta=delta))
            if rule is self.algorithm.local:
                self.clients[i] = trained.state
        return found

    def step(self, clients=None):
        """One round over some clients, by default all; returns the new point."""
        n = len(self.steps)
        clients = range(n) if clients is None else clients
        ctx = RoundContext(round=self.round, num_rounds=10**6, num_clients=n, lr=self.lr, seed=0)
        updates = self.updates(clients, ctx, self.algorithm.local)
        cohort = Cohort.of(updates, self.flat.layout, params=self.w)
        answer = self.algorithm.server.step(self.state, cohort, ctx)
        self.w = self.w + answer.step
        self.state, self.downlink = answer.state, answer.downlink
        self.round += 1
        return self.w

    def run(self, rounds):
        """The point after so many rounds, a float where it has one coordinate."""
        for _ in range(rounds):
            self.step()
        return float(self.w[0]) if len(self.w) == 1 else self.w
