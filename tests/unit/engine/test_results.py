"""What is read of results at the end of a call is what is read after each client, bit by bit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsim.client.trainer import mean_loss
from fedsim.core.types import ClientUpdate, Layout, Slot
from fedsim.engine.results import judged, read

D = 6
LAYOUT = Layout(
    (
        Slot(name="body", shape=(4,), start=0, stop=4),
        Slot(name="head", shape=(2,), start=4, stop=6),
    )
)


def update(client, steps, **changes):
    return ClientUpdate(client_id=client, num_samples=9, num_steps=steps, **changes)


def batches(*values):
    return [torch.tensor(v) for v in values], [7, 2, 5][: len(values)]


RESULTS = {
    "finite": (update(0, 3), batches(0.1, 2.3, 1 / 3), np.linspace(-1, 1, D)),
    "overflows": (update(1, 1), batches(0.7), np.full(D, 3e38)),
    "no step": (update(2, 0), ([], []), np.zeros(D)),
    "a loss": (update(3, 2), batches(1.0, math.inf), np.ones(D)),
    "a tensor": (update(4, 1), batches(0.5), np.array([1, 1, 1, 1, 1, math.nan])),
    "both": (update(5, 1), batches(math.nan), np.array([math.inf, 1, 1, 1, 1, -math.inf])),
    "an upload": (update(6, 1, extras={"c": np.array([math.inf])}), batches(0.5), np.ones(D)),
}
DIVERGED = {
    "a loss": "the training loss",
    "a tensor": "tensor head",
    "both": "tensor body and the training loss",
    "an upload": "tensor upload c",
}


@pytest.mark.parametrize("names", [list(RESULTS), ["finite"], ["no step"], ["both", "finite"]])
def test_at_once_as_one_after_another(names):
    updates, losses, deltas = zip(*(RESULTS[name] for name in names), strict=True)
    rows = torch.from_numpy(np.stack(deltas).astype(np.float32))
    alone = [
        judged(
            replace(u, train_loss=mean_loss([float(v) for v in own[0]], own[1])),
            row.numpy(),
            LAYOUT,
        )
        for u, own, row in zip(updates, losses, rows, strict=True)
    ]
    together = read(updates, losses, rows, LAYOUT)
    assert [u.diverged for u in together] == [DIVERGED.get(name) for name in names]
    assert [u.diverged for u in alone] == [u.diverged for u in together]
    np.testing.assert_array_equal(
        [u.train_loss for u in together], [u.train_loss for u in alone], strict=True
    )


def test_losses_that_were_read_stay():
    done = [update(0, 1, train_loss=0.25), update(1, 1)]
    both = read(done, [None, batches(4.0)], torch.zeros(2, D), LAYOUT)
    assert [u.train_loss for u in both] == [0.25, 4.0]
