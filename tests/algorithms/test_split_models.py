"""Methods whose clients share some layers and keep the others, or mix models of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedsim
from fedsim import algorithms
from fedsim.algorithms import fedrod, knnper
from fedsim.algorithms.base import Layers
from fedsim.client import Phase
from fedsim.client.trainer import enter
from fedsim.core.errors import ConfigError
from fedsim.core.layout import FlatModel, as_tensor, select
from fedsim.core.types import Slot
from fedsim.engine.worker import Worker
from fedsim.models.vision import SplitModel
from fedsim.testing.rounds import config, rounds, small
from fedsim.training.assemble import prepare
from tests.algorithms.cases import Quadratic
from tests.algorithms.training import context, scalar_env, train, worker
from tests.oracles import losses
from tests.rounding import of_update, sgd_operations
from tests.tasks import run, train_local

SPLIT = ("fedper", "lgfedavg", "fedrep", "fedbabu")
BODY, HEAD = (0, 1), (2, 3)
"""The tensors of an MLP: weight and bias of the hidden layer, and of the head."""


class Product(nn.Module):
    """Two numbers: logits ``h phi`` for every sample."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

    def features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.features(x))


def wide_head(num_classes, in_channels, image_size):
    """A model whose head is no linear layer."""
    model = SplitModel(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))
    model.features = nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, 5))
    model.head = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, num_classes))
    return model


def whole(num_classes, in_channels, image_size):
    """A model without features and head."""
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))


WIDE_HEAD, WHOLE = f"{__name__}:wide_head", f"{__name__}:whole"


def product(start, state=None):
    """A client of :class:`Product`, from ``start``, h and phi, at (f - 1)^2 / 2; their places."""
    flat = FlatModel(Product(), torch.device("cpu"), torch.float64)
    places = {slot.name: slot.start for slot in flat.layout.slots}
    order = [places["head.weight"], places["body.weight"]]
    vector = np.zeros(2)
    vector[order] = start
    flat.load(as_tensor(vector))
    env = scalar_env(0.0, 1, 0.1)
    env.flat, env.start, env.state = flat, as_tensor(vector), state or {}
    env.x, env.train, env.test = torch.ones(1, 1), torch.Tensor.double, torch.Tensor.double
    env.criterion = Quadratic(torch.ones(1), torch.ones(1))
    return env, order


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        # gradients (h phi - 1) (phi, h) at h = 1, phi = 2: (2, 1), so h = 0.8 and phi = 1.9
        ("fedper", (0.8, 1.9)),
        ("lgfedavg", (0.8, 1.9)),
        # then the body with h = 0.8: (1.6 - 1) 0.8 = 0.48, phi = 2 - 0.048
        ("fedrep", (0.8, 1.952)),
        ("fedbabu", (1.0, 1.9)),
    ],
)
def test_an_epoch_by_hand(name, ends):
    env, order = product((1.0, 2.0))
    options = {"head_epochs": 1} if name == "fedrep" else {}
    train_local(algorithms.load(name, options).local, env)
    np.testing.assert_allclose(env.flat.vector()[order], ends, rtol=1e-14)


def test_layers_by_module_and_by_name():
    conv = Slot(name="features.3.weight", shape=(1,), start=0, stop=1)
    last = Slot(name="fc.weight", shape=(1,), start=1, stop=2, head=True)
    chosen = {
        names: (Layers(names)(conv), Layers(names)(last))
        for names in ("head", "features.3.*", "head, features.*", "fc.*", "*", "other")
    }
    assert chosen == {
        "head": (False, True),
        "features.3.*": (True, False),
        "head, features.*": (True, True),
        "fc.*": (False, True),
        "*": (True, True),
        "other": (False, False),
    }
    assert (Layers("head", others=True)(conv), Layers("head", others=True)(last)) == (True, False)


