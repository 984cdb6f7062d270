"""Local training: the loop, the order of batches, the optimizer."""

from __future__ import annotations

import copy
import math
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import nn
from torch.utils.data import DataLoader

import fedsim
from fedsim.client import LocalEnv, LocalRule, MeanLoss, Phase, Uplink
from fedsim.client.criterion import MarginControl
from fedsim.client.optimizer import Optimizer
from fedsim.client.order import STEPS, carried_batches, order, steps_before, with_steps
from fedsim.client.plan import BatchPlan, num_steps
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.layout import FlatModel
from fedsim.core.types import ClientTask, ClientUpdate, RoundContext, Slot, Training
from fedsim.testing.rounds import rounds, small
from fedsim.training.assemble import prepare
from tests import decomposing
from tests.rounding import of_update, sgd_operations
from tests.tasks import train_local

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


SIZES = (23, 9, 3, 12)
"""Training samples of the clients; passes of 5, 2, 1 and 3 batches of 5."""


def env(client=0, done=0, steps=4, size=5, shuffle="fedsim", seed=1, norm=False):
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        model = Net(norm)
    training = Training(batch_size=size, local_steps=steps, shuffle=shuffle)
    made = make_env(SIZES[client], model, training, client_id=client, done=done, sizes=SIZES)
    return replace(made, ctx=replace(made.ctx, seed=seed))


def taken(number, samples=None, **given):
    made = env(**given)
    used = len(made.x) if samples is None else samples
    return [batch.tolist() for batch in islice(carried_batches(made, used), number)]


