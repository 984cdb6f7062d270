"""Steps as CUDA graphs, and dropout that follows the client."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from fedsim import algorithms
from fedsim.client import LocalRule, Uplink
from fedsim.client.block import train_block
from fedsim.client.criterion import MarginControl
from fedsim.client.dropout import count
from fedsim.client.graphs import Steps
from fedsim.client.rule import UNCAPTURABLE
from fedsim.core.layout import FlatModel, freeze
from fedsim.core.rng import torch_scope
from fedsim.core.types import PrivateSteps, Training
from fedsim.engine import serial
from fedsim.engine.worker import Worker
from fedsim.testing.rounds import difference, rounds, small
from tests.sampling import marked_beside
from tests.tasks import train_local
from tests.unit.client.test_block import BATCH, Federation
from tests.unit.client.test_trainer import Net, make_env

OPTIONS: dict[str, dict[str, Any]] = {
    "fedprox, l2": {"prox_form": "l2_per_tensor"},
    "scaffold, I": {"option": "I"},
    "feddecorr, paper": {"form": "paper"},
    "fedsam, asam": {"variant": "asam", "alpha": 0.5},
    "fedsr, l2r": {"deterministic": True, "a_l2r": 0.1},
}
GRAPHS_SHAPES = {
    "fedld", "scaffold", "fedbn", "fedsam, asam", "fediir", "moon", "fedpac", "fedsr",
    "centralized", "feddyn", "fedcm",
}  # fmt: skip
"""A rule of each kind; the others are slow."""
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"train": {"momentum": 0.0, "weight_decay": 0.0}},
    "momentum": {"train": {"momentum": 0.9, "weight_decay": 0.01, "lr_schedule": "cosine"}},
    "head": {"train": {"lr_head": 0.1, "momentum": 0.9}},
    "adamw": {"train": {"optimizer": "adamw", "momentum": 0.0, "lr_schedule": "warmup_round"}},
    "adamw, head": {"train": {"optimizer": "adamw", "momentum": 0.0, "lr_head": 0.1}},
    "clip": {"train": {"clip_norm": 0.5}},
    "steps": {"train": {"local_steps": 5, "local_epochs": 1}},
    "single": {"train": {"batch_size": 1}},
    "augmented": {"data": {"augment": "crop_flip"}},
}


@pytest.fixture
def compared(monkeypatch):
    """Compares rounds of a configuration with those of static workers; returns the last one."""

    def compare(configuration):
        made: list[Worker] = []

        def static(*given: Any) -> Worker:
            made.append(Worker(*given, static=True))
            return made[-1]

        usual = [r.content() for r in rounds(configuration)]
        with monkeypatch.context() as patch:
            patch.setattr(serial, "Worker", static)
            recorded = [r.content() for r in rounds(configuration)]
        assert difference(usual, recorded, "the usual loop") is None
        return made[-1]

    return compare


def replays(worker):
    """How many steps were recorded."""
    return len(worker.steps._recorded)


def of(name, model="mlp", **sections):
    """A configuration with clients of unequal sizes: short batches, and some that stop early."""
    method = name.partition(",")[0]
    train = {"batch_size": 6, "local_epochs": 2, "momentum": 0.9} | sections.pop("train", {})
    if algorithms.load(method).local.plain_sgd:
        train["momentum"] = 0.0
    data = {"partition": "dirichlet", "alpha": 0.5, "min_samples": 1} | sections.pop("data", {})
    if name in OPTIONS:
        sections[method] = OPTIONS[name]
    clock = {} if method in ("centralized",) else {"clock": {"work": "uniform(0.4, 1)"}}
    return small(method, model, train=train, data=data, **clock, **sections)


METHODS = [*algorithms.names(), *OPTIONS]
STACKABLE = [n for n in METHODS if algorithms.load(n.partition(",")[0]).local.stackable is True]


@pytest.mark.integration
@pytest.mark.parametrize("name", marked_beside(GRAPHS_SHAPES, METHODS))
def test_every_method(name, compared):
    worker = compared(of(name, "cnn" if name == "fedbn" else "mlp"))
    assert worker.findings.uncaptured == {}
    assert replays(worker) >= 2


@pytest.mark.integration
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_local_training(setting, compared):
    worker = compared(of("fedprox", **SETTINGS[setting]))
    assert worker.findings.uncaptured == {}
    assert replays(worker) >= 2


BLOCKS = [
    (n, model) for n in STACKABLE for model in ("mlp", "cnn") if (n, model) != ("fedbn", "mlp")
]
QUICK = {("fedavg", "mlp"), ("scaffold", "mlp"), ("fediir", "mlp"), ("fedavg", "cnn")}


@pytest.mark.integration
@pytest.mark.parametrize("case", marked_beside(QUICK, BLOCKS), ids="-".join)
def test_blocks_of_clients_that_end_at_different_steps(case, compared):
    name, model = case
    clipped = {"clip_norm": 0.5, "lr_schedule": "cosine"}
    worker = compared(of(name, model, train=clipped, engine={"client_batch": 3}))
    assert worker.findings.uncaptured == {}
    assert replays(worker) >= 3


@pytest.mark.integration
@pytest.mark.parametrize("model", ["dropout", "cnn"])
def test_blocks_of_models_that_draw(model):
    """With the clients' draws going on after a trial; a block of six, and twice one of three."""

    def rows(static):
        federation = Federation(model)
        steps = Steps(federation.flat) if static else None
        for clients in (range(6), (0, 2, 4), (1, 2, 5), (1, 3, 4)):
            with torch_scope(0):
                envs = federation.envs(clients)
                updates, vectors = train_block(LocalRule(), envs, federation.stack, BATCH, steps)
            yield vectors.clone().numpy().tobytes(), [u.train_loss for u in updates]
        assert steps is None or len(steps._recorded) >= 4

    assert list(rows(True)) == list(rows(False))