@pytest.mark.parametrize(
    ("name", "layers", "limit"),
    [
        ("fedper", "*", "local"),
        ("fedper", "none", "fedavg"),
        ("lgfedavg", "*", "fedavg"),
        ("lgfedavg", "none", "local"),
    ],
)
def test_all_or_no_layers_are_local_or_fedavg_byte_for_byte(name, layers, limit):
    reports, deltas = train(worker(name, layers=layers))
    expected, wanted = train(worker(limit))
    np.testing.assert_array_equal(deltas, wanted)
    for report, other in zip(reports, expected, strict=True):
        assert report.state.keys() == other.state.keys()
        for key, array in other.state.items():
            np.testing.assert_array_equal(report.state[key], array)


def test_fedrep_without_head_epochs_is_fedbabu_byte_for_byte():
    reports, deltas = train(worker("fedrep", head_epochs=0))
    others, expected = train(worker("fedbabu"))
    np.testing.assert_array_equal(deltas, expected)
    w = worker("fedbabu")
    head = w.flat.vector()[select(w.flat.layout, lambda slot: slot.head)]
    for report in (*reports, *others):
        np.testing.assert_array_equal(report.state["personal"], head)


STEPS, LR, MOMENTUM, DECAY = 2, 0.2, 0.5, 0.01
SETTINGS = {
    "rounds": 3, "sample_rate": 1.0, "batch_size": 50, "local_epochs": STEPS, "lr": LR,
    "momentum": MOMENTUM, "weight_decay": DECAY,
}  # fmt: skip
"""Full batches, so that the order of samples is only a matter of rounding."""
PHASES = {
    "fedper": [(STEPS, BODY + HEAD)],
    "lgfedavg": [(STEPS, BODY + HEAD)],
    "fedrep": [(3, HEAD), (STEPS, BODY)],
    "fedbabu": [(STEPS, BODY)],
}
KEPT = {"fedper": HEAD, "lgfedavg": BODY, "fedrep": HEAD, "fedbabu": HEAD}


def clients_of(setup):
    """Each client's inputs (n, 64) and labels (n,) in float64, as the model sees them."""
    pipeline, found = setup.dataset.pipeline, []
    for index in setup.partition.train:
        x = torch.from_numpy(setup.dataset.x[index].reshape(len(index), -1)).double() / 255
        x = (x - pipeline.mean[0]) / pipeline.std[0]
        found.append((x, torch.from_numpy(setup.dataset.y[index])))
    return found


def tensors(setup, vector):
    return [
        torch.from_numpy(np.array(vector[s.where], np.float64).reshape(s.shape))
        for s in setup.layout.slots
    ]


def flat(parts):
    return torch.cat([part.flatten() for part in parts]).numpy()


def cross_entropy(x, y):
    return lambda params: losses.mean_cross_entropy(losses.network(params, x)[1], y)


def compared(settings, compute, steps, objective=cross_entropy):
    """The states of the clients after a run, what was computed for them, and the error allowed.

    ``compute`` gives the shared tensors, which are compared here, and what the clients keep from
    the start, the clients' objectives, and their numbers of samples.
    """
    setup, last = prepare(settings), rounds(settings)[-1].after
    clients, start = clients_of(setup), tensors(setup, setup.initial)
    objectives = [objective(x, y) for x, y in clients]
    shared, *own = compute(start, objectives, [len(y) for _, y in clients])
    length, size = np.linalg.norm(flat(shared) - flat(start)), np.linalg.norm(flat(start))
    error = of_update(np.float32, length, size, steps, sgd_operations(steps, 2, 64))
    assert error < 1e-3 * length
    assert np.linalg.norm(last.params - flat(shared)) <= error
    states = [last.clients[client] for client in range(len(clients))]
    return [(state, *made) for state, *made in zip(states, *own, strict=True)], error


@pytest.mark.integration
@pytest.mark.parametrize("name", SPLIT)
def test_three_rounds_against_an_independent_computation(name):
    options = {"fedrep": {"head_epochs": 3}} if name == "fedrep" else {}
    settings, kept = small(name, "mlp", train=SETTINGS, **options), KEPT[name]

    def compute(*given):
        return losses.split_rounds(*given, 3, PHASES[name], kept, LR, MOMENTUM, DECAY)

    made, error = compared(settings, compute, 3 * sum(n for n, _ in PHASES[name]))
    for state, parts in made:
        assert np.linalg.norm(state["personal"] - flat([parts[k] for k in kept])) <= error