def test_a_pass_uses_every_sample_once_and_the_next_one_another_order():
    for client, n in enumerate(SIZES):
        batches = -(-n // 5)
        both = taken(2 * batches, client=client)
        one, two = ([*chain(*part)] for part in (both[:batches], both[batches:]))
        assert sorted(one) == sorted(two) == list(range(n))
        assert n == 3 or one != two
        assert [len(batch) for batch in both[:batches]] == [5] * (batches - 1) + [
            n - 5 * (batches - 1)
        ]


@pytest.mark.parametrize("shuffle", ["fedsim", "dataloader"])
@pytest.mark.parametrize("client", range(4))
def test_rounds_carry_on_where_the_last_one_ended(client, shuffle):
    whole = taken(24, client=client, shuffle=shuffle)
    rounds = [taken(4, client=client, done=4 * t, shuffle=shuffle) for t in range(6)]
    assert [*chain(*rounds)] == whole


def test_orders_depend_on_seed_client_and_pass_alone():
    same = replace(env(), ctx=RoundContext(round=7, num_rounds=9, num_clients=4, lr=1.0, seed=1))
    assert order(same, 2).tolist() == order(env(), 2).tolist()
    others = [order(env(seed=2), 2), order(env(), 3)]
    assert all(o.tolist() != order(env(), 2).tolist() for o in others)
    twins = [replace(env(), client_id=c) for c in (0, 1)]
    assert order(twins[0], 0).tolist() != order(twins[1], 0).tolist()


@pytest.mark.parametrize("steps", [1, 3, 4, 11])
@pytest.mark.parametrize("seed", [0, 42])
def test_the_batches_of_dataloaders_in_one_process(steps, seed):
    # Iterators are made, the generator is seeded, then the clients take turns, as in FLamby.
    with torch.random.fork_rng():
        loaders = [DataLoader(torch.arange(n), batch_size=5, shuffle=True) for n in SIZES]
        iterators = [iter(loader) for loader in loaders]
        torch.random.manual_seed(seed)
        expected = [[] for _ in SIZES]
        for _ in range(5):
            for c in range(len(SIZES)):
                for _ in range(steps):
                    batch = next(iterators[c], None)
                    if batch is None:
                        iterators[c] = iter(loaders[c])
                        batch = next(iterators[c])
                    expected[c].append(batch.tolist())
    for c in range(len(SIZES)):
        given = {"client": c, "steps": steps, "shuffle": "dataloader", "seed": seed}
        assert taken(5 * steps, **given) == expected[c]


@pytest.mark.parametrize("done", [0, 3, 50])
def test_training_makes_so_many_steps_on_these_batches(done):
    made, spy = env(done=done), Spy()
    update = train_local(spy, made)
    assert update.num_steps == made.steps == 4
    expected = [made.y[batch].tolist() for batch in taken(4, done=done)]
    assert [y.tolist() for _, y in spy.batches] == expected
    short = train_local(Spy(), replace(env(done=done), max_steps=2))
    assert short.num_steps == 2


def test_batchnorm_skips_a_single_sample_at_the_end_of_each_pass():
    made, spy = env(client=0, size=11, steps=6, norm=True), Spy()  # 23 = 11 + 11 + 1
    train_local(spy, made)
    assert [len(y) for _, y in spy.batches] == [11] * 6
    used = taken(6, samples=22, client=0, size=11)
    assert [y.tolist() for _, y in spy.batches] == [made.y[batch].tolist() for batch in used]


@pytest.mark.parametrize("shuffle", ["fedsim", "dataloader"])
def test_a_block_has_the_batches_that_its_clients_have_alone(shuffle):
    places = (0, 7, 2, 4)
    envs = [env(c, done, 6, shuffle=shuffle) for c, done in enumerate(places)]
    plan = BatchPlan(envs, 5)
    assert plan.steps == [6] * 4
    assert [num_steps(n, envs[0].training, False) for n in SIZES] == [6] * 4
    first = np.cumsum((0, *SIZES))
    for c, done in enumerate(places):
        for t, batch in enumerate(taken(6, client=c, done=done, steps=6, shuffle=shuffle)):
            count = plan.counts[c, t]
            assert (plan.numbers[c, t, :count] - first[c]).tolist() == batch
            assert plan.weights[c, t].tolist() == pytest.approx(
                [1 / count] * count + [0] * (5 - count)
            )


def test_the_place_is_kept_with_the_client():
    ctx = RoundContext(round=5, num_rounds=9, num_clients=4, lr=1.0, seed=1)
    training, task = Training(local_steps=4), ClientTask(client=2, ctx=ctx)
    update = ClientUpdate(client_id=2, num_samples=3, num_steps=4, state={"own": np.ones(1)})
    assert steps_before(task, training, {}) == 0
    kept = with_steps(update, task, training, {STEPS: np.array([7])}).state
    assert kept[STEPS].tolist() == [11]
    assert kept["own"].tolist() == [1]
    assert steps_before(task, training, kept) == 11
    pooled = replace(task, owners=(0, 1, 2))
    assert steps_before(pooled, training, {}) == 20
    assert with_steps(update, pooled, training, {}) is update
    assert with_steps(update, task, Training(), {}) is update
    assert steps_before(task, Training(), {STEPS: np.array([7])}) == 0


ROUNDS = {"rounds": 4, "sample_rate": 0.5, "local_steps": 3, "batch_size": 8}


@pytest.mark.integration
@pytest.mark.parametrize("shuffle", ["fedsim", "dataloader"])
def test_rounds_from_a_checkpoint_are_those_of_a_whole_run(shuffle):
    train = ROUNDS | {"shuffle": shuffle, "sample_rate": 1.0}
    whole = rounds(small("fednova", "mlp", train=train))
    rest = rounds(small("fednova", "mlp", train=train), start=whole[1].after, first=2)
    np.testing.assert_array_equal(rest[-1].after.params, whole[-1].after.params)
    steps = {c: int(kept[STEPS][0]) for c, kept in whole[-1].after.clients.items()}
    assert set(steps.values()) == {12}


@pytest.mark.integration
def test_a_client_with_less_time_goes_on_where_it_stopped():
    clock = {"work": 0.5, "samples_per_second": 100}
    made = rounds(small("fedavg", "mlp", train=ROUNDS | {"sample_rate": 1.0}, clock=clock))
    steps = {int(kept[STEPS][0]) for kept in made[-1].after.clients.values()}
    assert steps == {8}  # 2 of 3 steps in each of four rounds


SHAPES = {
    "features.weight": (3, 4),
    "features.bias": (3,),
    "head.weight": (2, 3),
    "head.bias": (2,),
}
NEEDS_SGD = {"scaffold", "fednova", "feddyn", "fedcm", "fedsam", "pfedla"}
NEEDS_SGD |= {"apfl", "perfedavg", "pfedme"}


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


@pytest.mark.parametrize("method", sorted(NEEDS_SGD))
def test_methods_that_need_sgd_refuse_others_by_name(method):
    with pytest.raises(ConfigError, match=rf"adamw given; the equations of {method} hold for SGD"):
        RunConfig(algorithm=method, train={"optimizer": "adamw"})
    with pytest.raises(ConfigError, match=rf"0\.1 given; the equations of {method} hold for one"):
        RunConfig(algorithm=method, train={"lr_head": 0.1})


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
