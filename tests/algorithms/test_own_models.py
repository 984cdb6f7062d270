"""Methods whose clients train the global model, and are evaluated with another one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedsim
from fedsim import algorithms
from fedsim.algorithms.ifca import Shuffled
from fedsim.client import LocalRule, MarginControl, Phase
from fedsim.client.trainer import enter
from fedsim.core.errors import ConfigError
from fedsim.core.layout import FlatModel, as_tensor
from fedsim.core.types import Layout, Slot, Training
from fedsim.testing.rounds import config, difference, rounds, small
from fedsim.training import personal
from fedsim.training.assemble import prepare
from tests.algorithms.cases import COUNTS, EXACT, PARTICIPANTS, SAMPLES, A, B, Federation
from tests.algorithms.training import (
    LR,
    TRAINING,
    assert_update,
    classification,
    context,
    scalar_env,
    tensors,
    worker,
)
from tests.oracles import losses
from tests.oracles import rounds as oracle
from tests.rounding import of_update
from tests.tasks import run, train_local

SETTINGS = {"train": {"rounds": 3, "sample_rate": 1.0, "momentum": 0.9, "weight_decay": 0.01}}


def squared_distance(params, others):
    return sum((p - q).square().sum() for p, q in zip(params, others, strict=True))


def own(made):
    """By client the bytes of its own model after the last of some rounds."""
    clients = made[-1].after.clients
    return {client: clients[client]["personal"].tobytes() for client in clients}


def models(made):
    return [r.after.params.tobytes() for r in made]


@pytest.mark.integration
def test_ditto_without_a_term_is_local_beside_fedavg():
    ditto = rounds(small("ditto", ditto={"lam": 0.0}, **SETTINGS))
    assert own(ditto) == own(rounds(small("local", **SETTINGS)))
    assert models(ditto) == models(rounds(small("fedavg", **SETTINGS)))


def test_ditto_against_its_objective_in_float64():
    # The second round: the client comes with a model of its own, and anchor and start differ.
    w = worker("ditto", "mlp", TRAINING, lam=0.5)
    sent = w.flat.vector()
    kept = sent + np.float32(0.05) * np.random.default_rng(0).normal(size=sent.shape)
    kept = kept.astype(np.float32)
    states = {1: {"personal": kept}}
    (report,), (delta,) = run(w, (1,), context(1, LR), sent, states=states)
    loss, anchor = classification(w, 1), tensors(w, sent)

    def objective(params):
        return loss(params) + 0.25 * squared_distance(params, anchor)

    assert_update(w, delta, sent, losses.gradient_of(loss))
    assert_update(w, report.state["personal"] - kept, kept, losses.gradient_of(objective))


def test_a_step_of_ditto_by_hand():
    # One step from v = w + d without data: v - lr lam (v - w) - lr g, so that two values of lam
    # differ by lr (lam' - lam) d.
    training = Training(batch_size=64, momentum=0.0, weight_decay=0.0)
    made = {}
    for lam in (1.0, 3.0):
        w = worker("ditto", "mlp", training, lam=lam)
        sent = w.flat.vector()
        (report,), _ = run(w, (0,), context(1, 0.1), sent, states={0: {"personal": sent + 1}})
        made[lam] = report.state["personal"]
    np.testing.assert_allclose(made[1.0] - made[3.0], 0.2, atol=1e-6)


@pytest.mark.integration
def test_the_clients_own_models_are_scored_kept_and_fine_tuned(tmp_path):
    settings = {"data": {"num_clients": 6, "client_test_fraction": 0.3}}
    settings["evaluation"] = {"every": 1, "clients_every": 3, "finetune_epochs": 1}
    settings["train"] = {"rounds": 3, "sample_rate": 1 / 3}
    ditto = fedsim.run(config("ditto", "mlp", **settings), tmp_path / "run")
    took_part = set(ditto.read("clients")["client_id"])
    assert 0 < len(took_part) < 6
    shared = fedsim.load_model(ditto.path).state_dict()
    for client in range(6):
        mine = fedsim.load_model(ditto.path, client=client).state_dict()
        same = all(torch.equal(mine[name], shared[name]) for name in shared)
        assert same == (client not in took_part)
    scores = ditto.read("evaluations").query("split == 'test' and round == 3")
    found = fedsim.predict(ditto.path).groupby("client_id")
    right = found.apply(lambda g: (g["label"] == g["prediction"]).mean(), include_groups=False)
    np.testing.assert_allclose(scores.set_index("client_id")["accuracy"], right, atol=1e-12)
    final = ditto.read("final_clients").set_index("client_id")
    last = ditto.read("evaluations").query("split == 'own_test' and round == 3")
    np.testing.assert_array_equal(final["loss"], last.set_index("client_id")["loss"])
    assert (final["finetuned_loss"] != final["loss"]).all()


def lost() -> algorithms.Algorithm:
    """Trains a second model that nobody keeps."""
    return algorithms.Algorithm(beside=LocalRule())


def test_a_second_training_needs_a_model_of_its_own():
    with pytest.raises(ConfigError, match="set owns_model"):
        algorithms.load(f"{__name__}:lost")


SAMPLES_PRIVATE = {"dp": {"level": "example", "clip": 1.0, "noise_multiplier": 1.0}}
USERS_PRIVATE = {"dp": {"level": "user", "clip": 1.0, "noise_multiplier": 1.0}}
MASKED = {"train": {"secure_aggregation": True}}
LATER = {"clock": {"mode": "async", "samples_per_second": "10"}, "train": {"sample_rate": 1.0}}
MORE = "more of their samples than gradients"
REFUSED = [
    *((name, SAMPLES_PRIVATE, MORE) for name in ("ditto", "apfl", "pfedme", "perfedavg", "qffl")),
    ("afl", USERS_PRIVATE, r"transforms of the cohort \(.*afl"),
    ("qffl", MASKED, r"transforms of the cohort \(.*qffl"),
    ("ifca", MASKED, r"a rule other than the mean \(.*ifca"),
    ("ifca", LATER, r"a server that mixes clients' models .*ifca"),
    ("apfl", {"train": {"momentum": 0.9}}, "clients of apfl train without momentum"),
    ("pfedme", {"train": {"optimizer": "adamw"}}, "pfedme"),
]


@pytest.mark.integration
@pytest.mark.parametrize(("name", "settings", "message"), REFUSED)
def test_what_cannot_be_combined(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        prepare(config(name, "mlp", **settings))


def followed(name, options, **settings):
    """The points after each of some rounds on quadratics, and the clients' states then."""
    federation = Federation(name, options, A, B, COUNTS, SAMPLES, **settings)
    path, states = [], []
    for cohort in PARTICIPANTS:
        path.append(federation.step(cohort))
        states.append({i: dict(state) for i, state in federation.clients.items()})
    return np.array(path), states