def test_balanced_softmax_by_hand():
    # logits (0, 0, 5), counts (3, 1, 0): e^f n = (3, 1, 0), so log 4/3 for class 0, log 4 for 1
    prior = torch.tensor([3.0, 1.0, 0.0]).log().clamp(min=fedrod.ABSENT)
    logits = torch.tensor([[0.0, 0.0, 5.0]]).expand(2, 3)
    found = fedrod.balanced(logits, torch.tensor([0, 1]), prior)
    np.testing.assert_allclose(found, np.log([4 / 3, 4.0]), rtol=1e-6)


@pytest.mark.integration
def test_three_rounds_of_fedrod_against_an_independent_computation():
    settings = small("fedrod", "mlp", train=SETTINGS, data={"partition": "dirichlet"})
    setup = prepare(settings)
    names = [slot.name.partition(".")[2] for slot in setup.layout.slots[2:]]
    assert names == ["generic.weight", "generic.bias", "personal.weight", "personal.bias"]
    assert not np.any(setup.initial[setup.layout.slots[4].start :])

    def objective(x, y):
        y = y.numpy()
        counts = np.bincount(y, minlength=10)
        assert counts.min() == 0  # classes that are absent
        present = np.flatnonzero(counts)
        prior = torch.from_numpy(np.log(counts[present]))
        labels = torch.from_numpy(np.searchsorted(present, y))

        def loss(params):
            z, generic = losses.network(params, x)
            fixed = generic.detach() + z.detach() @ params[4].T + params[5]
            balanced = losses.mean_cross_entropy(generic[:, present] + prior, labels)
            return balanced + losses.mean_cross_entropy(fixed, torch.from_numpy(y))

        return loss

    def compute(*given):
        everything = [(STEPS, tuple(range(6)))]
        return losses.split_rounds(*given, 3, everything, (4, 5), LR, MOMENTUM, DECAY)

    made, error = compared(settings, compute, 3 * STEPS, objective)
    for state, parts in made:
        assert np.linalg.norm(state["personal"] - flat(parts[4:])) <= error
        assert np.linalg.norm(flat(parts[4:])) > 100 * error


@pytest.mark.integration
def test_fedrod_without_balanced_softmax_has_the_global_model_of_fedavg_byte_for_byte():
    ends = [
        rounds(small(name, "cnn", **options))[-1].after.params
        for name, options in (("fedavg", {}), ("fedrod", {"fedrod": {"balanced": False}}))
    ]
    layout = prepare(small("fedrod", "cnn")).layout
    generic = select(layout, lambda slot: not slot.name.startswith("head.personal."))
    np.testing.assert_array_equal(ends[1][generic], ends[0])
    assert np.all(ends[1][~generic] == 0)


@pytest.mark.integration
def test_margin_control_leaves_the_generic_part_of_fedrod():
    ends = [
        rounds(small("fedrod", "mlp").model_copy(update={"margin": margin}))[-1].after
        for margin in ("none", "spectral")
    ]
    np.testing.assert_array_equal(ends[0].params, ends[1].params)
    assert any(
        not np.array_equal(kept["personal"], ends[1].clients[client]["personal"])
        for client, kept in ends[0].clients.items()
    )


@pytest.mark.parametrize(
    ("eta", "kept", "head", "weight"),
    [
        # own head 0, received 2, phi = 1: at weight 1 the loss is (2 - 1)^2 / 2 with slope 1, and
        # 1 - 0.25 * 1 * (2 - 0) = 0.5 gives h = 1, whose slope is 0.
        (0.25, {}, 1.0, 0.5),
        # A rate of 1 cuts 1 - 2 to 0, then 0 + 2 to 1, and so on: 11 passes, all with loss 1 / 2.
        (1.0, {}, 0.0, 0.0),
        # Later one pass is made, from the weight that was kept: h = 0.5, slope -0.5.
        (0.25, {"weights": np.array([0.25])}, 1.0, 0.5),
        (0.1, {"weights": np.array([0.25])}, 0.7, 0.35),
        (0.0, {}, 2.0, 1.0),
        (0.0, {"weights": np.array([0.0])}, 0.0, 0.0),
    ],
)
def test_the_mixture_of_fedala_by_hand(eta, kept, head, weight):
    env, order = product((2.0, 1.0), state={"own": np.array([0.0]), **kept})
    enter(env, Phase(0, 0.0))
    found = algorithms.load("fedala", {"eta": eta}).local.begin(env)
    np.testing.assert_allclose(found, [weight], rtol=1e-14)
    np.testing.assert_allclose(env.flat.vector()[order], [head, 1.0], rtol=1e-14)


