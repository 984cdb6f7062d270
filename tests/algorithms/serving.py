"""Servers alone: rounds of updates in float64, one after the other."""

from __future__ import annotations

import numpy as np

from fedsim import algorithms
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort

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