@pytest.mark.integration
def test_the_learning_rate_asks_for_no_new_recording(compared):
    def recorded(schedule):
        train = {"rounds": 5, "sample_rate": 1.0, "lr_schedule": schedule}
        return set(compared(small("fedavg", train=train)).steps._recorded)

    count = [len(recorded(schedule)) for schedule in ("constant", "cosine")]
    assert count[0] == count[1] > 0


@pytest.mark.integration
def test_what_is_not_recorded_says_why(compared):
    worker = compared(of("feddyn", feddyn={"client_alpha": "by_samples"}))
    assert worker.findings.uncaptured == {
        "RegularisedObjective": "the weight of its regulariser differs by client"
    }
    assert replays(worker) == 0


class Draws(Net):
    def forward(self, x):
        return super().forward(x) * (1 + random.random())


class Counts(Net):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) / self.calls


class Replaces(Net):
    """Puts new tensors in the places of a buffer of the vector and of one beside it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.mean = 0.9 * self.mean + x.detach().mean()
        self.seen += 1
        return super().forward(x) * self.mean


@dataclass(frozen=True)
class Remembers(LocalRule):
    """Writes into what ``begin`` returned."""

    capturable: ClassVar[bool | str] = True

    def begin(self, env):
        return {"steps": torch.zeros(3), "name": "mean"}

    def adjust_grads(self, env, s):
        s["steps"][1] += 1
        for g in env.grads():
            g += 0.01 * s["steps"][1]

    def finish(self, env, s):
        return Uplink({"steps": s["steps"].numpy()})


@dataclass(frozen=True)
class Fails(LocalRule):
    """Cannot be recorded, as on a GPU a step that waits for it."""

    calls: list[int]
    capturable: ClassVar[bool | str] = True

    def adjust_grads(self, env, s):
        self.calls.append(len(env.params))
        if len(self.calls) == 5:
            raise RuntimeError("operation not permitted when stream is capturing")


@dataclass(frozen=True)
class ReadsTheClient(LocalRule):
    capturable: ClassVar[bool | str] = True

    def adjust_grads(self, env, s):
        for g in env.grads():
            g *= 1 + env.client_id


def trained(model, rule, steps=True, **changes):
    """What four clients of one model send, and the steps; two of them have as many samples."""
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        flat = FlatModel(model(), torch.device("cpu"))
    start, sent = flat.flat.detach().clone(), []
    fixed = Steps(flat) if steps else None
    training = Training(local_epochs=2, batch_size=5, momentum=0.9, weight_decay=0.01)
    given = {"training": training, "criterion": MarginControl()} | changes
    for client, n in enumerate((12, 7, 12, 1, 17)):
        with torch_scope(client):
            flat.load(start)
            env = make_env(n, client_id=client, **given)
            env.flat, env.start = flat, start
            update = train_local(rule, env, fixed)
            extras = {name: a.tobytes() for name, a in update.extras.items()}
            sent.append(
                (flat.vector().tobytes(), update.train_loss, extras, torch.rand(2).tolist())
            )
    return sent, fixed


@pytest.mark.integration
@pytest.mark.parametrize("model", [Net, partial(Net, dropout=0.5, unused=True), Replaces])
@pytest.mark.parametrize("rule", [LocalRule(), Remembers()])
def test_nothing_of_a_trial_is_left(model, rule):
    """Statistics, counters, random numbers, momentum and the rule's state go on as before it."""
    sent, steps = trained(model, rule)
    assert sent == trained(model, rule, steps=False)[0]
    assert (len(steps._recorded), steps.uncaptured) == (3, {})  # 5 at first, 5 and 2 later on


