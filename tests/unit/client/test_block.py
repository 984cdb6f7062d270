"""Stacked clients and private samples, against one client at a time."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from scipy.stats import chi2
from torch import nn

from fedsim import algorithms
from fedsim.client import LocalEnv, LocalRule, Uplink
from fedsim.client.block import Stack, num_steps, train_block
from fedsim.client.block import obstacle as block_obstacle
from fedsim.client.criterion import FORMS, MarginControl
from fedsim.client.dropout import count
from fedsim.client.optimizer import sgd
from fedsim.client.private import (
    STEPS,
    PrivateGradients,
    clipped,
    poisson_batches,
    sample_gradients,
)
from fedsim.client.private import obstacle as private_obstacle
from fedsim.client.trainer import enter
from fedsim.core.layout import FlatModel
from fedsim.core.rng import seed_for, seed_torch, torch_generator, torch_scope
from fedsim.core.types import PrivateSteps, RoundContext, Training
from fedsim.models.vision import SplitModel, with_group_norm
from tests.rounding import rounding, sgd_operations
from tests.tasks import train_local
from tests.unit.client.test_trainer import Net, make_env, preprocess

CLASSES, SIDE, BATCH = 4, 8, 5
SIZES = (12, 5, 21, 1, 11, 9)
EVERYONE = range(len(SIZES))
ROUNDS = 3
OPERATIONS = sgd_operations(steps=2 * -(-max(SIZES) // BATCH), layers=5, width=BATCH * SIDE**2)
"""Roundings in two epochs of the largest client; a filter's gradient sums over a batch's pixels."""
TOLERANCE = {dtype: rounding(dtype, OPERATIONS) for dtype in (torch.float32, torch.float64)}


def mlp():
    features = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 7), nn.ReLU())
    return SplitModel(features, nn.Linear(7, CLASSES))


def cnn():
    features = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    return SplitModel(features, nn.Linear(24, CLASSES))


def plain_cnn():
    model = cnn()
    model.features[1] = model.features[5] = nn.Identity()
    return model


def group_cnn():
    model = cnn()
    with_group_norm(model)
    return model


def dropout():
    features = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(108, 6), nn.Dropout(0.5)
    )
    return SplitModel(features, nn.Linear(6, CLASSES))


MODELS = {f.__name__: f for f in (mlp, plain_cnn, group_cnn, cnn, dropout)}


def base(**changes):
    given = {"local_epochs": 2, "batch_size": BATCH, "momentum": 0.5, "weight_decay": 1e-3}
    return Training(**given | changes)


class Federation:
    """Clients of a model, their state over rounds, and both ways to train a cohort."""

    def __init__(self, model, dtype=torch.float32, algorithm=None, draws=False, **changes):
        with torch_scope(1):
            built = MODELS[model]().to(dtype) if isinstance(model, str) else model.to(dtype)
        self.algorithm = algorithm or algorithms.load("fedavg")
        built = self.algorithm.adapt(built)
        self.counted = count(built, torch.device("cpu"))
        self.flat = FlatModel(built, torch.device("cpu"), dtype)
        self.dtype, self.draws, self.changes = dtype, draws, changes
        self.states = {}
        self.start = self.flat.flat.detach().clone()
        self.downlink = {}
        self.stack = Stack(self.flat.model, self.algorithm.local, len(SIZES), draws)

    def train(self, x):
        if self.draws:
            flipped = (torch.rand(len(x)) < 0.5).view(-1, 1, 1, 1)
            x = torch.where(flipped, x.flip(-1), x)
        return x.to(self.dtype) / 128 - 1

    def env(self, client, t=0, max_steps=None):
        n = SIZES[client]
        g = torch.Generator().manual_seed(100 + client)
        given = {"training": base(), "criterion": self.algorithm.criterion, **self.changes}
        return LocalEnv(
            flat=self.flat,
            start=self.start,
            x=torch.randint(0, 256, (n, 1, SIDE, SIDE), generator=g, dtype=torch.uint8),
            y=torch.randint(0, CLASSES, (n,), generator=g),
            train=self.train,
            test=self.train,
            num_classes=CLASSES,
            ctx=RoundContext(round=t, num_rounds=ROUNDS, num_clients=len(SIZES), lr=0.06, seed=3),
            client_id=client,
            downlink=self.downlink,
            state=self.states.get(client, {}),
            relative_size=n / 10,
            max_steps=max_steps,
            draws=self.counted,
            **given,
        )

    def envs(self, clients=EVERYONE, t=0, max_steps=None):
        envs = [self.env(c, t, max_steps and max_steps[c]) for c in clients]
        norms = bool(self.flat.norms) and not envs[0].training.frozen_bn
        steps = {e.client_id: num_steps(len(e.x), e.training, norms, e.max_steps) for e in envs}
        return sorted(envs, key=lambda e: (-steps[e.client_id], e.client_id))

    def alone(self, env):
        self.flat.load(self.start)
        seed_torch(seed_for(env.ctx.seed, "client", env.ctx.round, env.client_id))
        return train_local(self.algorithm.local, env), self.flat.flat.detach().clone()

    def one_by_one(self, envs):
        with torch_scope(0):
            updates, rows = zip(*map(self.alone, envs), strict=True)
        return list(updates), torch.stack(rows)

    def block(self, envs):
        with torch_scope(0):
            return train_block(self.algorithm.local, envs, self.stack, BATCH)


def away(got, wanted):
    """The largest difference relative to the largest number wanted."""
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    assert got.shape == wanted.shape
    return float(np.abs(got - wanted).max(initial=0) / max(np.abs(wanted).max(initial=0), 1e-3))


def agree(got, wanted, start, tolerance):
    """Vectors, losses, what is sent and what is kept."""
    (updates, rows), (references, vectors) = got, wanted
    assert away(rows - start, vectors - start) < tolerance
    for one, other in zip(updates, references, strict=True):
        assert (one.client_id, one.num_samples, one.num_steps) == (
            other.client_id, other.num_samples, other.num_steps,
        )  # fmt: skip
        assert one.train_loss == pytest.approx(other.train_loss, rel=tolerance, nan_ok=True)
        for a, b in ((one.extras, other.extras), (one.state, other.state)):
            assert a.keys() == b.keys()
            assert all(away(a[k], b[k]) < tolerance for k in a)


def check(federation, tolerance=None, **given):
    """One round of both; the federation goes on with what one by one gave."""
    wanted = federation.one_by_one(federation.envs(**given))
    got = federation.block(federation.envs(**given))
    agree(got, wanted, federation.start, tolerance or TOLERANCE[federation.dtype])
    return wanted


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_a_block_is_its_clients_one_by_one(model, dtype):
    federation = Federation(model, dtype)
    assert not federation.stack.vmapped
    check(federation)


class Permuted(nn.Module):
    """A layer that the table of batched layers does not have."""

    def forward(self, x):
        return x.flip(1)


@pytest.mark.parametrize("model", ["cnn", "dropout"])
def test_layers_of_ones_own_run_within_vmap(model):
    built = MODELS[model]()
    built.features.append(Permuted())
    federation = Federation(built, torch.float64)
    assert federation.stack.vmapped
    assert block_obstacle(federation.flat.model, LocalRule(), MarginControl()) is None
    check(federation)


METHODS = {
    "fedprox": {"mu": 0.3},
    "fedprox l2": {"mu": 0.3, "prox_form": "l2_per_tensor"},
    "scaffold": {},
    "scaffold I": {"option": "I"},
    "feddyn": {"alpha": 0.2},
    "feddyn by_samples": {"alpha": 0.2, "client_alpha": "by_samples"},
    "fedcm": {"alpha": 0.3},
    "fednova": {"mu": 0.1},
    "feddecorr": {"beta": 0.1},
    "feddecorr paper": {"beta": 0.1, "form": "paper"},
    "fedsr": {"deterministic": True, "a_l2r": 0.1},
    "fediir": {"gamma": 0.01},
    "pfedla": {},
    "fedld": {"margin_weight": 0.3},
    "qffl": {},
    "afl": {},
    "ifca": {"clusters": 3},
    "fedrod": {},
    "fedala": {"share": 1.0},
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("model", ["mlp", "group_cnn"])
@pytest.mark.parametrize("name", METHODS)
def test_a_method_over_three_rounds(name, model, dtype):
    algorithm = algorithms.load(name.split()[0], METHODS[name])
    training = base(momentum=0.0 if "dyn" in name else 0.5)
    federation = Federation(model, dtype, algorithm, training=training)
    growth, whole = 1.0, None
    if "decorr" in name:
        # It divides by the deviation of features over a batch, of which they are up to 10 times; in
        # a short batch by almost nothing but the root of 1e-8 ("code") or 1e-12 that it adds: that
        # is for float64.
        growth = 10 if dtype == torch.float32 else 1e6 if "paper" in name else 1e4
        whole = [n // BATCH for n in SIZES] if dtype == torch.float32 else None
    tolerance = rounding(dtype, OPERATIONS, growth)
    P = federation.flat.layout.num_params
    rng, scalar = np.random.default_rng(5), np.float64 if dtype == torch.float64 else np.float32
    for t in range(ROUNDS):
        clients = [c for c in EVERYONE if t == 0 or (c + t) % 3]
        updates, vectors = check(federation, tolerance, clients=clients, t=t, max_steps=whole)
        federation.states |= {u.client_id: u.state for u in updates}
        federation.start = vectors.mean(dim=0)
        federation.downlink = {
            "c": (rng.standard_normal(P) * 0.01).astype(scalar),
            "direction": (rng.standard_normal(P) * 0.1).astype(scalar),
            "gm": (rng.standard_normal((CLASSES, federation.flat.model.head.in_features + 1)) / 9)
            .astype(scalar),
        }  # fmt: skip


def test_every_method_says_whether_it_can_be_stacked():
    said = {name: algorithms.load(name).local.stackable for name in algorithms.names()}
    refused = {name: why for name, why in said.items() if why is not True}
    passes = {name for name, why in refused.items() if "gradient" in str(why)}
    assert passes == {"fedsam", "pfedme", "apfl", "perfedavg"}
    assert set(refused) - passes == {
        "centralized", "fedbabu", "fedpac", "fedrep", "fedsr", "moon"
    }  # fmt: skip
    assert "two phases" in refused["fedpac"]
    tested = {name.split()[0] for name in METHODS}
    own = {name for name in said if type(algorithms.load(name).local) is not LocalRule}
    assert own - set(refused) <= tested


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_margin_control(form):
    algorithm = replace(algorithms.load("fedavg"), criterion=MarginControl(form, 0.3))
    check(Federation("mlp", torch.float64, algorithm))


@pytest.mark.parametrize(
    "training",
    [base(clip_norm=0.2), base(momentum=0.0), base(weight_decay=0.1, momentum=0.9),
     base(frozen_bn=True), base(batch_size=1), base(batch_size=30)],
    ids=["clip", "plain", "momentum", "frozen", "single", "whole"],
)  # fmt: skip
def test_settings_of_local_training(training, monkeypatch):
    monkeypatch.setitem(globals(), "BATCH", min(training.batch_size, max(SIZES)))
    check(Federation("cnn", torch.float64, training=training))


def test_fewer_steps_than_the_data_have():
    check(Federation("cnn", torch.float64), max_steps=[2, 1, 5, 0, 99, 3])
    check(Federation("mlp"), max_steps=[0] * len(SIZES))


@pytest.mark.parametrize("model", ["mlp", "dropout"])
def test_augmentation_draws_for_each_client_as_it_does_alone(model):
    check(Federation(model, torch.float64, draws=True))


class Drawing(LocalRule):
    """Draws in all its hooks."""

    stackable = True

    def begin(self, env):
        return torch.rand(3)

    def finish(self, env, s):
        return Uplink({"begin": s.numpy(), "finish": torch.rand(2).numpy()})


def test_begin_and_finish_draw_as_they_do_alone():
    algorithm = replace(algorithms.load("fedavg"), local=Drawing())
    check(Federation("dropout", torch.float64, algorithm, draws=True))


class Remembering(LocalRule):
    """Adds the steps up in what ``begin`` returned, and shortens each by the phase's rate."""

    stackable = True

    def begin(self, env):
        return [torch.zeros_like(p) for p in env.split(env.start)]

    def adjust_grads(self, env, s):
        for g, total in zip(env.grads(), s, strict=True):
            g *= 1 - env.phase.lr
            total += g

    def finish(self, env, s):
        return Uplink({"total": torch.cat([t.flatten() for t in s]).numpy()})