@pytest.mark.integration
def test_four_rounds_of_fedala_against_an_independent_computation():
    settings = small(
        "fedala", "mlp", train=SETTINGS | {"rounds": 4}, fedala={"share": 1.0, "layers": "head"}
    )

    def compute(*given):
        return losses.fedala_rounds(*given, 4, STEPS, HEAD, 1.0, LR, MOMENTUM, DECAY)

    made, error = compared(settings, compute, 4 * (STEPS + 1))
    for state, parts, weights in made:
        assert np.linalg.norm(state["own"] - flat(parts)) <= error
        assert flat(weights).min() < 1 - 1e-3  # some have moved
        # a weight's step is eta times gradient times difference of layers, of error each
        np.testing.assert_allclose(state["weights"], flat(weights), rtol=0, atol=error)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("fedala", "eta", 0.0), ("fedala", "layers", "none"), ("knnper", "weight", 0.0)],
)
def test_without_a_mixture_it_is_fedavg(name, key, value):
    one, other = rounds(small(name, **{name: {key: value}}))[-1], rounds(small("fedavg"))[-1]
    np.testing.assert_array_equal(one.after.params, other.after.params)
    for column in ("test_accuracy", "test_loss"):
        assert one.row[column] == pytest.approx(other.row[column], rel=1e-12)


@pytest.mark.integration
def test_fedala_is_scored_by_the_mixture_that_its_client_would_train_from():
    settings = small("fedala", "mlp")
    made = rounds(settings)[-1]
    w, state = Worker(prepare(settings).spec, torch.device("cpu")), made.after
    client = made.clients[0]
    kept = {client: state.clients[client]}
    scored, _ = run(w, (client,), context(3), state.params, states=kept, work="personalise")
    _, (delta,) = run(w, (client,), context(3, lr=0.0), state.params, states=kept)
    assert np.abs(delta).max() > 0
    np.testing.assert_array_equal(scored[0].state["personal"] - state.params, delta)


NEAR = knnper.Neighbours(k=2, weight=0.5, scale=1.0, distance="squared")


@pytest.mark.parametrize(
    ("changes", "shares"),
    [
        # features (0, 0), keys (0, 0), (2, 0), (9, 9) of classes 0, 2, 2: squared distances 0, 4
        # over two features are 0, 2; of them e^-d are 1 and e^-2
        ({}, (1.0, 0.0, np.exp(-2.0))),
        ({"scale": 0.5}, (1.0, 0.0, np.exp(-4.0))),
        ({"distance": "euclidean"}, (1.0, 0.0, np.exp(-2.0))),
        ({"distance": "euclidean", "scale": 4.0}, (1.0, 0.0, np.exp(-0.5))),
        ({"k": 1}, (1.0, 0.0, 0.0)),
        ({"k": 7}, (1.0, 0.0, np.exp(-2.0) + np.exp(-81.0))),
    ],
)
def test_shares_of_neighbours_by_hand(changes, shares):
    keys = torch.tensor([[0.0, 0.0], [2.0, 0.0], [9.0, 9.0]], dtype=torch.float64)
    h = torch.zeros(1, 2, dtype=torch.float64)
    found = replace(NEAR, **changes).shares(h, keys, torch.tensor([0, 2, 2]), 3)
    np.testing.assert_allclose(found, [np.array(shares) / sum(shares)], rtol=1e-13)


@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("distance", ["squared", "euclidean"])
def test_shares_of_neighbours_against_an_independent_computation(k, distance):
    rng = np.random.default_rng(k)
    h, keys, labels = rng.normal(size=(30, 6)), rng.normal(size=(25, 6)), rng.integers(0, 4, 25)
    near = knnper.Neighbours(k=k, weight=0.5, scale=0.7, distance=distance)
    found = near.shares(*map(torch.from_numpy, (h, keys, labels)), 5)
    wanted = losses.neighbours(h, keys, labels, 5, k, 0.7, distance)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-15)