@pytest.mark.integration
@pytest.mark.parametrize(
    ("model", "rule", "why"),
    [
        (Draws, LocalRule(), "a step draws from Python's or NumPy's generator"),
        (Counts, LocalRule(), "forward keeps something in calls that is no tensor"),
        (partial(Net, dropout=0.5), Fails([]), "operation not permitted when stream is capturing"),
    ],
)
def test_what_cannot_be_recorded_is_found_by_trying(model, rule, why):
    sent, steps = trained(model, rule)
    (said,) = steps.uncaptured.values()
    assert why in said
    assert steps._recorded == {}
    assert sent == trained(model, rule, steps=False)[0]


@pytest.mark.integration
def test_a_rule_that_reads_a_clients_number_shows():
    """Canary: replays on a CPU have the number of the first client, as a graph would."""
    assert trained(Net, ReadsTheClient())[0] != trained(Net, ReadsTheClient(), steps=False)[0]


@pytest.mark.integration
def test_frozen_parameters_stay():
    def frozen():
        model = Net()
        freeze(model, [model.features[1].weight, model.features[1].bias])
        return model

    sent, steps = trained(frozen, LocalRule())
    assert sent == trained(frozen, LocalRule(), steps=False)[0]
    assert len(steps._recorded) == 3


class Undeclared(LocalRule):
    pass


class OfArrays(LocalRule):
    capturable = True

    def begin(self, env):
        return np.zeros(2)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("rule", "private", "why"),
    [
        (Undeclared(), None, UNCAPTURABLE),
        (OfArrays(), None, "begin returns a ndarray, which is no tensor"),
        (LocalRule(), PrivateSteps(clip=1, noise_multiplier=1), "steps of DP-SGD draw on the CPU"),
    ],
    ids=["undeclared", "arrays", "private"],
)  # fmt: skip
def test_what_is_known_not_to_be_recorded(rule, private, why):
    training = Training(batch_size=5, private=private)
    env = make_env(model=Net(norm=False), training=training)
    steps = Steps(env.flat)
    assert steps.fixed(rule, env, rule.begin(env)) is None
    assert steps.uncaptured == {type(rule).__name__: why}


CPU = torch.device("cpu")
DROPOUT_SHAPES = {
    nn.Dropout: [(6, 5), (2, 3, 4)],
    nn.Dropout1d: [(6, 5, 4), (5, 4)],
    nn.Dropout2d: [(6, 5, 4, 3), (6, 5, 4)],
    nn.Dropout3d: [(6, 5, 4, 3, 2), (5, 4, 3, 2)],
}


def counted(*layers, clients=None):
    model = nn.Sequential(*layers)
    return model, count(model, CPU, clients)


def passed(model, draws, x, seed=3, step=1):
    draws.begin([seed], step)
    return model(x)


@pytest.mark.filterwarnings("ignore:dropout2d")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("kind", "shape"), [(k, s) for k, each in DROPOUT_SHAPES.items() for s in each]
)
def test_the_arithmetic_is_that_of_torch(kind, shape, dtype):
    """Ones pass through torch's layer and this one: what is kept has the same value and shape."""
    model, draws = counted(kind(0.3))
    x = torch.ones(shape, dtype=dtype, requires_grad=True)
    out = passed(model, draws, x)
    drops = [kind(0.3)(torch.ones(shape, dtype=dtype)) for _ in range(20)]
    values = torch.cat([d.flatten() for d in drops]).unique()
    assert torch.equal(out.detach().unique(), values)
    assert out.shape == x.shape
    assert out.dtype == dtype
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, out.detach())
    if kind is not nn.Dropout:  # whole channels, of each sample by itself
        spread = out.reshape(*shape[: 1 if shape[0] == 5 else 2], -1)
        assert (spread == spread[..., :1]).all()
        assert len(spread.unique()) == 2


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_that_is_kept(p):
    model, draws = counted(nn.Dropout(p))
    n = 40_000
    kept = (passed(model, draws, torch.ones(n)) != 0).float().mean()
    assert kept == pytest.approx(1 - p, abs=6 * math.sqrt(p * (1 - p) / n))


