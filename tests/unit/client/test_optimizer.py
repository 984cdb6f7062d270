"""``train.optimizer`` and ``train.lr_head``: the steps are PyTorch's, and who refuses them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedsim
from fedsim import algorithms
from fedsim.client.optimizer import Optimizer
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.types import Slot, Training
from fedsim.training.assemble import prepare
from tests import decomposing

SHAPES = {
    "features.weight": (3, 4),
    "features.bias": (3,),
    "head.weight": (2, 3),
    "head.bias": (2,),
}
NEEDS_SGD = {"scaffold", "fednova", "feddyn", "fedcm", "fedsam", "pfedla"}


def slots():
    return [
        Slot(name=name, shape=shape, start=0, stop=1, head=name.startswith("head"))
        for name, shape in SHAPES.items()
    ]


def config(method="fedavg", **changes):
    return decomposing.config(
        method, evaluation={"decompose_every": 0, "loss_matrix": False}, **changes
    )


@pytest.mark.parametrize("lr_head", [None, 0.3, 0.05])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_steps_are_those_of_torch(optimizer, lr_head):
    momentum = 0.9 if optimizer == "sgd" else 0.0
    training = Training(
        optimizer=optimizer, lr=0.1, lr_head=lr_head, momentum=momentum, weight_decay=0.01
    )
    g = torch.Generator().manual_seed(0)
    ours = [torch.randn(shape, generator=g) for shape in SHAPES.values()]
    theirs = [nn.Parameter(p.clone()) for p in ours]
    lr = 0.05  # half of train.lr, as a schedule gives it
    rates = [lr, lr, *[lr if lr_head is None else lr_head / 2] * 2]
    groups = [{"params": [p], "lr": rate} for p, rate in zip(theirs, rates, strict=True)]
    if optimizer == "sgd":
        reference = torch.optim.SGD(groups, lr, momentum=0.9, weight_decay=0.01)
    else:
        reference = torch.optim.AdamW(groups, lr, weight_decay=0.01)
    steps = Optimizer(training, slots(), lr)
    for _ in range(4):
        for p in theirs:
            p.grad = torch.randn(p.shape, generator=g)
        steps.step(ours, [p.grad.clone() for p in theirs])
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-6, atol=1e-7)


def test_the_heads_rate_is_exact_where_nothing_is_scheduled():
    training = Training(lr=0.3, lr_head=0.7, momentum=0.0, weight_decay=0.0)
    params = [torch.zeros(shape) for shape in SHAPES.values()]
    Optimizer(training, slots(), 0.3).step(params, [torch.ones_like(p) for p in params])
    body, head = torch.tensor(-0.3), torch.tensor(-0.7)
    assert [p.flatten()[0] for p in params] == [body, body, head, head]


def test_methods_declare_that_their_equations_need_sgd():
    found = {n for n in algorithms.names() if algorithms.load(n).local.needs_sgd}
    assert found == NEEDS_SGD


@pytest.mark.parametrize("method", sorted(NEEDS_SGD))
def test_methods_that_need_sgd_refuse_others_by_name(method):
    with pytest.raises(ConfigError, match=rf"adamw given; the equations of {method} hold for SGD"):
        RunConfig(algorithm=method, train={"optimizer": "adamw"})
    with pytest.raises(ConfigError, match=rf"0\.1 given; the equations of {method} hold for one"):
        RunConfig(algorithm=method, train={"lr_head": 0.1})


def test_adamw_has_no_momentum():
    settings = RunConfig(algorithm="fedavg", train={"optimizer": "adamw"})
    assert settings.train.momentum == 0
    again = RunConfig(algorithm="fedavg", train=settings.train.model_dump())
    assert again.train == settings.train
    with pytest.raises(ConfigError, match=r"0\.9 given; AdamW has no momentum"):
        RunConfig(algorithm="fedavg", train={"optimizer": "adamw", "momentum": 0.9})


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("fedpac", {}, r"train\.lr_head cannot be combined with local training in phases"),
        (
            "fedavg",
            {"model": {"name": "cnn", "trainable": "features.*"}},
            r"train\.lr_head cannot .* a model of which no head is trained",
        ),
    ],
)
def test_a_rate_of_the_head_without_a_place(method, changes, message):
    with pytest.raises(ConfigError, match=message):
        prepare(config(method, train={"lr_head": 0.1}, **changes))


@pytest.mark.parametrize("train", [{"optimizer": "adamw"}, {"lr_head": 0.1}])
def test_blocks_of_clients_refuse_both_by_name(train):
    (key,) = train
    engine = {"kind": "serial", "client_batch": 3}
    with pytest.raises(ConfigError, match=rf"cannot be stacked: train\.{key}"):
        prepare(config(train=train, engine=engine))
    engine["client_batch"] = "auto"
    assert prepare(config(train={"sample_rate": 1.0, **train}, engine=engine)).stacking is None


@pytest.mark.slow
@pytest.mark.integration
def test_a_round_of_adamw_is_a_loop_of_pytorch(tmp_path):
    """One client, full batches: its rounds are separate loops, since the optimiser restarts."""
    train = {"optimizer": "adamw", "lr": 0.01, "lr_head": 0.02, "weight_decay": 0.1}
    train |= {"batch_size": 300, "sample_rate": 1.0, "local_epochs": 3}
    data = {"num_clients": 1, "client_val_fraction": 0.0, "client_test_fraction": 0.0}
    settings = config(train=train, data=data, model={"name": "logistic"})
    store = fedsim.run(settings, tmp_path / "run")
    setup = prepare(settings)
    model = nn.Linear(64, 10)
    values = decomposing.named_tensors(setup.initial, setup.layout)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(values["head.weight"]))
        model.bias.copy_(torch.from_numpy(values["head.bias"]))
    own = setup.partition.train[0]
    x = (torch.from_numpy(setup.dataset.x[own]).float() / 255 - 0.5).flatten(1) / 0.5
    y = torch.from_numpy(setup.dataset.y[own])
    for _ in range(2):
        optimizer = torch.optim.AdamW(model.parameters(), 0.02, weight_decay=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    final = fedsim.load_model(store.path).head
    np.testing.assert_allclose(final.weight.detach(), model.weight.detach(), rtol=1e-4, atol=1e-5)