def test_the_mixture_with_neighbours_by_hand():
    # logits (0, log 3) are (1/4, 3/4); the neighbour says class 0: half of each (5/8, 3/8)
    model = SplitModel(nn.Identity(), nn.Identity())
    kept = {"keys": torch.zeros(1, 2), "labels": torch.tensor([0])}
    x = torch.tensor([[0.0, np.log(3.0)]], dtype=torch.float32)
    np.testing.assert_allclose(NEAR(model, kept, x).exp(), [[5 / 8, 3 / 8]], rtol=1e-6)
    assert NEAR(model, {}, x) is x
    alone = replace(NEAR, weight=1.0)(model, kept, x)
    assert alone[0, 0] == 0
    assert torch.isfinite(alone).all()


NEAREST = {"k": 1, "weight": 1.0}
"""So that clients are right on their own training samples, which are their own neighbours."""


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory):
    """A run of kNN-Per with two held-out clients."""
    sections = {"data": {"heldout_clients": 2}, "evaluation": {"clients_every": 3}}
    settings = config("knnper", "mlp", knnper=NEAREST, **sections)
    return fedsim.run(settings, tmp_path_factory.mktemp("knnper") / "run")


@pytest.mark.integration
def test_every_client_is_scored_with_its_own_neighbours(neighbours):
    own = neighbours.read("evaluations").query("split == 'own_train'")
    assert len(own) == 6
    assert (own["accuracy"] == 1).all()
    held_out = neighbours.read("final_clients")
    assert held_out["held_out"].sum() == 2
    assert (held_out["accuracy"] == 1).all()


@pytest.mark.integration
def test_predictions_have_the_neighbours_too(neighbours):
    found = fedsim.predict(neighbours.path)
    right = (found["label"] == found["prediction"]).groupby(found["client_id"]).mean()
    table = neighbours.read("evaluations").query("split == 'test'").set_index("client_id")
    assert right.to_dict() == pytest.approx(table["accuracy"].to_dict(), rel=1e-12)
    assert right.nunique() > 1
    for given in ({"data_dir": "new"}, {"images": "new.png"}):
        with pytest.raises(ConfigError, match="depend on the clients' training samples"):
            fedsim.predict(neighbours.path, **given)


@pytest.mark.parametrize(
    ("name", "model", "options", "message"),
    [
        ("fedper", "logistic", {}, r"keep all trained layers, or none"),
        ("fedper", "mlp", {"layers": "*"}, r"makes it local or fedavg by another name"),
        ("lgfedavg", "mlp", {"layers": "heads"}, r"makes it local or fedavg by another name"),
        ("fedrep", "logistic", {}, r"a model without features and head"),
        ("fedbabu", "logistic", {}, r"a model without features and head"),
        ("fedrod", "logistic", {}, r"a model without features and head"),
        ("knnper", WHOLE, {}, r"predictions by features .* a model without features\(x\)"),
        ("fedrod", WIDE_HEAD, {}, r"a residual head stands beside a linear layer 'head'"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused(name, model, options, message):
    given = {name: options} if options else {}
    with pytest.raises(ConfigError, match=message):
        prepare(fedsim.RunConfig(algorithm=name, model={"name": model}, **given))


@pytest.mark.parametrize("name", SPLIT)
def test_whose_models_are_scored(name):
    setup = prepare(fedsim.RunConfig(algorithm=name))
    assert setup.personalised == (name != "fedbabu")
    body = sum(s.stop - s.start for s in setup.layout.slots if s.role == "param" and not s.head)
    head = setup.layout.num_params - body
    assert setup.num_sent == (head if name == "lgfedavg" else body)


@pytest.mark.parametrize("evaluation", [{"decompose_every": 1}, {"personal": "cohort_after"}])
def test_models_without_neighbours_are_not_compared_with_those_that_have_them(evaluation):
    with pytest.raises(ConfigError, match="which takes models without their neighbours"):
        prepare(fedsim.RunConfig(algorithm="knnper", evaluation=evaluation))
