"""The SGD loop: against torch.optim.SGD, batches, phases, and what it may depend on."""

from __future__ import annotations

import copy
import math
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from fedsim.client import LocalEnv, LocalRule, MeanLoss, Phase, Uplink
from fedsim.client.criterion import MarginControl
from fedsim.client.trainer import train_local
from fedsim.core.layout import FlatModel
from fedsim.core.types import RoundContext, Training
from tests.rounding import of_update, sgd_operations

CLASSES = 3


class Net(nn.Module):
    """Features with BatchNorm and, on demand, dropout; a head; optionally an unused parameter."""

    def __init__(self, norm=True, dropout=0.0, unused=False):
        super().__init__()
        layers = [nn.Flatten(), nn.Linear(4, 6)]
        layers += [nn.BatchNorm1d(6)] if norm else []
        self.features = nn.Sequential(*layers, nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(6, CLASSES)
        if unused:
            self.unused = nn.Parameter(torch.full((2,), 3.0))

    def forward(self, x):
        return self.head(self.features(x))


def preprocess(x):
    return x.float() / 100


def make_env(n=23, model=None, training=None, **changes):
    if model is None:
        with torch.random.fork_rng():
            torch.random.manual_seed(0)
            model = Net()
    g = torch.Generator().manual_seed(n)
    flat = FlatModel(model, torch.device("cpu"))
    env = LocalEnv(
        flat=flat,
        start=torch.from_numpy(flat.vector()),
        x=torch.randint(0, 256, (n, 1, 2, 2), generator=g).to(torch.uint8),
        y=torch.randint(0, CLASSES, (n,), generator=g),
        train=preprocess,
        test=preprocess,
        criterion=MarginControl(),
        num_classes=CLASSES,
        training=training or Training(batch_size=5),
        ctx=RoundContext(round=2, num_rounds=10, num_clients=4, lr=0.1, seed=1),
        client_id=3,
        downlink={},
        state={},
    )
    return replace(env, **changes)


@dataclass(frozen=True)
class Spy(LocalRule):
    """Records what the hooks see."""

    planned: tuple[Phase, ...] | None = None
    events: list[str] = field(default_factory=list)
    batches: list[Any] = field(default_factory=list)
    vectors: list[Any] = field(default_factory=list)
    modes: list[Any] = field(default_factory=list)

    def phases(self, env):
        return super().phases(env) if self.planned is None else self.planned

    def begin(self, env):
        self.events.append("begin")
        self.vectors.append(env.flat.vector())
        return "what begin returned"

    def loss(self, env, s, x, y):
        assert s == "what begin returned"
        self.events.append("loss")
        self.batches.append((x.clone(), y.clone()))
        self.vectors.append(env.flat.vector())
        norms = [norm.training for norm in env.flat.norms]
        trained = [name for name, p in env.model.named_parameters() if p.requires_grad]
        self.modes.append((env.model.training, norms, trained))
        return super().loss(env, s, x, y)

    def adjust_grads(self, env, s):
        assert s == "what begin returned"
        assert not torch.is_grad_enabled()
        assert [p.grad.shape for p in env.params] == [p.shape for p in env.params]
        self.events.append("adjust")

    def finish(self, env, s):
        assert s == "what begin returned"
        self.events.append("finish")
        self.vectors.append(env.flat.vector())
        return Uplink({"up": np.ones(1)}, {"kept": np.zeros(2)})


def moved(env, a, b):
    return {s.name for s in env.flat.layout.slots if (a[s.where] != b[s.where]).any()}


def reference(model, batches, lr, momentum, weight_decay, nets_loss=functional.cross_entropy):
    """torch.optim.SGD on the recorded batches; the per-batch plain cross-entropies."""
    optimiser = torch.optim.SGD(
        model.parameters(), lr, momentum=momentum, weight_decay=weight_decay, foreach=False
    )
    model.train()
    losses = []
    for x, y in batches:
        logits = model(x)
        optimiser.zero_grad()
        nets_loss(logits, y).backward()
        optimiser.step()
        losses.append((functional.cross_entropy(logits.detach(), y).double().item(), len(y)))
    return losses


@pytest.mark.parametrize(
    ("momentum", "weight_decay"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.1), (0.9, 0.05)]
)
def test_several_epochs_are_torch_sgd(momentum, weight_decay):
    env = make_env(
        training=Training(
            local_epochs=3, batch_size=5, momentum=momentum, weight_decay=weight_decay
        )
    )
    model, spy = copy.deepcopy(env.model), Spy()
    result = train_local(spy, env)
    losses = reference(model, spy.batches, 0.1, momentum, weight_decay)
    expected = FlatModel(model, torch.device("cpu")).vector()
    # the fused step rounds once where separate operations round three times
    moved, start = (np.abs(v).max() for v in (expected - env.start.numpy(), env.start.numpy()))
    operations = sgd_operations(steps=15, layers=3, width=6)
    error = of_update(np.float32, moved, start, 15, operations)
    assert error < 1e-3 * moved
    np.testing.assert_allclose(env.flat.vector(), expected, rtol=0, atol=error)
    assert moved > 0.05
    # 23 samples in batches of 5: 5 5 5 5 3, three times
    assert (result.num_steps, len(spy.batches)) == (15, 15)
    mean = sum(loss * n for loss, n in losses) / sum(n for _, n in losses)
    assert result.train_loss == pytest.approx(mean, rel=1e-6)