def test_pfedme_by_hand():
    # F = (w - 3)^2 / 2, lam = 1, personal_lr = lr = 0.5, K = 1, two batches from w = th = 0:
    # th = 1.5, w_i = 0 + 0.5 * 1.5 = 0.75; th = 1.5 - 0.5 (-1.5 + 0.75) = 1.875,
    # w_i = 0.75 + 0.5 * 1.125 = 1.3125; beta = 2: w = 2.625.
    options = {"lam": 1.0, "steps": 1, "personal_lr": 0.5, "beta": 2.0}
    federation = Federation("pfedme", options, (1.0,), (3.0,), (2,), (1,), lr=0.5)
    assert federation.run(1) == pytest.approx(2.625, rel=1e-15)
    assert federation.clients[0]["personal"].tolist() == [1.875]


@pytest.mark.parametrize(("k", "beta", "decay"), [(1, 1.0, 0.0), (5, 1.0, 0.1), (3, 0.5, 0.1)])
def test_pfedme_oracle(k, beta, decay):
    options = {"lam": 2.0, "steps": k, "personal_lr": 0.2, "beta": beta}
    path, states = followed("pfedme", options, weight_decay=decay)
    wanted, own_models = oracle.pfedme(
        A, B, PARTICIPANTS, COUNTS, SAMPLES, 0.1, 2.0, k, 0.2, beta, decay
    )
    np.testing.assert_allclose(path, wanted, **EXACT)
    for kept, models in zip(states, own_models, strict=True):
        for client, model in models.items():
            np.testing.assert_allclose(kept[client]["personal"], model, **EXACT)