def test_finish_gets_what_the_steps_wrote_down_and_steps_know_their_phase():
    algorithm = replace(algorithms.load("fedavg"), local=Remembering())
    check(Federation("mlp", torch.float64, algorithm))


class Moving(LocalRule):
    """Changes the model before the first step and after the last one, statistics included."""

    stackable = True

    def begin(self, env):
        with torch.no_grad():
            env.flat.flat.mul_(1 + 0.1 * torch.rand(()))

    def finish(self, env, s):
        with torch.no_grad():
            for p in env.params:
                p.mul_(1 - 0.2 * torch.rand(())).add_(0.1 * env.client_id)
            env.model(env.test(env.x))
        return Uplink({"moved": env.moved.numpy()})


@pytest.mark.parametrize("model", ["cnn", "dropout"])
def test_what_begin_and_finish_do_to_the_model_counts_as_it_does_alone(model):
    algorithm = replace(algorithms.load("fedavg"), local=Moving())
    federation = Federation(model, torch.float64, algorithm)
    everyone = [1, 2, 0, 4, 5]  # BatchNorm in training mode takes no single sample
    alone, _ = check(federation, clients=everyone)
    last = torch.stack([torch.from_numpy(u.extras["moved"]) for u in alone])
    assert last.norm(dim=1).min() > 0.1
    check(federation, clients=everyone, max_steps=[0] * len(SIZES))


