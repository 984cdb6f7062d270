"""A client whose only batch is all of its data, so that its training can be repeated in float64.

With one batch an epoch is one step, and the order of the samples changes rounding alone.
"""

from __future__ import annotations

import numpy as np
import torch

from fedsim.core.types import Training
from tests.oracles import client_losses as oracle
from tests.rounding import of_update, sgd_operations

STEPS = 3
OPERATIONS = sgd_operations(STEPS, layers=3, width=64)
"""Two layers or three, of at most 64 inputs."""
LR = 0.2
TRAINING = Training(local_epochs=STEPS, batch_size=64, momentum=0.5, weight_decay=0.01)


def data(w, client):
    """Inputs (n, pixels) float64 and labels (n,) of a client, as the model sees them."""
    index = w.spec.partition.train[client]
    pixels = w.spec.dataset.x[index].reshape(len(index), -1)
    return torch.from_numpy((pixels / 255 - 0.5) / 0.5), torch.from_numpy(w.spec.dataset.y[index])


def tensors(w, vector):
    """The parameters in a vector (D,) in float64."""
    return [
        torch.from_numpy(vector[s.where].astype(np.float64).reshape(s.shape))
        for s in w.flat.layout.slots
        if s.role == "param"
    ]


def classification(w, client):
    """The cross-entropy of a client as a function of the parameters."""
    x, y = data(w, client)
    return lambda params: oracle.cross_entropy(oracle.network(params, x)[1], y)


def expected(w, start, gradient):
    """(P,) the update by SGD in float64 from the vector ``start``.

    ``gradient`` is a function of the parameters.
    """
    before = tensors(w, start)
    t = w.spec.training
    after = oracle.sgd(before, gradient, STEPS, LR, t.momentum, t.weight_decay)
    return torch.cat([(b - a).flatten() for a, b in zip(before, after, strict=True)]).numpy()


def assert_update(w, delta, start, gradient, growth=1.0):
    """The update of float32 training is that of the gradient, up to rounding by its length.

    ``growth`` is that of :func:`~tests.rounding.rounding`.
    """
    wanted = expected(w, start, gradient)
    length = np.linalg.norm(wanted)
    assert length > 0.01
    error = of_update(np.float32, length, np.linalg.norm(start), STEPS, OPERATIONS, growth)
    assert error < 1e-3 * length
    assert np.linalg.norm(delta[: len(wanted)] - wanted) <= error


def loss_on_the_way(w, start, objective, gradient):
    """The mean of an objective over the points where the steps start."""
    t = w.spec.training
    points = [
        oracle.sgd(tensors(w, start), gradient, k, LR, t.momentum, t.weight_decay)
        for k in range(STEPS)
    ]
    return float(sum(objective(p) for p in points) / STEPS)