def test_momentum_starts_anew_in_every_phase():
    env = make_env(training=Training(local_epochs=1, batch_size=5, momentum=0.9, weight_decay=0.01))
    model, spy = copy.deepcopy(env.model), Spy((Phase(1, 0.1), Phase(2, 0.02)))
    train_local(spy, env)
    reference(model, spy.batches[:5], 0.1, 0.9, 0.01)
    reference(model, spy.batches[5:], 0.02, 0.9, 0.01)
    expected = FlatModel(model, torch.device("cpu")).vector()
    # the fused step rounds once where separate operations round three times
    np.testing.assert_allclose(env.flat.vector(), expected, rtol=0, atol=1e-6)


def test_the_reported_loss_is_plain_cross_entropy_whatever_is_minimised():
    margin = MarginControl("marg_log", 2.0)
    env = make_env(criterion=margin, training=Training(local_epochs=2, batch_size=5))
    model, spy = copy.deepcopy(env.model), Spy()
    result = train_local(spy, env)

    def objective(logits, y):
        penalty = torch.log1p(logits.square().sum(1)).mean()
        return functional.cross_entropy(logits, y) + 2.0 * penalty

    losses = reference(model, spy.batches, 0.1, 0.5, 5e-4, objective)
    expected = FlatModel(model, torch.device("cpu")).vector()
    np.testing.assert_allclose(env.flat.vector(), expected, rtol=0, atol=1e-6)
    mean = sum(loss * n for loss, n in losses) / sum(n for _, n in losses)
    assert result.train_loss == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize(
    ("n", "size", "with_norm", "without"),
    [
        (11, 5, [5, 5], [5, 5, 1]),
        (6, 5, [5], [5, 1]),
        (12, 5, [5, 5, 2], [5, 5, 2]),
        (10, 5, [5, 5], [5, 5]),
        (5, 5, [5], [5]),
        (4, 5, [4], [4]),
        (1, 5, [1], [1]),
    ],
)
def test_batches_of_an_epoch(n, size, with_norm, without):
    for norm, expected in ((True, with_norm), (False, without)):
        env, spy = make_env(n, Net(norm), Training(local_epochs=3, batch_size=size)), Spy()
        result = train_local(spy, env)
        assert [len(y) for _, y in spy.batches] == 3 * expected
        assert result.num_steps == 3 * len(expected)


def test_every_epoch_shows_every_sample_once_in_a_new_order():
    env, spy = make_env(22, training=Training(local_epochs=4, batch_size=5)), Spy()
    train_local(spy, env)
    every = sorted(preprocess(env.x).flatten(1).tolist())
    epochs = [torch.cat([x for x, _ in spy.batches[i : i + 5]]) for i in range(0, 20, 5)]
    assert [sorted(e.flatten(1).tolist()) for e in epochs] == [every] * 4
    assert len({tuple(e.flatten().tolist()) for e in epochs}) == 4


def test_a_single_sample_trains_with_the_running_statistics():
    env = make_env(1, training=Training(local_epochs=2, batch_size=5))
    spy = Spy()
    result = train_local(spy, env)
    end = env.flat.vector()
    changed = moved(env, env.start.numpy(), end)
    assert "features.1.running_mean" not in changed
    assert "features.1.running_var" not in changed
    assert {"features.1.weight", "head.weight"} <= changed
    assert (result.num_steps, math.isfinite(result.train_loss)) == (2, True)