def test_exact_steps_of_pfedme_are_gradients_of_the_moreau_envelope():
    # min_th F(th) + lam/2 (th - w)^2 = c/2 (w - b)^2 + const with c = a lam / (a + lam)
    options = {"lam": 3.0, "steps": 25, "personal_lr": 0.2}
    federation = Federation("pfedme", options, A, B, (1, 1, 1, 1), SAMPLES, lr=0.8)
    c, p = 3.0 * A / (A + 3.0), np.array(SAMPLES) / sum(SAMPLES)
    first = -0.8 * (p[:, None] * c * (0 - B)).sum(axis=0)
    np.testing.assert_allclose(federation.step(), first, rtol=0, atol=1e-9)
    th = A[2] * B[2] / (A[2] + 3.0)
    np.testing.assert_allclose(federation.clients[2]["personal"], th, rtol=0, atol=1e-9)


def test_apfl_by_hand():
    # F = (w - 3)^2 / 2, w = 0, v = 2, alpha = 1/2, lr = 0.1: vbar = 1 and grad F(vbar) = -2, so
    # w_i = 0.3, v = 2 + 0.1 * 0.5 * 2 = 2.1, alpha = 0.5 + 0.1 * 2 * 2 = 0.9, vbar = 1.92.
    federation = Federation("apfl", {"adaptive": True}, (1.0,), (3.0,), (1,), (1,))
    federation.clients[0] = {"v": np.array([2.0])}
    assert federation.run(1) == pytest.approx(0.3, rel=1e-15)
    kept = federation.clients[0]
    found = [kept[name].item() for name in ("v", "alpha", "personal")]
    assert found == pytest.approx([2.1, 0.9, 1.92], rel=1e-14)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_apfl_oracle(alpha, adaptive):
    path, states = followed("apfl", {"alpha": alpha, "adaptive": adaptive}, weight_decay=0.05)
    wanted, kept = oracle.apfl(A, B, PARTICIPANTS, COUNTS, SAMPLES, 0.1, alpha, adaptive, 0.05)
    np.testing.assert_allclose(path, wanted, **EXACT)
    for found, expected in zip(states, kept, strict=True):
        for client, (v, share, mixed) in expected.items():
            np.testing.assert_allclose(found[client]["v"], v, **EXACT)
            np.testing.assert_allclose(found[client]["alpha"], share, **EXACT)
            np.testing.assert_allclose(found[client]["personal"], mixed, **EXACT)
            assert 0 <= share <= 1
    assert (alpha == 0.3 and adaptive) == (len({float(s[1]["alpha"][0]) for s in states}) > 2)


PLAIN = {"train": {"rounds": 2, "sample_rate": 1.0, "momentum": 0.0}}


@pytest.mark.integration
def test_apfl_is_fedavg_beside_its_own_models_which_alone_are_local():
    mixed = rounds(small("apfl", apfl={"alpha": 1.0}, **PLAIN))
    assert models(mixed) == models(rounds(small("fedavg", **PLAIN)))
    P = prepare(small("apfl", **PLAIN)).layout.num_params  # v trains by the statistics of w_i
    alone = rounds(small("local", **PLAIN))[0].after.clients
    start = mixed[0].before.params[:P]
    for client, state in mixed[0].after.clients.items():
        moved = alone[client]["personal"][:P] - start
        error = of_update(np.float32, np.linalg.norm(moved), np.linalg.norm(start), 2, 500)
        assert np.linalg.norm(state["v"] - start - moved) <= error
        np.testing.assert_array_equal(state["personal"][:P], state["v"])


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_perfedavg_on_quadratics(variant):
    # grad F(w - alpha grad F(w)) = a (1 - alpha a) (w - b), and for a quadratic the difference of
    # gradients is a times g: one more factor (1 - alpha a).
    powers = 1 - 0.3 * A
    scale = A * (powers if variant == "fo" else powers**2)
    path, _ = followed("perfedavg", {"alpha": 0.3, "variant": variant, "delta": 0.1})
    w, wanted = np.zeros(3), []
    for cohort in PARTICIPANTS:
        ends = [oracle.gradient_steps(w, scale[i], B[i], 0.1, COUNTS[i]) for i in cohort]
        w = np.average(ends, axis=0, weights=[SAMPLES[i] for i in cohort])
        wanted.append(w)
    np.testing.assert_allclose(path, wanted, **EXACT)


