"""What the tests of the loss decomposition share: small runs, and everything computed another way.

The losses are those of a plain PyTorch model in float64, the terms double loops over fractions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch.nn import functional

from fedsim import models
from fedsim.config.run import RunConfig
from fedsim.core.types import Dataset, Pipeline, RoundContext
from fedsim.engine.serial import SerialExecutor
from fedsim.engine.worker import Worker
from fedsim.schedules.base import draw_cohort, lr_at
from fedsim.storage.checkpoint import ServerState
from fedsim.training.assemble import prepare
from fedsim.training.round import run_round
from fedsim.training.rows import RoundLog
from tests.tasks import run

TERMS = ("local_loss", "shift_loss", "aggregation_loss", "global_loss")
SPREADS = ("shift_spread", "aggregation_spread")
OWN = {"client_val_fraction": 0.2, "client_test_fraction": 0.3}


def digits(folder):
    """300 of scikit-learn's digits, the last 80 for the test, in two groups that overlap."""
    from sklearn.datasets import load_digits  # takes a second to import

    bunch = load_digits()
    test = np.arange(220, 300)
    return Dataset(
        name="small digits",
        x=np.rint(bunch.images[:300] * 255 / 16).astype(np.uint8)[:, None],
        y=bunch.target[:300].astype(np.int64),
        class_names=tuple(map(str, range(10))),
        train=np.arange(220),
        val=np.arange(0),
        test=test,
        pipeline=Pipeline(size=8, mean=(0.5,), std=(0.5,)),
        groups={"first": test[:30], "every third": test[::3]},
    )


def config(method="fedavg", **changes):
    """6 clients, cohorts of 3, 2 rounds of 4 steps or so, one process."""
    sections = {
        "data": {"name": f"{__name__}:digits", "num_clients": 6, "min_samples": 4} | OWN,
        "model": {"name": "cnn" if method == "fedbn" else "mlp"},
        "train": {"rounds": 2, "sample_rate": 0.5, "batch_size": 8, "lr": 0.05},
        "evaluation": {"batch_size": 16, "decompose_every": 1, "loss_matrix": True},
        "engine": {"kind": "serial"},
    }
    for key, value in changes.items():
        sections[key] = sections[key] | value if key in sections else value
    return RunConfig(algorithm=method, **sections)


@dataclass(frozen=True)
class Round:
    """A round, and what it started from and ended with.

    ``local`` is the vector of each client's trained model, personal slots included, by client.
    """

    ctx: RoundContext
    cohort: list[int]
    before: ServerState
    after: ServerState
    tables: dict
    local: dict


def rounds(settings) -> Iterator[Round]:
    """The rounds of a run; the local models are trained once more by a worker of their own."""
    setup = prepare(settings)
    state = ServerState(params=setup.initial)
    executor = SerialExecutor(setup.spec, settings.engine)
    again = Worker(setup.spec, torch.device("cpu"))
    t = settings.train.rounds
    try:
        for number in range(t):
            lr = lr_at(settings, number)
            ctx = RoundContext(
                round=number,
                num_rounds=t,
                num_clients=setup.partition.num_clients,
                lr=lr,
                seed=settings.seed,
            )
            log = RoundLog(number + 1)
            cohort = draw_cohort(ctx, setup.cohort_size)
            own = {c: state.clients[c] for c in cohort if c in state.clients}
            reports, deltas = run(again, cohort, ctx, state.params, state.downlink, own)
            local = {
                r.client_id: merged(setup, state.params + delta, r.state)
                for r, delta in zip(reports, deltas, strict=True)
            }
            after = run_round(setup, executor, state, ctx, log)
            yield Round(ctx, cohort, state, after, log.tables, local)
            state = after
    finally:
        executor.close()


def merged(setup, vector, state):
    """The vector (D,) with what a client keeps for itself in its place."""
    out, taken = vector.copy(), 0
    for slot in setup.layout.slots:
        if setup.algorithm.personal(slot) and "personal" in state:
            out[slot.where] = state["personal"][taken : taken + slot.stop - slot.start]
            taken += slot.stop - slot.start
    return out


def named_tensors(vector, layout):
    """A vector (D,) cut into its tensors, by name."""
    return {s.name: vector[s.where].reshape(s.shape) for s in layout.slots}


def sample_losses(setup, vector, index):
    """(n,) cross-entropy of single samples, and whether each was classified right; float64."""
    model = models.build(setup.model, setup.config.seed)
    with torch.no_grad():
        tensors = model.state_dict(keep_vars=True)
        for slot in setup.layout.slots:
            tensors[slot.name].copy_(torch.from_numpy(vector[slot.where]).reshape(slot.shape))
        model = model.double().eval()
        data = setup.dataset
        outputs = model((torch.from_numpy(data.x[index]).double() / 255 - 0.5) / 0.5)
        labels = torch.from_numpy(data.y[index])
        losses = functional.cross_entropy(outputs, labels, reduction="none")
        return losses.numpy(), (outputs.argmax(1) == labels).numpy()


def mean_loss(setup, vector, index):
    """The mean cross-entropy of a model on some samples."""
    return float(sample_losses(setup, vector, index)[0].mean())


def terms(local, after, samples, owner_samples, owners):
    """The terms and spreads of Eq. 2 in fractions, client by client and owner by owner.

    Args:
        local: (m, K) losses.
        after: (m, K) losses, or (K,).
        samples: m counts.
        owner_samples: K counts.
        owners: m columns.
    """
    m, k = len(local), len(local[0])
    after = [after] * m if np.ndim(after) == 1 else after
    of_local = [[Fraction(float(x)) for x in row] for row in local]
    of_after = [[Fraction(float(x)) for x in row] for row in after]
    p = [Fraction(float(n)) / sum(map(Fraction, map(float, samples))) for n in samples]
    q = [Fraction(float(n)) / sum(map(Fraction, map(float, owner_samples))) for n in owner_samples]
    sums = dict.fromkeys((*TERMS, *SPREADS), Fraction(0))
    for i in range(m):
        own = of_local[i][owners[i]]
        seen = sum(q[j] * of_local[i][j] for j in range(k))
        later = sum(q[j] * of_after[i][j] for j in range(k))
        sums["local_loss"] += p[i] * own
        for j in range(k):
            sums["shift_loss"] += p[i] * q[j] * (of_local[i][j] - own)
            sums["shift_spread"] += p[i] * q[j] * abs(of_local[i][j] - own)
        sums["aggregation_loss"] += p[i] * (later - seen)
        sums["aggregation_spread"] += p[i] * abs(later - seen)
        sums["global_loss"] += p[i] * later
    return {name: float(value) for name, value in sums.items()}