def test_a_lone_last_sample_is_kept_where_no_norm_trains():
    spy = Spy()
    result = train_local(
        spy, make_env(11, training=Training(local_epochs=1, batch_size=5, frozen_bn=True))
    )
    assert [len(y) for _, y in spy.batches] == [5, 5, 1]
    assert result.num_steps == 3


def test_frozen_norms_train_their_affine_part_alone():
    env = make_env(training=Training(local_epochs=2, batch_size=5, frozen_bn=True))
    model, spy = copy.deepcopy(env.model), Spy()
    train_local(spy, env)
    changed = moved(env, env.start.numpy(), env.flat.vector())
    assert changed == {
        *("features.1.weight", "features.1.bias", "features.2.weight", "features.2.bias"),
        *("head.weight", "head.bias"),
    }
    assert {(mode, *norms) for mode, norms, _ in spy.modes} == {(True, False)}
    one_batch = make_env(
        5, copy.deepcopy(model), Training(local_epochs=1, batch_size=5, frozen_bn=True)
    )
    with torch.no_grad():
        expected = functional.cross_entropy(model.eval()(preprocess(one_batch.x)), one_batch.y)
    result = train_local(LocalRule(), one_batch)
    assert result.train_loss == pytest.approx(expected.item(), rel=1e-6)


def test_a_head_phase_moves_the_head_and_nothing_else():
    env = make_env(model=Net(dropout=0.5), training=Training(local_epochs=1, batch_size=5))
    spy = Spy((Phase(2, 0.1, "head"),))
    train_local(spy, env)
    assert moved(env, env.start.numpy(), env.flat.vector()) == {"head.weight", "head.bias"}
    assert all(m == (False, [False], ["head.weight", "head.bias"]) for m in spy.modes)


def test_a_features_phase_leaves_the_head_and_moves_the_statistics():
    env = make_env(training=Training(local_epochs=1, batch_size=5))
    spy = Spy((Phase(2, 0.1, "features"),))
    train_local(spy, env)
    everything = {s.name for s in env.flat.layout.slots}
    changed = moved(env, env.start.numpy(), env.flat.vector())
    assert changed == everything - {"head.weight", "head.bias"}
    assert all(m[0] and m[1] == [True] and "head.weight" not in m[2] for m in spy.modes)


def test_phases_follow_each_other_with_their_own_rates():
    env = make_env(training=Training(local_epochs=1, batch_size=5, momentum=0.5, weight_decay=0.0))
    spy = Spy((Phase(1, 0.0), Phase(1, 0.1, "head"), Phase(0, 9.0), Phase(1, 0.1, "features")))
    result = train_local(spy, env)
    assert result.num_steps == 15
    trained = {s.name for s in env.flat.layout.slots if s.role == "param"}
    # vectors: begin, then before each of the 15 steps, then finish
    assert not moved(env, spy.vectors[0], spy.vectors[6]) & trained
    assert moved(env, spy.vectors[6], spy.vectors[11]) == {"head.weight", "head.bias"}
    assert not moved(env, spy.vectors[11], spy.vectors[16]) & {"head.weight", "head.bias"}
    assert moved(env, spy.vectors[11], spy.vectors[16]) >= {"features.1.weight"}


def test_hooks_run_in_order_and_the_uplink_is_handed_on():
    env, spy = make_env(7), Spy()
    result = train_local(spy, env)
    assert spy.events == ["begin", *["loss", "adjust"] * 2, "finish"]
    assert list(result.extras) == ["up"]
    assert list(result.state) == ["kept"]
    np.testing.assert_array_equal(spy.vectors[0], env.start.numpy())
    np.testing.assert_array_equal(spy.vectors[-1], env.flat.vector())


def test_without_a_step_there_is_no_loss():
    env = make_env()
    result = train_local(Spy(()), env)
    assert result.num_steps == 0
    assert math.isnan(result.train_loss)
    np.testing.assert_array_equal(env.flat.vector(), env.start.numpy())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_parameter_that_the_loss_does_not_reach_stays_as_in_torch(optimizer):
    training = Training(local_epochs=2, momentum=0.5, weight_decay=0.5, optimizer=optimizer)
    env = make_env(5, Net(unused=True), training)
    train_local(LocalRule(), env)
    assert env.model.unused.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"client_id": 4}, False),
        ({"ctx": RoundContext(round=3, num_rounds=10, num_clients=4, lr=0.1, seed=1)}, False),
        ({"ctx": RoundContext(round=2, num_rounds=10, num_clients=4, lr=0.1, seed=2)}, False),
        ({"ctx": RoundContext(round=2, num_rounds=99, num_clients=400, lr=0.1, seed=1)}, True),
    ],
)
def test_the_order_hangs_on_seed_round_and_client_alone(changes, same):
    model = Net()
    one, two = Spy(), Spy()
    train_local(one, make_env(model=copy.deepcopy(model)))
    torch.rand(17)
    train_local(two, make_env(model=copy.deepcopy(model), **changes))
    orders = [torch.cat([x for x, _ in s.batches]) for s in (one, two)]
    assert torch.equal(*orders) == same