class Tokens(nn.Module):
    """A class for every token, or for the text."""

    def __init__(self, per_token):
        super().__init__()
        layers = [nn.Embedding(12, 6), nn.LayerNorm(6), nn.Linear(6, 5), nn.Tanh()]
        self.features = nn.Sequential(*layers, *([] if per_token else [nn.Flatten()]))
        self.head = nn.Linear(5 if per_token else 20, 12)

    def forward(self, x):
        return self.head(self.features(x))

    def forward_clients(self, x):
        return self.head(self.features(x))


@pytest.mark.parametrize("per_token", [True, False])
@pytest.mark.parametrize("form", ["none", "marg_log", "softmax_frob"])
def test_tokens_with_labels_that_do_not_count(per_token, form):
    algorithm = replace(algorithms.load("fedavg"), criterion=MarginControl(form, 0.3))
    federation = Federation(Tokens(per_token), torch.float64, algorithm)
    federation.train = lambda x: x

    def texts(envs):
        for e in envs:
            g = torch.Generator().manual_seed(e.client_id)
            n = len(e.x)
            e.x = torch.randint(0, 12, (n, 4), generator=g)
            shape = (n, 4) if per_token else (n,)
            e.y = torch.randint(-1 if per_token else 0, 12, shape, generator=g)
            if per_token:
                e.y[:, 0].clamp_(min=0)
        return envs

    wanted = federation.one_by_one(texts(federation.envs()))
    assert not federation.stack.vmapped
    got = federation.block(texts(federation.envs()))
    agree(got, wanted, federation.start, TOLERANCE[torch.float64])