def test_a_client_of_perfedavg_is_scored_after_one_step():
    federation = Federation("perfedavg", {"alpha": 0.3}, A, B, COUNTS, SAMPLES, weight_decay=0.2)
    federation.w = np.array([1.0, -2.0, 0.5])
    env = federation.env(1, context())
    train_local(federation.algorithm.personalise, env)
    wanted = federation.w - 0.3 * A[1] * (federation.w - B[1])
    np.testing.assert_allclose(federation.flat.vector(), wanted, **EXACT)


def network():
    """A network in float64, its environment and a batch of 7 samples."""
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    env = scalar_env(0.0, 1, 0.1)
    env.flat = FlatModel(net.double(), torch.device("cpu"), torch.float64)
    env.start, env.criterion, env.params = as_tensor(env.flat.vector()), MarginControl(), []
    enter(env, Phase(0, 0.0))
    return env, torch.randn(7, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 1, 2])


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_the_parts_of_a_batch_and_the_second_derivatives_of_perfedavg(variant):
    # 7 samples: parts of 3 (fo) or 2 (hf), the rest is left out. The Hessian is torch's own.
    env, x, y = network()
    rule = algorithms.load("perfedavg", {"alpha": 0.2, "variant": variant, "delta": 1e-4}).local
    objective, logged = rule.loss(env, None, x, y)
    found = torch.cat([g.flatten() for g in torch.autograd.grad(objective, env.params)])
    size = 3 if variant == "fo" else 2

    def loss(flat, part):
        w1, b1, w2, b2 = flat.split([20, 5, 15, 3])
        some = slice(part * size, (part + 1) * size)
        logits = torch.tanh(x[some] @ w1.view(5, 4).T + b1) @ w2.view(3, 5).T + b2
        return torch.nn.functional.cross_entropy(logits, y[some])

    def gradient(at, part):
        return torch.autograd.grad(loss(at, part), at, create_graph=True)[0]

    w = env.start.clone().requires_grad_()
    wanted = gradient(w - 0.2 * gradient(w, 0), 1).detach()
    if variant == "hf":
        (curved,) = torch.autograd.grad(gradient(w, 2) @ wanted, w)
        wanted = wanted - 0.2 * curved
    # the difference of gradients is off by delta^2 times third derivatives of order 1
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12 if variant == "fo" else 1e-7)
    assert logged.item() == pytest.approx(loss(w, 0).item(), rel=1e-12)
    short = rule.loss(env, None, x[:3], y[:3])[0]  # fewer than two samples for a part
    assert torch.isfinite(short)


@pytest.mark.integration
def test_perfedavg_without_an_inner_step_is_fedavg():
    settings = {"perfedavg": {"alpha": 0.0}, **SETTINGS}
    made, wanted = rounds(small("perfedavg", **settings)), rounds(small("fedavg", **SETTINGS))
    assert models(made) == models(wanted)


HELD_OUT = {"data": {"num_clients": 6, "client_test_fraction": 0.3, "heldout_clients": 2}}
HELD_OUT["evaluation"] = {"every": 1, "finetune_epochs": 1}
HELD_OUT["train"] = {"rounds": 2, "sample_rate": 0.5}


