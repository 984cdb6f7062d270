"""Methods trained on small data: a worker, its tasks, and networks in full batches."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedsim import algorithms
from fedsim.client import LocalEnv
from fedsim.client.criterion import MarginControl
from fedsim.core.layout import FlatModel, as_tensor
from fedsim.core.types import Dataset, ModelSpec, Partition, Pipeline, RoundContext, Training
from fedsim.engine.spec import WorkerSpec
from fedsim.engine.worker import Worker
from tests.oracles import losses
from tests.rounding import of_update, sgd_operations
from tests.tasks import run

CLASSES = 3
SIZE = 8


def dataset(num_images=60):
    """Grey 8x8 images, class k about 60 k + 40 bright; every image is a training image."""
    rng = np.random.default_rng(0)
    y = np.arange(num_images, dtype=np.int64) % CLASSES
    x = rng.integers(0, 80, size=(num_images, 1, SIZE, SIZE)) + 60 * y[:, None, None, None]
    everything = np.arange(num_images)
    return Dataset(
        name="brightness",
        x=x.astype(np.uint8),
        y=y,
        class_names=("dark", "grey", "bright"),
        train=everything,
        val=everything[:0],
        test=everything,
        pipeline=Pipeline(size=SIZE, mean=(0.5,), std=(0.5,)),
    )


def worker(name, model="cnn", training=None, **hyperparameters):
    """A CPU worker of that method with three clients of 30, 20 and 10 images."""
    data = dataset()
    spec = WorkerSpec(
        dataset=data,
        partition=Partition(
            train=tuple(np.split(np.random.default_rng(1).permutation(60), [30, 50]))
        ),
        model=ModelSpec(name=model, num_classes=CLASSES, in_channels=1, image_size=SIZE),
        algorithm=algorithms.load(name, hyperparameters),
        training=Training(batch_size=8) if training is None else training,
        seed=0,
        threads=1,
        batch_size=32,
        precision="float32",
        deterministic=True,
    )
    return Worker(spec, torch.device("cpu"))


def context(round=0, lr=0.05):
    return RoundContext(round=round, num_rounds=10, num_clients=3, lr=lr, seed=0)


def train(w, clients=(0, 1, 2), round=0, lr=0.05, params=None, states=None, downlink=None):
    """Reports and deltas (k, D) of one round from the start weights of seed 0."""
    start = w.flat.vector() if params is None else params
    return run(w, clients, context(round, lr), start, downlink, states)


class Scalar(nn.Module):
    """A model of one number: for local objectives that need no data."""

    def __init__(self, value=0.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([float(value)]))

    def forward(self, x):
        return self.w.expand(len(x), 1)


def scalar_env(value, num_steps, lr):
    """A client whose local training is ``num_steps`` plain gradient steps on one number."""
    flat = FlatModel(Scalar(value), torch.device("cpu"))
    return LocalEnv(
        flat=flat,
        start=as_tensor(flat.vector()),
        x=torch.zeros(1, 1, 1, 1, dtype=torch.uint8),
        y=torch.zeros(1, dtype=torch.int64),
        train=torch.Tensor.float,
        test=torch.Tensor.float,
        criterion=MarginControl(),
        num_classes=1,
        training=Training(local_epochs=num_steps, momentum=0.0, weight_decay=0.0),
        ctx=context(lr=lr),
        client_id=0,
        downlink={},
        state={},
    )


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
    return lambda params: losses.mean_cross_entropy(losses.network(params, x)[1], y)


def expected(w, start, gradient):
    """(P,) the update by SGD in float64 from the vector ``start``.

    ``gradient`` is a function of the parameters.
    """
    before = tensors(w, start)
    t = w.spec.training
    after = losses.sgd(before, gradient, STEPS, LR, t.momentum, t.weight_decay)
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
        losses.sgd(tensors(w, start), gradient, k, LR, t.momentum, t.weight_decay)
        for k in range(STEPS)
    ]
    return float(sum(objective(p) for p in points) / STEPS)