def test_personal_values_start_each_client():
    federation = Federation("cnn", torch.float64)
    common = federation.start.clone()
    envs = federation.envs()
    for e in envs:
        e.start = common + 0.01 * e.client_id
    vectors = []
    with torch_scope(0):
        for e in federation.envs():
            federation.start = common + 0.01 * e.client_id
            vectors.append(federation.alone(replace(e, start=federation.start))[1])
    assert away(federation.block(envs)[1], torch.stack(vectors)) < TOLERANCE[torch.float64]


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("model", [*MODELS, "vmapped"])
def test_no_bit_depends_on_the_neighbours(model, draws):
    if model == "vmapped":
        model = MODELS["cnn"]()
        model.features.append(Permuted())
    federation = Federation(model, draws=draws)
    reference, _ = federation.block(federation.envs()), None
    rows = {u.client_id: row for u, row in zip(*reference, strict=True)}
    losses = {u.client_id: u.train_loss for u in reference[0]}
    for clients in ([0], [3], [2, 4], [5, 1, 3, 0]):
        updates, found = federation.block(federation.envs(clients))
        for u, row in zip(updates, found, strict=True):
            assert torch.equal(row, rows[u.client_id])
            assert u.train_loss == losses[u.client_id] or u.train_loss != u.train_loss