def test_nothing_everything_and_evaluation():
    x = torch.randn(4, 5, requires_grad=True)
    model, draws = counted(nn.Dropout(0.0), nn.Dropout(1.0))
    draws.begin([3])
    assert model[0](x) is x
    assert draws.call == 0, "nothing is drawn"
    out = model[1](x)
    assert torch.equal(out, torch.zeros(4, 5))
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], torch.zeros(4, 5))
    model.eval()
    assert model(x) is x


def test_in_place():
    outs = []
    for inplace in (False, True):
        model, draws = counted(nn.Linear(5, 5), nn.Dropout(0.4, inplace=inplace))
        nn.init.eye_(model[0].weight)
        nn.init.ones_(model[0].bias)
        h = model[0](torch.ones(3, 5))
        draws.begin([3])
        out = model[1](h)
        assert (out is h) == inplace
        outs.append((out.detach(), *torch.autograd.grad(out.sum(), model.parameters())))
    assert all(map(torch.equal, *outs))


def test_numbers_hang_on_client_step_and_call_alone():
    model, draws = counted(nn.Dropout(0.5), nn.Dropout(0.5))
    x = torch.ones(64, 4)
    before = torch.random.get_rng_state()
    draws.begin([3], step=1)
    addresses = draws.keys.data_ptr(), draws.step.data_ptr()
    first = [layer(x) for layer in model]
    draws.advance()
    second = [layer(x) for layer in model]
    another = passed(model[0], draws, x, seed=4)
    large = passed(model[0], draws, x, seed=3 + (1 << 40))
    every = [*first, *second, another, large]
    assert not any(torch.equal(a, b) for i, a in enumerate(every) for b in every[:i])
    draws.begin([3], step=2)
    assert torch.equal(model[0](x), second[0])
    assert torch.equal(model[0](x), second[1]), "the call counts, not the layer"
    assert torch.equal(passed(model[0], draws, x[:9]), first[0][:9])
    assert (draws.keys.data_ptr(), draws.step.data_ptr()) == addresses
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("vmapped", [False, True])
@pytest.mark.parametrize(
    ("kind", "shape"), [(kind, each[0]) for kind, each in DROPOUT_SHAPES.items()]
)
def test_a_client_of_a_block_draws_as_alone(kind, shape, vmapped):
    alone, own = counted(kind(0.4), kind(0.2))
    block, draws = counted(kind(0.4), kind(0.2), clients=7)
    x = torch.randn(3, *shape)
    draws.begin([11, 12, 13])
    draws.advance()
    h = x
    for layer in block:
        h = vmap(layer)(h) if vmapped else layer.forward_clients(h)
    for client, samples in enumerate((6, 4, 1)):  # the others pad the batch
        wanted = passed(alone, own, x[client, :samples], seed=11 + client)
        assert torch.equal(h[client, :samples], wanted)


def test_samples_in_vmap_draw_as_a_batch():
    """As DP-SGD has it: gradients by sample, each with a batch dimension of one."""
    model, draws = counted(nn.Linear(5, 4), nn.Dropout(0.5), nn.Dropout1d(0.5))
    params, x = dict(model.named_parameters()), torch.randn(6, 5)

    def loss(params, x):
        return functional_call(model, params, (x[None, :, None].mT,)).square().sum()

    draws.begin([3])
    got = vmap(grad(loss), in_dims=(None, 0), randomness="different")(params, x)
    draws.begin([3])
    values = model(x[:, None]).square().sum((1, 2))
    for i, value in enumerate(values):
        wanted = torch.autograd.grad(value, [*params.values()], retain_graph=True)
        for one, other in zip(got.values(), wanted, strict=True):
            torch.testing.assert_close(one[i], other)


class Checkpointed(nn.Module):
    def __init__(self, reentrant, shared=False):
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.4))
        self.second = nn.Sequential(nn.Linear(5, 5), self.first[1] if shared else nn.Dropout(0.4))

    def forward(self, x, whole=False):
        for part in (self.first, self.second):
            x = part(x) if whole else checkpoint(part, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpointing_repeats_draws_again_what_it_drew(reentrant):
    model = Checkpointed(reentrant)
    draws, x = count(model, CPU), torch.randn(8, 5, requires_grad=True)
    gradients = []
    for whole in (False, True):
        draws.begin([3])
        for _ in range(2):  # two passes in a step, as FedSAM has them
            out = model(x, whole=whole).square().sum()
            gradients += torch.autograd.grad(out, [x]) if not reentrant else []
            if reentrant:  # which knows backward alone
                x.grad = None
                out.backward()
                gradients.append(x.grad)
    torch.testing.assert_close(gradients[:2], gradients[2:], rtol=0, atol=0)
    assert not torch.equal(gradients[0], gradients[1])