@pytest.mark.integration
@pytest.mark.parametrize("name", ["perfedavg", "ifca"])
def test_models_that_are_made_to_be_scored_are_those_that_a_run_leaves(name, tmp_path):
    # Clients that took no part and those that were held out have models of their own, too.
    store = fedsim.run(config(name, "mlp", **{name: {}}, **HELD_OUT), tmp_path / "run")
    shared = fedsim.load_model(store.path).state_dict()
    own_models = [fedsim.load_model(store.path, client=c).state_dict() for c in range(6)]
    apart = [any(not torch.equal(m[k], shared[k]) for k in shared) for m in own_models]
    assert all(apart) if name == "perfedavg" else len(own_models) == 6
    final = store.read("final_clients").set_index("client_id")
    assert final["held_out"].sum() == 2
    found = fedsim.predict(store.path, split="own_test")
    right = (found["label"] == found["prediction"]).groupby(found["client_id"]).mean()
    own_clients = final.loc[right.index]
    np.testing.assert_allclose(own_clients["accuracy"], right, atol=1e-12)
    assert fedsim.verify(store.path, rounds=2).verified


@pytest.mark.integration
def test_scoring_changes_nothing_of_a_run(monkeypatch):
    often = small("perfedavg", **SETTINGS)
    never = small("perfedavg", evaluation={"every": 0}, **SETTINGS)
    made = rounds(often)
    assert models(made) == models(rounds(never))
    # one client at a time, and no model kept
    for name in ("MEMORY", "FEWEST"):
        monkeypatch.setattr(personal, name, 1)
    again = [r.content() for r in rounds(often)]
    assert difference([r.content() for r in made], again, "models made one by one") is None


@pytest.mark.integration
def test_ifca_of_one_cluster_is_fedavg():
    settings = {"ifca": {"clusters": 1}, **SETTINGS}
    made = rounds(small("ifca", **settings))
    assert models(made) == models(rounds(small("fedavg", **SETTINGS)))
    assert all("server" not in r.tables for r in made)


def clustered(starts, **settings):
    """IFCA on quadratics, from these models (k, d)."""
    federation = Federation(
        "ifca", {"clusters": len(starts)}, A, B, COUNTS, SAMPLES, w=starts[0], **settings
    )
    federation.downlink = {"models": np.array(starts[1:])}
    federation.state = replace(federation.state, exchange=federation.downlink)
    return federation


@pytest.mark.parametrize("seed", range(4))
def test_ifca_oracle(seed):
    starts = np.random.default_rng(seed).normal(size=(3, 3))
    federation, path = clustered(starts), []
    for cohort in PARTICIPANTS:
        federation.step(cohort)
        path.append([federation.w, *federation.downlink["models"]])
    wanted, groups = oracle.ifca(A, B, PARTICIPANTS, COUNTS, SAMPLES, 0.1, starts)
    np.testing.assert_allclose(path, wanted, **EXACT)
    assert {j for g in groups for j in g} != {0}


def test_a_cluster_that_nobody_chooses_stays_and_the_first_of_equal_models_counts():
    far, same = np.full(3, 50.0), np.zeros(3)
    federation = clustered([far, same, same])
    federation.step()
    np.testing.assert_array_equal(federation.w, far)
    assert not np.array_equal(federation.downlink["models"][0], same)
    np.testing.assert_array_equal(federation.downlink["models"][1], same)


def test_the_other_models_of_ifca_start_as_shuffles_of_the_first():
    slots = (
        Slot(name="a.weight", shape=(10,), start=0, stop=10),
        Slot(name="head", shape=(6,), start=10, stop=16, head=True),
        Slot(name="a.running_mean", shape=(3,), start=16, stop=19, role="stat"),
    )
    layout, first = Layout(slots), np.arange(19.0, dtype=np.float32)
    for tensors_, moved in (("all", [True, True, False]), ("head", [False, True, False])):
        others = Shuffled(3, tensors_)(first, layout, 5)
        np.testing.assert_array_equal(others, Shuffled(3, tensors_)(first, layout, 5))
        assert others.shape == (2, 19)
        for model in others:
            apart = [not np.array_equal(model[s.where], first[s.where]) for s in slots]
            assert apart == moved
            assert all(set(model[s.where]) == set(first[s.where]) for s in slots)
        assert not np.array_equal(others[0], others[1])