@pytest.mark.parametrize("model", ["mlp", "plain_cnn"])
def test_no_bit_depends_on_the_size_of_the_block(model):
    federation = Federation(model)
    many = [federation.env(c % 3) for c in range(50)]
    many = [replace(e, client_id=i) for i, e in enumerate(many)]
    many.sort(key=lambda e: (-num_steps(len(e.x), e.training, False), e.client_id))
    _, rows = federation.block(many)
    for first, size in ((0, 1), (3, 2), (10, 5), (40, 10)):
        part = many[first : first + size]
        assert torch.equal(federation.block(part)[1], rows[first : first + size])


def test_two_clients_by_hand():
    """Logits w x, two classes, one input; lr 1, one step; softmax at w = 0 is 1/2.

    Client 0: x = 1 and 3, both of class 0: the gradient of w_0 is mean(x) (1/2 - 1) = -1, of w_1
    +1. Client 1: x = 4 of class 1: +2 and -2. The steps are their negatives; the losses log 2.
    """
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False))
    nn.init.zeros_(model[1].weight)
    federation = Federation(model, training=Training(batch_size=2, momentum=0.0, weight_decay=0.0))
    federation.train = lambda x: x.float()
    first, second = federation.env(0), federation.env(1)
    for e, x, y in ((first, [1, 3], [0, 0]), (second, [4], [1])):
        e.x, e.y = torch.tensor(x).view(-1, 1).float(), torch.tensor(y)
        e.ctx = replace(e.ctx, lr=1.0)
    updates, rows = train_block(LocalRule(), [first, second], federation.stack, 2)
    assert rows.tolist() == [[1.0, -1.0], [-2.0, 2.0]]
    assert [u.train_loss for u in updates] == pytest.approx([math.log(2)] * 2)
    assert [u.num_steps for u in updates] == [1, 1]


@pytest.mark.parametrize("model", MODELS)
def test_what_the_fused_step_sees_is_contiguous(model, monkeypatch):
    seen = []

    def spy(params, grads, momentum, *settings):
        seen.extend([*params, *grads, *momentum])
        return sgd(params, grads, momentum, *settings)

    monkeypatch.setattr("fedsim.client.block.sgd", spy)
    federation = Federation(model)
    federation.block(federation.envs())
    assert seen
    assert all(v.is_contiguous() for v in seen)


class Undeclared(LocalRule):
    pass


class Inherits(type(algorithms.load("fedprox").local)):
    pass


class Phases(LocalRule):
    stackable = True

    def phases(self, env):
        return ()


class OwnLoss(MarginControl):
    pass


def frozen():
    model = mlp()
    model.head.bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "rule", "criterion", "said"),
    [
        (mlp(), Undeclared(), MarginControl(), "Undeclared: the rule does not declare"),
        (mlp(), Inherits(0.1, "squared"), MarginControl(), "does not declare"),
        (mlp(), Phases(), MarginControl(), "phases of its own"),
        (mlp(), LocalRule(), OwnLoss(), "OwnLoss"),
        (nn.Sequential(nn.LSTM(2, 3)), LocalRule(), MarginControl(), "LSTM"),
        (nn.BatchNorm1d(3, momentum=None), LocalRule(), MarginControl(), "no momentum"),
        (nn.InstanceNorm1d(3, track_running_stats=True), LocalRule(), MarginControl(), "buffers"),
        (frozen(), LocalRule(), MarginControl(), "not trained"),
    ],
)
def test_what_cannot_be_stacked_is_named(model, rule, criterion, said):
    assert said in block_obstacle(model, rule, criterion)