def test_features_are_those_of_eval_mode_without_augmentation():
    env = make_env(23, Net(dropout=0.5), train=lambda x: preprocess(x) + 1e6)
    env.model.train()
    got = env.features(batch_size=4)
    with torch.no_grad():
        expected = env.model.eval().features(preprocess(env.x))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    assert (got.shape, got.requires_grad) == ((23, 6), False)
    assert torch.equal(env.flat.flat, env.start)


def test_begin_may_look_at_features_without_freezing_the_norms():
    @dataclass(frozen=True)
    class Looks(Spy):
        def begin(self, env):
            env.features()
            return super().begin(env)

    looking, plain = Looks(), Spy()
    model = Net()
    a, b = make_env(model=copy.deepcopy(model)), make_env(model=copy.deepcopy(model))
    train_local(looking, a)
    train_local(plain, b)
    np.testing.assert_array_equal(a.flat.vector(), b.flat.vector())


def test_forward_passes_alone_run_in_the_given_precision():
    inside, seen = [], []

    @contextmanager
    def precision():
        inside.append(True)
        with torch.autocast("cpu", torch.bfloat16):
            yield
        inside.pop()

    @dataclass(frozen=True)
    class Watches(Spy):
        def loss(self, env, s, x, y):
            seen.append((len(inside), env.model(x).dtype))
            return super().loss(env, s, x, y)

        def adjust_grads(self, env, s):
            super().adjust_grads(env, s)
            seen.append((len(inside), env.params[0].grad.dtype))

    env = make_env(5, precision=precision)
    result = train_local(Watches(), env)
    assert seen == [(1, torch.bfloat16), (0, torch.float32)]
    assert env.features().dtype == torch.float32
    assert math.isfinite(result.train_loss)


def test_anchors_are_the_start_values_of_what_is_trained():
    names = []

    @dataclass(frozen=True)
    class Anchored(Spy):
        def adjust_grads(self, env, s):
            for slot, anchor, p in zip(env.slots(), env.split(env.start), env.params, strict=True):
                assert anchor.shape == p.shape
                assert torch.equal(anchor.flatten(), env.start[slot.where])
                names.append(slot.name)

    env = make_env(5)
    train_local(Anchored((Phase(1, 0.1, "head"), Phase(1, 0.1))), env)
    assert names[:2] == ["head.weight", "head.bias"]
    assert len(names) == 2 + 6


class Fixed(nn.Module):
    """Logits that depend on the brightness alone: (0, x, 2 x)."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0, 1.0, 2.0]))
        self.modes = []

    def forward(self, x):
        self.modes.append(self.training)
        return x.flatten(1)[:, :1] * self.w


def test_the_mean_loss_by_hand():
    brightness, labels = [0.0, 1.0, 2.0, 0.5, 1.5], [0, 1, 2, 0, 0]
    losses = [
        math.log(1 + math.exp(x) + math.exp(2 * x)) - label * x
        for x, label in zip(brightness, labels, strict=True)
    ]
    model = Fixed()
    env = make_env(
        model=model,
        training=Training(batch_size=2, local_epochs=3),
        x=torch.tensor([round(100 * x) for x in brightness], dtype=torch.uint8).view(5, 1, 1, 1),
        y=torch.tensor(labels),
        train=lambda x: pytest.fail("the samples were augmented"),
    )
    model.train()
    before = env.flat.vector()
    update = train_local(MeanLoss(), env)
    # 2, 2 and 1 samples a batch: a mean of the batches' means would be another number
    assert update.extras["loss"].shape == (1,)
    assert update.extras["loss"][0] == pytest.approx(sum(losses) / 5, rel=1e-6)
    squares = sum(loss**2 for loss in losses) / 5
    assert update.extras["squared_loss"] == pytest.approx([squares], rel=1e-6)
    assert (update.num_samples, update.num_steps, update.state) == (5, 0, {})
    np.testing.assert_array_equal(env.flat.vector(), before)
    assert model.modes == [False] * 3