class Centred(nn.Module):
    """Couples the samples of a batch: padding would count."""

    def forward(self, x):
        return x - x.mean(dim=0)


class Branches(nn.Module):
    """Decides by a value, which vmap does not know."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("step", torch.tensor(0))

    def forward(self, x):
        self.step += 1
        return x * self.step


class CountsBeside(Counts):
    """As before, with a buffer that no file holds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.cfloat), persistent=False)

    def forward(self, x):
        self.step = self.step + 1
        return x * self.step.real


class Idle(nn.Linear):
    def forward(self, x):
        return x


class DrawsInPython(nn.Module):
    def forward(self, x):
        return x * (1 + (random.random() < 2))


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(2, 1, sparse=True)

    def forward(self, x):
        return x + self.e((x[:, 0] > 1e9).long())


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (Permuted(), None),
        (Centred(), "depends on the other samples"),
        (Branches(), "does not run within torch.vmap"),
        (Counts(), "training changes the model's buffer features."),
        (CountsBeside(), "training changes the model's buffer features."),
        (Idle(1, 1), "the loss does not reach the parameter features."),
        (DrawsInPython(), "draws from Python's or NumPy's generator"),
        (Sparse(), "sparse"),
    ],
)
def test_layers_of_ones_own_are_tried(layer, said):
    model = cnn() if said is None else mlp()
    model.features.append(layer)
    samples = torch.rand(4, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    before = torch.get_rng_state()
    found = block_obstacle(model, LocalRule(), MarginControl(), samples)
    assert found is None if said is None else said in found
    assert torch.equal(before, torch.get_rng_state())


def double(n=23, private=None, dropout=0.0, **training):
    torch.manual_seed(0)
    flat = FlatModel(Net(norm=False, dropout=dropout), torch.device("cpu"), torch.float64)
    settings = Training(private=private, **{"batch_size": 5, **training})
    env = make_env(n, training=settings, train=lambda x: preprocess(x).double())
    env.flat, env.start = flat, flat.flat.detach().clone()
    return env


def by_sample(env, clip, z):
    """The training of test_trainer's network as a loop over samples, with the same draws."""
    t, n = env.training, len(env.x)
    ids = env.ctx.seed, env.ctx.round, env.client_id
    order = torch_generator(ids[0], "shuffle", *ids[1:])
    noise = torch_generator(ids[0], "sample_noise", *ids[1:])
    net = Net(norm=False).double()
    torch.nn.utils.vector_to_parameters(env.start.clone(), net.parameters())
    params = list(net.parameters())
    optimizer = torch.optim.SGD(
        params, env.ctx.lr, momentum=t.momentum, weight_decay=t.weight_decay
    )
    for _ in range(t.local_epochs * math.ceil(n / t.batch_size)):
        q = min(1, t.batch_size / n)
        sums = [torch.zeros_like(p) for p in params]
        drawn = torch.rand(n, generator=order, dtype=torch.float64)
        for i in range(n):
            if drawn[i] < q:
                logits = net(env.train(env.x[i : i + 1]))
                own = torch.autograd.grad(
                    functional.cross_entropy(logits, env.y[i : i + 1]), params
                )
                norm = math.sqrt(sum(float((g**2).sum()) for g in own))
                sums = [s + g * min(1, clip / norm) for s, g in zip(sums, own, strict=True)]
        for p, s in zip(params, sums, strict=True):
            e = torch.randn(p.shape, generator=noise, dtype=torch.float64)
            p.grad = (s + z * clip * e) / min(t.batch_size, n)
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(params).detach()


@pytest.mark.parametrize(("n", "clip", "z"), [(23, 0.3, 0.7), (23, 2.0, 0.1), (3, 0.5, 1.0)])
def test_training_is_that_of_a_loop_over_samples(n, clip, z):
    env = double(n, PrivateSteps(clip, z), local_epochs=2)
    wanted = by_sample(env, clip, z)
    update = train_local(LocalRule(), env)
    np.testing.assert_allclose(env.flat.flat.detach(), wanted, rtol=1e-9, atol=1e-9)
    assert update.num_steps == 2 * math.ceil(n / 5)
    assert update.state[STEPS].tolist() == [update.num_steps]


def test_without_noise_and_clipping_a_full_batch_is_plain_sgd():
    plain, env = double(local_epochs=3, batch_size=23), double(
        private=PrivateSteps(math.inf, 0.0), local_epochs=3, batch_size=23
    )  # fmt: skip
    loss = train_local(LocalRule(), plain).train_loss
    assert train_local(LocalRule(), env).train_loss == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(
        env.flat.flat.detach(), plain.flat.flat.detach(), rtol=1e-12, atol=1e-12
    )


def test_gradients_of_samples_are_clipped_over_all_parameters():
    own = [torch.tensor([[3.0], [0.3], [0.0]]), torch.tensor([[4.0], [0.4], [0.0]])]
    first, second = clipped(own, 1.0)
    assert first.flatten().tolist() == pytest.approx([0.6, 0.3, 0.0])
    assert second.flatten().tolist() == pytest.approx([0.8, 0.4, 0.0])


def test_dropout_draws_for_each_sample():
    env = double(dropout=0.5)
    enter(env, LocalRule().phases(env)[0])
    same = env.train(env.x[:1]).expand(8, -1, -1, -1)
    named = dict(env.model.named_parameters())
    gradients, _ = sample_gradients(env.model, named, env.criterion, same, env.y[:1].expand(8))
    assert len(torch.unique(gradients[0].flatten(1), dim=0)) > 1


def test_the_noise_has_its_variance_without_any_sample():
    env = double()
    enter(env, LocalRule().phases(env)[0])
    gradients = PrivateGradients(env, PrivateSteps(0.5, 3.0))
    squares, count = 0.0, 0
    for _ in range(100):
        gradients(env.x[:0], env.y[:0])
        drawn = torch.cat([p.grad.flatten() for p in env.params]) * 5 / 1.5
        squares, count = squares + float(drawn.square().sum()), count + len(drawn)
    low, high = chi2.ppf([0.001, 0.999], count)
    assert low < squares < high


def test_batches_draw_each_sample_by_itself():
    env = double(20)
    sizes = [len(b) for b in poisson_batches(env, 500, torch.Generator().manual_seed(0))]
    assert len(sizes) == 500 * 4
    assert np.mean(sizes) == pytest.approx(5, abs=0.2)
    assert np.var(sizes) == pytest.approx(20 * 0.25 * 0.75, rel=0.15)
    whole = poisson_batches(double(4), 1, torch.Generator())
    assert [b.tolist() for b in whole] == [[0, 1, 2, 3]]


@pytest.mark.slow
def test_a_client_of_which_no_sample_was_drawn_has_a_loss():
    none = 0
    for client in range(40):
        env = double(2, PrivateSteps(1.0, 1.0), batch_size=1)
        env.client_id = client
        order = torch_generator(1, "shuffle", 2, client)
        none += not any(len(b) for b in poisson_batches(env, 1, order))
        assert math.isfinite(train_local(LocalRule(), env).train_loss)
    assert none


def test_gradients_of_few_samples_at_a_time_are_the_same(monkeypatch):
    whole, parts = double(private=PrivateSteps(0.5, 1.0)), double(private=PrivateSteps(0.5, 1.0))
    loss = train_local(LocalRule(), whole).train_loss
    enter(parts, LocalRule().phases(parts)[0])
    monkeypatch.setattr("fedsim.client.private.VALUES", 2 * sum(p.numel() for p in parts.params))
    assert train_local(LocalRule(), parts).train_loss == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(
        parts.flat.flat.detach(), whole.flat.flat.detach(), rtol=1e-10, atol=1e-12
    )


class Counting(Net):
    def __init__(self):
        super().__init__(norm=False)
        self.register_buffer("step", torch.tensor(0))

    def forward(self, x):
        self.step = self.step + 1
        return super().forward(x)


def test_a_model_whose_buffers_change_has_no_gradients_by_sample():
    flat = FlatModel(Counting(), torch.device("cpu"))
    assert private_obstacle(flat, MarginControl(), torch.rand(2, 1, 2, 2)) == (
        "training changes step, by all samples together"
    )
